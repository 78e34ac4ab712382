//! The matrix as a table, and as a picture.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::Outcome;
use super::step::{Role, Step};

/// The deaths of a step and victim: sums of calls, and the times in order.
#[derive(Default)]
struct Row {
    well: usize,
    not_started: usize,
    maybe_ran: usize,
    times: Vec<Duration>,
}

impl Row {
    fn millis(&self, share: usize) -> String {
        let at = (self.times.len() * share).div_ceil(1000).max(1) - 1;
        format!("{:.1}", self.times[at].as_secs_f64() * 1e3)
    }
}

fn rows(outcomes: &[Outcome]) -> BTreeMap<(Role, Step), Row> {
    let mut rows: BTreeMap<(Role, Step), Row> = BTreeMap::new();
    for outcome in outcomes {
        let row = rows.entry((outcome.victim, outcome.step)).or_default();
        row.well += outcome.well;
        row.not_started += outcome.not_started;
        row.maybe_ran += outcome.maybe_ran;
        row.times.push(outcome.time);
    }
    rows.values_mut().for_each(|it| it.times.sort_unstable());
    rows
}

/// As Markdown: for each victim a table with a row for each step. Of calls it has the sums, of
/// times the median, 99 % and maximum.
pub fn markdown(outcomes: &[Outcome]) -> String {
    let rows = rows(outcomes);
    let mut text = String::new();
    for victim in Role::ALL {
        let head = match victim {
            Role::Server => "calls completed | not started | may have run",
            Role::Client => "handlers completed | not started | dropped",
        };
        let rows = rows.iter().filter(|((role, _), _)| *role == victim);
        let kills = rows.clone().map(|(_, row)| row.times.len()).max();
        let _ = writeln!(
            text,
            "\nThe {} is killed, {} times at each step:\n\n| step | {head} | ms, p50 / p99 / max |\n\
             |---|---:|---:|---:|---:|",
            victim.name(),
            kills.unwrap_or_default(),
        );
        for ((_, step), row) in rows {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} / {} / {} |",
                step.about(),
                row.well,
                row.not_started,
                row.maybe_ran,
                row.millis(500),
                row.millis(990),
                row.millis(1000),
            );
        }
    }
    text
}

/// Of each part of a bar: what it is, and its colour.
const PARTS: [(&str, &str); 3] = [
    ("completed", "#2e7d32"),
    ("not started", "#9e9e9e"),
    ("may have run, or dropped", "#ef6c00"),
];
const LEFT: usize = 190;
const BAR: usize = 250;
const GAP: usize = 90;
const TOP: usize = 50;
const STEP: usize = 24;

/// A bar for each step and victim, divided by how the calls ended.
pub fn picture(outcomes: &[Outcome]) -> String {
    let height = TOP + STEP * Step::ALL.len() + 40;
    let width = LEFT + 2 * (BAR + GAP);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#FFFFFF\"/>\n"
    );
    let text = |svg: &mut String, (x, y): (usize, usize), what: &str| {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{what}</text>");
    };
    let titles = [
        "server killed: calls of its client",
        "client killed: handlers of its server",
    ];
    for (at, title) in titles.into_iter().enumerate() {
        let x = LEFT + at * (BAR + GAP);
        text(&mut svg, (x, 20), title);
        text(&mut svg, (x + BAR + 6, TOP - 8), "p99, ms");
    }
    for ((victim, step), row) in rows(outcomes) {
        let mut x = LEFT + victim as usize * (BAR + GAP);
        let y = TOP + STEP * step as usize;
        text(&mut svg, (8, y + 13), step.about());
        text(&mut svg, (x + BAR + 6, y + 13), &row.millis(990));
        let counts = [row.well, row.not_started, row.maybe_ran];
        let all = counts.iter().sum::<usize>().max(1);
        for ((_, colour), count) in PARTS.into_iter().zip(counts) {
            let part = count * BAR / all;
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{part}\" height=\"16\" fill=\"{colour}\"/>"
            );
            x += part;
        }
    }
    for (at, (what, colour)) in PARTS.into_iter().enumerate() {
        let (x, y) = (LEFT + at * 110, height - 22);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"
        );
        text(&mut svg, (x + 18, y + 11), what);
    }
    svg + "</svg>\n"
}
