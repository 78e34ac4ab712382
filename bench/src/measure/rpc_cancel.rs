//! What follows when a call is dropped, and how soon.

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity};
use crate::job::Work;

const fn time(
    measure: &'static str,
    read: fn(&Figures, &crate::job::Job) -> Option<f64>,
) -> Quantity {
    Quantity {
        measure,
        unit: "µs",
        read,
        more_is_better: false,
        shows_ratios: false,
    }
}

fn microseconds(facts: &Figures, name: &str) -> Option<f64> {
    Some(facts.get(name)? / 1e3)
}

const QUANTITIES: &[Quantity] = &[
    time(
        "from the drop of a call until peers are refused, p50",
        |facts, _| microseconds(facts, "drop_p50_ns"),
    ),
    time(
        "from the drop of a call until peers are refused, p99",
        |facts, _| microseconds(facts, "drop_p99_ns"),
    ),
    time(
        "from the drop of a call until its handler is dropped, p50",
        |facts, _| microseconds(facts, "handler_p50_ns"),
    ),
    time(
        "from the drop of a call until its handler is dropped, p99",
        |facts, _| microseconds(facts, "handler_p99_ns"),
    ),
    time(
        "round trip of a call while others are dropped, p99",
        |facts, _| microseconds(facts, "trip_p99_ns"),
    ),
    time(
        "until its handler is dropped, p99 less that of a round trip",
        |facts, _| {
            let handler = microseconds(facts, "handler_p99_ns")?;
            Some((handler - microseconds(facts, "trip_p99_ns")?).max(0.0))
        },
    ),
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let job = scale.job(Work::RpcCancel);
    vec![Case {
        what: "a call that lends 4 KiB".to_owned(),
        job: crate::job::Job { size: 4096, ..job },
        placement: Placement::TwoCores,
        quantities: QUANTITIES,
        is_shared: false,
    }]
}
