//! Holds the figures against the targets, and the default backend against the best of ours.

use std::fmt::Write;

use super::Report;
use super::targets::{Bound, Ours, TARGETS, Target};
use crate::rounds::Outcome;
use crate::spread::Spread;
use crate::subject::Subject;

/// How much worse the default backend may be than the best of ours.
const DEFAULT_MORE: f64 = 1.1;
const DEFAULT_LESS: f64 = 0.9;

/// A row that a target names: where its figure stands.
struct JudgedRow<'a> {
    /// The quantity's place within the case.
    at: usize,
    outcome: &'a Outcome,
    more_is_better: bool,
    /// The one of ours that is judged.
    ours: &'static Subject,
}

impl Report {
    /// The targets whose case was measured, each with what came out.
    pub(super) fn targets(&self) -> String {
        let rows: Vec<String> = TARGETS
            .iter()
            .filter_map(|target| self.row(target))
            .collect();
        if rows.is_empty() {
            return String::new();
        }
        let mut text = String::from("\n### Targets\n\n");
        text += HEAD;
        text += &rows.concat();
        text += "\n### The default backend beside the best of ours, on the same rows\n\n";
        text += HEAD;
        for (at, target) in TARGETS.iter().enumerate() {
            let is_same = |other: &Target| {
                (other.measure, other.what, other.cores, other.ours)
                    == (target.measure, target.what, target.cores, target.ours)
            };
            if !TARGETS[..at].iter().any(is_same) {
                text += &self.default_row(target).unwrap_or_default();
            }
        }
        text
    }

    fn found(&self, target: &Target) -> Option<JudgedRow<'_>> {
        let measured = self.quantities();
        let measured = measured
            .iter()
            .find(|measured| measured.name == target.measure && measured.cores == target.cores)?;
        let &(at, outcome) = measured
            .cases
            .iter()
            .find(|(_, of)| of.case.what == target.what)?;
        let more_is_better = measured.more_is_better;
        let ours = best(outcome, at, more_is_better, |subject| {
            target.ours.fits(subject)
        })?;
        Some(JudgedRow {
            at,
            outcome,
            more_is_better,
            ours,
        })
    }

    fn row(&self, target: &Target) -> Option<String> {
        let JudgedRow {
            at, outcome, ours, ..
        } = self.found(target)?;
        let spread = match target.peer {
            Some(peer) => outcome.ratio(at, ours.name, peer)?,
            None => outcome.value(at, ours.name)?,
        };
        let peer = target.peer.unwrap_or("itself");
        Some(line(target, ours, peer, &target.bound, spread))
    }

    /// What the default backend of the same manner gives, divided by the best.
    fn default_row(&self, target: &Target) -> Option<String> {
        if matches!(target.ours, Ours::Named(_)) {
            return None;
        }
        let JudgedRow {
            at,
            outcome,
            more_is_better,
            ours,
        } = self.found(target)?;
        let fits = |subject: &Subject| target.ours.fits(subject) && subject.is_default();
        let default = best(outcome, at, more_is_better, fits)?;
        let bound = match more_is_better {
            true => Bound::AtLeast(DEFAULT_LESS),
            false => Bound::AtMost(DEFAULT_MORE),
        };
        let spread = outcome.ratio(at, default.name, ours.name)?;
        Some(line(target, default, ours.name, &bound, spread))
    }
}

const HEAD: &str = "| figure | case | ours | to | target | measured | met |\n\
                    | --- | --- | --- | --- | ---: | ---: | --- |\n";

fn line(target: &Target, ours: &Subject, to: &str, bound: &Bound, spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    let (bound, met) = match *bound {
        Bound::AtMost(bound) => (format!("≤ {bound}"), median <= bound),
        Bound::AtLeast(bound) => (format!("≥ {bound}"), median >= bound),
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "| {} | {}, {} | {} | {to} | {bound} | {median:.2} ({min:.2}..{max:.2}) | {} |",
        target.measure,
        target.what,
        target.cores,
        ours.name,
        if met { "yes" } else { "no" },
    );
    text
}

impl Ours {
    fn fits(self, subject: &Subject) -> bool {
        match self {
            Ours::Sleeping => subject.is_ours() && !subject.spins(),
            Ours::Spinning => subject.is_ours() && subject.spins(),
            Ours::Best => subject.is_ours(),
            Ours::Named(name) => subject.name == name,
        }
    }
}

/// Of those that fit, the subject whose median is best.
fn best(
    outcome: &Outcome,
    at: usize,
    more_is_better: bool,
    fits: impl Fn(&Subject) -> bool,
) -> Option<&'static Subject> {
    let value = |subject: &Subject| {
        let median = outcome.value(at, subject.name)?.median;
        Some(if more_is_better { median } else { -median })
    };
    let fitting = outcome.subjects.iter().filter(|subject| fits(subject));
    let found = fitting.filter_map(|subject| Some((*subject, value(subject)?)));
    found
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(subject, _)| subject)
}
