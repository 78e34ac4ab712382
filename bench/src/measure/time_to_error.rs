//! How long after its peer's `kill -9` a process knows: all receives it had posted have ended.

use super::Scale;
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

/// Receives posted.
const RECEIVES: usize = 16;

const QUANTITIES: &[Quantity] = &[Quantity {
    measure: "time to error after kill -9",
    unit: "ms",
    read: |facts, _| Some((facts.get("ended_ns")? - facts.get("killed_ns")?) / 1e6),
    more_is_better: false,
    shows_ratios: true,
}];

pub fn cases(scale: &Scale) -> Vec<Case> {
    vec![Case {
        what: format!("{RECEIVES} receives"),
        job: Job {
            window: RECEIVES,
            ..scale.job(Work::Death)
        },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
