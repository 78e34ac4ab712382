//! Round trips on one connection while large messages keep another one busy, in the same domain.

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity};
use crate::job::{Job, Work};

/// Bytes of a large message, and how many are always under way.
const BULK: usize = 16 << 20;
const UNDER_WAY: usize = 4;

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "round trip beside bulk, p50",
        unit: "µs",
        read: |facts, _| Some(facts.get("p50_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "round trip beside bulk, p99",
        unit: "µs",
        read: |facts, _| Some(facts.get("p99_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "bandwidth of bulk without the ping",
        unit: "GB/s",
        read: |facts, _| gigabytes(facts, "alone"),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "bandwidth of bulk beside the ping",
        unit: "GB/s",
        read: |facts, _| gigabytes(facts, "beside"),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "bandwidth beside the ping to that without",
        unit: "1 is the same",
        read: |facts, _| Some(gigabytes(facts, "beside")? / gigabytes(facts, "alone")?),
        more_is_better: true,
        shows_ratios: false,
    },
];

/// Bytes per nanosecond.
fn gigabytes(facts: &Figures, phase: &str) -> Option<f64> {
    let of = |what: &str| facts.get(&format!("{phase}_{what}"));
    Some(of("bytes")? / of("ns")?)
}

pub fn cases(scale: &Scale) -> Vec<Case> {
    let job = scale.job(Work::Neighbours);
    vec![Case {
        what: "64 B beside 4 x 16 MiB".to_owned(),
        job: Job {
            window: UNDER_WAY,
            bulk: BULK,
            // A large message takes milliseconds, and so may a round trip behind some of them.
            run: job.run * 4,
            ..job
        },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
