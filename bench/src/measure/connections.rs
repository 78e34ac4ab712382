//! Small messages over many connections between two single-threaded processes: a few on the way
//! per connection, so that wake-ups and system calls cannot be shared within one connection.

use std::time::Duration;

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

/// On the way per connection.
const WINDOW: usize = 4;

/// With so many connections a run is longer: the slowest subjects need more than a second to answer
/// all that is on the way once, and what was sent before the run would be all that is counted.
const MANY: usize = 10_000;
const RUN_OF_MANY: Duration = Duration::from_secs(3);

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
    Quantity {
        measure: "time to an answer over connections, p99",
        unit: "µs",
        read: |facts, _| Some(facts.get("p99_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "fairness over connections",
        unit: "Jain's index of the answers that each got, 1 is even",
        read: |facts, _| facts.get("fairness").copied(),
        more_is_better: true,
        shows_ratios: false,
    },
    Quantity {
        measure: "heap per busy connection, connecting end",
        unit: "KiB",
        read: |facts, job| Some(facts.get("heap_client")? / 1024.0 / job.connections as f64),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "resident memory per busy connection, listening end",
        unit: "KiB",
        read: |facts, job| Some(facts.get("resident_server")? / 1024.0 / job.connections as f64),
        more_is_better: false,
        shows_ratios: false,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let counts: &[usize] = if scale.quick {
        &[16]
    } else {
        &[1, 16, 64, 256, 1024, MANY]
    };
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        // Connecting ten thousand times takes long: once per round is enough.
        let most = match placement {
            Placement::TwoCores | Placement::Link(_) => usize::MAX,
            Placement::SameCore => 1024,
        };
        let counts = counts.iter().filter(|&&count| count <= most);
        cases.extend(counts.map(|&connections| {
            let job = scale.job(Work::Stream);
            let least = match connections {
                MANY => RUN_OF_MANY,
                _ => Duration::ZERO,
            };
            Case {
                what: format!("{connections} connections"),
                job: Job {
                    connections,
                    window: WINDOW,
                    watches_each: true,
                    warm: job.warm.max(least / 3),
                    run: job.run.max(least),
                    ..job
                },
                placement,
                quantities: QUANTITIES,
                is_shared: false,
            }
        }));
    }
    cases
}
