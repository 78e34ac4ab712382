//! Calls of a server that drains and starts anew all the time; what has not started is made again.

use super::{Scale, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

const CALLERS: usize = 16;

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "failed calls under restarts",
        unit: "calls",
        read: |facts, _| facts.get("failed").copied(),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "calls per second under restarts",
        unit: "thousand/s",
        read: |facts, _| Some(rate(facts)? / 1e3),
        more_is_better: true,
        shows_ratios: false,
    },
    Quantity {
        measure: "calls made again, per restart",
        unit: "calls",
        read: |facts, _| Some(facts.get("again")? / facts.get("restarts")?.max(1.0)),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "longest time without an answer",
        unit: "ms",
        read: |facts, _| Some(facts.get("longest_gap_ns")? / 1e6),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "longest drain",
        unit: "ms",
        read: |facts, _| Some(facts.get("longest_drain_ns")? / 1e6),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "restarts in a run",
        unit: "restarts",
        read: |facts, _| facts.get("restarts").copied(),
        more_is_better: true,
        shows_ratios: false,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let job = scale.job(Work::RpcDrain);
    vec![Case {
        what: format!("{CALLERS} callers"),
        job: Job {
            window: CALLERS,
            // Some restarts.
            run: job.run * 5,
            ..job
        },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
