//! What connections cost that do nothing: memory of either end, and CPU time of both.

use std::time::Duration;

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity};
use crate::job::{Job, Work};

/// Watched for so long, since a sign of life is asked for only now and then: this library looks at
/// an idle connection once in so long.
const WATCHED: Duration = Duration::from_secs(60);
const WATCHED_QUICK: Duration = Duration::from_millis(500);
/// What making the connections has left to do is done by then.
const SETTLED: Duration = Duration::from_secs(1);

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "idle CPU, both ends",
        unit: "% of a core",
        read: |facts, _| Some(facts.get("cpu_ns")? / facts.get("elapsed_ns")? * 100.0),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "resident memory per idle connection, connecting end",
        unit: "KiB",
        read: |facts, job| each(facts, job, "resident_client"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "resident memory per idle connection, listening end",
        unit: "KiB",
        read: |facts, job| each(facts, job, "resident_server"),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "heap per idle connection, connecting end",
        unit: "KiB",
        read: |facts, job| each(facts, job, "heap_client"),
        more_is_better: false,
        shows_ratios: false,
    },
];

fn each(facts: &Figures, job: &Job, name: &str) -> Option<f64> {
    Some(facts.get(name)? / 1024.0 / job.connections as f64)
}

pub fn cases(scale: &Scale) -> Vec<Case> {
    let connections = scale.idle_connections;
    let run = if scale.quick { WATCHED_QUICK } else { WATCHED };
    vec![Case {
        what: format!("{connections} connections"),
        job: Job {
            connections,
            warm: SETTLED,
            run,
            ..scale.job(Work::Idle)
        },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: true,
    }]
}
