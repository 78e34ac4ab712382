//! The matrix as a table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::Outcome;
use super::step::{Role, Step};

fn millis(times: &[Duration], share: usize) -> String {
    let at = (times.len() * share).div_ceil(1000).max(1) - 1;
    format!("{:.1}", times[at].as_secs_f64() * 1e3)
}

/// As Markdown, a row for each step and victim; of calls the sums, of times median, 99 % and
/// maximum in milliseconds.
pub fn markdown(outcomes: &[Outcome]) -> String {
    let mut rows: BTreeMap<(Role, Step), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        rows.entry((outcome.victim, outcome.step))
            .or_default()
            .push(outcome);
    }
    let mut table =
        "| who dies | when | deaths | ended well | not started | cut short | ms to the \
                     last end, p50 / p99 / max |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for ((victim, step), outcomes) in rows {
        let mut times: Vec<Duration> = outcomes.iter().map(|it| it.time).collect();
        times.sort_unstable();
        let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(|it| of(it)).sum::<usize>();
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} / {} / {} |",
            victim.name(),
            step.about(),
            outcomes.len(),
            sum(|it| it.well),
            sum(|it| it.not_started),
            sum(|it| it.maybe_ran),
            millis(&times, 500),
            millis(&times, 990),
            millis(&times, 1000),
        );
    }
    table
}
