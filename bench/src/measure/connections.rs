//! Small messages over many connections between two single-threaded processes: a few on the way
//! per connection, so that wake-ups and system calls cannot be shared within one connection.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

/// On the way per connection.
const WINDOW: usize = 4;

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "messages per second over connections, 64 B",
        unit: "million/s",
        read: |facts, _| Some(rate(facts)? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "CPU per million messages over connections, 64 B",
        unit: "s",
        read: |facts, _| Some(cpu_per_message(facts)? * 1e6),
        more_is_better: false,
        shows_ratios: true,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let counts: &[usize] = if scale.quick {
        &[16]
    } else {
        &[1, 16, 64, 256]
    };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        cases.extend(counts.iter().map(|&connections| Case {
            what: format!("{connections} connections"),
            job: Job {
                connections,
                window: WINDOW,
                ..scale.job(Work::Stream)
            },
            placement,
            quantities: QUANTITIES,
        }));
    }
    cases
}
