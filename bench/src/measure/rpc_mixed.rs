//! Small calls, one after the other, beside a large transfer over the same connection.

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity, bytes};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "small call alone, p99",
        unit: "µs",
        read: |facts, _| microseconds(facts, "idle_p99_ns"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "small call during the transfer, p50",
        unit: "µs",
        read: |facts, _| microseconds(facts, "beside_p50_ns"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "small call during the transfer, p99",
        unit: "µs",
        read: |facts, _| microseconds(facts, "beside_p99_ns"),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "p99 that a 1 GiB transfer adds to small calls",
        unit: "ms",
        read: |facts, _| {
            let added = facts.get("beside_p99_ns")? - facts.get("idle_p99_ns")?;
            Some(added / 1e6)
        },
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "bandwidth of the transfer during small calls",
        unit: "GB/s",
        read: |facts, _| Some(facts.get("bulk_bytes")? / facts.get("bulk_ns")?),
        more_is_better: true,
        shows_ratios: true,
    },
];

fn microseconds(facts: &Figures, name: &str) -> Option<f64> {
    Some(facts.get(name)? / 1e3)
}

pub fn cases(scale: &Scale) -> Vec<Case> {
    let bulk = if scale.quick { 32 << 20 } else { 1 << 30 };
    vec![Case {
        what: format!("64 B beside {}", bytes(bulk)),
        job: Job {
            bulk,
            ..scale.job(Work::RpcMixed)
        },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
