//! Observation of calls beside their responses: counts, spans of `tracing`, and with the feature
//! `metrics` durations. Names follow OpenTelemetry's conventions for RPC.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::{Empty, Value, display};
use tracing::{Level, Span, info_span};

use crate::caught::caught;
use crate::cx::Cx;
use crate::method::Method;
use crate::status::{Code, Status};
use crate::wire::{TYPED_ERROR, TraceContext};

/// Name of this layer as a system.
const SYSTEM: &str = "tokio-fabric-rpc";

/// Names of program code that is guarded because it is called where frames are read: its panic
/// would end more than a call.
const RECORDER: &str = "a recorder";
const SUBSCRIBER: &str = "a subscriber";

/// Counts of a method's calls, at its server
/// ([`Listening::method_stats`](crate::Listening::method_stats)).
///
/// `started` is the sum of `succeeded`, `failed`, `cancelled` and the calls that are still running;
/// calls in `refused` are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodStats {
    /// Calls whose handlers were started.
    pub started: u64,
    /// Calls that returned a result.
    pub succeeded: u64,
    /// Calls whose handlers returned an error, or panicked.
    pub failed: u64,
    /// Calls that ended before their handlers did: by the caller, the deadline, a drain, or the end
    /// of the connection.
    pub cancelled: u64,
    /// Calls whose handlers were not started: refused, not decodable, or cancelled before.
    pub refused: u64,
    /// Calls whose handlers took more than a millisecond for their first poll, during which the
    /// server read no other frame.
    pub slow_polls: u64,
    /// The total time of all calls that have ended, each from its request's arrival to its end.
    pub time: Duration,
}

/// Counts of a channel's connections and calls ([`Channel::stats`](crate::Channel::stats)).
///
/// `begun` is the sum of the other counts of calls and of the outstanding calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Connections that were made, including the first.
    pub connections: u64,
    /// Calls whose futures were polled.
    pub begun: u64,
    /// Calls that returned a result.
    pub succeeded: u64,
    /// Calls that failed and whose handlers have run or may have run.
    pub failed: u64,
    /// Calls that failed and were not started.
    pub not_started: u64,
    /// Calls whose futures were dropped before they were ready.
    pub dropped: u64,
}

/// The counters behind [`MethodStats`], which increase while calls are running.
#[derive(Debug, Default)]
pub(crate) struct MethodCounters {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    slow_polls: AtomicU64,
    time_us: AtomicU64,
    /// The same of calls where their frames are read, by the only task that counts these.
    started_there: AtomicU64,
    succeeded_there: AtomicU64,
    time_there_us: AtomicU64,
    times: metrics::ServedTimes,
}

#[derive(Debug, Default)]
pub(crate) struct ChannelCounters {
    connections: AtomicU64,
    begun: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    not_started: AtomicU64,
    dropped: AtomicU64,
    #[cfg(feature = "metrics")]
    pub(crate) times: metrics::CalledTimes,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// As `add`, to a counter that no other task increases.
fn add_alone(counter: &AtomicU64, more: u64) {
    counter.store(read(counter) + more, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl MethodCounters {
    pub(crate) fn start(&self) {
        add(&self.started);
    }

    /// As `start`, where frames are read.
    pub(crate) fn start_there(&self) {
        add_alone(&self.started_there, 1);
    }

    /// Counts a handler whose first poll took long.
    pub(crate) fn poll_slowly(&self) {
        add(&self.slow_polls);
    }

    pub(crate) fn refuse(&self, method: &Method, code: Code) {
        add(&self.refused);
        caught(RECORDER, || metrics::refused(method, code));
    }

    /// Counts the only end of an admitted call, with its code on the wire.
    #[inline]
    pub(crate) fn end(&self, call: &Cx, code: u32, served: Duration) {
        if !call.has_started() && call.begin() {
            return self.refuse(call.call().method, Code::from_number(code));
        }
        add(match code {
            _ if call.cancel_reason().is_some() => &self.cancelled,
            0 => &self.succeeded,
            _ => &self.failed,
        });
        let served_us = u64::try_from(served.as_micros()).unwrap_or(u64::MAX);
        self.time_us.fetch_add(served_us, Ordering::Relaxed);
        self.record(call, code, served);
    }

    /// As `end`, of a call that is answered where its frame was read.
    #[inline]
    pub(crate) fn end_there(&self, call: &Cx, code: u32, served: Duration, served_us: u32) {
        if code != 0 || !call.has_started() || call.cancel_reason().is_some() {
            return self.end(call, code, served);
        }
        add_alone(&self.succeeded_there, 1);
        add_alone(&self.time_there_us, served_us.into());
        self.record(call, code, served);
    }

    #[inline]
    fn record(&self, call: &Cx, code: u32, served: Duration) {
        caught(RECORDER, || {
            self.times.record(call.call().method, code, served)
        });
    }

    pub(crate) fn snapshot(&self) -> MethodStats {
        MethodStats {
            started: read(&self.started) + read(&self.started_there),
            succeeded: read(&self.succeeded) + read(&self.succeeded_there),
            failed: read(&self.failed),
            cancelled: read(&self.cancelled),
            refused: read(&self.refused),
            slow_polls: read(&self.slow_polls),
            time: Duration::from_micros(read(&self.time_us) + read(&self.time_there_us)),
        }
    }
}

impl ChannelCounters {
    pub(crate) fn connect(&self) {
        add(&self.connections);
    }

    pub(crate) fn begin(&self) {
        add(&self.begun);
    }

    pub(crate) fn end(&self, end: Result<u32, &Status>) {
        add(match end {
            Ok(0) => &self.succeeded,
            Err(status) if status.is_not_started() => &self.not_started,
            _ => &self.failed,
        });
    }

    pub(crate) fn drop_call(&self) {
        add(&self.dropped);
    }

    pub(crate) fn snapshot(&self) -> ChannelStats {
        ChannelStats {
            connections: read(&self.connections),
            begun: read(&self.begun),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            not_started: read(&self.not_started),
            dropped: read(&self.dropped),
        }
    }
}

/// Returns the name of a response's code.
fn name_of(code: u32) -> &'static str {
    match code {
        0 => "OK",
        TYPED_ERROR => "APPLICATION",
        code => Code::from_number(code).name(),
    }
}

/// Creates the span of a call at its server. Disabled, it costs a check of the callsite. Fields are
/// searched by name from the first on, so those of a call's end come first.
#[inline]
pub(crate) fn server_span(call: &Cx) -> Option<Span> {
    match tracing::level_enabled!(Level::INFO) {
        true => enabled_server_span(call).filter(|it| !it.is_disabled()),
        false => None,
    }
}

fn enabled_server_span(call: &Cx) -> Option<Span> {
    let span = || {
        info_span!(
            "rpc.server",
            rpc.response.status_code = Empty,
            error.type = Empty,
            otel.kind = "server",
            rpc.system.name = SYSTEM,
            rpc.method = call.method(),
            network.peer.address = %call.peer().ip(),
            network.peer.port = call.peer().port(),
            trace_id = call.trace().map(trace_id),
            parent_span_id = call.trace().map(parent_span_id),
        )
    };
    caught(SUBSCRIBER, span)
}

/// Creates the span of a call at its client.
#[inline]
pub(crate) fn client_span(method: &Method, trace: Option<TraceContext>) -> Option<Span> {
    match tracing::level_enabled!(Level::INFO) {
        true => Some(enabled_client_span(method, trace)).filter(|it| !it.is_disabled()),
        false => None,
    }
}

fn enabled_client_span(method: &Method, trace: Option<TraceContext>) -> Span {
    info_span!(
        "rpc.client",
        rpc.response.status_code = Empty,
        error.type = Empty,
        otel.kind = "client",
        rpc.system.name = SYSTEM,
        rpc.method = method.name,
        trace_id = trace.map(trace_id),
        parent_span_id = trace.map(parent_span_id),
    )
}

/// Formatted only if a subscriber reads it.
fn trace_id(trace: TraceContext) -> impl Value {
    display(Hexadecimal(u128::from_be_bytes(trace.trace_id), 32))
}

fn parent_span_id(trace: TraceContext) -> impl Value {
    display(Hexadecimal(u64::from_be_bytes(trace.span_id).into(), 16))
}

/// A number and its count of hexadecimal digits.
struct Hexadecimal(u128, usize);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.0, width = self.1)
    }
}

/// Records how the call has ended.
pub(crate) fn record_end(span: &Span, code: u32) {
    let name = name_of(code);
    span.record("rpc.response.status_code", name);
    if code != 0 {
        span.record("error.type", name);
    }
}

/// Records how the call has ended at its server, and ends its span.
#[inline]
pub(crate) fn end_span(span: Option<Span>, code: u32) {
    if let Some(span) = span {
        caught(SUBSCRIBER, || {
            record_end(&span, code);
            drop(span);
        });
    }
}

/// Returns the code on the wire for a call's end at the client.
pub(crate) fn code_of(end: Result<u32, &Status>) -> u32 {
    match end {
        Ok(code) => code,
        Err(status) => status.code().number(),
    }
}

#[cfg(feature = "metrics")]
pub(crate) mod metrics {
    use std::sync::OnceLock;
    use std::time::Duration;

    use ::metrics::{Histogram, counter, histogram};

    use super::{Code, Method, SYSTEM, name_of};

    /// Returns the labels of histograms and counters.
    fn labels(method: &Method, code: &'static str) -> [(&'static str, &'static str); 3] {
        [
            ("rpc.system.name", SYSTEM),
            ("rpc.method", method.name),
            ("rpc.response.status_code", code),
        ]
    }

    fn served_histogram(method: &Method, code: u32) -> Histogram {
        histogram!("rpc.server.call.duration", &labels(method, name_of(code)))
    }

    fn called_histogram(method: &Method, code: u32) -> Histogram {
        histogram!("rpc.client.call.duration", &labels(method, name_of(code)))
    }

    pub(crate) fn refused(method: &Method, code: Code) {
        let labels = labels(method, code.name());
        counter!("rpc.server.refused_calls", &labels).increment(1);
    }

    /// Durations of a method's calls at its server. A recorder finds a histogram by its labels,
    /// which takes as long as a fifth of a call, so the histogram of successful calls is looked up
    /// only once.
    #[derive(Debug, Default)]
    pub(crate) struct ServedTimes(OnceLock<Histogram>);

    impl ServedTimes {
        pub(crate) fn record(&self, method: &Method, code: u32, served: Duration) {
            let served = served.as_secs_f64();
            match code {
                0 => self
                    .0
                    .get_or_init(|| served_histogram(method, 0))
                    .record(served),
                code => served_histogram(method, code).record(served),
            }
        }
    }

    /// Durations of a channel's calls: a list by their methods, of which there are few.
    #[derive(Debug, Default)]
    pub(crate) struct CalledTimes(OnceLock<Box<TimesOfMethod>>);

    #[derive(Debug)]
    pub(crate) struct TimesOfMethod {
        method: u32,
        results: Histogram,
        next: CalledTimes,
    }

    impl CalledTimes {
        pub(crate) fn record(&self, method: &Method, code: u32, took: Duration) {
            match code {
                0 => self.of_results(method).record(took.as_secs_f64()),
                code => called_histogram(method, code).record(took.as_secs_f64()),
            }
        }

        /// Returns the histogram of successful calls. The recorder is the program's, so nothing is
        /// locked while it is called.
        fn of_results(&self, method: &Method) -> &Histogram {
            let mut list = self;
            loop {
                match list.0.get() {
                    Some(times) if times.method == method.id => return &times.results,
                    Some(times) => list = &times.next,
                    None => {
                        let times = TimesOfMethod {
                            method: method.id,
                            results: called_histogram(method, 0),
                            next: CalledTimes::default(),
                        };
                        // If another thread was faster, its entry is looked at next.
                        let _ = list.0.set(Box::new(times));
                    }
                }
            }
        }
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) mod metrics {
    use std::time::Duration;

    use super::{Code, Method};

    #[derive(Debug, Default)]
    pub(crate) struct ServedTimes;

    impl ServedTimes {
        pub(crate) fn record(&self, _: &Method, _: u32, _: Duration) {}
    }

    pub(crate) fn refused(_: &Method, _: Code) {}
}
