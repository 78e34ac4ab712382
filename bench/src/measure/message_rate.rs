//! Small messages per second over one connection, by how many may be on the way.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "messages per second, 64 B",
        unit: "million/s",
        read: |facts, _| Some(rate(facts)? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "CPU per million messages, 64 B",
        unit: "s",
        read: |facts, _| Some(cpu_per_message(facts)? * 1e6),
        more_is_better: false,
        shows_ratios: true,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let windows: &[usize] = if scale.quick {
        &[64]
    } else {
        &[1, 16, 64, 256]
    };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        cases.extend(windows.iter().map(|&window| Case {
            what: format!("window {window}"),
            job: Job {
                window,
                ..scale.job(Work::Stream)
            },
            placement,
            quantities: QUANTITIES,
            is_shared: false,
        }));
    }
    cases
}
