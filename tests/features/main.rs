//! Holds docs/features.md against docs/features-items.txt, and every row that says `works` against
//! the test it names.
//!
//! The page is a claim about the library; this file is what keeps the claim honest. Both files are
//! plain text and the parsing is strict: a line that looks like a row and is not one is a
//! complaint, never skipped. How to add a row stands in docs/features.md.

mod checker;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

/// No row is ever dropped: the list may only grow, and this number grows with it.
const ITEM_COUNT_MIN: usize = 904;

/// A quotation longer than this is no longer a quotation.
const QUOTE_LEN_MAX: usize = 140;

const TABLE_HEAD: &str = "| page | item | works or not yet | test that shows it |";
const TABLE_RULE: &str = "|---|---|---|---|";

/// One line of the item list.
#[derive(Debug, PartialEq)]
struct Item {
    id: String,
    page: String,
    text: String,
}

/// One row of the page: an item and what is claimed of it.
#[derive(Debug)]
struct Row {
    item: Item,
    /// `file.rs::test_name` of each test that shows it; `None` when the row says `not yet`.
    shown_by: Option<Vec<String>>,
}

/// What a test's doc comment has to contain.
#[derive(Debug, PartialEq)]
enum Promise<'a> {
    Quoted(&'a str),
    /// A function, flag or field; it has to appear in backticks.
    Named(&'a str),
}

/// docs/features.md carries every item of docs/features-items.txt once, in order, and every row
/// that works is shown by a test that quotes it.
#[test]
fn the_page_agrees_with_the_item_list_and_the_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let list = read("docs/features-items.txt").expect("the item list is in the repository");
    let page = read("docs/features.md").expect("the features page is in the repository");

    let mut complaints = Vec::new();
    let items = parse_items(&list, &mut complaints);
    let rows = parse_rows(&page, &mut complaints);
    check_count(items.len(), ITEM_COUNT_MIN, &mut complaints);
    check_same(&items, &rows, &mut complaints);
    for row in &rows {
        check_shown(row, read, &mut complaints);
    }

    let works = rows.iter().filter(|row| row.shown_by.is_some()).count();
    println!(
        "features: {works} work, {} not yet, {} in all",
        rows.len() - works,
        rows.len()
    );
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

fn parse_items(list: &str, complaints: &mut Vec<String>) -> Vec<Item> {
    let mut items = Vec::new();
    for (index, line) in list.lines().enumerate() {
        let place = format!("features-items.txt:{}", index + 1);
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[id, page, text] = cells.as_slice() else {
            complaints.push(format!("{place}: not `id | page | item`: {line}"));
            continue;
        };
        let item = Item {
            id: id.into(),
            page: page.into(),
            text: text.into(),
        };
        check_item(&item, &place, complaints);
        items.push(item);
    }
    items
}

fn parse_rows(page: &str, complaints: &mut Vec<String>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, line) in page.lines().enumerate() {
        if !line.starts_with('|') || line == TABLE_HEAD || line == TABLE_RULE {
            continue;
        }
        match parse_row(line) {
            Ok(row) => rows.push(row),
            Err(why) => complaints.push(format!("features.md:{}: {why}: {line}", index + 1)),
        }
    }
    rows
}

fn parse_row(line: &str) -> Result<Row, &'static str> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let &["", page, item, state, tests, ""] = cells.as_slice() else {
        return Err("a row has four cells");
    };
    let (id, text) = item
        .strip_prefix('`')
        .and_then(|rest| rest.split_once('`'))
        .ok_or("the item starts with its id in backticks")?;
    let shown_by = match (state, tests) {
        ("not yet", "-") => None,
        ("not yet", _) => return Err("a row that is not yet done has `-` as its test"),
        ("works", "-" | "") => return Err("a row that works names its test"),
        ("works", tests) => Some(
            tests
                .split(',')
                .map(|test| test.trim().to_owned())
                .collect(),
        ),
        _ => return Err("the third cell is `works` or `not yet`"),
    };
    let item = Item {
        id: id.into(),
        page: page.into(),
        text: text.trim().into(),
    };
    Ok(Row { item, shown_by })
}

fn check_item(item: &Item, place: &str, complaints: &mut Vec<String>) {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if item.id.is_empty() || !item.id.chars().all(legal) {
        complaints.push(format!("{place}: `{}` is not an id", item.id));
    }
    if !item.page.starts_with("fi_") {
        complaints.push(format!("{place}: `{}` is not a page", item.page));
    }
    match promise(&item.text) {
        None => complaints.push(format!(
            "{place}: neither one quotation nor a name in backticks"
        )),
        Some(Promise::Quoted(quote)) if quote.chars().count() > QUOTE_LEN_MAX => {
            complaints.push(format!(
                "{place}: quotation over {QUOTE_LEN_MAX} characters"
            ));
        }
        Some(_) => {}
    }
}

fn check_count(count: usize, count_min: usize, complaints: &mut Vec<String>) {
    if count < count_min {
        complaints.push(format!(
            "{count} items, where there were {count_min}: a row was dropped"
        ));
    }
    if count > count_min {
        complaints.push(format!(
            "{count} items: raise ITEM_COUNT_MIN from {count_min} to it"
        ));
    }
}

/// Every item once on the page, word for word, in the list's order, and nothing else there.
fn check_same(items: &[Item], rows: &[Row], complaints: &mut Vec<String>) {
    let mut listed = HashMap::new();
    for item in items {
        if listed.insert(item.id.as_str(), item).is_some() {
            complaints.push(format!("`{}` is twice in the list", item.id));
        }
    }
    let mut seen = HashSet::new();
    for Row { item, .. } in rows {
        if !seen.insert(item.id.as_str()) {
            complaints.push(format!("`{}` has two rows", item.id));
        }
        match listed.get(item.id.as_str()) {
            None => complaints.push(format!("`{}` has a row and is not in the list", item.id)),
            Some(&said) if said != item => {
                complaints.push(format!("`{}` reads differently on page and list", item.id));
            }
            Some(_) => {}
        }
    }
    for item in items.iter().filter(|item| !seen.contains(item.id.as_str())) {
        complaints.push(format!("`{}` has no row", item.id));
    }
    let misplaced = items
        .iter()
        .zip(rows)
        .find(|(item, row)| item.id != row.item.id);
    if let Some((item, row)) = misplaced.filter(|_| items.len() == rows.len()) {
        complaints.push(format!(
            "`{}` stands where `{}` belongs",
            row.item.id, item.id
        ));
    }
}

fn check_shown(row: &Row, read: impl Fn(&str) -> Option<String>, complaints: &mut Vec<String>) {
    let Some(promise) = promise(&row.item.text) else {
        return;
    };
    for test in row.shown_by.iter().flatten() {
        if let Err(why) = check_test(test, &promise, &read) {
            complaints.push(format!("`{}`: {test}: {why}", row.item.id));
        }
    }
}

fn check_test(
    test: &str,
    promise: &Promise<'_>,
    read: impl Fn(&str) -> Option<String>,
) -> Result<(), String> {
    let (path, name) = test.split_once("::").ok_or("not `file.rs::test_name`")?;
    let ours = path.starts_with("src/") || path.starts_with("tests/");
    if !ours || !path.ends_with(".rs") || path.contains("..") {
        return Err("a test lives in a .rs file below src or tests".into());
    }
    let source = read(path).ok_or("no such file")?;
    let doc = doc_of_test(&source, name)?;
    let needed = match promise {
        Promise::Quoted(quote) => squeeze(quote),
        Promise::Named(name) => format!("`{name}`"),
    };
    if doc.contains(&needed) {
        Ok(())
    } else {
        Err(format!("its doc comment does not contain: {needed}"))
    }
}

/// The doc comment right above `fn name`, which has to be a test that runs by default. One inside
/// `proptest!` counts like any other: it carries `#[test]` there too.
fn doc_of_test(source: &str, name: &str) -> Result<String, String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut places = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| is_head_of(line, name));
    let (place, _) = places.next().ok_or("no such function")?;
    if places.next().is_some() {
        return Err("two functions have this name; give the test its own".into());
    }

    // Upwards, over attributes and doc lines in any order. A line that closes an attribute it did
    // not open takes everything up to the opening line with it.
    let (mut doc, mut is_test, mut in_attribute) = (Vec::new(), false, false);
    for &line in lines[..place].iter().rev() {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text);
        } else if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
            in_attribute = false;
            if line.starts_with("#[ignore") {
                return Err("it is ignored by default, so it shows nothing".into());
            }
        } else if line.ends_with(")]") {
            in_attribute = true;
        } else if !in_attribute || line.is_empty() {
            break;
        }
    }
    if !is_test {
        return Err("the function is not a test".into());
    }
    doc.reverse();
    Ok(squeeze(&doc.join(" ")))
}

/// Whether this line begins the function `name`.
fn is_head_of(line: &str, name: &str) -> bool {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let rest = line
        .strip_prefix("fn ")
        .and_then(|line| line.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with(['(', '<']))
}

/// `#[test]`, `#[tokio::test]`, `#[tokio::test(..)]`, and the like.
fn is_test_attribute(line: &str) -> bool {
    let inner = line.trim_start_matches("#[");
    let path = inner.split(['(', ']']).next().unwrap_or_default();
    path == "test" || path.ends_with("::test")
}

/// The item's one quotation, or else the first name in backticks; nothing when quotes do not pair.
fn promise(text: &str) -> Option<Promise<'_>> {
    let quotes: Vec<&str> = text.split('"').collect();
    match quotes.as_slice() {
        [_, quote, _] if !quote.trim().is_empty() => Some(Promise::Quoted(quote)),
        [_] => text
            .split('`')
            .nth(1)
            .filter(|name| !name.is_empty())
            .map(Promise::Named),
        _ => None,
    }
}

/// One space between words, none at the ends.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
