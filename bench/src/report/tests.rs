//! What a reader of the result relies on.

use std::time::Duration;

use super::Report;
use crate::case::{Case, Figures, Placement, Quantity};
use crate::job::{Job, Work};
use crate::machine::Machine;
use crate::pin::Cpus;
use crate::rounds::{Outcome, Round};
use crate::subject::named;

const QUANTITIES: &[Quantity] = &[Quantity {
    measure: "half round trip, p50",
    unit: "µs",
    read: |facts, _| facts.get("time").copied(),
    more_is_better: false,
    shows_ratios: true,
}];

/// Two rounds, the second on a machine that has become three times as slow.
fn report() -> Report {
    let mut report = Report::new(Machine {
        processor: "a processor".into(),
        processors: 2,
        kernel: "6.1".into(),
        memory_gib: 8.0,
        date: "today".into(),
        commit: "abc".into(),
        pinned_client: 0,
        pinned_server: 1,
        cpus: Cpus {
            client: 0,
            server: 1,
        },
    });
    let facts = |time: f64| Figures::from([("time".to_owned(), time)]);
    let round = |peer: f64, ours: f64| Round {
        facts: [("tokio", facts(peer)), ("tokio-fabric:epoll", facts(ours))].into(),
        bounce_ns: 30.0,
        lock_ns: 9.5,
        others_share: 0.01,
    };
    report.push(Outcome {
        case: Case {
            what: "64 B".into(),
            job: Job {
                work: Work::PingPong,
                size: 64,
                window: 1,
                connections: 1,
                bulk: 0,
                watches_each: false,
                counts_syscalls: false,
                warm: Duration::ZERO,
                run: Duration::ZERO,
            },
            placement: Placement::TwoCores,
            quantities: QUANTITIES,
            is_shared: false,
        },
        subjects: ["tokio", "tokio-fabric:epoll"]
            .into_iter()
            .filter_map(named)
            .collect(),
        rounds: vec![round(10.0, 10.5), round(30.0, 31.0)],
        thrown_away: 1,
        failures: Vec::new(),
    });
    report
}

#[test]
fn the_json_has_the_promised_shape_and_ratios_per_round() {
    let json = report().json().expect("plain data");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["machine"]["kernel"], "6.1");
    let [peer, ours] = json["rows"].as_array().expect("rows").as_slice() else {
        panic!("a row per subject");
    };
    assert_eq!(
        (&peer["subject"], &ours["subject"]),
        (&"tokio".into(), &"tokio-fabric:epoll".into())
    );
    assert_eq!(
        (&ours["measure"], &ours["unit"]),
        (&"half round trip, p50".into(), &"µs".into())
    );
    assert_eq!(
        (&ours["params"]["size"], &ours["value"]),
        (&64.into(), &20.75.into())
    );
    assert_eq!(peer["ratios"], serde_json::json!({}));
    let ratio = &ours["ratios"]["tokio"];
    let close = |name: &str, to: f64| (ratio[name].as_f64().expect("a number") - to).abs() < 1e-9;
    assert!(close("min", 31.0 / 30.0) && close("max", 1.05), "{ratio}");
    assert!(close("median", (1.05 + 31.0 / 30.0) / 2.0), "{ratio}");
}

#[test]
fn the_page_has_machine_values_ratios_and_targets() {
    let page = report().markdown();
    for line in [
        "| 64 B | 20.0 | 20.8 |",
        "| 64 B, epoll | 1.04 (1.03..1.05) |",
        "tokio-fabric:epoll | tokio | ≤ 1.08 | 1.04 (1.03..1.05) | yes |",
        "1 more thrown away",
    ] {
        assert!(page.contains(line), "no {line:?} in\n{page}");
    }
}

#[test]
fn a_case_without_a_quiet_round_is_no_result() {
    let mut report = report();
    assert!(report.verdict().is_ok());
    report.outcomes[0].rounds.clear();
    let why = report
        .verdict()
        .expect_err("nothing was measured")
        .to_string();
    assert!(why.contains("no round was quiet enough"), "{why}");
}
