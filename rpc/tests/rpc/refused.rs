//! What `#[service]` refuses is refused where it is written: the programs in `tests/refused` are
//! compiled against the library that this test was built with, and each line above a `//~` has the
//! error that it names, at the token that it names.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What the compiler says about a program: line, the text at the error's place, what is said.
/// `None`: the program is fine.
fn compile(program: &str, library: &Path) -> Option<Vec<(u64, String, String)>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/refused")
        .join(program);
    let out = std::env::temp_dir().join(format!("refused-{}-{program}.rmeta", std::process::id()));
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let ran = Command::new(compiler)
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .args(["--error-format", "json", "-o"])
        .arg(&out)
        .arg("-L")
        .arg(format!(
            "dependency={}",
            library.parent().unwrap().display()
        ))
        .arg("--extern")
        .arg(format!("tokio_fabric_rpc={}", library.display()))
        .arg(source)
        .output()
        .expect("the compiler runs");
    // What was never made need not be removed.
    let _ = std::fs::remove_file(out);
    if ran.status.success() {
        return None;
    }
    let said = String::from_utf8(ran.stderr).expect("it is text");
    let said = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let errors = said
        .filter(|it| it["level"] == "error")
        .filter_map(|error| {
            let spans = error["spans"].as_array()?;
            let at = spans.iter().find(|it| it["is_primary"] == true)?;
            let column = |name: &str| at[name].as_u64().map(|it| it as usize - 1);
            let line = at["text"][0]["text"].as_str()?;
            let (begin, end) = (column("column_start")?, column("column_end")?);
            let text: String = line.chars().take(end).skip(begin).collect();
            Some((
                at["line_start"].as_u64()?,
                text,
                error["message"].as_str()?.to_owned(),
            ))
        });
    Some(errors.collect())
}

/// The library's file that a program without a mistake can be compiled against: of those beside
/// this test, which were built with other features or by another compiler, not all can be used.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("it has a path");
    let folder = test.parent().expect("it is in a folder");
    let files = std::fs::read_dir(folder).expect("it can be read");
    let mut files: Vec<_> = files.map(|it| it.expect("it can be read").path()).collect();
    files.retain(|it| {
        let name = it
            .file_name()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        name.starts_with("libtokio_fabric_rpc-") && name.ends_with(".rlib")
    });
    files.sort_by_key(|it| std::fs::metadata(it).and_then(|it| it.modified()).ok());
    let newest_first = files.into_iter().rev();
    let fits = |library: &PathBuf| compile("good.rs", library).is_none();
    let found = newest_first.take(8).find(fits);
    found.expect("a program without a mistake builds")
}

fn is_refused_where_it_is_written(program: &str) {
    let errors = compile(program, &library()).expect("it is refused");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/refused")
        .join(program);
    let source = std::fs::read_to_string(source).expect("it can be read");
    let mut expected = 0;
    let lines: Vec<_> = source.lines().chain([""]).collect();
    for (at, pair) in (1..).zip(lines.windows(2)) {
        let here: Vec<_> = errors.iter().filter(|(line, ..)| *line == at).collect();
        let Some((_, rest)) = pair[1].split_once("//~ `") else {
            assert!(here.is_empty(), "{program}:{at}: {here:?}");
            continue;
        };
        let (text, message) = rest.split_once("` ").expect("a text and a message");
        let is_it = |it: &(u64, String, String)| it.1 == text && it.2.contains(message);
        assert!(here.iter().any(|it| is_it(it)), "{program}:{at}: {here:?}");
        // And nothing else of the line is blamed but the method as a whole.
        let is_method = |it: &(u64, String, String)| it.1 == text || it.1 == "a";
        assert!(
            here.iter().all(|it| is_method(it)),
            "{program}:{at}: {here:?}"
        );
        expected += 1;
    }
    assert!(expected > 5);
}

#[test]
fn what_the_macro_refuses_is_refused_at_the_argument_or_the_method() {
    is_refused_where_it_is_written("macro.rs");
}

#[test]
fn a_type_that_the_codec_does_not_take_and_a_foreign_result_are_refused_where_they_are_written() {
    is_refused_where_it_is_written("types.rs");
}
