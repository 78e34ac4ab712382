//! The matrix as a table.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use tokio_fabric::Backend;

use super::cell::Outcome;
use super::death::Protocol;
use super::step::{Step, Victim};

/// The value that `share` of a thousand are not above.
pub fn quantile(times: &mut [Duration], share: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * share).div_ceil(1000).max(1) - 1]
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

/// As Markdown: a row for each step and role, times in milliseconds as median / maximum.
pub fn markdown(outcomes: &[Outcome], backends: &[Backend], protocols: &[Protocol]) -> String {
    let mut rows: BTreeMap<(Step, Victim), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        let cell = outcome.cell;
        rows.entry((cell.step, cell.victim))
            .or_default()
            .push(outcome);
    }
    let mut table = "| step | the victim | to end |".to_owned();
    let columns: Vec<(Backend, Protocol)> = backends
        .iter()
        .flat_map(|backend| protocols.iter().map(|protocol| (*backend, *protocol)))
        .collect();
    for (backend, protocol) in &columns {
        let _ = write!(table, " {backend}, {protocol} |");
    }
    table += " unaccounted |\n|---|---|---|";
    table += &"---|".repeat(columns.len() + 1);
    table.push('\n');
    for ((step, victim), outcomes) in rows {
        let posted = outcomes
            .iter()
            .map(|outcome| outcome.posted)
            .max()
            .unwrap_or(0);
        let _ = write!(table, "| {} | {victim} | {posted} |", step.about());
        for column in &columns {
            let mut times: Vec<Duration> = outcomes
                .iter()
                .filter(|outcome| (outcome.cell.backend, outcome.cell.protocol) == *column)
                .filter_map(|outcome| outcome.time)
                .collect();
            let shown = match times.is_empty() {
                true => "-".to_owned(),
                false => {
                    let half = millis(quantile(&mut times, 500));
                    format!("{half} / {}", millis(quantile(&mut times, 1000)))
                }
            };
            let _ = write!(table, " {shown} |");
        }
        let missing: usize = outcomes.iter().map(|outcome| outcome.missing).sum();
        let _ = writeln!(table, " {missing} |");
    }
    table
}
