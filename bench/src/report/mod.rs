//! The result: tables to read, JSON to compute with.

mod charts;
mod curve;
mod judge;
mod markdown;
mod pages;
mod results;
mod rows;
mod targets;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use anyhow::{Result, bail};

use crate::machine::Machine;
use crate::options::Options;
use crate::rounds::Outcome;
use crate::subject;

pub use results::Results;

/// All that was measured, and on what.
#[derive(Debug)]
pub struct Report {
    machine: Machine,
    outcomes: Vec<Outcome>,
}

impl Report {
    pub fn new(machine: Machine) -> Report {
        Report {
            machine,
            outcomes: Vec::new(),
        }
    }

    pub fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Writes the files that were asked for.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, options: &Options) -> Result<()> {
        self.results().save(options)
    }

    /// The tables.
    pub fn markdown(&self) -> String {
        self.results().markdown()
    }

    /// # Errors
    /// A subject of ours failed, or a case has no round that counts: then this was no measurement,
    /// and a smoke test must say so.
    pub fn verdict(&self) -> Result<()> {
        for outcome in &self.outcomes {
            for (name, why) in &outcome.failures {
                if subject::named(name).is_some_and(|subject| subject.is_of_this_repository()) {
                    bail!("{}: {name} failed: {why}", outcome.name());
                }
            }
            if outcome.rounds.is_empty() {
                bail!(
                    "{}: no round was quiet enough (--keep-noisy counts all)",
                    outcome.name()
                );
            }
        }
        Ok(())
    }

    /// The names of the figures, in the order in which they were measured, each with the cases that
    /// have it.
    fn quantities(&self) -> Vec<Measured<'_>> {
        let mut found: Vec<Measured<'_>> = Vec::new();
        for outcome in &self.outcomes {
            for (at, quantity) in outcome.case.quantities.iter().enumerate() {
                let cores = outcome.case.placement.name();
                let same = |known: &&mut Measured<'_>| {
                    known.name == quantity.measure && known.cores == cores
                };
                match found.iter_mut().find(same) {
                    Some(known) => known.cases.push((at, outcome)),
                    None => found.push(Measured {
                        name: quantity.measure,
                        cores,
                        unit: quantity.unit,
                        more_is_better: quantity.more_is_better,
                        shows_ratios: quantity.shows_ratios,
                        cases: vec![(at, outcome)],
                    }),
                }
            }
        }
        found
    }
}

impl Results {
    /// Writes the files that were asked for.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, options: &Options) -> Result<()> {
        if let Some(file) = &options.json {
            std::fs::write(file, self.json()?)?;
        }
        for file in &options.markdown {
            self.write_markdown(file)?;
        }
        if let Some(directory) = &options.charts {
            self.draw_charts(directory)?;
        }
        Ok(())
    }
}

/// One figure at one placement, of all cases that have it.
struct Measured<'a> {
    name: &'static str,
    cores: Cow<'static, str>,
    unit: &'static str,
    more_is_better: bool,
    shows_ratios: bool,
    /// The quantity's place within the case, and the case.
    cases: Vec<(usize, &'a Outcome)>,
}
