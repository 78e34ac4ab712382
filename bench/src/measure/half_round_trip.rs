//! Half the time of a round trip: one message there, the same back, nothing else under way.

use super::Scale;
use crate::case::{Case, Placement, Quantity, bytes};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "half round trip, p50",
        unit: "µs",
        read: |facts, _| Some(facts.get("p50_ns")? / 2e3),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "half round trip, p99",
        unit: "µs",
        read: |facts, _| Some(facts.get("p99_ns")? / 2e3),
        more_is_better: false,
        shows_ratios: false,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let sizes: &[usize] = if scale.quick {
        &[64, 1 << 20]
    } else {
        &[8, 64, 4 << 10, 64 << 10, 1 << 20]
    };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        cases.extend(sizes.iter().map(|&size| Case {
            what: bytes(size),
            job: Job {
                size,
                ..scale.job(Work::PingPong)
            },
            placement,
            quantities: QUANTITIES,
            is_shared: false,
        }));
    }
    cases
}
