//! More calls than a server can answer: what it answers all the same, and how soon it refuses.

use super::Scale;
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

/// Calls that the server takes at a time.
const CALLS: usize = 64;
/// What is offered, in percent of the capacity.
const LOADS: [usize; 7] = [50, 80, 100, 120, 150, 200, 300];

pub const GOODPUT: &str = "goodput relative to capacity";
pub const ACCEPTED: &str = "p99 of accepted calls relative to a server at capacity";
pub const REFUSED: &str = "time to a refusal, p99";

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: GOODPUT,
        unit: "1 is the capacity",
        read: |facts, _| Some(facts.get("goodput")? / facts.get("capacity")?),
        more_is_better: true,
        shows_ratios: false,
    },
    Quantity {
        measure: ACCEPTED,
        unit: "1 is the same",
        read: |facts, _| Some(facts.get("accepted_p99_ns")? / facts.get("full_p99_ns")?),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: REFUSED,
        unit: "ms",
        read: |facts, _| Some(facts.get("refused_p99_ns")? / 1e6),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "calls offered",
        unit: "thousand/s",
        read: |facts, _| Some(facts.get("offered")? / 1e3),
        more_is_better: true,
        shows_ratios: false,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let wanted = LOADS.iter().filter(|load| !scale.quick || **load == 200);
    wanted
        .map(|&load| Case {
            what: format!("{:.1} x capacity offered", load as f64 / 100.0),
            job: Job {
                window: CALLS,
                load,
                ..scale.job(Work::RpcOverload)
            },
            placement: Placement::TwoCores,
            quantities: QUANTITIES,
            is_shared: false,
        })
        .collect()
}
