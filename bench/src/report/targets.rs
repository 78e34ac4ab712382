//! What the figures are held against. `judge.rs` does so.

use crate::measure::rpc_overload::{ACCEPTED, GOODPUT, REFUSED};

/// One figure of ours, divided by a peer's or as it is.
#[derive(Debug, PartialEq)]
pub(super) struct Compared {
    pub(super) measure: &'static str,
    /// The case's row.
    pub(super) what: &'static str,
    pub(super) cores: &'static str,
    /// Which of ours. What sleeps is held against what sleeps, and what spins against what spins.
    pub(super) ours: &'static str,
    /// The peer; none: the figure itself.
    pub(super) peer: Option<&'static str>,
}

/// That, and its bound.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) of: Compared,
    pub(super) bound: Bound,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// So much more than the peer at most.
    AbovePeer(f64),
}

impl Bound {
    pub(super) fn number(self) -> f64 {
        let (AtMost(number) | AtLeast(number) | AbovePeer(number)) = self;
        number
    }

    pub(super) fn is_met(self, measured: f64) -> bool {
        match self {
            AtMost(most) | AbovePeer(most) => measured <= most,
            AtLeast(least) => measured >= least,
        }
    }
}

use Bound::{AbovePeer, AtLeast, AtMost};

pub(super) const TWO: &str = "two cores";
pub(super) const ONE: &str = "same core";

/// As users run it.
pub(super) const DEFAULT: &str = "tokio-fabric:epoll";
pub(super) const SPIN: &str = "tokio-fabric:epoll:spin";
pub(super) const MANUAL: &str = "tokio-fabric:manual";
pub(super) const MANUAL_SPIN: &str = "tokio-fabric:manual:spin";
pub(super) const RPC: &str = "tokio-fabric-rpc";
const RPC_SPIN: &str = "tokio-fabric-rpc:spin";
pub(super) const URING: &str = "tokio-fabric:io-uring";
pub(super) const LOCAL: &str = "tokio-fabric:local";
pub(super) const LOCAL_SPIN: &str = "tokio-fabric:local:spin";
pub(super) const LOCAL_RPC: &str = "tokio-fabric-rpc:local";
pub(super) const SECURE: &str = "tokio-fabric:epoll:tls";
pub(super) const SECURE_RPC: &str = "tokio-fabric-rpc:tls";

pub(super) const TOKIO: Option<&str> = Some("tokio");
pub(super) const TOKIO_TLS: Option<&str> = Some("tokio:tls");
pub(super) const TCP: Option<&str> = Some("tcp");
const TONIC: Option<&str> = Some("tonic");
pub(super) const RAW: Option<&str> = Some(DEFAULT);
pub(super) const LAYER: Option<&str> = Some(RPC);
const TARPC: Option<&str> = Some("tarpc");
pub(super) const TCP_SPIN: Option<&str> = Some("tcp:spin");
pub(super) const LIBFABRIC: Option<&str> = Some("libfabric:wait");
pub(super) const LIBFABRIC_SPIN: Option<&str> = Some("libfabric:spin");

pub(super) const HALF: &str = "half round trip, p50";
pub(super) const RATE: &str = "messages per second, 64 B";
pub(super) const PAIRS: &str = "two pairs on two cores to one pair on one";
pub(super) const SEND: &str = "bandwidth, send";
pub(super) const WRITE: &str = "bandwidth, RMA write";
pub(super) const READ: &str = "bandwidth, RMA read";
pub(super) const SEND_CPU: &str = "CPU per GB, send";
pub(super) const WRITE_CPU: &str = "CPU per GB, RMA write";
pub(super) const READ_CPU: &str = "CPU per GB, RMA read";
pub(super) const CALLS: &str = "calls per second";
pub(super) const CALL_CPU: &str = "CPU per thousand calls";
const CALL_P99: &str = "call, p99";
const CALL_P50: &str = "call, p50";
pub(super) const CALL_1: &str = "64 B, 1 under way";
const MIXED: &str = "64 B beside 1 GiB";
const CANCEL: &str = "a call that lends 4 KiB";
const OVERLOAD: &str = "2.0 x capacity offered";
pub(super) const CALLS_64: &str = "64 B, 64 under way";
pub(super) const CALLS_256: &str = "64 B, 256 under way";
pub(super) const BULK: &str = "64 B and 1 MiB back, 8 under way";
pub(super) const ALLOCATIONS: &str = "allocations per operation";
const MESSAGE: &str = "message of 64 B, window 64";
pub(super) const BESIDE_P50: &str = "round trip beside bulk, p50";
pub(super) const BESIDE_P99: &str = "round trip beside bulk, p99";
pub(super) const NEIGHBOURS: &str = "64 B beside 4 x 16 MiB";
pub(super) const OVER_CONNECTIONS: &str = "CPU per million messages over connections, 64 B";
pub(super) const REGISTERED: &str = "registrations and deregistrations per second";
pub(super) const HEAP: &str = "heap per idle connection, connecting end";
pub(super) const IDLE_CPU: &str = "idle CPU, both ends";
pub(super) const IDLE: &str = "10000 connections";

pub(super) const fn compared(
    measure: &'static str,
    (what, cores): (&'static str, &'static str),
    ours: &'static str,
    peer: Option<&'static str>,
) -> Compared {
    Compared {
        measure,
        what,
        cores,
        ours,
        peer,
    }
}

const fn target(
    measure: &'static str,
    case: (&'static str, &'static str),
    ours: &'static str,
    peer: Option<&'static str>,
    bound: Bound,
) -> Target {
    let of = compared(measure, case, ours, peer);
    Target { of, bound }
}

pub(super) const TARGETS: &[Target] = &[
    target(HALF, ("64 B", TWO), DEFAULT, TOKIO, AtMost(1.08)),
    target(HALF, ("64 B", ONE), DEFAULT, TOKIO, AtMost(1.15)),
    target(HALF, ("64 B", TWO), DEFAULT, LIBFABRIC, AtMost(1.0)),
    target(HALF, ("64 B", ONE), DEFAULT, LIBFABRIC, AtMost(1.0)),
    target(HALF, ("64 B", TWO), SPIN, TCP_SPIN, AtMost(1.15)),
    target(HALF, ("64 B", TWO), SPIN, LIBFABRIC_SPIN, AtMost(1.0)),
    target(HALF, ("64 B", ONE), MANUAL, TOKIO, AtMost(1.05)),
    target(HALF, ("64 B", TWO), MANUAL_SPIN, TCP_SPIN, AtMost(1.15)),
    target(RATE, ("window 64", TWO), DEFAULT, LIBFABRIC, AtLeast(5.0)),
    target(RATE, ("window 256", TWO), DEFAULT, LIBFABRIC, AtLeast(10.0)),
    target(RATE, ("window 64", TWO), SPIN, LIBFABRIC_SPIN, AtLeast(5.0)),
    target(
        RATE,
        ("window 256", TWO),
        SPIN,
        LIBFABRIC_SPIN,
        AtLeast(10.0),
    ),
    target(SEND, ("1 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(SEND, ("16 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(SEND, ("1 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(SEND, ("16 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(WRITE, ("1 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(WRITE, ("16 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(WRITE, ("1 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(WRITE, ("16 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(READ, ("1 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(READ, ("16 MiB", TWO), DEFAULT, TCP, AtLeast(0.97)),
    target(READ, ("1 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(READ, ("16 MiB", TWO), DEFAULT, LIBFABRIC, AtLeast(1.0)),
    target(SEND_CPU, ("1 MiB", TWO), DEFAULT, TCP, AtMost(1.05)),
    target(WRITE_CPU, ("1 MiB", TWO), DEFAULT, TCP, AtMost(1.05)),
    target(READ_CPU, ("1 MiB", TWO), DEFAULT, TCP, AtMost(1.05)),
    target(CALLS, (CALLS_64, TWO), DEFAULT, TOKIO, AtLeast(0.9)),
    target(CALLS, (CALLS_64, TWO), DEFAULT, TONIC, AtLeast(9.0)),
    target(CALLS, (CALLS_64, TWO), DEFAULT, TARPC, AtLeast(2.3)),
    target(CALLS, (CALLS_256, TWO), DEFAULT, TOKIO, AtLeast(0.9)),
    target(CALLS, (CALLS_256, TWO), DEFAULT, TONIC, AtLeast(9.0)),
    target(CALLS, (CALLS_256, TWO), DEFAULT, TARPC, AtLeast(2.3)),
    target(CALLS, (BULK, TWO), DEFAULT, TOKIO, AtLeast(1.0)),
    target(CALLS, (BULK, TWO), DEFAULT, TONIC, AtLeast(2.5)),
    target(CALL_CPU, (CALLS_64, TWO), DEFAULT, TOKIO, AtMost(1.1)),
    target(CALL_P99, (CALLS_64, TWO), DEFAULT, TONIC, AtMost(1.0)),
    target(CALL_P99, (CALLS_64, TWO), DEFAULT, TARPC, AtMost(1.0)),
    target(CALL_P99, (CALLS_256, TWO), DEFAULT, TONIC, AtMost(1.0)),
    target(CALL_P99, (CALLS_256, TWO), DEFAULT, TARPC, AtMost(1.0)),
    // The layer.
    target(CALLS, (CALLS_64, TWO), RPC, RAW, AtLeast(0.85)),
    target(CALLS, (CALLS_256, TWO), RPC, RAW, AtLeast(0.85)),
    target(CALLS, (CALLS_64, TWO), RPC, TARPC, AtLeast(2.5)),
    target(CALLS, (CALLS_256, TWO), RPC, TARPC, AtLeast(2.5)),
    target(CALLS, (CALLS_64, TWO), RPC, TONIC, AtLeast(10.0)),
    target(CALLS, (CALLS_256, TWO), RPC, TONIC, AtLeast(10.0)),
    target(CALLS, (CALLS_64, TWO), RPC_SPIN, TARPC, AtLeast(4.0)),
    target(CALLS, (CALLS_64, TWO), RPC_SPIN, TONIC, AtLeast(20.0)),
    target(CALL_P50, (CALL_1, TWO), RPC, RAW, AbovePeer(1.5)),
    target(CALL_P50, (CALL_1, TWO), RPC, TARPC, AtMost(1.05)),
    target(CALL_P99, (CALLS_64, TWO), RPC, RAW, AtMost(1.25)),
    target(CALL_P99, (CALLS_256, TWO), RPC, RAW, AtMost(1.25)),
    target(CALL_P99, (CALLS_64, TWO), RPC, TARPC, AtMost(0.75)),
    target(CALL_P99, (CALLS_256, TWO), RPC, TARPC, AtMost(0.75)),
    target(CALL_CPU, (CALLS_64, TWO), RPC, RAW, AbovePeer(0.6)),
    target(CALL_CPU, (CALLS_256, TWO), RPC, RAW, AbovePeer(0.6)),
    target(
        "allocations per call, client",
        (CALLS_64, TWO),
        RPC,
        None,
        AtMost(0.05),
    ),
    target(
        "allocations per call, server",
        (CALLS_64, TWO),
        RPC,
        None,
        AtMost(0.05),
    ),
    target(CALLS, (BULK, TWO), RPC, RAW, AtLeast(0.95)),
    target(CALLS, (BULK, TWO), RPC, TOKIO, AtLeast(3.5)),
    target(CALLS, (BULK, TWO), RPC, TONIC, AtLeast(5.0)),
    target(CALL_CPU, (BULK, TWO), RPC, RAW, AtMost(1.05)),
    target(
        "p99 that a 1 GiB transfer adds to small calls",
        (MIXED, TWO),
        RPC,
        None,
        AtMost(1.0),
    ),
    target(
        "from the drop of a call until peers are refused, p99",
        (CANCEL, TWO),
        RPC,
        None,
        AtMost(10.0),
    ),
    target(
        "until its handler is dropped, p99 less that of a round trip",
        (CANCEL, TWO),
        RPC,
        None,
        AtMost(100.0),
    ),
    target(GOODPUT, (OVERLOAD, TWO), RPC, None, AtLeast(0.9)),
    target(REFUSED, (OVERLOAD, TWO), RPC, None, AtMost(1.0)),
    target(ACCEPTED, (OVERLOAD, TWO), RPC, None, AtMost(2.0)),
    target(
        "failed calls under restarts",
        ("16 callers", TWO),
        RPC,
        None,
        AtMost(0.0),
    ),
    target(BESIDE_P50, (NEIGHBOURS, TWO), DEFAULT, None, AtMost(300.0)),
    target(BESIDE_P99, (NEIGHBOURS, TWO), DEFAULT, None, AtMost(2000.0)),
    target(BESIDE_P50, (NEIGHBOURS, TWO), DEFAULT, TOKIO, AtMost(1.0)),
    target(BESIDE_P99, (NEIGHBOURS, TWO), DEFAULT, TOKIO, AtMost(1.0)),
    target(
        "bandwidth beside the ping to that without",
        (NEIGHBOURS, TWO),
        DEFAULT,
        None,
        AtLeast(0.95),
    ),
    target(ALLOCATIONS, (MESSAGE, TWO), DEFAULT, None, AtMost(0.01)),
    target(
        ALLOCATIONS,
        ("RMA write of 4 KiB, window 16", TWO),
        DEFAULT,
        None,
        AtMost(0.01),
    ),
    target(
        ALLOCATIONS,
        ("RMA read of 4 KiB, window 16", TWO),
        DEFAULT,
        None,
        AtMost(0.01),
    ),
    target(
        "system calls per operation, client",
        (MESSAGE, TWO),
        DEFAULT,
        None,
        AtMost(0.1),
    ),
    target(
        "system calls per operation, server",
        (MESSAGE, TWO),
        DEFAULT,
        None,
        AtMost(0.1),
    ),
    target(PAIRS, ("window 64", TWO), DEFAULT, None, AtLeast(1.8)),
    // What a name must bring: the reason to have a second backend.
    target(
        OVER_CONNECTIONS,
        ("64 connections", TWO),
        URING,
        Some(DEFAULT),
        AtMost(0.9),
    ),
    target(
        OVER_CONNECTIONS,
        ("64 connections", ONE),
        URING,
        Some(DEFAULT),
        AtMost(0.9),
    ),
    target(
        REGISTERED,
        ("4 KiB, sync", ONE),
        DEFAULT,
        LIBFABRIC,
        AtLeast(1.0),
    ),
    target(
        REGISTERED,
        ("4 KiB, async", ONE),
        DEFAULT,
        LIBFABRIC,
        AtLeast(1.0),
    ),
    target(
        REGISTERED,
        ("4 KiB, cached, hit", ONE),
        DEFAULT,
        LIBFABRIC,
        AtLeast(1.0),
    ),
    target(
        REGISTERED,
        ("4 KiB, cached, miss", ONE),
        DEFAULT,
        LIBFABRIC,
        AtLeast(1.0),
    ),
    target(
        REGISTERED,
        ("4 KiB, vector of 16", ONE),
        DEFAULT,
        LIBFABRIC,
        AtLeast(1.0),
    ),
    // Through shared memory.
    target(HALF, ("64 B", ONE), LOCAL, TOKIO, AtMost(0.7)),
    target(HALF, ("64 B", TWO), LOCAL, TOKIO, AtMost(0.95)),
    target(HALF, ("64 B", TWO), LOCAL_SPIN, TCP_SPIN, AtMost(0.25)),
    target(SEND, ("1 MiB", TWO), LOCAL, TCP, AtLeast(1.5)),
    target(WRITE, ("1 MiB", TWO), LOCAL, TCP, AtLeast(1.5)),
    target(READ, ("1 MiB", TWO), LOCAL, TCP, AtLeast(1.5)),
    target(SEND_CPU, ("1 MiB", TWO), LOCAL, TCP, AtMost(0.65)),
    target(WRITE_CPU, ("1 MiB", TWO), LOCAL, TCP, AtMost(0.65)),
    target(READ_CPU, ("1 MiB", TWO), LOCAL, TCP, AtMost(0.65)),
    target(CALLS, (CALLS_64, TWO), LOCAL_RPC, LAYER, AtLeast(1.2)),
    target(CALLS, (BULK, TWO), LOCAL_RPC, LAYER, AtLeast(1.4)),
    target(HEAP, (IDLE, TWO), DEFAULT, None, AtMost(4.0)),
    target(IDLE_CPU, (IDLE, TWO), DEFAULT, None, AtMost(0.1)),
];
