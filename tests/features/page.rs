//! The page for people, docs/features.md, and the paragraphs of docs/declined.md, held against the
//! ledger and the crate.

use std::collections::{HashMap, HashSet};

use crate::exports::Exports;
use crate::ledger::{Ledger, PAGES, Promise, State, promise};

/// What a person reads in one go.
const PAGE_SIZE_MAX: usize = 20_000;

pub const COUNTS_HEAD: &str = "| page | works | stronger | declined | explains | not yet | rows |\n|---|---|---|---|---|---|---|\n";
pub const SUBJECTS_HEAD: &str = "| libfabric | tokio-fabric | status | note |\n|---|---|---|---|\n";

/// The table of counts as the ledger has it.
pub fn counts(ledger: &Ledger) -> String {
    let line = |name: &str, is_of: &dyn Fn(&str) -> bool| {
        let mut counts = [0; 5];
        for row in ledger.rows.iter().filter(|row| is_of(row.page())) {
            counts[row.state.column()] += 1;
        }
        let cells: String = counts.iter().map(|count| format!(" {count} |")).collect();
        format!("| {name} |{cells} {} |\n", counts.iter().sum::<usize>())
    };
    let pages = PAGES.iter();
    let mut table: String = pages
        .map(|page| line(&format!("fi_{page}(3)"), &|it| it == *page))
        .collect();
    table += &line("all", &|_| true);
    table
}

/// The page with the ledger's counts in place of its own.
pub fn with_counts(page: &str, ledger: &Ledger) -> Option<String> {
    let (before, rest) = page.split_once(COUNTS_HEAD)?;
    let after = rest.find("\n\n").map(|end| &rest[end + 1..])?;
    Some(format!("{before}{COUNTS_HEAD}{}{after}", counts(ledger)))
}

pub fn check_page(page: &str, ledger: &Ledger, exports: &Exports, complaints: &mut Vec<String>) {
    if page.len() > PAGE_SIZE_MAX {
        complaints.push(format!(
            "features.md has {} bytes, more than {PAGE_SIZE_MAX}",
            page.len()
        ));
    }
    match with_counts(page, ledger) {
        None => complaints.push("features.md has no table of counts".into()),
        Some(counted) if counted != page => complaints.push(
            "features.md: its counts are not the ledger's: \
             TOKIO_FABRIC_COUNTS=1 cargo test --test features"
                .into(),
        ),
        Some(_) => {}
    }
    for link in links(page).into_iter().filter(|link| !exports.has(link)) {
        complaints.push(format!(
            "features.md: the crate exports no `{link}` (or a macro writes it: name its type)"
        ));
    }
    let named = states_by_name(ledger);
    let subjects: Vec<&str> = page
        .split(SUBJECTS_HEAD)
        .skip(1)
        .flat_map(|table| table.lines().take_while(|line| line.starts_with('|')))
        .collect();
    for line in &subjects {
        if let Err(why) = check_subject(line, &named) {
            complaints.push(format!("features.md: {why}: {line}"));
        }
    }
    // Nothing that looks like a row goes unread.
    let heads = page.matches(SUBJECTS_HEAD).count() * SUBJECTS_HEAD.lines().count();
    let counted = COUNTS_HEAD.lines().count() + counts(ledger).lines().count();
    let lines = page.lines().filter(|line| line.starts_with('|')).count();
    if subjects.is_empty() || lines != subjects.len() + heads + counted {
        complaints.push("features.md: a table that is neither of counts nor of subjects".into());
    }
}

/// A row about a subject has a state, and the ledger's rows of the names in its first cell agree.
fn check_subject(line: &str, named: &HashMap<&str, Vec<&State>>) -> Result<(), String> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let &["", names, _, state, _, ""] = cells.as_slice() else {
        return Err("a subject has four cells".into());
    };
    let paragraph = state.strip_prefix("declined ");
    if !["works", "stronger", "not yet"].contains(&state) && paragraph.is_none() {
        return Err(format!("`{state}` is no state"));
    }
    let agrees = |row: &State| match row {
        State::Works | State::Explains => ["works", "stronger"].contains(&state),
        State::Stronger => state == "stronger",
        State::NotYet => state == "not yet",
        State::Declined(number) => paragraph == Some(number),
    };
    for name in names.split('`').skip(1).step_by(2) {
        let mut states = named.get(name).into_iter().flatten();
        if let Some(other) = states.find(|row| !agrees(row)) {
            return Err(format!("the ledger says {other:?} of `{name}`"));
        }
    }
    Ok(())
}

/// The states of the rows that have a name, by it.
fn states_by_name(ledger: &Ledger) -> HashMap<&str, Vec<&State>> {
    let mut named = HashMap::<&str, Vec<&State>>::new();
    for row in &ledger.rows {
        if let Some(Promise::Named(name)) = promise(&row.text) {
            named.entry(name).or_default().push(&row.state);
        }
    }
    named
}

/// The items that the page links: [`Type::member`].
pub fn links(page: &str) -> Vec<&str> {
    let begins = page.match_indices("[`").map(|(at, begin)| at + begin.len());
    begins
        .filter_map(|at| page[at..].split_once("`]"))
        .map(|(link, _)| link.trim_end_matches("()"))
        .collect()
}

/// The paragraphs are in the order of their numbers, which stay when one goes; each says what to
/// use instead, and each decline of the ledger and the page has one.
pub fn check_declined(declined: &str, page: &str, ledger: &Ledger, complaints: &mut Vec<String>) {
    let mut numbers = HashSet::new();
    let mut last = 0;
    for paragraph in declined.split("\n## ").skip(1) {
        let number = paragraph.split('.').next().unwrap_or_default();
        let digits = number.strip_prefix('D').and_then(|it| it.parse().ok());
        match digits {
            Some(next) if next > last => last = next,
            _ => complaints.push(format!("declined.md: `{number}` stands behind D{last}")),
        }
        let says_instead = paragraph.lines().any(|line| line.starts_with("Instead: "));
        if !says_instead {
            complaints.push(format!(
                "declined.md: {number} does not say what to use instead"
            ));
        }
        numbers.insert(number);
    }
    let of_rows = ledger.rows.iter().filter_map(|row| match &row.state {
        State::Declined(paragraph) => Some((row.id.as_str(), paragraph.as_str())),
        _ => None,
    });
    let words = page.split(|c: char| !c.is_alphanumeric());
    let is_number = |word: &str| {
        let digits = word.strip_prefix('D').unwrap_or_default();
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    let of_page = words
        .filter(|word| is_number(word))
        .map(|word| ("features.md", word));
    let of_page: Vec<_> = of_page.collect();
    for (place, paragraph) in of_rows.chain(of_page.iter().copied()) {
        if !numbers.contains(paragraph) {
            complaints.push(format!("{place}: declined.md has no {paragraph}"));
        }
    }
    for number in numbers {
        if !of_page.iter().any(|(_, it)| *it == number) {
            complaints.push(format!("features.md does not name {number} of declined.md"));
        }
    }
}
