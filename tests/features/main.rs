//! Holds the ledger of libfabric's promises against the tests that it names, and docs/features.md,
//! the page that people read, against the ledger and the crate.
//!
//! Both are claims about the library; this program is what keeps them honest. The parsing is
//! strict: a line that looks like a row and is not one is a complaint, never skipped. How a row is
//! written stands at the top of `ledger.txt`.

mod checker;
mod exports;
mod ledger;
mod page;
mod shown;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use exports::Exports;
use ledger::Ledger;
use shown::Sources;

/// No row is ever dropped: the ledger may only grow, and this number grows with it.
const ROW_COUNT_MIN: usize = 929;

/// Every row of the ledger that is shown is shown by tests that quote it, and no test quotes what
/// is not.
#[test]
fn the_ledger_agrees_with_the_tests() {
    let mut complaints = Vec::new();
    let ledger = read_ledger(&mut complaints);
    let mut sources = Sources::new();
    for folder in ["src", "tests"] {
        for (path, text) in rust_files(folder) {
            sources.insert(format!("{folder}/{path}"), shown::functions(&text));
        }
    }
    ledger::check_rows(&ledger, ROW_COUNT_MIN, &mut complaints);
    ledger::check_reasons(&ledger, &mut complaints);
    for row in &ledger.rows {
        shown::check_row(row, &sources, &mut complaints);
    }
    shown::check_quotations(&ledger, &sources, &mut complaints);
    expect_none(complaints);
}

/// The page has the ledger's counts and states and names only what the crate exports, and each
/// decline has its paragraph. With `TOKIO_FABRIC_COUNTS=1` the page's counts become the ledger's.
#[test]
fn the_page_agrees_with_the_ledger_and_the_crate() {
    const PAGE: &str = "docs/features.md";
    let mut complaints = Vec::new();
    let ledger = read_ledger(&mut complaints);
    let mut page = read(PAGE);
    if std::env::var_os("TOKIO_FABRIC_COUNTS").is_some() {
        page = page::with_counts(&page, &ledger).expect("the page has a table of counts");
        fs::write(root().join(PAGE), &page).expect("the page can be written");
    }
    let exports = Exports::new(&rust_files("src").into_iter().collect());
    page::check_page(&page, &ledger, &exports, &mut complaints);
    page::check_declined(&read("docs/declined.md"), &page, &ledger, &mut complaints);
    print!("{}", page::counts(&ledger));
    expect_none(complaints);
}

fn read_ledger(complaints: &mut Vec<String>) -> Ledger {
    ledger::parse(&read("tests/features/ledger.txt"), complaints)
}

#[track_caller]
fn expect_none(mut complaints: Vec<String>) {
    complaints.sort();
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Rust files below a folder, by path from there.
fn rust_files(folder: &str) -> HashMap<String, String> {
    let top = root().join(folder);
    let mut files = HashMap::new();
    let mut folders: Vec<PathBuf> = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry of a folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let name = path.strip_prefix(&top).expect("it is below the folder");
                let name = name.to_str().expect("names of files are UTF-8");
                let text = fs::read_to_string(&path).expect("a source file is text");
                files.insert(name.to_owned(), text);
            }
        }
    }
    files
}
