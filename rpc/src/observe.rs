//! Observation of calls: counts, spans of `tracing`, and durations with the feature `metrics`.
//! Names follow OpenTelemetry's conventions for RPC.

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

/// The name of this library as an RPC system.
const SYSTEM: &str = "tokio-fabric-rpc";

/// Names of program code that runs in the task that reads frames. It is guarded, since its panic
/// would end more than a call.
const RECORDER: &str = "a recorder";
const SUBSCRIBER: &str = "a subscriber";

/// Counts of a method's calls, at its server
/// ([`Listening::method_stats`](crate::Listening::method_stats)).
///
/// `started` is the sum of `succeeded`, `failed`, `cancelled` and the calls that are still running;
/// it does not include `refused`.
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
    /// Calls whose handlers were not started: refused, not decodable, or cancelled before the
    /// start.
    pub refused: u64,
    /// Calls whose handler's first poll took more than a millisecond, during which the server read
    /// no other frame.
    pub slow_polls: u64,
    /// The total time of all calls that have ended, each from its request's arrival to its end.
    pub time: Duration,
}

/// Counts of a channel's connections and calls ([`Channel::stats`](crate::Channel::stats)).
///
/// `begun` is the sum of the other counts of calls and the number of outstanding calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Connections that were made, including the first.
    pub connections: u64,
    /// Connections that ended with an error: the server died, was silent, reset the connection, or
    /// broke the protocol. The log of the layer below has each connection's error.
    pub connections_lost: u64,
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

/// The counters of [`MethodStats`], which increase while calls are running.
#[derive(Debug, Default)]
pub(crate) struct MethodCounters {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    slow_polls: AtomicU64,
    time_us: AtomicU64,
    /// The same counts for calls that end in the task that read their frames, which alone writes
    /// these.
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

/// Like `add`, for a counter that no other task increases.
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

    /// Like `start`, in the task that reads frames.
    pub(crate) fn start_there(&self) {
        add_alone(&self.started_there, 1);
    }

    /// Counts a handler whose first poll was slow.
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

    /// Like `end`, for a call that is answered by the task that read its frame.
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
            connections_lost: 0,
            begun: read(&self.begun),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            not_started: read(&self.not_started),
            dropped: read(&self.dropped),
        }
    }
}

fn name_of(code: u32) -> &'static str {
    match code {
        0 => "OK",
        TYPED_ERROR => "APPLICATION",
        code => Code::from_number(code).name(),
    }
}

/// Creates the span of a call at its server. A disabled span costs a check of the callsite. Fields
/// are searched by name from the first one, so the fields of a call's end come first.
#[inline]
pub(crate) fn server_span(call: &Cx) -> Option<Span> {
    match tracing::level_enabled!(Level::INFO) {
        true => enabled_server_span(call).filter(|it| !it.is_disabled()),
        false => None,
    }
}

fn enabled_server_span(call: &Cx) -> Option<Span> {
    let span = || {
        let span = info_span!(
            "rpc.server",
            rpc.response.status_code = Empty,
            error.type = Empty,
            otel.status_code = Empty,
            otel.kind = "server",
            otel.name = call.method(),
            rpc.system.name = SYSTEM,
            rpc.method = call.method(),
            network.peer.address = %call.peer().ip(),
            network.peer.port = call.peer().port(),
            trace_id = call.trace().map(trace_id),
            parent_span_id = call.trace().map(parent_span_id),
        );
        if let Some(trace) = call.trace() {
            otel::join(&span, trace, call.trace_state());
        }
        span
    };
    caught(SUBSCRIBER, span)
}

/// Creates the span of a call at its client.
#[inline]
pub(crate) fn client_span(
    method: &Method,
    (host, port): (impl fmt::Display, Option<u16>),
    trace: Option<TraceContext>,
) -> Option<Span> {
    match tracing::level_enabled!(Level::INFO) {
        true => {
            Some(enabled_client_span(method, &host, port, trace)).filter(|it| !it.is_disabled())
        }
        false => None,
    }
}

fn enabled_client_span(
    method: &Method,
    host: &dyn fmt::Display,
    port: Option<u16>,
    trace: Option<TraceContext>,
) -> Span {
    info_span!(
        "rpc.client",
        rpc.response.status_code = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        otel.kind = "client",
        otel.name = method.name,
        rpc.system.name = SYSTEM,
        rpc.method = method.name,
        server.address = %host,
        server.port = port,
        trace_id = trace.map(trace_id),
        parent_span_id = trace.map(parent_span_id),
    )
}

/// Formats the trace id, only if a subscriber reads it.
fn trace_id(trace: TraceContext) -> impl Value {
    display(Hexadecimal(u128::from_be_bytes(trace.trace_id), 32))
}

fn parent_span_id(trace: TraceContext) -> impl Value {
    display(Hexadecimal(u64::from_be_bytes(trace.span_id).into(), 16))
}

/// A number and its number of hexadecimal digits.
struct Hexadecimal(u128, usize);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.0, width = self.1)
    }
}

/// Records how the call has ended at its client, for which every error is a failure.
pub(crate) fn record_end(span: &Span, code: u32) {
    record_end_as(span, code, code != 0);
}

fn record_end_as(span: &Span, code: u32, is_failure: bool) {
    let name = name_of(code);
    span.record("rpc.response.status_code", name);
    if code != 0 {
        span.record("error.type", name);
    }
    if is_failure {
        span.record("otel.status_code", "ERROR");
    }
}

/// Returns whether the server, not the caller, caused the failure. By the conventions, a call that
/// its caller has cancelled, or that is refused for its contents, is no failure of the server.
fn is_fault(code: u32) -> bool {
    let is_of_service = matches!(code, 0 | TYPED_ERROR);
    !is_of_service
        && matches!(
            Code::from_number(code),
            Code::DeadlineExceeded
                | Code::Draining
                | Code::Unavailable
                | Code::Unimplemented
                | Code::HandlerPanicked
                | Code::Internal
        )
}

/// Records how the call has ended at its server, and ends its span.
#[inline]
pub(crate) fn end_span(span: Option<Span>, code: u32) {
    if let Some(span) = span {
        caught(SUBSCRIBER, || {
            record_end_as(&span, code, is_fault(code));
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

#[cfg(feature = "opentelemetry")]
impl TraceContext {
    /// Makes a new span a part of the trace, and a child of the trace context's span, for instance
    /// in a front end that gets a request by HTTP ([`from_traceparent`](Self::from_traceparent)).
    /// Calls that are first polled within the span then belong to the trace too. Needs a layer of
    /// `tracing-opentelemetry` in the subscriber.
    ///
    /// ```
    /// use tokio_fabric_rpc::TraceContext;
    ///
    /// let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let span = tracing::info_span!("request");
    /// if let Some(trace) = TraceContext::from_traceparent(header) {
    ///     trace.set_parent_of(&span);
    /// }
    /// ```
    pub fn set_parent_of(self, span: &Span) {
        otel::join(span, self, &[]);
    }
}

/// The spans of OpenTelemetry that belong to spans of `tracing`.
#[cfg(feature = "opentelemetry")]
pub(crate) mod otel {
    use std::str::FromStr;

    use ::opentelemetry::Context;
    use ::opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
    };
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use crate::wire::TraceContext;

    /// Makes a span of this process a part of a trace of another process. Ignores malformed values,
    /// as W3C says: a trace is never a reason to refuse a call.
    ///
    /// Returns false if there is no layer of OpenTelemetry, and so nothing to join; the call then
    /// costs only the search for a layer.
    pub(crate) fn join(span: &Span, trace: TraceContext, state: &[u8]) -> bool {
        if span.set_parent(Context::new()).is_err() {
            return false;
        }
        let state = std::str::from_utf8(state).ok();
        let state = state.and_then(|it| TraceState::from_str(it).ok());
        let parent = SpanContext::new(
            TraceId::from_bytes(trace.trace_id),
            SpanId::from_bytes(trace.span_id),
            TraceFlags::new(trace.flags),
            true,
            state.unwrap_or_default(),
        );
        if parent.is_valid() {
            let _ = span.set_parent(Context::new().with_remote_span_context(parent));
        }
        true
    }

    /// Returns whether a span that is created here has an OpenTelemetry parent.
    pub(crate) fn is_within_trace() -> bool {
        let is_valid = |it: &Context| it.span().span_context().is_valid();
        is_valid(&Span::current().context()) || is_valid(&Context::current())
    }

    /// Returns the trace context that makes the span the parent of the server's span, and the
    /// trace's state. `None`: there is no layer of OpenTelemetry, and the call keeps its trace.
    pub(crate) fn sent_on(span: &Span) -> Option<(TraceContext, Vec<u8>)> {
        let context = span.context();
        let of_span = context.span();
        let sent = of_span.span_context();
        sent.is_valid().then(|| {
            let trace = TraceContext {
                trace_id: sent.trace_id().to_bytes(),
                span_id: sent.span_id().to_bytes(),
                flags: sent.trace_flags().to_u8(),
            };
            (trace, sent.trace_state().header().into_bytes())
        })
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) mod otel {
    use tracing::Span;

    use crate::wire::TraceContext;

    pub(crate) fn join(_: &Span, _: TraceContext, _: &[u8]) -> bool {
        false
    }

    pub(crate) fn is_within_trace() -> bool {
        false
    }

    pub(crate) fn sent_on(_: &Span) -> Option<(TraceContext, Vec<u8>)> {
        None
    }
}

#[cfg(feature = "metrics")]
pub(crate) mod metrics {
    use std::sync::OnceLock;
    use std::time::Duration;

    use ::metrics::{Histogram, Label, Unit, counter, histogram};

    use super::{ChannelStats, Code, Method, MethodStats, SYSTEM, name_of};

    type Description = (&'static str, Unit, &'static str);

    const COUNTERS: [Description; 8] = [
        (
            "rpc.client.connections.established",
            Unit::Count,
            "Connections that channels have made",
        ),
        (
            "rpc.client.connections.lost",
            Unit::Count,
            "Those that ended with an error",
        ),
        (
            "rpc.client.calls",
            Unit::Count,
            "Calls that have ended, by how they have",
        ),
        (
            "rpc.server.connections.lost",
            Unit::Count,
            "Connections that ended with an error",
        ),
        (
            "rpc.server.violations",
            Unit::Count,
            "Connections that were closed for what their client has sent",
        ),
        (
            "rpc.server.unauthorized",
            Unit::Count,
            "Calls and connections that were turned away for who makes them",
        ),
        (
            "rpc.server.calls",
            Unit::Count,
            "Calls of a method that have ended, by how they have",
        ),
        (
            "rpc.server.slow_polls",
            Unit::Count,
            "Handlers of a method whose first poll has taken more than a millisecond",
        ),
    ];

    const GAUGES: [Description; 2] = [
        (
            "rpc.server.connections",
            Unit::Count,
            "Established connections",
        ),
        (
            "rpc.server.active_calls",
            Unit::Count,
            "Calls whose handlers are running",
        ),
    ];

    /// Describes all metrics of this crate to the installed recorder. Call it once, before the
    /// first metrics are recorded. `tokio_fabric::stats::describe_metrics` describes the metrics of
    /// the layer below.
    ///
    /// ```
    /// tokio_fabric_rpc::describe_metrics(); // Does nothing without a recorder.
    /// ```
    pub fn describe_metrics() {
        for (name, unit, what) in COUNTERS {
            ::metrics::describe_counter!(name, unit, what);
        }
        for (name, unit, what) in GAUGES {
            ::metrics::describe_gauge!(name, unit, what);
        }
        let what = "From the request's arrival to the answer, at a server";
        ::metrics::describe_histogram!("rpc.server.call.duration", Unit::Seconds, what);
        let what = "From the first poll of a call to its end, at a client";
        ::metrics::describe_histogram!("rpc.client.call.duration", Unit::Seconds, what);
        let what = "Calls that were refused, by why they were";
        ::metrics::describe_counter!("rpc.server.refused_calls", Unit::Count, what);
    }

    fn with(labels: &[Label], name: &'static str, value: &'static str) -> Vec<Label> {
        let one = Label::from_static_parts(name, value);
        labels.iter().cloned().chain([one]).collect()
    }

    pub(crate) fn count(name: &'static str, labels: Vec<Label>, value: u64) {
        counter!(name, labels).absolute(value);
    }

    pub(crate) fn count_each(
        name: &'static str,
        labels: &[Label],
        by: &'static str,
        of: &[(&'static str, u64)],
    ) {
        for (what, value) in of {
            count(name, with(labels, by, what), *value);
        }
    }

    impl ChannelStats {
        /// Records the statistics, with these labels, to the installed recorder of `metrics`. Call
        /// it periodically, for instance when the metrics are collected.
        pub fn record_metrics(&self, labels: &[Label]) {
            let made = self.connections;
            count("rpc.client.connections.established", labels.to_vec(), made);
            let lost = self.connections_lost;
            count("rpc.client.connections.lost", labels.to_vec(), lost);
            let ends = [
                ("succeeded", self.succeeded),
                ("failed", self.failed),
                ("not_started", self.not_started),
                ("dropped", self.dropped),
            ];
            count_each("rpc.client.calls", labels, "outcome", &ends);
        }
    }

    impl MethodStats {
        /// As [`ChannelStats::record_metrics`], with the label `rpc.method`.
        pub fn record_metrics(&self, method: &'static str, labels: &[Label]) {
            let labels = with(labels, "rpc.method", method);
            let ends = [
                ("succeeded", self.succeeded),
                ("failed", self.failed),
                ("cancelled", self.cancelled),
                ("refused", self.refused),
            ];
            count_each("rpc.server.calls", &labels, "outcome", &ends);
            count("rpc.server.slow_polls", labels, self.slow_polls);
        }
    }

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

    /// Durations of a method's calls at its server. A recorder's lookup of a histogram by its
    /// labels takes a fifth of a call's time, so the histogram of successful calls is looked up
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

    /// Durations of a channel's calls: a list by method, since a channel has few methods.
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

        /// Returns the histogram of successful calls. No lock is held while the program's recorder
        /// is called.
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
                        // If another thread was faster, the loop looks at its entry next.
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
