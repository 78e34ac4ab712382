//! The checker's own failure modes, on strings.

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
