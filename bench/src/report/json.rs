//! `{machine, rows: [{measure, params, subject, value, unit, ratios: {PEER: {median, min, max}}}]}`

use std::collections::BTreeMap;

use serde::Serialize;

use super::Report;
use crate::case::Params;
use crate::machine::Machine;
use crate::spread::Spread;

#[derive(Serialize)]
struct Document<'a> {
    machine: &'a Machine,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    measure: &'static str,
    params: Params,
    subject: &'static str,
    /// The median over the rounds.
    value: f64,
    min: f64,
    max: f64,
    unit: &'static str,
    rounds: usize,
    thrown_away: usize,
    bounce_ns: Option<Spread>,
    others_share: Option<Spread>,
    /// Of a subject of ours: its figure divided by each other subject's, round by round.
    ratios: BTreeMap<&'static str, Spread>,
}

impl Report {
    /// # Errors
    /// Never for figures that are numbers.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let mut rows = Vec::new();
        for measured in self.quantities() {
            for (at, outcome) in measured.cases {
                for subject in &outcome.subjects {
                    let Some(value) = outcome.value(at, subject.name) else {
                        continue;
                    };
                    let ratio =
                        |peer: &&'static str| Some((*peer, outcome.ratio(at, subject.name, peer)?));
                    let others = outcome.subjects.iter().map(|peer| peer.name);
                    let others: Vec<_> = others.filter(|peer| *peer != subject.name).collect();
                    let ratios = match subject.is_ours() {
                        true => others.iter().filter_map(ratio).collect(),
                        false => BTreeMap::new(),
                    };
                    rows.push(Row {
                        measure: measured.name,
                        params: outcome.case.params(),
                        subject: subject.name,
                        value: value.median,
                        min: value.min,
                        max: value.max,
                        unit: measured.unit,
                        rounds: outcome.rounds.len(),
                        thrown_away: outcome.thrown_away,
                        bounce_ns: Spread::of(outcome.rounds.iter().map(|round| round.bounce_ns)),
                        others_share: Spread::of(
                            outcome.rounds.iter().map(|round| round.others_share),
                        ),
                        ratios,
                    });
                }
            }
        }
        serde_json::to_string_pretty(&Document {
            machine: &self.machine,
            rows,
        })
    }
}
