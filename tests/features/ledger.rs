//! The ledger: one row per function, argument, flag, field, value, mode, capability, error code or
//! promise of libfabric's manual pages, what becomes of it here, and the tests that show it.

use std::collections::{BTreeMap, HashMap, HashSet};

/// A quotation longer than this is no longer a quotation.
const QUOTE_LEN_MAX: usize = 140;

/// So many rows may name one test before it is said why.
const ROWS_PER_TEST_MAX: usize = 12;

/// Shorter than this it is no reason.
const REASON_LEN_MIN: usize = 30;

/// The pages, in the order of the table of counts.
pub const PAGES: [&str; 7] = ["domain", "mr", "av", "endpoint", "msg", "tagged", "cq"];

/// The versions of fi_domain(3) that a row may be limited to; the other pages have one.
const DOMAIN_VERSIONS: [&str; 4] = ["1.5.3", "1.6.2", "1.17.0", "2.x"];

/// What becomes of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is as the page says.
    Works,
    /// More is promised than the page asks for.
    Stronger,
    /// It is not there, for the reason that the paragraph of this number gives.
    Declined(String),
    /// Nothing is promised that could be shown.
    Explains,
    NotYet,
}

impl State {
    pub fn is_shown(&self) -> bool {
        matches!(self, State::Works | State::Stronger)
    }

    /// The column of the table of counts.
    pub fn column(&self) -> usize {
        match self {
            State::Works => 0,
            State::Stronger => 1,
            State::Declined(_) => 2,
            State::Explains => 3,
            State::NotYet => 4,
        }
    }
}

/// One line of the ledger.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: String,
    pub pages: String,
    /// The name in backticks, or the page's words in double quotes.
    pub text: String,
    pub state: State,
    /// `file.rs::test_name` of each test that shows it.
    pub tests: Vec<String>,
}

impl Row {
    /// The page it is counted under: the first of those that say it.
    pub fn page(&self) -> &str {
        let end = self.pages.find(['/', '+']).unwrap_or(self.pages.len());
        &self.pages[..end]
    }
}

/// What the doc comment of a test has to contain.
#[derive(Debug, PartialEq)]
pub enum Promise<'a> {
    Quoted(&'a str),
    /// A function, flag or field; it has to appear in backticks.
    Named(&'a str),
}

#[derive(Debug, Default)]
pub struct Ledger {
    pub rows: Vec<Row>,
    /// Why a test is named by many rows.
    pub reasons: HashMap<String, String>,
}

/// Reads the ledger. A line that looks like a row and is not one is a complaint.
pub fn parse(text: &str, complaints: &mut Vec<String>) -> Ledger {
    let mut ledger = Ledger::default();
    let lines = text.lines().enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let place = format!("ledger.txt:{}", index + 1);
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        match cells.as_slice() {
            ["many", test, reason] => {
                if reason.len() < REASON_LEN_MIN {
                    complaints.push(format!("{place}: this is no reason: {reason}"));
                }
                if ledger
                    .reasons
                    .insert((*test).into(), (*reason).into())
                    .is_some()
                {
                    complaints.push(format!("{place}: {test} has two reasons"));
                }
            }
            &[id, pages, text, state, tests] => match parse_row(id, pages, text, state, tests) {
                Ok(row) => ledger.rows.push(row),
                Err(why) => complaints.push(format!("{place}: {why}: {line}")),
            },
            _ => complaints.push(format!(
                "{place}: not `id | pages | item | state | tests`: {line}"
            )),
        }
    }
    ledger
}

fn parse_row(id: &str, pages: &str, text: &str, state: &str, tests: &str) -> Result<Row, String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if id.is_empty() || !id.chars().all(legal) {
        return Err(format!("`{id}` is not an id"));
    }
    if !pages.split('+').all(is_page) {
        return Err(format!("`{pages}` is not a page"));
    }
    match promise(text) {
        None => return Err("neither one quotation nor a name in backticks".into()),
        Some(Promise::Quoted(quote)) if quote.chars().count() > QUOTE_LEN_MAX => {
            return Err(format!("quotation over {QUOTE_LEN_MAX} characters"));
        }
        Some(_) => {}
    }
    let state = match state.split_once(':') {
        None if state == "works" => State::Works,
        None if state == "stronger" => State::Stronger,
        None if state == "explains" => State::Explains,
        None if state == "not-yet" => State::NotYet,
        Some(("declined", paragraph)) => State::Declined(paragraph.into()),
        _ => return Err(format!("`{state}` is no state")),
    };
    let tests: Vec<String> = match tests {
        "-" | "" => Vec::new(),
        tests => tests.split(',').map(|test| test.trim().into()).collect(),
    };
    if state.is_shown() && tests.is_empty() {
        return Err("a row that works or is stronger names its test".into());
    }
    if !state.is_shown() && !tests.is_empty() {
        return Err("only a row that works or is stronger names tests".into());
    }
    let (id, pages, text) = (id.into(), pages.into(), text.into());
    Ok(Row {
        id,
        pages,
        text,
        state,
        tests,
    })
}

fn is_page(page: &str) -> bool {
    match page.split_once('/') {
        None => PAGES.contains(&page),
        Some(("domain", versions)) => versions.split(',').all(|it| DOMAIN_VERSIONS.contains(&it)),
        Some(_) => false,
    }
}

/// The item's one quotation, or else the first name in backticks; nothing when quotes do not pair.
pub fn promise(text: &str) -> Option<Promise<'_>> {
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

/// No row is dropped, and none stands twice.
pub fn check_rows(ledger: &Ledger, count_min: usize, complaints: &mut Vec<String>) {
    let count = ledger.rows.len();
    if count < count_min {
        complaints.push(format!(
            "{count} rows, where there were {count_min}: a row was dropped"
        ));
    }
    if count > count_min {
        complaints.push(format!(
            "{count} rows: raise ROW_COUNT_MIN from {count_min} to it"
        ));
    }
    let mut seen = HashSet::new();
    for row in &ledger.rows {
        if !seen.insert(row.id.as_str()) {
            complaints.push(format!("`{}` has two rows", row.id));
        }
    }
}

/// A test that many rows name has a reason written, and no other has.
pub fn check_reasons(ledger: &Ledger, complaints: &mut Vec<String>) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for test in ledger.rows.iter().flat_map(|row| &row.tests) {
        *counts.entry(test).or_default() += 1;
    }
    for (test, count) in &counts {
        if *count > ROWS_PER_TEST_MAX && !ledger.reasons.contains_key(*test) {
            complaints.push(format!("{count} rows name {test}, and nothing says why"));
        }
    }
    for test in ledger.reasons.keys() {
        let count = counts.get(test.as_str()).copied().unwrap_or_default();
        if count <= ROWS_PER_TEST_MAX {
            complaints.push(format!("{count} rows name {test}: that needs no reason"));
        }
    }
}
