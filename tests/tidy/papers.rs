//! The rules that look at the papers: README, the checks of `.ci/run`, the examples' manifest.

/// The commands of the first fenced block below the heading, comments and blank lines left out.
pub fn commands(text: &str, heading: &str) -> Vec<String> {
    let below = text.lines().skip_while(|line| line.trim() != heading);
    let block = below.skip_while(|line| !line.starts_with("```")).skip(1);
    block
        .take_while(|line| !line.starts_with("```"))
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// Two commands: the main job, and the tests, which `.ci/run` runs as they stand.
pub fn check_set_up(readme: &str, ci: &str) -> Vec<String> {
    match commands(readme, "## Set up").as_slice() {
        [job, tests] if job.starts_with("cargo run -p examples --example ") => {
            let is_run = |line: &str| line.trim().trim_start_matches("step ") == tests;
            if ci.lines().any(is_run) {
                Vec::new()
            } else {
                vec![format!(".ci/run does not run README's `{tests}`")]
            }
        }
        other => vec![format!("README.md: the two set-up commands are {other:?}")],
    }
}

/// No example needs a feature that only tests have.
pub fn check_manifest(path: &str, manifest: &str) -> Vec<String> {
    let lines = manifest.lines().enumerate();
    let needs_tests = lines.filter(|(_, line)| line.contains("test-util"));
    needs_tests
        .map(|(at, _)| format!("{path}:{}: an example needs test-util", at + 1))
        .collect()
}

/// Links of a page to files of the repository that are not there.
pub fn check_links(page: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (_, rest) in text
        .match_indices("](")
        .map(|(at, _)| text[at..].split_at(2))
    {
        let target = rest.split([')', '#']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") && !exists(target) {
            wrong.push(format!("{page}: no {target}"));
        }
    }
    wrong
}

/// Source files that a text names (`` `folder/name.rs` ``) and that are not there. `is_there` is
/// asked with the name as it stands.
pub fn check_file_names(page: &str, text: &str, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|it| it.ends_with(".rs") && !it.contains(char::is_whitespace));
    let missing = names.filter(|name| !is_there(name));
    missing.map(|name| format!("{page}: no {name}")).collect()
}

/// Tests that a text cites (`folder/file.rs::name`) and that do not stand there.
pub fn check_cited_tests(page: &str, text: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || "_/.:".contains(c);
    let words = text.split(|c| !is_part(c));
    let cited = words.filter_map(|word| word.split_once(".rs::"));
    let missing = cited.filter(|(file, name)| {
        let function = format!("fn {name}(");
        !read(&format!("{file}.rs")).contains(&function)
    });
    missing
        .map(|(file, name)| format!("{page}: no {file}.rs::{name}"))
        .collect()
}

/// Breaks of the models whose code does not stand in its file, once: three lines (what it says,
/// models, file), then the change as `diff` writes one.
pub fn check_breaks(breaks: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let paragraphs = breaks
        .split("\n\n")
        .filter(|it| !it.is_empty() && !it.starts_with('#'));
    let check = |paragraph: &str| {
        let mut lines = paragraph.lines();
        let (says, _, file) = (lines.next()?, lines.next()?, lines.next()?);
        let broken = lines.filter_map(|line| line.strip_prefix('-'));
        let broken: String = broken.map(|line| format!("{line}\n")).collect();
        let places = read(file).matches(&broken).count();
        (places != 1).then(|| format!("models/breaks.txt: {says}: {places} places in {file}"))
    };
    paragraphs.filter_map(check).collect()
}

#[test]
fn a_break_whose_code_has_changed_is_found() {
    let breaks = "# head\n\nsays\nmodel\nsrc/a.rs\n-one\n-two\n+three\n";
    let read = |text: &'static str| move |_: &str| text.to_owned();
    assert_eq!(check_breaks(breaks, read("one\ntwo\n")), [""; 0]);
    assert_eq!(check_breaks(breaks, read("one\n\ntwo\n")).len(), 1);
    assert_eq!(check_breaks(breaks, read("one\ntwo\none\ntwo\n")).len(), 1);
}

#[test]
fn set_up_is_two_commands() {
    let good = "## Set up\n\n```sh\ncargo run -p examples --example a   # job\ncargo test\n```\n";
    assert_eq!(check_set_up(good, "step cargo test\n"), [""; 0]);
    assert_eq!(check_set_up(good, "step cargo test --lib\n").len(), 1);
    let three = good.replace("cargo test\n", "cargo build\ncargo test\n");
    assert_eq!(check_set_up(&three, "step cargo test\n").len(), 1);
}

#[test]
fn an_example_that_needs_test_util_is_found() {
    let manifest = |features| format!("[dev-dependencies]\na = {{ features = [{features}] }}\n");
    assert_eq!(check_manifest("a", &manifest("\"test-util\"")).len(), 1);
    assert_eq!(check_manifest("a", &manifest("")), [""; 0]);
}

#[test]
fn dead_links_are_found() {
    let text = "[a](docs/a.md#x) [b](https://b.example) [c](#here) [d](docs/d.md)";
    assert_eq!(
        check_links("README.md", text, |path| path == "docs/a.md").len(),
        1
    );
}
