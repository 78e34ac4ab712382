//! What the checker refuses, each on a few lines of text.

use crate::exports::Exports;
use crate::ledger::{self, Ledger, Promise, promise};
use crate::page;
use crate::shown::{self, Sources};

/// A ledger of these lines, which has to be well formed.
#[track_caller]
fn ledger(lines: &str) -> Ledger {
    let mut complaints = Vec::new();
    let ledger = ledger::parse(lines, &mut complaints);
    assert_eq!(complaints, [""; 0]);
    ledger
}

fn sources(files: &[(&str, &str)]) -> Sources {
    let files = files.iter();
    files
        .map(|(path, text)| ((*path).to_owned(), shown::functions(text)))
        .collect()
}

#[track_caller]
fn one(complaints: &[String], part: &str) {
    let [complaint] = complaints else {
        panic!("one complaint expected: {complaints:?}");
    };
    assert!(complaint.contains(part), "{complaint}");
}

#[track_caller]
fn refused_line(line: &str, part: &str) {
    let mut complaints = Vec::new();
    assert!(ledger::parse(line, &mut complaints).rows.is_empty());
    one(&complaints, part);
}

/// Complaints of the rows about these files.
fn rows_of(lines: &str, files: &[(&str, &str)]) -> Vec<String> {
    let (ledger, sources) = (ledger(lines), sources(files));
    let mut complaints = Vec::new();
    for row in &ledger.rows {
        shown::check_row(row, &sources, &mut complaints);
    }
    complaints
}

/// Complaints of a row `item` about its test `src/x.rs::t`.
fn shown_by(item: &str, source: &str) -> Vec<String> {
    let line = format!("a | mr | {item} | works | src/x.rs::t");
    rows_of(&line, &[("src/x.rs", source)])
}

#[test]
fn rows_of_every_state_are_read() {
    let ledger = ledger(
        "# a comment\n\na.a | mr | `fi_a` | works | src/x.rs::t, tests/y.rs::u\n\
         a.b | domain/1.5.3,2.x+mr | \"It may end.\" | stronger | src/x.rs::t\n\
         a.c | domain | `fi_c` | declined:D7 | -\na.d | av | `fi_d` | explains | -\n\
         a.e | cq | `fi_e` | not-yet | -\n",
    );
    let columns: Vec<_> = ledger.rows.iter().map(|row| row.state.column()).collect();
    assert_eq!(columns, [0, 1, 2, 3, 4]);
    assert_eq!(ledger.rows[0].tests, ["src/x.rs::t", "tests/y.rs::u"]);
    assert_eq!(ledger.rows[1].page(), "domain");
    assert_eq!(
        promise("\"It may end.\""),
        Some(Promise::Quoted("It may end."))
    );
}

#[test]
fn malformed_rows() {
    let long = format!("a | mr | \"{}\" | explains | -", "x".repeat(141));
    for (line, part) in [
        ("a | mr | `fi_a` | works", "not `id | pages"),
        ("a | mr | `fi_a` | works | t | -", "not `id | pages"),
        ("A b | mr | `fi_a` | not-yet | -", "is not an id"),
        ("a | fi_mr | `fi_a` | not-yet | -", "is not a page"),
        ("a | mr/1.5.3 | `fi_a` | not-yet | -", "is not a page"),
        ("a | domain/1.4 | `fi_a` | not-yet | -", "is not a page"),
        (
            "a | mr | plain words | not-yet | -",
            "neither one quotation",
        ),
        ("a | mr | \"one\" and \"two\" | not-yet | -", "neither one"),
        ("a | mr | \"unpaired | not-yet | -", "neither one quotation"),
        (&long, "over 140"),
        ("a | mr | `fi_a` | partly | -", "`partly` is no state"),
        ("a | mr | `fi_a` | works | -", "names its test"),
        ("a | mr | `fi_a` | stronger | -", "names its test"),
        (
            "a | mr | `fi_a` | not-yet | src/x.rs::t",
            "only a row that works",
        ),
        (
            "a | mr | `fi_a` | declined:D1 | src/x.rs::t",
            "only a row that",
        ),
        ("many | src/x.rs::t | because", "this is no reason"),
    ] {
        refused_line(line, part);
    }
}

#[test]
fn rows_that_were_dropped_or_stand_twice() {
    let line = "a | mr | `fi_a` | not-yet | -\n";
    for (lines, count_min, part) in [
        (line.to_owned(), 2, "a row was dropped"),
        (line.to_owned(), 0, "raise ROW_COUNT_MIN"),
        (line.repeat(2), 2, "`a` has two rows"),
    ] {
        let mut complaints = Vec::new();
        ledger::check_rows(&ledger(&lines), count_min, &mut complaints);
        one(&complaints, part);
    }
}

#[test]
fn many_rows_on_one_test_need_a_reason_and_few_have_none() {
    let rows = |count: usize| -> String {
        let row = |number| format!("a{number} | mr | `fi_a` | works | src/x.rs::t\n");
        (0..count).map(row).collect()
    };
    let reason = "many | src/x.rs::t | it walks a table of all that there is\n";
    let check = |lines: &str| {
        let mut complaints = Vec::new();
        ledger::check_reasons(&ledger(lines), &mut complaints);
        complaints
    };
    assert_eq!(check(&rows(12)), [""; 0]);
    assert_eq!(check(&(rows(13) + reason)), [""; 0]);
    one(&check(&rows(13)), "nothing says why");
    one(&check(&(rows(12) + reason)), "needs no reason");
    let mut complaints = Vec::new();
    ledger::parse(&reason.repeat(2), &mut complaints);
    one(&complaints, "two reasons");
}

#[test]
fn a_test_quotes_its_row() {
    let source = "/// fi_mr(3): \"It will\n/// end.\" Here at once.\n#[test]\nfn t() {}\n";
    assert_eq!(shown_by("\"It will  end.\"", source), [""; 0]);
    one(&shown_by("\"It may end.\"", source), "does not contain");
    let source = "/// `FI_ENOKEY` when taken.\n#[test]\nfn t() {}\n";
    assert_eq!(shown_by("`FI_ENOKEY`, error code", source), [""; 0]);
    one(
        &shown_by("`FI_ENO`, error code", source),
        "does not contain",
    );
    let plain = source.replace('`', "");
    one(
        &shown_by("`FI_ENOKEY`, error code", &plain),
        "does not contain",
    );
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
        assert_eq!(shown_by("`A`", source), [""; 0], "{source}");
    }
}

#[test]
fn a_doc_comment_of_something_else_and_what_is_no_running_test() {
    for (source, part) in [
        (
            "/// `A`\n#[test]\nfn s() {}\n\n#[test]\nfn t() {}",
            "does not contain",
        ),
        ("// `A`\n#[test]\nfn t() {}", "does not contain"),
        ("/// `A`\nf(x)]\n\n#[test]\nfn t() {}", "does not contain"),
        (
            "/// `A`\n\n#![a(b)]\n#[test]\nfn t() {}",
            "does not contain",
        ),
        (
            "#[test]\nfn t() {\n    /// `A`\n    fn s() {}\n}",
            "does not contain",
        ),
        ("/// `A`\nfn t() {}", "is not a test"),
        ("/// `A`\n#[cfg(test)]\nfn t() {}", "is not a test"),
        ("#[test]\nfn s() {}\n/// `A`\nfn t() {}", "is not a test"),
        (
            "/// `A`\n#[test]\n#[ignore = \"slow\"]\nfn t() {}",
            "ignored",
        ),
        ("/// `A`\n#[test]\nfn t_other() {}", "no such function"),
        ("/// `A`\n#[test]\n// fn t() {}", "no such function"),
        (&"/// `A`\n#[test]\nfn t() {}\n".repeat(2), "two functions"),
    ] {
        one(&shown_by("`A`", source), part);
    }
}

#[test]
fn places_that_hold_no_tests() {
    for place in ["t", "docs/x.rs::t", "src/x.txt::t", "src/../x.rs::t"] {
        let line = format!("a | mr | `A` | works | {place}");
        let files = [("src/x.rs", "/// `A`\n#[test]\nfn t() {}")];
        assert_eq!(rows_of(&line, &files).len(), 1, "{place}");
    }
}

#[test]
fn a_row_that_names_two_endpoint_types_has_a_test_of_each() {
    let quoting =
        |body: &str| format!("/// `Full, RDM/MSG EP: again`\n#[test]\nfn t() {{\n{body}\n}}\n");
    let line = |tests: &str| format!("a | domain | `Full, RDM/MSG EP: again` | works | {tests}");
    let (plain, rdm) = (quoting("    send();"), quoting("    open_rdm();"));
    let files = [
        ("tests/msg/a.rs", plain.as_str()),
        ("tests/rdm/a.rs", plain.as_str()),
        ("tests/system/a.rs", rdm.as_str()),
    ];
    let (msg, of_rdm, by_body) = (
        "tests/msg/a.rs::t",
        "tests/rdm/a.rs::t",
        "tests/system/a.rs::t",
    );
    assert_eq!(rows_of(&line(&format!("{msg}, {of_rdm}")), &files), [""; 0]);
    assert_eq!(
        rows_of(&line(&format!("{msg}, {by_body}")), &files),
        [""; 0]
    );
    one(&rows_of(&line(msg), &files), "names RDM");
    one(&rows_of(&line(by_body), &files), "names MSG");
    // One type alone may be shown anywhere, and words that have a type's name in them are none.
    let files = [("src/x.rs", "/// `FI_MSG_PREFIX, RDM`\n#[test]\nfn t() {}")];
    assert_eq!(
        rows_of(
            "a | mr | `FI_MSG_PREFIX, RDM` | works | src/x.rs::t",
            &files
        ),
        [""; 0]
    );
}

#[test]
fn a_quotation_above_a_test_is_of_a_row_that_is_shown() {
    let files = sources(&[(
        "src/x.rs",
        "/// fi_mr(3): \"It will\n/// end, or not.\"\n#[test]\nfn t() {}",
    )]);
    let check = |lines: &str| {
        let mut complaints = Vec::new();
        shown::check_quotations(&ledger(lines), &files, &mut complaints);
        complaints
    };
    for state in ["not-yet", "explains", "declined:D1"] {
        let row = format!("a | mr | \"It will end\" | {state} | -\n");
        one(
            &check(&row),
            "src/x.rs::t: it quotes `a`, which is not shown",
        );
        // Another page may say the same of what is shown.
        let both = format!("{row}b | cq | \"It will end, or not.\" | works | src/x.rs::t\n");
        assert_eq!(check(&both), [""; 0]);
    }
    assert_eq!(
        check("a | mr | \"It will begin\" | explains | -\n"),
        [""; 0]
    );
    // What is no test may explain.
    let files = sources(&[("src/x.rs", "/// \"It will end\"\nfn helper() {}")]);
    let mut complaints = Vec::new();
    let ledger = ledger("a | mr | \"It will end\" | explains | -\n");
    shown::check_quotations(&ledger, &files, &mut complaints);
    assert_eq!(complaints, [""; 0]);
}

const ROWS: &str = "a.a | mr | `fi_a` | works | src/x.rs::t\n\
                    a.b | mr | `fi_b` | stronger | src/x.rs::t\n\
                    a.c | domain | `fi_c` | declined:D1 | -\n\
                    a.d | domain | `fi_d` | not-yet | -\n";
const SUBJECTS: &str = "| `fi_a` | [`Region::new`] | works | |\n\
                        | `fi_b` | [`Region`] | stronger | more |\n\
                        | `fi_c` | - | declined D1 | |\n\
                        | `fi_d` | - | not yet | |\n";

fn exports() -> Exports {
    let root = "//! A crate.\n\npub mod ep {\n    pub use crate::a::{Address, b::End};\n}\npub mod info;\n\
                pub use a::{Region, open};\nmod a;\nmod hidden;\n";
    let a = "pub struct Region;\n\nimpl<B: 'static> Region<B> {\n    pub async fn new() {\n        \
             let x = 1;\n    }\n    fn private() {}\n}\n\npub struct Inner;\n\nimpl Inner {\n    \
             pub fn of() {}\n}\n";
    let info = "pub use kinds::Kind;\npub const LIMIT: usize = 1;\nbitflags! {\n    \
                pub struct Flags: u64 {\n        const ONE = 1;\n    }\n}\n";
    let kinds = "pub enum Kind {\n    /// One.\n    Unspec,\n    Named(u8),\n}\n";
    let files = [
        ("lib.rs", root),
        ("a.rs", a),
        ("info/mod.rs", info),
        ("info/kinds.rs", kinds),
    ];
    let files = files.iter();
    Exports::new(
        &files
            .map(|(path, text)| ((*path).into(), (*text).into()))
            .collect(),
    )
}

/// Complaints of a page with these subjects, its counts those of the ledger.
fn page_of(subjects: &str) -> Vec<String> {
    let ledger = ledger(ROWS);
    let page = format!(
        "# Page\n\n{}{}\ntext D1\n\n{}{subjects}",
        page::COUNTS_HEAD,
        page::counts(&ledger),
        page::SUBJECTS_HEAD
    );
    let mut complaints = Vec::new();
    page::check_page(&page, &ledger, &exports(), &mut complaints);
    complaints
}

#[test]
fn a_page_that_agrees() {
    assert_eq!(page_of(SUBJECTS), [""; 0]);
}

#[test]
fn counts_that_differ_from_the_ledger() {
    let more = ROWS.to_owned() + "a.e | mr | `fi_e` | not-yet | -\n";
    let page = format!("{}{}\n\n", page::COUNTS_HEAD, page::counts(&ledger(ROWS)));
    let page = format!("{page}{}{SUBJECTS}", page::SUBJECTS_HEAD);
    let mut complaints = Vec::new();
    page::check_page(&page, &ledger(&more), &exports(), &mut complaints);
    one(&complaints, "its counts are not the ledger's");
    let counted = page::with_counts(&page, &ledger(&more)).unwrap();
    assert!(
        counted.contains("| fi_mr(3) | 1 | 1 | 0 | 0 | 1 | 3 |\n"),
        "{counted}"
    );
    let mut complaints = Vec::new();
    page::check_page(&counted, &ledger(&more), &exports(), &mut complaints);
    assert_eq!(complaints, [""; 0]);
}

#[test]
fn a_subject_that_says_otherwise_than_the_ledger() {
    for (was, is, part) in [
        ("| works |", "| not yet |", "says Works of `fi_a`"),
        ("| stronger |", "| works |", "says Stronger of `fi_b`"),
        (
            "| declined D1 |",
            "| works |",
            "says Declined(\"D1\") of `fi_c`",
        ),
        (
            "| declined D1 |",
            "| declined D2 |",
            "says Declined(\"D1\")",
        ),
        ("| not yet |", "| works |", "says NotYet of `fi_d`"),
        ("| works |", "| mostly |", "`mostly` is no state"),
        ("| stronger | more |", "| stronger |", "has four cells"),
    ] {
        one(&page_of(&SUBJECTS.replace(was, is)), part);
    }
    let other_table = format!("{SUBJECTS}\n| x | y |\n|---|---|\n");
    one(&page_of(&other_table), "a table that is neither");
}

#[test]
fn an_item_that_the_crate_does_not_export() {
    let exports = exports();
    for item in [
        "Region",
        "Region::new",
        "open",
        "ep::Address",
        "ep::End",
        "info::Kind",
        "info::Kind::Unspec",
        "info::Kind::Named",
        "info::LIMIT",
        "info::Flags::ONE",
    ] {
        assert!(exports.has(item), "{item}");
    }
    for item in [
        "Region::private",
        "Region::gone",
        "Region::of",
        "Inner",
        "Inner::of",
        "Address",
        "a::Region",
        "hidden::Region",
        "info::Kind::Other",
        "Kind",
    ] {
        assert!(!exports.has(item), "{item}");
        let subjects = SUBJECTS.replace("Region::new", item);
        one(&page_of(&subjects), &format!("exports no `{item}`"));
    }
}

#[test]
fn a_page_that_nobody_reads() {
    let long = SUBJECTS.replace("more", &"more ".repeat(5_000));
    one(&page_of(&long), "more than 20000");
}

#[test]
fn a_decline_without_its_paragraph() {
    let ledger = ledger(ROWS);
    let check = |declined: &str, page: &str| {
        let mut complaints = Vec::new();
        page::check_declined(declined, page, &ledger, &mut complaints);
        complaints
    };
    let first = "# Declined\n\n## D1. One\n\nWhy.\n\nInstead: that.\n";
    assert_eq!(check(first, "D1"), [""; 0]);
    let none = check("# Declined\n", "");
    one(&none, "a.c: declined.md has no D1");
    one(&check(first, "D1 D2"), "features.md: declined.md has no D2");
    one(&check(first, "nothing"), "does not name D1");
    let silent = first.replace("Instead: that.", "");
    one(&check(&silent, "D1"), "does not say what to use instead");
    let gap = format!("{first}\n## D3. Three\n\nInstead: that.\n");
    assert_eq!(check(&gap, "D1 D3"), [""; 0]);
    let back = format!("{gap}\n## D2. Two\n\nInstead: that.\n");
    one(&check(&back, "D1 D2 D3"), "`D2` stands behind D3");
    let twice = format!("{gap}\n## D3. Again\n\nInstead: that.\n");
    one(&check(&twice, "D1 D3"), "`D3` stands behind D3");
}
