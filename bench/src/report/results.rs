//! All that was measured, as data: the one file from which the page and the charts are made, now or
//! later (`fabric-bench render`).

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Report;
use super::targets::Compared;
use crate::spread::Spread;
use crate::subject::SUBJECTS;

/// `{machine, rounds, figures: [{name, cores, unit, .., cases: [{what, values, ratios}]}]}`
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// The processor, the kernel, the date and the commit.
    pub(super) machine: String,
    /// How quiet it was.
    pub(super) rounds: String,
    pub(super) figures: Vec<Figure>,
}

/// One figure at one placement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) cores: String,
    pub(super) unit: String,
    pub(super) more_is_better: bool,
    pub(super) shows_ratios: bool,
    /// Those that have a value in any case, in the order of their columns.
    pub(super) subjects: Vec<String>,
    pub(super) cases: Vec<CaseResult>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CaseResult {
    pub(super) what: String,
    /// By subject: the median of the rounds, the smallest and the largest; or the median alone.
    pub(super) values: BTreeMap<String, Vec<f64>>,
    /// By subject of ours and by the subject that it is divided by, round by round.
    pub(super) ratios: BTreeMap<String, BTreeMap<String, [f64; 3]>>,
}

impl CaseResult {
    pub(super) fn value(&self, subject: &str) -> Option<Spread> {
        match *self.values.get(subject)?.as_slice() {
            [median, min, max] => Some(Spread { median, min, max }),
            [median] => Some(Spread {
                median,
                min: median,
                max: median,
            }),
            _ => None,
        }
    }

    pub(super) fn ratio(&self, subject: &str, peer: &str) -> Option<Spread> {
        let &[median, min, max] = self.ratios.get(subject)?.get(peer)?;
        Some(Spread { median, min, max })
    }
}

impl Results {
    /// # Errors
    /// It is not what `--json` writes.
    pub fn parse(text: &str) -> Result<Results> {
        serde_json::from_str(text).context("not figures of this bench")
    }

    /// A case per line, so that two runs can be compared by `diff`.
    ///
    /// # Errors
    /// Never for figures that are numbers.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(self)?;
        for begin in ["\"rounds\":", "\"figures\":", "{\"name\":", "{\"what\":"] {
            text = text.replace(begin, &format!("\n{begin}"));
        }
        let _ = writeln!(text);
        Ok(text)
    }

    pub(super) fn figure(&self, name: &str, cores: &str) -> Option<&Figure> {
        let mut figures = self.figures.iter();
        figures.find(|figure| figure.name == name && figure.cores == cores)
    }

    pub(super) fn case(&self, name: &str, cores: &str, what: &str) -> Option<&CaseResult> {
        let mut cases = self.figure(name, cores)?.cases.iter();
        cases.find(|case| case.what == what)
    }

    pub(super) fn compared(&self, of: &Compared) -> Option<Spread> {
        let case = self.case(of.measure, of.cores, of.what)?;
        match of.peer {
            Some(peer) => case.ratio(of.ours, peer),
            None => case.value(of.ours),
        }
    }
}

impl Report {
    pub(super) fn results(&self) -> Results {
        let figures = self.quantities().into_iter().map(|measured| {
            let has = |subject: &&str| {
                let mut cases = measured.cases.iter();
                cases.any(|(at, outcome)| outcome.value(*at, subject).is_some())
            };
            let names = SUBJECTS.iter().map(|subject| subject.name);
            let subjects: Vec<&'static str> = names.filter(has).collect();
            let cases = measured.cases.iter().map(|(at, outcome)| {
                let value = |subject: &&'static str| Some((*subject, outcome.value(*at, subject)?));
                let values = subjects.iter().filter_map(value);
                let ratios = subjects.iter().filter(|it| is_ours(it)).map(|ours| {
                    let others = subjects.iter().filter(|other| *other != ours);
                    let ratio =
                        |peer: &&'static str| Some((*peer, outcome.ratio(*at, ours, peer)?));
                    let ratios = others.filter_map(ratio);
                    let ratios = ratios.map(|(peer, ratio)| (peer.to_owned(), numbers(ratio)));
                    ((*ours).to_owned(), ratios.collect())
                });
                CaseResult {
                    what: outcome.case.what.clone(),
                    values: values
                        .map(|(subject, value)| (subject.to_owned(), numbers(value).to_vec()))
                        .collect(),
                    ratios: ratios.collect(),
                }
            });
            Figure {
                name: measured.name.to_owned(),
                cores: measured.cores.into_owned(),
                unit: measured.unit.to_owned(),
                more_is_better: measured.more_is_better,
                shows_ratios: measured.shows_ratios,
                cases: cases.collect(),
                subjects: subjects.iter().map(|it| (*it).to_owned()).collect(),
            }
        });
        Results {
            figures: figures.filter(|it| !it.subjects.is_empty()).collect(),
            machine: self.machine.to_string(),
            rounds: self.rounds(),
        }
    }
}

pub(super) fn is_ours(subject: &str) -> bool {
    subject.starts_with("tokio-fabric")
}

pub(super) fn is_spinning(subject: &str) -> bool {
    subject.ends_with(":spin")
}

/// To five digits that count: more would be noise, and make the file three times as long.
fn numbers(Spread { median, min, max }: Spread) -> [f64; 3] {
    [median, min, max].map(|value| format!("{value:.4e}").parse().unwrap_or(value))
}
