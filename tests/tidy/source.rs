//! Rust source taken apart as far as the house rules need: code without comments and literals,
//! comments by line, and which lines are tests.

use std::fs;
use std::path::{Path, PathBuf};

/// One file.
pub struct Source {
    /// Its path from the repository's root, with `/`.
    pub path: String,
    /// Its lines as they are.
    pub lines: Vec<String>,
    /// Its lines with comments and the insides of literals blanked.
    pub code: Vec<String>,
    /// The comments of each line.
    pub comments: Vec<String>,
    /// Lines of items under `#[cfg(test)]`, and all lines of test files.
    pub test: Vec<bool>,
}

/// What a character of a file belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    LineComment,
    BlockComment(usize),
    Text,
    RawText(usize),
}

impl Source {
    /// Takes the text apart. `path` decides whether all of it is a test.
    pub fn new(path: &str, text: &str) -> Source {
        let (code, comments) = split(text);
        let mut test = lines_under_cfg_test(&code);
        if is_test_path(path) {
            test.iter_mut().for_each(|line| *line = true);
        }
        Source {
            path: path.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            code,
            comments,
            test,
        }
    }

    /// All Rust files below a folder of the repository, in order of their paths.
    pub fn all_in(folder: &str) -> Vec<Source> {
        let mut found = Vec::new();
        visit(&root().join(folder), &mut found);
        found.sort();
        found.iter().map(|path| Source::read(path)).collect()
    }

    fn read(path: &Path) -> Source {
        let text = fs::read_to_string(path).expect("a source file is readable text");
        let inside = path.strip_prefix(root()).expect("found below the root");
        Source::new(&inside.to_string_lossy(), &text)
    }

    /// The code that is not a test: line numbers from 1, and lines.
    pub fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.code.iter().zip(&self.test).enumerate();
        lines
            .filter(|(_, (_, test))| !**test)
            .map(|(at, (line, _))| (at + 1, line.as_str()))
    }

    /// The code that is not a test, as one text with every line kept in its place.
    pub fn product_text(&self) -> String {
        let mut text = String::new();
        for (line, test) in self.code.iter().zip(&self.test) {
            text.push_str(if *test { "" } else { line });
            text.push('\n');
        }
        text
    }
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A text file of the repository.
pub fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn visit(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            visit(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn is_test_path(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("/models.rs")
}

/// Code and comments of each line.
fn split(text: &str) -> (Vec<String>, Vec<String>) {
    let chars: Vec<char> = text.chars().collect();
    let (mut code, mut comments) = (vec![String::new()], vec![String::new()]);
    let mut part = Part::Code;
    let mut at = 0;
    while at < chars.len() {
        let (c, next) = (chars[at], chars.get(at + 1).copied());
        if c == '\n' {
            code.push(String::new());
            comments.push(String::new());
            if part == Part::LineComment {
                part = Part::Code;
            }
            at += 1;
            continue;
        }
        let (line, comment) = (
            code.last_mut().expect("one line"),
            comments.last_mut().expect("one line"),
        );
        let mut taken = 1;
        match part {
            Part::Code => match (c, next) {
                ('/', Some('/')) => part = Part::LineComment,
                ('/', Some('*')) => {
                    part = Part::BlockComment(1);
                    taken = 2;
                }
                ('"', _) => part = Part::Text,
                ('r', _) if !ends_in_word(line) || line.ends_with('b') => {
                    if let Some(hashes) = raw_text(&chars[at..]) {
                        part = Part::RawText(hashes);
                        taken = hashes + 2;
                    }
                }
                ('\'', _) => taken = character(&chars[at..]),
                _ => {}
            },
            Part::BlockComment(depth) => match (c, next) {
                ('*', Some('/')) => {
                    part = if depth == 1 {
                        Part::Code
                    } else {
                        Part::BlockComment(depth - 1)
                    };
                    taken = 2;
                }
                ('/', Some('*')) => {
                    part = Part::BlockComment(depth + 1);
                    taken = 2;
                }
                _ => comment.push(c),
            },
            Part::LineComment => comment.push(c),
            Part::Text if c == '\\' => taken = if next == Some('\n') { 1 } else { 2 },
            Part::Text if c == '"' => part = Part::Code,
            Part::RawText(hashes) if c == '"' => {
                if chars[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
                    part = Part::Code;
                    taken = hashes + 1;
                }
            }
            Part::Text | Part::RawText(_) => {}
        }
        let is_code = part == Part::Code && c != '"' && c != '\'' && !(c == '*' && taken == 2);
        line.push(if is_code && taken == 1 { c } else { ' ' });
        at += taken;
    }
    if text.ends_with('\n') {
        code.pop();
        comments.pop();
    }
    (code, comments)
}

fn ends_in_word(line: &str) -> bool {
    line.chars().next_back().is_some_and(is_word)
}

/// The number of `#` if a raw string begins here.
fn raw_text(rest: &[char]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    (rest.get(1 + hashes) == Some(&'"')).then_some(hashes)
}

/// The length of the character literal that begins here; 1 if it is a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        [_, '\\', _, tail @ ..] => tail
            .iter()
            .position(|c| *c == '\'')
            .map_or(1, |end| end + 4),
        [_, _, '\'', ..] => 3,
        _ => 1,
    }
}

/// True for a character of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands in the line as a whole word.
pub fn find_word(line: &str, word: &str) -> Option<usize> {
    line.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = line[..*at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let edge = |inner: Option<char>, outer: Option<char>| {
            !(inner.is_some_and(is_word) && outer.is_some_and(is_word))
        };
        edge(word.chars().next(), before) && edge(word.chars().next_back(), after)
    })
}

/// Which lines belong to an item under `#[cfg(test)]`.
fn lines_under_cfg_test(code: &[String]) -> Vec<bool> {
    let mut test = vec![false; code.len()];
    let mut at = 0;
    while at < code.len() {
        let attribute = code[at].trim_start();
        if !attribute.starts_with("#[cfg(test)]") && !attribute.starts_with("#[cfg(all(test") {
            at += 1;
            continue;
        }
        let end = end_of_item(code, at);
        test[at..=end].iter_mut().for_each(|line| *line = true);
        at = end + 1;
    }
    test
}

/// The last line of the item that begins here: where its braces close, or its `;`.
fn end_of_item(code: &[String], begin: usize) -> usize {
    let mut depth = 0_usize;
    for (at, line) in code.iter().enumerate().skip(begin) {
        for c in line.chars() {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && c == '}' {
                        return at;
                    }
                }
                ';' if depth == 0 => return at,
                _ => {}
            }
        }
    }
    code.len() - 1
}

#[test]
fn comments_and_literals_are_not_code() {
    let source = Source::new(
        "src/a.rs",
        "let a = \"x { // no\"; // yes\nlet b = 'x'; let c: &'static str = r#\"say \"hi\" }\"#;\n/* in\n/* in */ in */ let d = '\\'';",
    );
    assert_eq!(source.comments[0].trim(), "/ yes");
    assert!(source.code[0].contains("let a =") && !source.code[0].contains('{'));
    assert!(source.code[1].contains("static str") && !source.code[1].contains("hi"));
    assert!(!source.code[2].contains("in"));
    assert!(source.code[3].contains("let d") && !source.code[3].contains("in"));
}

#[test]
fn items_under_cfg_test_are_known() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(test)]\nmod more;\nfn c() {}";
    let source = Source::new("src/a.rs", text);
    assert_eq!(
        source.test,
        [false, true, true, true, true, true, true, false]
    );
    assert!(
        Source::new("src/eq/tests.rs", text)
            .test
            .iter()
            .all(|test| *test)
    );
}

#[test]
fn words_are_whole() {
    assert_eq!(find_word("unsafe_code unsafe {", "unsafe"), Some(12));
    assert_eq!(find_word("deny(unsafe_code)", "unsafe"), None);
    assert_eq!(find_word("value.unwrap()", ".unwrap()"), Some(5));
}
