//! The measures, each a file: which cases it has and what it reads from them.

mod all_to_all;
mod bandwidth;
mod connections;
mod half_round_trip;
mod idle;
mod link_down;
mod message_rate;
mod neighbours;
mod operation;
mod pairs;
mod registration;
mod rpc;
mod rpc_cancel;
mod rpc_drain;
mod rpc_mixed;
pub mod rpc_overload;
mod time_to_error;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::case::{Case, Figures, Placement};
use crate::job::{Job, Work};
use crate::link::{self, LinkSpec};
use crate::options::Options;
use crate::subject::SUBJECTS;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The few cases of a smoke test.
    pub quick: bool,
    pub run: Duration,
    pub idle_connections: usize,
}

impl Scale {
    fn new(options: &Options) -> Scale {
        let quick = options.quick;
        let run_ms = options.run_ms.unwrap_or(if quick { 60 } else { 300 });
        Scale {
            quick,
            run: Duration::from_millis(run_ms),
            idle_connections: options
                .idle_connections
                .unwrap_or(if quick { 100 } else { 10_000 }),
        }
    }

    fn job(&self, work: Work) -> Job {
        Job {
            work,
            host: Ipv4Addr::LOCALHOST,
            size: 64,
            window: 1,
            connections: 1,
            bulk: 0,
            load: 0,
            watches_each: false,
            counts_syscalls: false,
            warm: self.run / 4,
            run: self.run,
        }
    }
}

struct Measure {
    name: &'static str,
    about: &'static str,
    cases: fn(&Scale) -> Vec<Case>,
}

const MEASURES: &[Measure] = &[
    Measure {
        name: "half-round-trip",
        about: "half the time of a ping-pong, 8 B to 1 MiB",
        cases: half_round_trip::cases,
    },
    Measure {
        name: "message-rate",
        about: "64 B messages per second, windows of 1 to 256",
        cases: message_rate::cases,
    },
    Measure {
        name: "bandwidth",
        about: "send, RMA write and RMA read of 4 KiB to 16 MiB, and the CPU time of a gigabyte",
        cases: bandwidth::cases,
    },
    Measure {
        name: "connections",
        about: "64 B messages over 1 to 10,000 connections: rate, CPU time, p99, fairness, memory",
        cases: connections::cases,
    },
    Measure {
        name: "all-to-all",
        about: "64 B messages among connectionless endpoints, each to each",
        cases: all_to_all::cases,
    },
    Measure {
        name: "pairs",
        about: "what a second processor adds within one process",
        cases: pairs::cases,
    },
    Measure {
        name: "neighbours",
        about: "round trips of 64 B beside four 16 MiB sends on another connection",
        cases: neighbours::cases,
    },
    Measure {
        name: "operation",
        about: "calls of the allocator and of the system per message and RMA",
        cases: operation::cases,
    },
    Measure {
        name: "registration",
        about: "registrations and deregistrations per second, and their latency, 4 KiB to 1 GiB",
        cases: registration::cases,
    },
    Measure {
        name: "rpc",
        about: "calls per second and their latency, 64 B, and with 1 MiB in the answer",
        cases: rpc::cases,
    },
    Measure {
        name: "rpc-mixed",
        about: "small calls alone, and beside a transfer of 1 GiB over the same connection",
        cases: rpc_mixed::cases,
    },
    Measure {
        name: "rpc-cancel",
        about: "from the drop of a call to the end of its rights and of its handler",
        cases: rpc_cancel::cases,
    },
    Measure {
        name: "rpc-overload",
        about: "answers, refusals and their times at half to three times a server's capacity",
        cases: rpc_overload::cases,
    },
    Measure {
        name: "rpc-drain",
        about: "calls of a server that drains and starts anew all the time",
        cases: rpc_drain::cases,
    },
    Measure {
        name: "time-to-error",
        about: "from the peer's kill -9 to the end of the last operation",
        cases: time_to_error::cases,
    },
    Measure {
        name: "link-down",
        about: "from the moment that the link goes down to the end of an operation (--link)",
        cases: link_down::cases,
    },
    Measure {
        name: "idle",
        about: "CPU and memory of connections with nothing to do",
        cases: idle::cases,
    },
];

/// The cases of the measures that were asked for.
pub fn cases(options: &Options) -> Result<Vec<Case>> {
    for only in &options.only {
        if !MEASURES.iter().any(|measure| measure.name == only) {
            bail!("no measure is called {only}; see `fabric-bench list`");
        }
    }
    let scale = Scale::new(options);
    let wanted = |measure: &&Measure| {
        options.only.is_empty() || options.only.iter().any(|only| only == measure.name)
    };
    let cases: Vec<Case> = MEASURES
        .iter()
        .filter(wanted)
        .flat_map(|measure| (measure.cases)(&scale))
        .collect();
    let links = options.links();
    if links.is_empty() {
        let here = |case: &Case| case.job.work != Work::LinkDown;
        return Ok(cases.into_iter().filter(here).collect());
    }
    let over = |link: LinkSpec| cases.iter().filter_map(move |case| over_link(case, link));
    Ok(links.into_iter().flat_map(over).collect())
}

/// The same case over a link, if it is one of two ends on two processors.
fn over_link(case: &Case, link: LinkSpec) -> Option<Case> {
    let fits = case.placement == Placement::TwoCores && case.job.work.crosses_links();
    fits.then(|| Case {
        placement: Placement::Link(link),
        job: Job {
            host: link::SERVER,
            warm: case.job.warm.max(link.settling()),
            ..case.job.clone()
        },
        ..case.clone()
    })
}

/// Prints what there is.
pub fn list() -> Result<()> {
    for measure in MEASURES {
        println!("measure {:<16} {}", measure.name, measure.about);
    }
    for subject in SUBJECTS {
        println!("subject {}", subject.name);
    }
    Ok(())
}

/// Messages (or RMAs) per second.
fn rate(facts: &Figures) -> Option<f64> {
    let (count, elapsed) = (facts.get("count")?, facts.get("elapsed_ns")?);
    Some(count / elapsed * 1e9)
}

/// CPU seconds of both ends for each message (or RMA).
fn cpu_per_message(facts: &Figures) -> Option<f64> {
    let (cpu, count) = (facts.get("cpu_ns")?, facts.get("count")?);
    Some(cpu / 1e9 / count)
}

/// A layer for calls sends no messages of its own: as a subject of them it would measure nothing.
#[test]
fn layers_make_calls_and_nothing_else() {
    let scale = Scale {
        quick: false,
        run: Duration::ZERO,
        idle_connections: 1,
    };
    let layers = SUBJECTS
        .iter()
        .filter(|it| !it.is_ours() && it.is_of_this_repository());
    for layer in layers {
        let cases = MEASURES.iter().flat_map(|it| (it.cases)(&scale));
        for case in cases.filter(|case| layer.fits(&case.job, case.placement)) {
            let is_of_calls = matches!(
                case.job.work,
                Work::Rpc | Work::RpcMixed | Work::RpcCancel | Work::RpcOverload | Work::RpcDrain
            );
            assert!(is_of_calls, "{}: {:?}", layer.name, case.job.work);
        }
    }
}
