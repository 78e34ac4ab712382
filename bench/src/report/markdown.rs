//! Two tables for each figure: the medians of all subjects, and ours divided by everybody else's
//! (left out where only the order of magnitude matters). Between two of ours, only the ratios to
//! the first are shown.

use std::fmt::Write;
use std::path::Path;

use super::Report;
use super::results::{CaseResult, Figure, Results, is_ours};
use crate::spread::{Spread, two_decimals};

/// The layer, by how the names of its subjects begin.
pub(super) const LAYER: &str = "tokio-fabric-rpc";

type Table = fn(&Results) -> String;

/// What has a place in other pages, by its name: between `<!-- fabric-bench, NAME: begin -->` and
/// the same with `end`.
pub(super) const PLACES: [(&str, Table); 6] = [
    ("layer", |results| results.head(LAYER)),
    ("glance", Results::glance),
    ("missed", Results::missed),
    ("one host", Results::one_host),
    ("tls", Results::tls),
    ("tls calls", Results::tls_calls),
];

impl Results {
    /// Writes the tables to a file: into their place, if it is a page that has one.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write_markdown(&self, file: &Path) -> std::io::Result<()> {
        let page = std::fs::read_to_string(file).unwrap_or_default();
        std::fs::write(file, self.put_into(&page))
    }

    /// The page with what has a place in it; if nothing has, a page of all tables.
    pub(super) fn put_into(&self, page: &str) -> String {
        let put = PLACES
            .iter()
            .fold(None, |put: Option<String>, (name, table)| {
                put_between(name, put.as_deref().unwrap_or(page), &table(self)).or(put)
            });
        put.unwrap_or_else(|| self.markdown())
    }

    /// Where it was measured, and the targets of those of ours whose names begin so.
    fn head(&self, ours: &str) -> String {
        let head = format!("Machine: {}.\n\n{}\n", self.machine, self.rounds);
        head + &self.targets(ours)
    }

    pub fn markdown(&self) -> String {
        let mut text = self.head("");
        for figure in &self.figures {
            figure.write(&mut text);
        }
        text
    }
}

impl Report {
    /// How quiet the machine was.
    pub(super) fn rounds(&self) -> String {
        let all = || self.outcomes.iter().flat_map(|outcome| &outcome.rounds);
        let thrown: usize = self
            .outcomes
            .iter()
            .map(|outcome| outcome.thrown_away)
            .sum();
        let spread = |spread: Option<Spread>, digits: usize| match spread {
            Some(spread) => spread.text(|value| format!("{value:.digits$}")),
            None => "unknown".to_owned(),
        };
        let per_case = Spread::of(
            self.outcomes
                .iter()
                .map(|outcome| outcome.rounds.len() as f64),
        );
        format!(
            "Rounds: {} per case, {} in all, {thrown} more thrown away; other processes took {} % of \
             the two cores' time; a cache line moves between them in {} ns; an uncontended lock \
             takes {} ns.",
            spread(per_case, 0),
            all().count(),
            spread(Spread::of(all().map(|round| round.others_share * 100.0)), 0),
            spread(Spread::of(all().map(|round| round.bounce_ns)), 0),
            spread(Spread::of(all().map(|round| round.lock_ns)), 1),
        )
    }
}

impl Figure {
    fn write(&self, text: &mut String) {
        let better = if self.more_is_better { "more" } else { "less" };
        let (name, cores, unit) = (&self.name, &self.cores, &self.unit);
        let _ = writeln!(
            text,
            "\n### {}, {cores}\n\n{unit}; {better} is better.\n",
            capital(name)
        );
        row(text, "", self.subjects.iter().cloned());
        row(text, "---", self.subjects.iter().map(|_| "---:".to_owned()));
        for case in &self.cases {
            let value = |subject: &String| match case.value(subject) {
                Some(spread) => figure(spread.median),
                None => "-".to_owned(),
            };
            row(text, &case.what, self.subjects.iter().map(value));
        }
        if self.shows_ratios {
            self.write_ratios(text);
        }
    }

    /// Each of ours against each peer, and against the first of ours.
    fn write_ratios(&self, text: &mut String) {
        let (ours, mut peers): (Vec<&String>, Vec<&String>) =
            self.subjects.iter().partition(|subject| is_ours(subject));
        let Some(first) = ours.first() else {
            return;
        };
        if ours.len() > 1 {
            peers.push(first);
        }
        if peers.is_empty() {
            return;
        }
        text.push('\n');
        row(text, "relative to", peers.iter().map(|peer| short(peer)));
        row(text, "---", peers.iter().map(|_| "---:".to_owned()));
        for case in &self.cases {
            for subject in &ours {
                let ratios = peers.iter().map(|peer| ratio(case, subject, peer));
                let what = format!("{}, {}", case.what, short(subject));
                row(text, &what, ratios);
            }
        }
    }
}

fn ratio(case: &CaseResult, subject: &str, peer: &str) -> String {
    if subject == peer {
        return String::new();
    }
    match case.ratio(subject, peer) {
        Some(spread) => spread.text(two_decimals),
        None => "-".to_owned(),
    }
}

/// Ours without what they have in common.
fn short(name: &str) -> String {
    name.trim_start_matches("tokio-fabric:").to_owned()
}

pub(super) fn row(text: &mut String, head: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.collect();
    let _ = writeln!(text, "| {head} | {} |", cells.join(" | "));
}

/// The page with this table in the place of the one before; `None` if it has no such place.
fn put_between(name: &str, page: &str, table: &str) -> Option<String> {
    let [begin, end] = marks(name);
    let (head, rest) = page.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{table}\n{end}{tail}"))
}

pub(super) fn marks(name: &str) -> [String; 2] {
    ["begin", "end"].map(|side| format!("<!-- fabric-bench, {name}: {side} -->\n"))
}

/// Three digits that count.
pub(super) fn figure(value: f64) -> String {
    digits(value, 3)
}

/// So many digits that count, but at most four after the point.
pub(super) fn digits(value: f64, count: i32) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size => {
            let decimals = count - 1 - size.log10().floor() as i32;
            format!("{value:.*}", decimals.clamp(0, 4) as usize)
        }
    }
}

pub(super) fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

#[test]
fn figures_have_three_digits_that_count() {
    for (value, text) in [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.50"),
        (25.04, "25.0"),
        (812.3, "812"),
    ] {
        assert_eq!(figure(value), text);
    }
}

#[test]
fn a_page_keeps_what_is_around_the_tables() {
    let [begin, end] = marks("layer");
    let page = format!("head\n{begin}old{end}tail\n");
    let put = put_between("layer", &page, "new").expect("it has a place");
    assert_eq!(put, format!("head\n{begin}\nnew\n{end}tail\n"));
    assert_eq!(put_between("layer", "no place", "new"), None);
}
