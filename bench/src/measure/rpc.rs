//! Calls and their answers over one connection, by how many are under way.

use super::{Scale, cpu_per_message, rate};
use crate::case::{Case, Placement, Quantity};
use crate::job::{Job, Work};

const QUANTITIES: &[Quantity] = &[
    Quantity {
        measure: "calls per second",
        unit: "thousand/s",
        read: |facts, _| Some(rate(facts)? / 1e3),
        more_is_better: true,
        shows_ratios: true,
    },
    Quantity {
        measure: "call, p50",
        unit: "µs",
        read: |facts, _| Some(facts.get("p50_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "call, p99",
        unit: "µs",
        read: |facts, _| Some(facts.get("p99_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: true,
    },
    Quantity {
        measure: "call, p99.9",
        unit: "µs",
        read: |facts, _| Some(facts.get("p999_ns")? / 1e3),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "allocations per call",
        unit: "both ends",
        read: |facts, _| Some(facts.get("allocations")? / facts.get("count")?),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "allocations per call, client",
        unit: "calls",
        read: |facts, _| Some(facts.get("allocations_client")? / facts.get("count")?),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "allocations per call, server",
        unit: "calls",
        read: |facts, _| Some(facts.get("allocations_server")? / facts.get("count")?),
        more_is_better: false,
        shows_ratios: false,
    },
    Quantity {
        measure: "CPU per thousand calls",
        unit: "ms",
        read: |facts, _| Some(cpu_per_message(facts)? * 1e6),
        more_is_better: false,
        shows_ratios: true,
    },
];

pub fn cases(scale: &Scale) -> Vec<Case> {
    let kinds = [(1, 0), (64, 0), (256, 0), (8, 1 << 20)];
    let mut cases = Vec::new();
    for placement in Placement::BOTH {
        let wanted = kinds
            .iter()
            .filter(|(window, _)| !scale.quick || *window == 64);
        cases.extend(wanted.map(|&(window, bulk)| Case {
            what: match bulk {
                0 => format!("64 B, {window} under way"),
                _ => format!("64 B and 1 MiB back, {window} under way"),
            },
            job: Job {
                window,
                bulk,
                ..scale.job(Work::Rpc)
            },
            placement,
            quantities: QUANTITIES,
            is_shared: false,
        }));
    }
    cases
}

/// The smoke test has calls over TLS, too.
#[test]
fn a_quick_run_has_calls_over_tls() {
    let scale = Scale {
        quick: true,
        run: std::time::Duration::ZERO,
        idle_connections: 1,
    };
    let cases = cases(&scale);
    for name in [
        "tokio:tls",
        "tokio-fabric:epoll:tls",
        "tokio-fabric-rpc:tls",
    ] {
        let subject = crate::subject::named(name).expect("a subject");
        let fits = |case: &Case| subject.fits(&case.job, case.placement);
        assert!(cases.iter().any(fits), "{name}");
    }
}
