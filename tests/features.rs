//! Holds docs/features.md against docs/features-items.txt, and every row that says `works` against
//! the test it names.
//!
//! The page is a claim about the library; this file is what keeps the claim honest. Both files are
//! plain text and the parsing is strict: a line that looks like a row and is not one is a
//! complaint, never skipped. How to add a row stands in docs/features.md.

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

/// The checker's own failure modes, on strings.
mod checker {
    use super::*;

    const LIST: &str =
        "a.fn | fi_mr 1 | `fi_a`, function\na.rule | fi_mr 1 | `fi_a`: \"It will end.\"\n";

    fn row(id: &str, text: &str, state: &str, test: &str) -> String {
        format!("| fi_mr 1 | `{id}` {text} | {state} | {test} |\n")
    }

    fn first() -> String {
        row("a.fn", "`fi_a`, function", "not yet", "-")
    }

    fn second() -> String {
        row("a.rule", "`fi_a`: \"It will end.\"", "not yet", "-")
    }

    /// Everything but the tests themselves, which `shown` is for.
    fn complaints(list: &str, rows: &[String]) -> Vec<String> {
        let page = format!("# Title\n\n{TABLE_HEAD}\n{TABLE_RULE}\n{}", rows.concat());
        let mut complaints = Vec::new();
        let items = parse_items(list, &mut complaints);
        let rows = parse_rows(&page, &mut complaints);
        check_same(&items, &rows, &mut complaints);
        complaints
    }

    #[track_caller]
    fn one_complaint(complaints: Vec<String>, part: &str) {
        let [complaint] = complaints.as_slice() else {
            panic!("one complaint expected: {complaints:?}");
        };
        assert!(complaint.contains(part), "{complaint}");
    }

    /// Whether `source`, as src/x.rs, shows `text` by its test `t`.
    fn shown(text: &str, source: &str) -> Result<(), String> {
        let promise = promise(text).expect("the text is an item");
        check_test("src/x.rs::t", &promise, |path| {
            (path == "src/x.rs").then(|| source.to_owned())
        })
    }

    #[track_caller]
    fn not_shown(text: &str, source: &str, part: &str) {
        let why = shown(text, source).expect_err("the checker has to refuse this");
        assert!(why.contains(part), "{why}");
    }

    #[test]
    fn accepts_a_page_that_agrees() {
        assert_eq!(complaints(LIST, &[first(), second()]), Vec::<String>::new());
    }

    #[test]
    fn a_missing_row() {
        one_complaint(complaints(LIST, &[first()]), "`a.rule` has no row");
    }

    #[test]
    fn a_row_more() {
        let more = row("a.more", "`fi_b`, function", "not yet", "-");
        one_complaint(
            complaints(LIST, &[first(), second(), more]),
            "is not in the list",
        );
    }

    #[test]
    fn a_row_twice() {
        one_complaint(
            complaints(LIST, &[first(), second(), first()]),
            "has two rows",
        );
    }

    #[test]
    fn an_item_twice() {
        let list = LIST.replace("a.rule", "a.fn");
        let found = complaints(&list, &[first(), second()]);
        assert!(
            found
                .iter()
                .any(|complaint| complaint.contains("twice in the list")),
            "{found:?}"
        );
    }

    #[test]
    fn rows_out_of_order() {
        one_complaint(
            complaints(LIST, &[second(), first()]),
            "stands where `a.fn` belongs",
        );
    }

    #[test]
    fn a_promise_watered_down() {
        let weaker = row("a.rule", "`fi_a`: \"It may end.\"", "not yet", "-");
        one_complaint(complaints(LIST, &[first(), weaker]), "reads differently");
    }

    #[test]
    fn another_page_claimed() {
        let moved = second().replace("fi_mr 1", "fi_mr 2");
        one_complaint(complaints(LIST, &[first(), moved]), "reads differently");
    }

    #[test]
    fn a_list_that_shrank_or_grew() {
        let mut found = Vec::new();
        check_count(9, 10, &mut found);
        one_complaint(found, "a row was dropped");
        let mut found = Vec::new();
        check_count(11, 10, &mut found);
        one_complaint(found, "raise ITEM_COUNT_MIN");
    }

    #[test]
    fn malformed_rows() {
        for (bad, why) in [
            ("| fi_mr 1 | `a` `fi_a` | not yet |", "four cells"),
            ("| fi_mr 1 | `a` `fi_a` | not yet | - | - |", "four cells"),
            ("| fi_mr 1 | `a` `fi_a` | not yet | -", "four cells"),
            ("| fi_mr 1 | a.fn | not yet | - |", "id in backticks"),
            (
                "| fi_mr 1 | `a` `fi_a` | partly | - |",
                "`works` or `not yet`",
            ),
            ("| fi_mr 1 | `a` `fi_a` | works | - |", "names its test"),
            (
                "| fi_mr 1 | `a` `fi_a` | not yet | src/x.rs::t |",
                "has `-` as its test",
            ),
        ] {
            let mut found = Vec::new();
            assert!(parse_rows(bad, &mut found).is_empty(), "{bad}");
            one_complaint(found, why);
        }
    }

    #[test]
    fn malformed_items() {
        let long = format!("a | fi_mr 1 | \"{}\"", "x".repeat(QUOTE_LEN_MAX + 1));
        for (bad, why) in [
            ("a | fi_mr 1", "not `id | page | item`"),
            ("", "not `id | page | item`"),
            ("A b | fi_mr 1 | `fi_a`", "is not an id"),
            ("a | somewhere | `fi_a`", "is not a page"),
            (
                "a | fi_mr 1 | plain words",
                "neither one quotation nor a name",
            ),
            (
                "a | fi_mr 1 | \"one\" and \"two\"",
                "neither one quotation nor a name",
            ),
            (
                "a | fi_mr 1 | \"unpaired",
                "neither one quotation nor a name",
            ),
            (&long, "over 140"),
        ] {
            let mut found = Vec::new();
            parse_items(&format!("{bad}\n"), &mut found);
            one_complaint(found, why);
        }
    }

    #[test]
    fn several_tests_in_one_cell() {
        let row = parse_row("| fi_mr 1 | `a` `fi_a` | works | src/x.rs::t, tests/y.rs::u |")
            .expect("the row is well formed");
        assert_eq!(
            row.shown_by.expect("it works"),
            ["src/x.rs::t", "tests/y.rs::u"]
        );

        let row = parse_row("| fi_mr 1 | `a` `fi_a` | works | src/x.rs::t, tests/y.rs::u |")
            .expect("the row is well formed");
        let mut found = Vec::new();
        let read =
            |path: &str| (path == "src/x.rs").then(|| "/// `fi_a`\n#[test]\nfn t() {}".to_owned());
        check_shown(&row, read, &mut found);
        one_complaint(found, "tests/y.rs::u: no such file");
    }

    #[test]
    fn a_quotation_over_several_doc_lines() {
        let source = "/// fi_mr(3): \"It will\n/// end.\" Here with a reset.\n#[test]\nfn t() {}\n";
        assert_eq!(shown("\"It will  end.\"", source), Ok(()));
        not_shown("\"It will not end.\"", source, "does not contain");
    }

    #[test]
    fn a_name_needs_its_backticks() {
        let source = "/// `FI_ENOKEY` when taken.\n#[test]\nfn t() {}\n";
        assert_eq!(shown("`FI_ENOKEY`, error code", source), Ok(()));
        not_shown(
            "`FI_ENOKEY`, error code",
            &source.replace('`', ""),
            "does not contain",
        );
        not_shown("`FI_ENO`, error code", source, "does not contain");
    }

    #[test]
    fn attributes_in_every_position() {
        for source in [
            "    /// `A`\n    #[tokio::test(start_paused = true)]\n    async fn t() {}",
            "#[test]\n/// `A`\nfn t() {}",
            "/// `A`\n#[cfg(feature = \"x\")]\n#[test]\n#[should_panic]\nfn t() {}",
            "/// `A`\n#[tokio::test(\n    flavor = \"multi_thread\",\n    worker_threads = 2\n)]\nasync fn t() {}",
            "proptest! {\n    /// `A`\n    #[test]\n    fn t(x in 0..9u8) {}\n}",
        ] {
            assert_eq!(shown("`A`", source), Ok(()), "{source}");
        }
    }

    #[test]
    fn a_doc_comment_of_something_else() {
        not_shown(
            "`A`",
            "/// `A`\n#[test]\nfn s() {}\n\n#[test]\nfn t() {}",
            "does not contain",
        );
        not_shown("`A`", "// `A`\n#[test]\nfn t() {}", "does not contain");
        not_shown(
            "`A`",
            "/// `A`\nf(x)]\n\n#[test]\nfn t() {}",
            "does not contain",
        );
        not_shown(
            "`A`",
            "/// `A`\n\n#![a(b)]\n#[test]\nfn t() {}",
            "does not contain",
        );
        not_shown(
            "`A`",
            "#[test]\nfn t() {\n    /// `A`\n    fn s() {}\n}",
            "does not contain",
        );
    }

    #[test]
    fn a_function_that_is_no_running_test() {
        not_shown("`A`", "/// `A`\nfn t() {}", "is not a test");
        not_shown("`A`", "/// `A`\n#[cfg(test)]\nfn t() {}", "is not a test");
        not_shown(
            "`A`",
            "#[test]\nfn s() {}\n/// `A`\nfn t() {}",
            "is not a test",
        );
        not_shown(
            "`A`",
            "/// `A`\n#[test]\n#[ignore = \"slow\"]\nfn t() {}",
            "ignored",
        );
        not_shown(
            "`A`",
            "/// `A`\n#[test]\nfn t_other() {}",
            "no such function",
        );
        not_shown("`A`", "/// `A`\n#[test]\n// fn t() {}", "no such function");
        let twice = "/// `A`\n#[test]\nfn t() {}\n".repeat(2);
        not_shown("`A`", &twice, "two functions have this name");
    }

    #[test]
    fn places_that_hold_no_tests() {
        for place in [
            "t",
            "x.rs",
            "docs/x.rs::t",
            "src/x.txt::t",
            "src/../x.rs::t",
            "src/y.rs::t",
        ] {
            let found = check_test(place, &Promise::Named("A"), |path| {
                (path != "src/y.rs").then(|| "/// `A`\n#[test]\nfn t() {}".to_owned())
            });
            assert!(found.is_err(), "{place}");
        }
    }
}
