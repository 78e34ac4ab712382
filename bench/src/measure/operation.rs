//! What one operation costs in calls: of the allocator, both ends together, and of the system, each
//! end for itself.

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity, bytes};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "allocations per operation",
        unit: "calls",
        read: |facts, _| per_operation(facts, "allocations"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "system calls per operation, client",
        unit: "calls",
        read: |facts, _| per_operation(facts, "syscalls_client"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "system calls per operation, server",
        unit: "calls",
        read: |facts, _| per_operation(facts, "syscalls_server"),
        more_is_better: false,
        shows_ratios: false,
    },
];

fn per_operation(facts: &Figures, calls: &str) -> Option<f64> {
    Some(facts.get(calls)? / facts.get("count")?)
}

pub fn cases(scale: &Scale) -> Vec<Case> {
    let works = [
        ("ping-pong", Work::PingPong, 64, 1),
        ("message", Work::Stream, 64, 64),
        ("message", Work::Stream, 4096, 64),
        ("RMA write", Work::Write, 4096, 16),
        ("RMA read", Work::Read, 4096, 16),
    ];
    works
        .into_iter()
        .filter(|(_, work, ..)| !scale.quick || *work == Work::Stream)
        .map(|(name, work, size, window)| Case {
            what: format!("{name} of {}, window {window}", bytes(size)),
            job: Job {
                size,
                window,
                counts_syscalls: true,
                ..scale.job(work)
            },
            placement: Placement::TwoCores,
            quantities: QUANTITIES,
            is_shared: false,
        })
        .collect()
}
