//! Registrations and deregistrations, one after the other: within the call, awaited, served by a
//! cache, missed by it, of sixteen buffers as one region, and of addresses without an owner. Memory
//! is sparse: nothing touches it, so the plain path should take no time by the size.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity, bytes};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "registrations and deregistrations per second",
        unit: "million/s",
        read: |facts, _| Some(rate(facts)? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "CPU of a registration and deregistration",
        unit: "ns",
        read: |facts, _| Some(cpu_per_message(facts)? * 1e9),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "time of a registration, p50",
        unit: "ns",
        read: |facts, _| facts.get("p50_ns").copied(),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "time of a registration, p99",
        unit: "ns",
        read: |facts, _| facts.get("p99_ns").copied(),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "time of a deregistration, p50",
        unit: "ns",
        read: |facts, _| facts.get("end_p50_ns").copied(),
        more_is_better: false,
        shows_ratios: false,
    },
];

/// Buffers of a vector.
const VECTOR: usize = 16;

const WAYS: [(Work, usize, &str); 6] = [
    (Work::Register, 1, "sync"),
    (Work::RegisterRange, 1, "range, sync"),
    (Work::RegisterAwaited, 1, "async"),
    (Work::CacheHit, 1, "cached, hit"),
    (Work::CacheMiss, 1, "cached, miss"),
    (Work::Register, VECTOR, "vector of 16"),
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let sizes: &[usize] = if scale.quick {
        &[4 << 10]
    } else {
        &[4 << 10, 1 << 20, 1 << 30]
    };
    let case = |size: usize, (work, window, way): (Work, usize, &str)| Case {
        what: format!("{}, {way}", bytes(size)),
        job: Job {
            size,
            window,
            ..scale.job(work)
        },
        placement: Placement::SameCore,
        quantities: QUANTITIES,
        is_shared: false,
    };
    let mut cases = Vec::new();
    for &size in sizes {
        cases.extend(WAYS.map(|way| case(size, way)));
        // Larger ones take the time of their pages.
        if size < 1 << 30 {
            cases.push(case(size, (Work::RegisterFaulted, 1, "async, faulted in")));
        }
    }
    cases
}
