//! Holds the figures against the targets.

use std::fmt::Write;

use super::results::Results;
use super::targets::{Bound, TARGETS, Target};
use crate::spread::{Spread, two_decimals};

const HEAD: &str = "| measure | case | subject | relative to | target | measured | met |\n\
                    | --- | --- | --- | --- | ---: | ---: | --- |\n";

impl Results {
    /// The targets whose case was measured, each with what came out, of those of ours whose names
    /// begin so.
    pub(super) fn targets(&self, ours: &str) -> String {
        let rows: Vec<String> = TARGETS
            .iter()
            .filter(|target| target.of.ours.starts_with(ours))
            .filter_map(|target| {
                let figure = self.figure(target.of.measure, target.of.cores)?;
                Some(line(target, &figure.unit, self.of_target(target)?))
            })
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        format!("\n### Targets\n\n{HEAD}{}", rows.concat())
    }

    /// What was measured of a target.
    pub(super) fn of_target(&self, Target { of, bound }: &Target) -> Option<Spread> {
        match (of.peer, bound) {
            (Some(peer), Bound::AbovePeer(_)) => {
                let case = self.case(of.measure, of.cores, of.what)?;
                let (ours, peer) = (case.value(of.ours)?, case.value(peer)?);
                Some(ours.above(peer))
            }
            _ => self.compared(of),
        }
    }
}

/// A ratio has no unit; what is absolute, or a difference, has that of its figure.
fn line(Target { of, bound }: &Target, unit: &str, measured: Spread) -> String {
    let unit = match (of.peer, bound) {
        (Some(_), Bound::AtMost(_) | Bound::AtLeast(_)) => String::new(),
        _ => format!(" ({unit})"),
    };
    let sign = match bound {
        Bound::AtMost(_) => "≤ ",
        Bound::AbovePeer(_) => "≤ +",
        Bound::AtLeast(_) => "≥ ",
    };
    let is_met = bound.is_met(measured.median);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "| {}{unit} | {}, {} | {} | {} | {sign}{} | {} | {} |",
        of.measure,
        of.what,
        of.cores,
        of.ours,
        of.peer.unwrap_or("(absolute)"),
        bound.number(),
        measured.text(two_decimals),
        if is_met { "yes" } else { "no" },
    );
    text
}
