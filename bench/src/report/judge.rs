//! Holds the figures against the targets.

use std::fmt::Write;

use super::results::Results;
use super::targets::{Bound, TARGETS, Target};
use crate::spread::Spread;

const HEAD: &str = "| figure | case | ours | to | target | measured | met |\n\
                    | --- | --- | --- | --- | ---: | ---: | --- |\n";

impl Results {
    /// The targets whose case was measured, each with what came out.
    pub(super) fn targets(&self) -> String {
        let rows: Vec<String> = TARGETS
            .iter()
            .filter_map(|target| Some(line(target, self.spread(target)?)))
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        format!("\n### Targets\n\n{HEAD}{}", rows.concat())
    }

    /// What was measured of the figure of a target.
    fn spread(&self, target: &Target) -> Option<Spread> {
        let figure = self.figure(target.measure, target.cores)?;
        let case = figure.cases.iter().find(|case| case.what == target.what)?;
        match target.peer {
            Some(peer) => case.ratio(target.ours, peer),
            None => case.value(target.ours),
        }
    }
}

fn line(target: &Target, Spread { median, min, max }: Spread) -> String {
    let (bound, is_met) = match target.bound {
        Bound::AtMost(bound) => (format!("≤ {bound}"), median <= bound),
        Bound::AtLeast(bound) => (format!("≥ {bound}"), median >= bound),
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "| {} | {}, {} | {} | {} | {bound} | {median:.2} ({min:.2}..{max:.2}) | {} |",
        target.measure,
        target.what,
        target.cores,
        target.ours,
        target.peer.unwrap_or("itself"),
        if is_met { "yes" } else { "no" },
    );
    text
}
