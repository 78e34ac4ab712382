//! What a reader of the result relies on.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::markdown::{LAYER, PLACES, marks};
use super::rows::{GLANCE, MISSED, TLS};
use super::targets::TARGETS;
use super::{Report, Results};
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
        congestion: "cubic".into(),
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
                host: Ipv4Addr::LOCALHOST,
                size: 64,
                window: 1,
                connections: 1,
                bulk: 0,
                load: 0,
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
fn the_json_has_ratios_per_round_and_is_read_again() {
    let results = report().results();
    let json = results.json().expect("plain data");
    let again = Results::parse(&json).expect("what was written");
    assert_eq!(again.markdown(), results.markdown());
    let figure = again
        .figure("half round trip, p50", "two cores")
        .expect("it was measured");
    assert_eq!(figure.subjects, ["tokio", "tokio-fabric:epoll"]);
    let case = &figure.cases[0];
    let value = case.value("tokio-fabric:epoll").expect("a value");
    assert_eq!((value.median, value.min, value.max), (20.75, 10.5, 31.0));
    let ratio = case.ratio("tokio-fabric:epoll", "tokio").expect("a ratio");
    let close = |is: f64, to: f64| (is - to).abs() < 1e-4;
    assert!(close(ratio.min, 31.0 / 30.0) && close(ratio.max, 1.05));
    assert!(close(ratio.median, (1.05 + 31.0 / 30.0) / 2.0), "{ratio:?}");
    assert_eq!(case.ratio("tokio", "tokio-fabric:epoll"), None);
}

fn read(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/").to_owned() + name;
    std::fs::read_to_string(path).expect("a page of the repository")
}

/// `fabric-bench render docs/figures.json --markdown` each of these changes nothing; docs/links.md
/// is that of docs/links.json.
#[test]
fn the_pages_are_made_of_the_file_of_figures() {
    let results = Results::parse(&read("figures.json")).expect("figures");
    let pages = ["figures.md", "performance.md", "rpc.md", "tls.md"].map(|name| (name, read(name)));
    for (name, page) in &pages {
        let rendered = results.put_into(page);
        let mut lines = page.lines().zip(rendered.lines());
        let line = lines.find(|(is, rendered)| is != rendered);
        assert!(
            rendered == *page,
            "docs/{name} is not that of figures.json: first {line:?}"
        );
    }
    let links = Results::parse(&read("links.json")).expect("figures");
    assert!(links.put_into("") == read("links.md"), "docs/links.md");
    for (place, _) in PLACES {
        let [begin, _] = marks(place);
        let of = pages.iter().filter(|(_, page)| page.contains(&begin));
        assert_eq!(of.count(), 1, "pages that have {begin}");
    }
}

#[test]
fn each_target_of_the_library_that_is_missed_has_a_row_and_each_row_has_figures() {
    let results = Results::parse(&read("figures.json")).expect("figures");
    for target in TARGETS {
        let measured = results
            .of_target(target)
            .unwrap_or_else(|| panic!("no figure: {target:?}"));
        let is_fine = target.bound.is_met(measured.median) || target.of.ours.starts_with(LAYER);
        let has_row = MISSED.iter().any(|row| row.of == target.of);
        assert!(is_fine || has_row, "missed, without a row: {target:?}");
    }
    for row in [GLANCE, MISSED, TLS].into_iter().flatten() {
        assert!(results.compared(&row.of).is_some(), "{}", row.label);
    }
}

#[test]
fn what_meets_its_target_is_not_among_what_misses() {
    let mut results = Results::parse(&read("figures.json")).expect("figures");
    let row = &MISSED[0];
    assert!(results.missed().contains(row.label));
    let peer = row.of.peer.expect("a ratio");
    let cases = results.figures.iter_mut().flat_map(|it| &mut it.cases);
    for ratios in cases.filter_map(|case| case.ratios.get_mut(row.of.ours)) {
        ratios.insert(peer.to_owned(), [1.0; 3]);
    }
    assert!(!results.missed().contains(row.label));
}

#[test]
fn the_page_has_machine_values_ratios_and_targets() {
    let page = report().markdown();
    for line in [
        "| 64 B | 20.0 | 20.8 |",
        "| 64 B, epoll | 1.04 (1.03..1.05) |",
        "| half round trip, p50 | 64 B, two cores | tokio-fabric:epoll | tokio | ≤ 1.08 | 1.04 (1.03..1.05) | yes |",
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
