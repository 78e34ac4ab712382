//! What the figures are held against. `judge.rs` does so.

/// One figure of ours, divided by a peer's or as it is, and its bound.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) measure: &'static str,
    /// The case's row.
    pub(super) what: &'static str,
    pub(super) cores: &'static str,
    pub(super) ours: Ours,
    /// The peer; none: the figure itself.
    pub(super) peer: Option<&'static str>,
    pub(super) bound: Bound,
}

/// Which of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    /// The best of those that sleep when there is nothing to do.
    Sleeping,
    /// The best of those that spin.
    Spinning,
    /// The best of all.
    Best,
    /// This one.
    Named(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};
use Ours::{Best, Named, Sleeping, Spinning};

const TWO: &str = "two cores";
const ONE: &str = "same core";
const EPOLL: &str = "tokio-fabric:epoll";
const URING: &str = "tokio-fabric:io-uring";

const fn target(
    measure: &'static str,
    what: &'static str,
    cores: &'static str,
    ours: Ours,
    peer: &'static str,
    bound: Bound,
) -> Target {
    Target {
        measure,
        what,
        cores,
        ours,
        peer: Some(peer),
        bound,
    }
}

/// Registering in this way is to be as fast as libfabric's.
const fn registered(what: &'static str) -> Target {
    let rate = "registrations and deregistrations per second";
    target(rate, what, ONE, Best, "libfabric:wait", AtLeast(1.0))
}

/// A figure of the default's that is a bound by itself.
const fn itself(measure: &'static str, what: &'static str, most: f64) -> Target {
    Target {
        measure,
        what,
        cores: TWO,
        ours: Named(URING),
        peer: None,
        bound: AtMost(most),
    }
}

const HALF: &str = "half round trip, p50";
const RATE: &str = "messages per second, 64 B";
const SEND: &str = "bandwidth, send";
const WRITE: &str = "bandwidth, RMA write";
const READ: &str = "bandwidth, RMA read";
const CALLS: &str = "calls per second";
const CALL_P99: &str = "call, p99";
const CALLS_64: &str = "64 B, 64 under way";
const CALLS_256: &str = "64 B, 256 under way";
const BULK: &str = "64 B and 1 MiB back, 8 under way";
const MESSAGE: &str = "message of 64 B, window 64";
const WRITE_4K: &str = "RMA write of 4 KiB, window 16";
const READ_4K: &str = "RMA read of 4 KiB, window 16";
const BESIDE_P50: &str = "round trip beside bulk, p50";
const BESIDE_P99: &str = "round trip beside bulk, p99";
const NEIGHBOURS: &str = "64 B beside 4 x 16 MiB";
const OVER_CONNECTIONS: &str = "CPU per million messages over connections, 64 B";

pub(super) const TARGETS: &[Target] = &[
    target(HALF, "64 B", TWO, Sleeping, "tokio", AtMost(1.08)),
    target(HALF, "64 B", ONE, Sleeping, "tokio", AtMost(1.15)),
    target(HALF, "64 B", TWO, Sleeping, "libfabric:wait", AtMost(1.0)),
    target(HALF, "64 B", ONE, Sleeping, "libfabric:wait", AtMost(1.0)),
    target(HALF, "64 B", TWO, Spinning, "tcp:spin", AtMost(1.15)),
    target(HALF, "64 B", TWO, Spinning, "libfabric:spin", AtMost(1.0)),
    target(RATE, "window 64", TWO, Best, "libfabric:spin", AtLeast(5.0)),
    target(
        RATE,
        "window 256",
        TWO,
        Best,
        "libfabric:spin",
        AtLeast(10.0),
    ),
    Target {
        measure: RATE,
        what: "window 64",
        cores: TWO,
        ours: Best,
        peer: None,
        bound: AtLeast(1.0),
    },
    target(SEND, "1 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(SEND, "1 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target(SEND, "16 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(SEND, "16 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target(WRITE, "1 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(WRITE, "1 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target(WRITE, "16 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(WRITE, "16 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target(READ, "1 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(READ, "1 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target(READ, "16 MiB", TWO, Best, "tcp", AtLeast(0.97)),
    target(READ, "16 MiB", TWO, Best, "libfabric:spin", AtLeast(1.0)),
    target("CPU per GB, send", "1 MiB", TWO, Best, "tcp", AtMost(1.05)),
    target(
        "CPU per GB, RMA write",
        "1 MiB",
        TWO,
        Best,
        "tcp",
        AtMost(1.05),
    ),
    target(
        "CPU per GB, RMA read",
        "1 MiB",
        TWO,
        Best,
        "tcp",
        AtMost(1.05),
    ),
    target(CALLS, CALLS_64, TWO, Best, "tokio", AtLeast(0.9)),
    target(CALLS, CALLS_64, TWO, Best, "tonic", AtLeast(9.0)),
    target(CALLS, CALLS_64, TWO, Best, "tarpc", AtLeast(2.3)),
    target(CALLS, CALLS_256, TWO, Best, "tokio", AtLeast(0.9)),
    target(CALLS, CALLS_256, TWO, Best, "tonic", AtLeast(9.0)),
    target(CALLS, CALLS_256, TWO, Best, "tarpc", AtLeast(2.3)),
    target(CALL_P99, CALLS_64, TWO, Best, "tonic", AtMost(1.0)),
    target(CALL_P99, CALLS_64, TWO, Best, "tarpc", AtMost(1.0)),
    target(CALL_P99, CALLS_256, TWO, Best, "tonic", AtMost(1.0)),
    target(CALL_P99, CALLS_256, TWO, Best, "tarpc", AtMost(1.0)),
    target(CALLS, BULK, TWO, Best, "tokio", AtLeast(1.0)),
    target(CALLS, BULK, TWO, Best, "tonic", AtLeast(2.5)),
    itself(BESIDE_P50, NEIGHBOURS, 300.0),
    itself(BESIDE_P99, NEIGHBOURS, 2000.0),
    target(
        BESIDE_P50,
        NEIGHBOURS,
        TWO,
        Named(URING),
        "tokio",
        AtMost(1.0),
    ),
    target(
        BESIDE_P50,
        NEIGHBOURS,
        TWO,
        Named(EPOLL),
        "tokio",
        AtMost(1.0),
    ),
    Target {
        measure: "bandwidth beside the ping to that without",
        what: NEIGHBOURS,
        cores: TWO,
        ours: Named(URING),
        peer: None,
        bound: AtLeast(0.95),
    },
    itself("allocations per operation", MESSAGE, 0.01),
    itself("allocations per operation", WRITE_4K, 0.01),
    itself("allocations per operation", READ_4K, 0.01),
    itself("system calls per operation, client", MESSAGE, 0.1),
    itself("system calls per operation, server", MESSAGE, 0.1),
    Target {
        measure: "two pairs on two cores to one pair on one",
        what: "window 64",
        cores: TWO,
        ours: Best,
        peer: None,
        bound: AtLeast(1.8),
    },
    target(
        OVER_CONNECTIONS,
        "64 connections",
        TWO,
        Named(URING),
        EPOLL,
        AtMost(1.0),
    ),
    target(
        OVER_CONNECTIONS,
        "256 connections",
        TWO,
        Named(URING),
        EPOLL,
        AtMost(1.0),
    ),
    target(
        OVER_CONNECTIONS,
        "64 connections",
        ONE,
        Named(URING),
        EPOLL,
        AtMost(1.0),
    ),
    target(
        OVER_CONNECTIONS,
        "256 connections",
        ONE,
        Named(URING),
        EPOLL,
        AtMost(1.0),
    ),
    registered("4 KiB, sync"),
    registered("4 KiB, range, sync"),
    registered("4 KiB, async"),
    registered("4 KiB, cached, hit"),
    registered("4 KiB, cached, miss"),
    registered("4 KiB, vector of 16"),
    registered("1 MiB, sync"),
    registered("1 MiB, range, sync"),
    registered("1 MiB, async"),
    registered("1 MiB, cached, hit"),
    registered("1 MiB, cached, miss"),
    registered("1 MiB, vector of 16"),
    registered("1 GiB, sync"),
    registered("1 GiB, range, sync"),
    registered("1 GiB, async"),
    registered("1 GiB, cached, hit"),
    registered("1 GiB, cached, miss"),
    registered("1 GiB, vector of 16"),
    Target {
        measure: "CPU of a registration and deregistration",
        what: "4 KiB, cached, hit",
        cores: ONE,
        ours: Best,
        peer: None,
        bound: AtMost(100.0),
    },
    Target {
        measure: "heap per idle connection, connecting end",
        what: "10000 connections",
        cores: TWO,
        ours: Best,
        peer: None,
        bound: AtMost(4.0),
    },
    Target {
        measure: "idle CPU, both ends",
        what: "10000 connections",
        cores: TWO,
        ours: Best,
        peer: None,
        bound: AtMost(0.1),
    },
];
