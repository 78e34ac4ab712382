//! Shows that the models can fail: breaks one step of the real code at a time, in a copy, and runs
//! the models that are to catch it. What is broken stands in `breaks.txt`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fs, io};

/// One step of the code, and what becomes of it.
struct Break<'a> {
    /// What the change does, in words.
    says: &'a str,
    /// Words of the names of the models that are to fail.
    models: &'a str,
    file: &'a str,
    before: String,
    after: String,
}

/// Paragraphs of three lines (what it says, models, file) and a change, as `diff` writes one.
fn parse(text: &str) -> Vec<Break<'_>> {
    let paragraphs = text.split("\n\n").map(str::trim_end);
    let those = paragraphs.filter(|it| !it.is_empty() && !it.starts_with('#'));
    those
        .map(|it| parse_one(it).unwrap_or_else(|| panic!("not a break:\n{it}")))
        .collect()
}

fn parse_one(paragraph: &str) -> Option<Break<'_>> {
    let mut lines = paragraph.lines();
    let (says, models, file) = (lines.next()?, lines.next()?, lines.next()?);
    let (mut before, mut after) = (String::new(), String::new());
    for line in lines {
        let (mark, line) = line.split_at_checked(1)?;
        let into = match mark {
            "-" => &mut before,
            "+" => &mut after,
            _ => return None,
        };
        into.push_str(line);
        into.push('\n');
    }
    (!before.is_empty()).then_some(Break {
        says,
        models,
        file,
        before,
        after,
    })
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let to = to.join(&name);
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

/// Whether cargo ends well.
fn cargo(root: &Path, arguments: &[&str]) -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "-p", "fabric-models", "--test", "models"])
        .args(arguments)
        // What does not change is built once, for the workspace and its copy.
        .env("CARGO_TARGET_DIR", root.with_file_name(""))
        .current_dir(root);
    command.output().is_ok_and(|output| output.status.success())
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let workspace = manifest.parent().expect("the workspace");
    let copied = workspace.join("target").join("broken");
    copy(workspace, &copied).expect("a copy of the workspace");
    let text = fs::read_to_string(manifest.join("breaks.txt")).expect("breaks.txt");
    let mut missed = 0;
    for it in parse(&text) {
        let name = format!("{}: {}", it.models, it.says);
        if !words.iter().all(|word| name.contains(word.as_str())) {
            continue;
        }
        let begun = Instant::now();
        let path = copied.join(it.file);
        let whole = fs::read_to_string(&path).expect("a source file");
        let places = whole.matches(&it.before).count();
        assert_eq!(
            places, 1,
            "{name}: so often the code to be broken stands there"
        );
        fs::write(&path, whole.replace(&it.before, &it.after)).expect("a change");
        let builds = cargo(&copied, &["--no-run"]);
        let mut run = vec!["--"];
        run.extend(it.models.split_whitespace());
        let is_caught = builds && !cargo(&copied, &run);
        fs::write(&path, whole).expect("the file as it was");
        missed += usize::from(!is_caught);
        let result = match (builds, is_caught) {
            (true, true) => "caught",
            (true, false) => "MISSED",
            (false, _) => "does not build",
        };
        println!("{result} in {:.0} s: {name}", begun.elapsed().as_secs_f64());
    }
    assert_eq!(missed, 0, "models that pass over broken code");
}
