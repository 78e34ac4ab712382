//! What a second processor adds within one process: to two pairs of ends that share nothing, to the
//! connections of one domain when it has two drivers, and to an endpoint when it has two contexts.

use super::Scale;
use crate::case::{Case, Figures, Placement, Quantity};
use crate::job::{Job, Work};

/// On the way of a pair, and per connection where there are many.
const WINDOW: usize = 64;
const WINDOW_OF_MANY: usize = 4;
const CONNECTIONS: usize = 64;

const PAIRS: &[Quantity] = &[
    Quantity {
        measure: "messages per second of a pair in a thread, 64 B",
        unit: "million/s",
        read: |facts, _| Some(facts.get("one_per_s")? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "two pairs on two cores to one pair on one",
        unit: "×",
        read: gain,
        more_is_better: true,
        shows_ratios: false,
    },
];

const SHARDS: &[Quantity] = &[
    Quantity {
        measure: "messages per second of one domain in two threads, 64 B",
        unit: "million/s",
        read: |facts, _| Some(facts.get("one_per_s")? / 1e6),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "two drivers of a domain to one",
        unit: "×",
        read: gain,
        more_is_better: true,
        shows_ratios: false,
    },
];

const CONTEXTS: &[Quantity] = &[
    Quantity {
        measure: "messages per second among contexts of scalable endpoints, 64 B",
        unit: "million/s",
        read: |facts, _| Some(facts.get("one_per_s")? / 1e6),
        more_is_better: true,
        shows_ratios: false,
    },
    Quantity {
        measure: "two contexts of a scalable endpoint to one",
        unit: "×",
        read: gain,
        more_is_better: true,
        shows_ratios: false,
    },
];

fn gain(facts: &Figures, _: &Job) -> Option<f64> {
    Some(facts.get("two_per_s")? / facts.get("one_per_s")?)
}

pub fn cases(scale: &Scale) -> Vec<Case> {
    vec![
        Case {
            what: format!("window {WINDOW}"),
            job: Job {
                window: WINDOW,
                ..scale.job(Work::Pairs)
            },
            placement: Placement::TwoCores,
            quantities: PAIRS,
            is_shared: false,
        },
        Case {
            what: format!("{CONNECTIONS} connections"),
            job: Job {
                window: WINDOW_OF_MANY,
                connections: CONNECTIONS,
                ..scale.job(Work::Shards)
            },
            placement: Placement::TwoCores,
            quantities: SHARDS,
            is_shared: false,
        },
        of_contexts(scale, "one endpoint", 1),
        of_contexts(scale, "two endpoints", 2),
    ]
}

fn of_contexts(scale: &Scale, what: &str, endpoints: usize) -> Case {
    Case {
        what: what.to_owned(),
        job: Job {
            window: WINDOW,
            connections: endpoints,
            ..scale.job(Work::Contexts)
        },
        placement: Placement::TwoCores,
        quantities: CONTEXTS,
        is_shared: false,
    }
}
