//! Bytes per second of large messages, writes and reads, and what a gigabyte costs in CPU time.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Figures, Placement, Quantity, bytes};
use crate::job::{Job, Work};

/// The same two figures under the name of each operation.
macro_rules! quantities {
    ($operation:literal) => {
        &[
            Quantity {
                measure: concat!("bandwidth, ", $operation),
                unit: "GB/s",
                read: gigabytes,
                more_is_better: true,
                shows_ratios: true,
            },
            Quantity {
                measure: concat!("CPU per GB, ", $operation),
                unit: "s",
                read: cpu,
                more_is_better: false,
                shows_ratios: true,
            },
        ]
    };
}

const OPERATIONS: [(Work, &[Quantity]); 3] = [
    (Work::Stream, quantities!("send")),
    (Work::Write, quantities!("RMA write")),
    (Work::Read, quantities!("RMA read")),
];

fn gigabytes(facts: &Figures, job: &Job) -> Option<f64> {
    Some(rate(facts)? * job.size as f64 / 1e9)
}

fn cpu(facts: &Figures, job: &Job) -> Option<f64> {
    Some(cpu_per_message(facts)? / job.size as f64 * 1e9)
}

/// Size, and how many are under way: more than one, and not more memory than a cache may hold.
const SIZES: [(usize, usize); 4] = [(4 << 10, 64), (64 << 10, 16), (1 << 20, 8), (16 << 20, 2)];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let sizes = if scale.quick {
        &SIZES[2..3]
    } else {
        &SIZES[..]
    };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        for (work, quantities) in OPERATIONS {
            cases.extend(sizes.iter().map(|&(size, window)| Case {
                what: bytes(size),
                job: Job {
                    size,
                    window,
                    ..scale.job(work)
                },
                placement,
                quantities,
                is_shared: false,
            }));
        }
    }
    cases
}
