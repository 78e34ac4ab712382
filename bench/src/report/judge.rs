//! Holds the figures against the targets.

use std::fmt::Write;

use super::results::{Figure, Results};
use super::targets::{Bound, TARGETS, Target};
use crate::spread::Spread;

const HEAD: &str = "| measure | case | subject | relative to | target | measured | met |\n\
                    | --- | --- | --- | --- | ---: | ---: | --- |\n";

impl Results {
    /// The targets whose case was measured, each with what came out, of those of ours whose names
    /// begin so.
    pub(super) fn targets(&self, ours: &str) -> String {
        let rows: Vec<String> = TARGETS
            .iter()
            .filter(|target| target.ours.starts_with(ours))
            .filter_map(|target| {
                let figure = self.figure(target.measure, target.cores)?;
                Some(line(target, &figure.unit, spread(figure, target)?))
            })
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        format!("\n### Targets\n\n{HEAD}{}", rows.concat())
    }
}

/// What was measured of a target.
fn spread(figure: &Figure, target: &Target) -> Option<Spread> {
    let case = figure.cases.iter().find(|case| case.what == target.what)?;
    match (target.peer, target.bound) {
        (Some(peer), Bound::AbovePeer(_)) => {
            let (ours, peer) = (case.value(target.ours)?, case.value(peer)?);
            Some(ours.above(peer))
        }
        (Some(peer), _) => case.ratio(target.ours, peer),
        (None, _) => case.value(target.ours),
    }
}

/// A ratio has no unit; what is absolute, or a difference, has that of its figure.
fn line(target: &Target, unit: &str, Spread { median, min, max }: Spread) -> String {
    let unit = match (target.peer, target.bound) {
        (Some(_), Bound::AtMost(_) | Bound::AtLeast(_)) => String::new(),
        _ => format!(" ({unit})"),
    };
    let (bound, is_met) = match target.bound {
        Bound::AtMost(bound) => (format!("≤ {bound}"), median <= bound),
        Bound::AbovePeer(bound) => (format!("≤ +{bound}"), median <= bound),
        Bound::AtLeast(bound) => (format!("≥ {bound}"), median >= bound),
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "| {}{unit} | {}, {} | {} | {} | {bound} | {median:.2} ({min:.2}..{max:.2}) | {} |",
        target.measure,
        target.what,
        target.cores,
        target.ours,
        target.peer.unwrap_or("(absolute)"),
        if is_met { "yes" } else { "no" },
    );
    text
}
