//! The rules that look at one file: unsafe fences, sizes, banned calls, notes left behind, widths.

use crate::source::{Source, find_word};

/// Where `unsafe` may stand.
const UNSAFE_FOLDERS: [&str; 7] = [
    "bench/src/sys/",
    "src/buf/",
    "src/hmem/",
    "src/sync/",
    "src/transport/epoll/",
    "src/transport/local/",
    "src/transport/uring/",
];

/// Lines of one file, of product code and tests alike, at most. What a file holds is one idea,
/// which may need many lines: no file is split to be short.
pub const LINES_MAX: usize = 1200;

/// Columns of a line, as rustfmt.toml says.
const WIDTH_MAX: usize = 100;

/// `unsafe` outside of its folders, or without its reason, or in the public interface.
pub fn check_unsafe(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    let fenced = !UNSAFE_FOLDERS
        .iter()
        .any(|folder| source.path.starts_with(folder));
    for (at, line) in source.code.iter().enumerate() {
        if find_word(line, "unsafe").is_none() {
            continue;
        }
        let mut complain = |what: &str| wrong.push(format!("{}:{}: {what}", source.path, at + 1));
        if fenced {
            complain("unsafe outside of its folders");
        }
        // The one way to register memory without an owner (ruling 19).
        let is_range = source.path == "src/buf/range.rs" && line.contains("fn new(");
        if line.contains("pub unsafe fn") && !is_range {
            complain("a public unsafe fn");
        }
        let declares = line.contains("unsafe fn") || line.contains("unsafe trait");
        let reason = if declares { "# Safety" } else { "SAFETY:" };
        // A function pointer's type promises nothing by itself.
        let is_type = line.contains("unsafe fn(") || line.contains("unsafe extern \"C\" fn(");
        if !is_type && !has_reason(source, at, reason) {
            complain(&format!("unsafe without `{reason}`"));
        }
    }
    wrong
}

/// Looks for the words in the comment right above the statement that the line belongs to.
fn has_reason(source: &Source, line: usize, words: &str) -> bool {
    let mut at = line;
    let mut in_comment = false;
    loop {
        if source.comments[at].contains(words) {
            return true;
        }
        let Some(above) = at.checked_sub(1) else {
            return false;
        };
        let code = source.code[above].trim();
        let is_comment = !source.comments[above].is_empty();
        let goes_on = code.ends_with(['=', '(', ',', '|', '.', '&', '>'])
            || code.starts_with("#[")
            || (in_comment && is_comment && code.is_empty());
        let begins_comment = !in_comment && is_comment && code.is_empty();
        if !goes_on && !begins_comment {
            return false;
        }
        in_comment |= begins_comment;
        at = above;
    }
}

/// A module that must not contain `unsafe` says so at its head.
pub fn check_forbids(source: &Source) -> Vec<String> {
    let folder = source
        .path
        .trim_start_matches("src/")
        .trim_end_matches("/mod.rs");
    let modules = [
        "av", "cntr", "cq", "domain", "endpoint", "eq", "info", "mr", "progress", "proto", "wire",
    ];
    let says_so = source
        .code
        .iter()
        .any(|line| line.trim() == "#![forbid(unsafe_code)]");
    if modules.contains(&folder) && source.path.ends_with("mod.rs") && !says_so {
        return vec![format!("{}: no #![forbid(unsafe_code)]", source.path)];
    }
    Vec::new()
}

/// Lines that count: product code of a source file, all lines of a test file.
pub fn size(source: &Source) -> usize {
    let product = source.test.iter().filter(|test| !**test).count();
    if product == 0 {
        source.lines.len()
    } else {
        product
    }
}

/// Files over the hard limit.
pub fn check_size(source: &Source) -> Vec<String> {
    let size = size(source);
    if size > LINES_MAX {
        return vec![format!(
            "{}: {size} lines, at most {LINES_MAX}",
            source.path
        )];
    }
    Vec::new()
}

/// Calls that have no place in a library.
pub fn check_calls(source: &Source) -> Vec<String> {
    let banned = [
        "print!",
        "println!",
        "eprint!",
        "eprintln!",
        "dbg!",
        "todo!",
        "unimplemented!",
        "thread::sleep",
        ".unwrap()",
    ];
    let mut wrong = Vec::new();
    for (at, line) in source.product() {
        for call in banned.iter().filter(|call| find_word(line, call).is_some()) {
            wrong.push(format!("{}:{at}: {call} outside of tests", source.path));
        }
    }
    wrong
}

/// Notes to oneself: what is left to do stands in the issues.
pub fn check_notes(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, comment) in source.comments.iter().enumerate() {
        for note in ["TODO", "FIXME", "XXX"] {
            if find_word(comment, note).is_some() {
                wrong.push(format!("{}:{}: {note}", source.path, at + 1));
            }
        }
    }
    wrong
}

/// What users read knows nothing of the house's own papers: no numbers of rulings, rules or
/// decisions in the documentation of public items.
pub fn check_public_docs(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut block: Vec<usize> = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let line = line.trim_start();
        let is_crate_doc = source.path == "src/lib.rs" && line.starts_with("//!");
        if line.starts_with("///") || is_crate_doc {
            block.push(at);
        }
        if line.starts_with("///") || line.starts_with("#[") {
            continue;
        }
        // Of a variant or a public item; what is the crate's own may name its papers.
        let is_public = line.starts_with("pub ") || line.starts_with(|c: char| c.is_uppercase());
        for at in block.drain(..).filter(|_| is_public || is_crate_doc) {
            let text = source.lines[at].to_lowercase();
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
            let is_numbered = |pair: &[&str]| {
                ["ruling", "rulings", "decision", "rule"].contains(&pair[0])
                    && pair[1].starts_with(|c: char| c.is_ascii_digit())
            };
            if words.windows(2).any(is_numbered) || text.contains("memory-model rule") {
                wrong.push(format!("{}:{}: names a ruling", source.path, at + 1));
            }
        }
    }
    wrong
}

/// Lines that are too long, unless a literal or an address makes them so.
pub fn check_width(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let width = line.chars().count();
        if width > WIDTH_MAX && !line.contains('"') && !line.contains("://") {
            wrong.push(format!("{}:{}: {width} columns", source.path, at + 1));
        }
    }
    wrong
}

/// An example shows what users can do: no helpers for tests, no files of the library.
pub fn check_example(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        for inside in ["tokio_fabric::testing", "testing::", "include!", "#[path"] {
            if line.contains(inside) {
                wrong.push(format!(
                    "{}:{}: {inside} in an example",
                    source.path,
                    at + 1
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
fn source(text: &str) -> Source {
    Source::new("src/eq/sample.rs", text)
}

#[cfg(test)]
fn buf(text: &str) -> Source {
    Source::new("src/buf/sample.rs", text)
}

#[test]
fn unsafe_outside_of_its_folders_is_found() {
    let text = "// SAFETY: the reason.\nunsafe { f() }";
    assert_eq!(check_unsafe(&source(text)).len(), 1);
    assert_eq!(check_unsafe(&buf(text)), [""; 0]);
    assert_eq!(
        check_unsafe(&source("#![deny(unsafe_code)] // unsafe")),
        [""; 0]
    );
}

#[test]
fn unsafe_without_a_reason_is_found() {
    assert_eq!(
        check_unsafe(&buf("fn f() {\n    unsafe { g() }\n}")).len(),
        1
    );
    assert_eq!(
        check_unsafe(&buf(
            "/// # Safety\n/// - Says.\n#[inline]\nunsafe fn f() {}"
        )),
        [""; 0]
    );
    assert_eq!(
        check_unsafe(&buf("/// Nothing.\nunsafe fn f() {}")).len(),
        1
    );
    assert_eq!(
        check_unsafe(&buf(
            "// SAFETY: a\n// reason.\nlet a =\n    unsafe { g() };"
        )),
        [""; 0]
    );
    assert_eq!(
        check_unsafe(&buf(
            "// SAFETY: other.\nlet a = 1;\nlet b = unsafe { g() };"
        ))
        .len(),
        1
    );
    assert_eq!(
        check_unsafe(&buf("/// # Safety\npub unsafe fn f() {}")).len(),
        1
    );
}

#[test]
fn a_head_without_forbid_is_found() {
    assert_eq!(
        check_forbids(&Source::new("src/eq/mod.rs", "mod event;")).len(),
        1
    );
    assert_eq!(
        check_forbids(&Source::new("src/eq/mod.rs", "#![forbid(unsafe_code)]")),
        [""; 0]
    );
    assert_eq!(
        check_forbids(&Source::new("src/buf/mod.rs", "mod copy;")),
        [""; 0]
    );
}

#[test]
fn a_file_that_grew_too_long_is_found() {
    let long = "fn f() {}\n".repeat(LINES_MAX + 1);
    assert_eq!(check_size(&source(&long)).len(), 1);
    assert_eq!(check_size(&Source::new("tests/a.rs", &long)).len(), 1);
    let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}");
    assert_eq!(check_size(&source(&tests)), [""; 0]);
}

#[test]
fn banned_calls_are_found() {
    assert_eq!(check_calls(&source("let a = b.unwrap();")).len(), 1);
    assert_eq!(
        check_calls(&source("std::thread::sleep(d); dbg!(d);")).len(),
        2
    );
    assert_eq!(
        check_calls(&source(
            "/// `a.unwrap()`\nlet a = b.unwrap_or(1); \"todo!\";"
        )),
        [""; 0]
    );
    assert_eq!(
        check_calls(&source("#[cfg(test)]\nmod t { fn f() { a.unwrap() } }")),
        [""; 0]
    );
}

#[test]
fn notes_are_found() {
    assert_eq!(check_notes(&source("// TODO: later")).len(), 1);
    assert_eq!(check_notes(&source("fn f() {} /* FIXME */")).len(), 1);
    assert_eq!(check_notes(&source("let todo = \"TODO\";")), [""; 0]);
}

#[test]
fn a_ruling_in_public_documentation_is_found() {
    let named = "/// Refused (ruling 16).\n#[must_use]\npub fn f() {}";
    assert_eq!(check_public_docs(&source(named)).len(), 1);
    let variant = "pub enum E {\n    /// Decision 1 of the design.\n    One,\n}";
    assert_eq!(check_public_docs(&source(variant)).len(), 1);
    let own = "/// Refused (ruling 16).\npub(crate) fn f() {}";
    assert_eq!(check_public_docs(&source(own)), [""; 0]);
}

#[test]
fn long_lines_are_found() {
    let long = "a ".repeat(51);
    assert_eq!(check_width(&source(&long)).len(), 1);
    assert_eq!(check_width(&source(&format!("// https://{long}"))), [""; 0]);
    assert_eq!(
        check_width(&source(&format!("let a = \"{long}\";"))),
        [""; 0]
    );
}

#[test]
fn an_example_with_test_helpers_is_found() {
    assert_eq!(
        check_example(&source("use tokio_fabric::testing::Net;")).len(),
        2
    );
    assert_eq!(check_example(&source("use tokio_fabric::Fabric;")), [""; 0]);
}
