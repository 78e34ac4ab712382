//! Small messages among connectionless endpoints, each of one process to each of the other: what
//! finding the peer of a message and its receive costs, over many connections.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

/// On the way of each to each.
const WINDOW: usize = 4;

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "messages per second of all to all, 64 B",
        unit: "million/s",
        read: |facts, _| Some(rate(facts)? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "CPU per million messages of all to all, 64 B",
        unit: "s",
        read: |facts, _| Some(cpu_per_message(facts)? * 1e6),
        more_is_better: false,
        shows_ratios: true,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let counts: &[usize] = if scale.quick { &[4] } else { &[1, 8, 24] };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        cases.extend(counts.iter().map(|&connections| Case {
            what: format!("{connections} to {connections}"),
            job: Job {
                connections,
                window: WINDOW,
                ..scale.job(Work::AllToAll)
            },
            placement,
            quantities: QUANTITIES,
            is_shared: false,
        }));
    }
    cases
}
