//! What the tables of docs/performance.md and docs/tls.md show. `pages.rs` writes them.

use super::markdown::digits;
use super::targets::*;
use crate::spread::{one_decimal, two_decimals};

/// A row: what the page calls it, what it compares, and how its figures are written.
pub(super) struct Row {
    pub(super) label: &'static str,
    pub(super) of: Compared,
    pub(super) unit: Unit,
}

/// How a figure is written.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) name: &'static str,
    /// From the unit in which it was measured.
    pub(super) scale: fn(f64) -> f64,
    pub(super) number: fn(f64) -> String,
}

impl Unit {
    pub(super) fn text(&self, figure: f64) -> String {
        (self.number)((self.scale)(figure)) + self.name
    }
}

const fn plain(name: &'static str, number: fn(f64) -> String) -> Unit {
    scaled(name, |figure| figure, number)
}

const fn scaled(name: &'static str, scale: fn(f64) -> f64, number: fn(f64) -> String) -> Unit {
    Unit {
        name,
        scale,
        number,
    }
}

const US: Unit = plain(" µs", one_decimal);
const KIB: Unit = plain(" KiB", one_decimal);
const MS: Unit = plain(" ms", two_digits);
const US_IN_MS: Unit = scaled(" ms", |figure| figure / 1e3, two_digits);
const MILLIONS: Unit = plain(" million", two_digits);
const THOUSANDS: Unit = scaled("", |figure| figure * 1e3, grouped);
const GB: Unit = plain(" GB/s", one_decimal);
const GB_EXACT: Unit = plain(" GB/s", two_decimals);
const SECONDS: Unit = plain(" s", two_decimals);
const SHARE: Unit = plain(" % of a core", two_digits);
/// The time of one, of which so many million are done per second.
const EACH_NS: Unit = scaled(
    " ns",
    |figure| 1e3 / figure,
    |figure| format!("{figure:.0}"),
);
const RATIO: Unit = plain("", two_decimals);
/// The ratio of the times of two rates.
const TIMES: Unit = scaled("", |figure| 1.0 / figure, two_digits);

fn two_digits(figure: f64) -> String {
    digits(figure, 2)
}

/// Thousands, or tens where there are few of those, with commas.
fn grouped(figure: f64) -> String {
    let step = if figure < 1e4 { 10.0 } else { 1e3 };
    let digits = format!("{:.0}", (figure / step).round() * step);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const fn row(
    label: &'static str,
    (measure, what, cores): (&'static str, &'static str, &'static str),
    ours: &'static str,
    peer: Option<&'static str>,
    unit: Unit,
) -> Row {
    let of = compared(measure, (what, cores), ours, peer);
    Row { label, of, unit }
}

/// Ours beside all others.
#[rustfmt::skip] // A row per line.
pub(super) const GLANCE: &[Row] = &[
    row("half round trip, 64 B, both ends on one core", (HALF, "64 B", ONE), DEFAULT, None, US),
    row("half round trip, 64 B, two cores", (HALF, "64 B", TWO), DEFAULT, None, US),
    row("half round trip, 64 KiB, both ends on one core", (HALF, "64 KiB", ONE), DEFAULT, None, US),
    row("half round trip, 64 KiB, two cores", (HALF, "64 KiB", TWO), DEFAULT, None, US),
    row("messages of 64 B per second, 64 outstanding", (RATE, "window 64", TWO), DEFAULT, None, MILLIONS),
    row("messages of 64 B per second, 256 outstanding", (RATE, "window 256", TWO), DEFAULT, None, MILLIONS),
    row("raw calls of 64 B per second, 64 outstanding", (CALLS, CALLS_64, TWO), DEFAULT, None, THOUSANDS),
    row("calls of 64 B per second with tokio-fabric-rpc, 64 outstanding", (CALLS, CALLS_64, TWO), RPC, None, THOUSANDS),
    row("raw calls of 64 B per second, 256 outstanding", (CALLS, CALLS_256, TWO), DEFAULT, None, THOUSANDS),
    row("calls of 64 B per second with tokio-fabric-rpc, 256 outstanding", (CALLS, CALLS_256, TWO), RPC, None, THOUSANDS),
    row("raw calls (by RMA) per second, 1 MiB in each answer, 8 outstanding", (CALLS, BULK, TWO), DEFAULT, None, THOUSANDS),
    row("the same with tokio-fabric-rpc", (CALLS, BULK, TWO), RPC, None, THOUSANDS),
    row("RMA reads of 64 KiB", (READ, "64 KiB", TWO), DEFAULT, None, GB),
    row("RMA reads of 1 MiB", (READ, "1 MiB", TWO), DEFAULT, None, GB),
    row("RMA reads of 16 MiB", (READ, "16 MiB", TWO), DEFAULT, None, GB),
    row("RMA writes of 1 MiB", (WRITE, "1 MiB", TWO), DEFAULT, None, GB),
    row("RMA writes of 16 MiB", (WRITE, "16 MiB", TWO), DEFAULT, None, GB),
    row("CPU time per message, both ends, 64 connections", (OVER_CONNECTIONS, "64 connections", TWO), DEFAULT, None, US),
    row("round trip of 64 B while four 16 MiB sends run, p99", (BESIDE_P99, NEIGHBOURS, TWO), DEFAULT, None, US_IN_MS),
    row("registration and deregistration of 4 KiB", (REGISTERED, "4 KiB, sync", ONE), DEFAULT, None, EACH_NS),
    row("the same buffer again, from the registration cache", (REGISTERED, "4 KiB, cached, hit", ONE), DEFAULT, None, EACH_NS),
    row("heap of an idle connection", (HEAP, IDLE, TWO), DEFAULT, None, KIB),
    row("CPU use of 10,000 idle connections, both ends together", (IDLE_CPU, IDLE, TWO), DEFAULT, None, SHARE),
    row("from the kill of the peer to the error (idle machine, one connection)", ("time to error after kill -9", "16 receives", TWO), DEFAULT, None, MS),
];

/// What is shown unless it meets its target.
#[rustfmt::skip] // A row per line.
pub(super) const MISSED: &[Row] = &[
    row("half round trip of 64 B on one core, relative to Tokio", (HALF, "64 B", ONE), DEFAULT, TOKIO, RATIO),
    row("half round trip of 64 B on two cores, relative to Tokio", (HALF, "64 B", TWO), DEFAULT, TOKIO, RATIO),
    row("half round trip of 64 B on one core, relative to libfabric", (HALF, "64 B", ONE), DEFAULT, LIBFABRIC, RATIO),
    row("half round trip of 64 B on two cores, relative to libfabric", (HALF, "64 B", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("half round trip of 64 B, busy polling, two cores, relative to busy-polling TCP", (HALF, "64 B", TWO), SPIN, TCP_SPIN, RATIO),
    row("half round trip of 64 B, busy polling, two cores, relative to busy-polling libfabric", (HALF, "64 B", TWO), SPIN, LIBFABRIC_SPIN, RATIO),
    row("half round trip of 64 KiB on one core, relative to Tokio", (HALF, "64 KiB", ONE), DEFAULT, TOKIO, RATIO),
    row("manual progress, awaited: half round trip on one core, relative to Tokio", (HALF, "64 B", ONE), MANUAL, TOKIO, RATIO),
    row("manual progress, polled: half round trip on two cores, relative to busy-polling TCP", (HALF, "64 B", TWO), MANUAL_SPIN, TCP_SPIN, RATIO),
    row("messages of 64 B per second, 64 outstanding, relative to libfabric", (RATE, "window 64", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("messages of 64 B per second, 256 outstanding, relative to libfabric", (RATE, "window 256", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("messages of 64 B per second, busy polling, 256 outstanding, relative to busy-polling libfabric", (RATE, "window 256", TWO), SPIN, LIBFABRIC_SPIN, RATIO),
    row("raw calls of 64 B per second, 256 outstanding, relative to Tokio batched", (CALLS, CALLS_256, TWO), DEFAULT, TOKIO, RATIO),
    row("CPU time per raw call of 64 B, relative to Tokio batched", (CALL_CPU, CALLS_64, TWO), DEFAULT, TOKIO, RATIO),
    row("messages of 64 B per second of two pairs of endpoints on two cores, relative to one pair on one", (PAIRS, "window 64", TWO), DEFAULT, None, RATIO),
    row("bandwidth of sends of 1 MiB, relative to TCP", (SEND, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of sends of 1 MiB, relative to libfabric", (SEND, "1 MiB", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("CPU time per byte of sends of 1 MiB, relative to TCP", (SEND_CPU, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of sends of 16 MiB, relative to TCP", (SEND, "16 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of sends of 16 MiB, relative to libfabric", (SEND, "16 MiB", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("bandwidth of RMA writes of 1 MiB, relative to TCP", (WRITE, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("CPU time per byte of RMA writes of 1 MiB, relative to TCP", (WRITE_CPU, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of RMA writes of 1 MiB, relative to libfabric", (WRITE, "1 MiB", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("bandwidth of RMA reads of 1 MiB, relative to TCP", (READ, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of RMA reads of 1 MiB, relative to libfabric", (READ, "1 MiB", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("bandwidth of RMA reads of 16 MiB, relative to TCP", (READ, "16 MiB", TWO), DEFAULT, TCP, RATIO),
    row("bandwidth of RMA reads of 16 MiB, relative to libfabric", (READ, "16 MiB", TWO), DEFAULT, LIBFABRIC, RATIO),
    row("CPU time per byte of RMA reads of 1 MiB, relative to TCP", (READ_CPU, "1 MiB", TWO), DEFAULT, TCP, RATIO),
    row("`io-uring`: CPU time per message, 64 connections, relative to `epoll`", (OVER_CONNECTIONS, "64 connections", TWO), URING, Some(DEFAULT), RATIO),
    row("`io-uring`: CPU time per message, 64 connections, both ends on one core, relative to `epoll`", (OVER_CONNECTIONS, "64 connections", ONE), URING, Some(DEFAULT), RATIO),
    row("allocations per message of 64 B, 64 outstanding", (ALLOCATIONS, "message of 64 B, window 64", TWO), DEFAULT, None, RATIO),
    row("round trip while bulk transfers run, p50", (BESIDE_P50, NEIGHBOURS, TWO), DEFAULT, None, US_IN_MS),
    row("registration of 4 KiB, time relative to libfabric", (REGISTERED, "4 KiB, sync", ONE), DEFAULT, LIBFABRIC, TIMES),
    row("awaited registration of 4 KiB, time relative to libfabric", (REGISTERED, "4 KiB, async", ONE), DEFAULT, LIBFABRIC, TIMES),
    row("registration from a cache that must make room, time relative to libfabric", (REGISTERED, "4 KiB, cached, miss", ONE), DEFAULT, LIBFABRIC, TIMES),
    row("registration of 16 buffers, time relative to libfabric", (REGISTERED, "4 KiB, vector of 16", ONE), DEFAULT, LIBFABRIC, TIMES),
    row("CPU use of 10,000 idle connections, both ends", (IDLE_CPU, IDLE, TWO), DEFAULT, None, SHARE),
    row("heap of an idle connection", (HEAP, IDLE, TWO), DEFAULT, None, KIB),
    row("shared memory: half round trip of 64 B, busy polling, two cores, relative to busy-polling TCP", (HALF, "64 B", TWO), LOCAL_SPIN, TCP_SPIN, RATIO),
    row("shared memory: bandwidth of RMA reads of 1 MiB, relative to TCP", (READ, "1 MiB", TWO), LOCAL, TCP, RATIO),
    row("shared memory: CPU time per byte of RMA reads of 1 MiB, relative to TCP", (READ_CPU, "1 MiB", TWO), LOCAL, TCP, RATIO),
];

/// Ours through shared memory, beside ours over TCP.
#[rustfmt::skip] // A row per line.
pub(super) const ONE_HOST: &[Row] = &[
    row("half round trip of 64 B, both ends on one core ↓", (HALF, "64 B", ONE), LOCAL, RAW, US),
    row("half round trip of 64 B, two cores ↓", (HALF, "64 B", TWO), LOCAL, RAW, US),
    row("half round trip of 64 B, two cores, busy polling ↓", (HALF, "64 B", TWO), LOCAL_SPIN, Some(SPIN), US),
    row("half round trip of 64 KiB, both ends on one core ↓", (HALF, "64 KiB", ONE), LOCAL, RAW, US),
    row("half round trip of 64 KiB, two cores ↓", (HALF, "64 KiB", TWO), LOCAL, RAW, US),
    row("messages of 64 B per second, 64 outstanding, two cores ↑", (RATE, "window 64", TWO), LOCAL, RAW, MILLIONS),
    row("messages of 64 B per second, 256 outstanding, two cores ↑", (RATE, "window 256", TWO), LOCAL, RAW, MILLIONS),
    row("bandwidth, one core: sends of 1 MiB ↑", (SEND, "1 MiB", ONE), LOCAL, RAW, GB),
    row("bandwidth, two cores: sends of 64 KiB ↑", (SEND, "64 KiB", TWO), LOCAL, RAW, GB),
    row("bandwidth, two cores: sends of 1 MiB ↑", (SEND, "1 MiB", TWO), LOCAL, RAW, GB),
    row("bandwidth, two cores: RMA writes of 1 MiB ↑", (WRITE, "1 MiB", TWO), LOCAL, RAW, GB),
    row("bandwidth, two cores: RMA reads of 1 MiB ↑", (READ, "1 MiB", TWO), LOCAL, RAW, GB),
    row("bandwidth, two cores: sends of 16 MiB ↑", (SEND, "16 MiB", TWO), LOCAL, RAW, GB),
    row("CPU time of both ends per GB, two cores: sends of 1 MiB ↓", (SEND_CPU, "1 MiB", TWO), LOCAL, RAW, SECONDS),
    row("CPU time of both ends per GB, two cores: RMA writes of 1 MiB ↓", (WRITE_CPU, "1 MiB", TWO), LOCAL, RAW, SECONDS),
    row("CPU time of both ends per GB, two cores: RMA reads of 1 MiB ↓", (READ_CPU, "1 MiB", TWO), LOCAL, RAW, SECONDS),
    row("calls of 64 B per second, 64 outstanding, two cores ↑", (CALLS, CALLS_64, TWO), LOCAL_RPC, LAYER, THOUSANDS),
    row("calls per second, 1 MiB in each answer, 8 outstanding, two cores ↑", (CALLS, BULK, TWO), LOCAL_RPC, LAYER, THOUSANDS),
];

/// Ours beside tokio-rustls.
#[rustfmt::skip] // A row per line.
pub(super) const TLS: &[Row] = &[
    row("half round trip of 64 B, both ends on one core ↓", (HALF, "64 B", ONE), SECURE, TOKIO_TLS, US),
    row("half round trip of 64 KiB, both ends on one core ↓", (HALF, "64 KiB", ONE), SECURE, TOKIO_TLS, US),
    row("half round trip of 64 B, two cores ↓", (HALF, "64 B", TWO), SECURE, TOKIO_TLS, US),
    row("bandwidth, one core: sends of 64 KiB ↑", (SEND, "64 KiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: sends of 1 MiB ↑", (SEND, "1 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: RMA writes of 1 MiB ↑", (WRITE, "1 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: RMA reads of 1 MiB ↑", (READ, "1 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: sends of 16 MiB ↑", (SEND, "16 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: RMA writes of 16 MiB ↑", (WRITE, "16 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, one core: RMA reads of 16 MiB ↑", (READ, "16 MiB", ONE), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: sends of 64 KiB ↑", (SEND, "64 KiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: sends of 1 MiB ↑", (SEND, "1 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: RMA writes of 1 MiB ↑", (WRITE, "1 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: RMA reads of 1 MiB ↑", (READ, "1 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: sends of 16 MiB ↑", (SEND, "16 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: RMA writes of 16 MiB ↑", (WRITE, "16 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("bandwidth, two cores: RMA reads of 16 MiB ↑", (READ, "16 MiB", TWO), SECURE, TOKIO_TLS, GB_EXACT),
    row("CPU time of both ends per GB, one core: sends of 64 KiB ↓", (SEND_CPU, "64 KiB", ONE), SECURE, TOKIO_TLS, SECONDS),
    row("CPU time of both ends per GB, one core: sends of 1 MiB ↓", (SEND_CPU, "1 MiB", ONE), SECURE, TOKIO_TLS, SECONDS),
    row("CPU time of both ends per GB, one core: RMA writes of 1 MiB ↓", (WRITE_CPU, "1 MiB", ONE), SECURE, TOKIO_TLS, SECONDS),
    row("CPU time of both ends per GB, one core: RMA reads of 1 MiB ↓", (READ_CPU, "1 MiB", ONE), SECURE, TOKIO_TLS, SECONDS),
    row("heap of an idle connection, connecting end ↓", (HEAP, IDLE, TWO), SECURE, TOKIO_TLS, KIB),
];
