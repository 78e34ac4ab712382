//! What is known of calls beside their answers: counts, spans of `tracing`, and with the feature
//! `metrics` durations. Names are those of OpenTelemetry's conventions for RPC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::Empty;
use tracing::{Span, info_span};

use crate::cx::{Cx, TraceContext};
use crate::server::Method;
use crate::status::{Code, Status};
use crate::wire::TYPED_ERROR;

/// How the layer is called where systems are named.
const SYSTEM: &str = "tokio-fabric-rpc";

/// What has become of the calls of a method, at its server. `started` is the sum of `succeeded`,
/// `failed`, `cancelled` and of those that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodStats {
    /// Whose handlers began.
    pub started: u64,
    /// That gave a result.
    pub succeeded: u64,
    /// That gave an error, or panicked.
    pub failed: u64,
    /// That ended before their handlers did: by the caller, the deadline, a drain, or with the
    /// connection.
    pub cancelled: u64,
    /// That were refused; no handler has seen them.
    pub refused: u64,
    /// From the arrival of a request to its end, of all that have ended.
    pub time: Duration,
}

/// What has become of the calls of a channel. `begun` is the sum of the others and of those under
/// way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Connections that were made, the first included.
    pub connections: u64,
    /// Calls that were polled.
    pub begun: u64,
    /// That gave a result.
    pub succeeded: u64,
    /// That ended with an error, and their handlers have run or may have.
    pub failed: u64,
    /// That ended with an error and have not started.
    pub not_started: u64,
    /// That were dropped before their end.
    pub dropped: u64,
}

/// Counts up while calls go on.
#[derive(Debug, Default)]
pub(crate) struct MethodCounters {
    started: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    time_us: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct ChannelCounters {
    connections: AtomicU64,
    begun: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    not_started: AtomicU64,
    dropped: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl MethodCounters {
    pub(crate) fn start(&self) {
        add(&self.started);
    }

    pub(crate) fn refuse(&self, method: &Method, code: Code) {
        add(&self.refused);
        metrics::refused(method, code);
    }

    /// The one end of a call whose handler began, with the code on the wire.
    pub(crate) fn end(&self, call: &Cx, code: u32, served: Duration) {
        add(match code {
            _ if call.cancel_reason().is_some() => &self.cancelled,
            0 => &self.succeeded,
            _ => &self.failed,
        });
        let served_us = u64::try_from(served.as_micros()).unwrap_or(u64::MAX);
        self.time_us.fetch_add(served_us, Ordering::Relaxed);
        metrics::served(call.call().method, code, served);
    }

    pub(crate) fn snapshot(&self) -> MethodStats {
        MethodStats {
            started: read(&self.started),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            cancelled: read(&self.cancelled),
            refused: read(&self.refused),
            time: Duration::from_micros(read(&self.time_us)),
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

    pub(crate) fn end<T>(&self, end: &Result<(u32, T), Status>) {
        add(match end {
            Ok((0, _)) => &self.succeeded,
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

/// The code of an answer, by its name.
fn name_of(code: u32) -> &'static str {
    match code {
        0 => "OK",
        TYPED_ERROR => "APPLICATION",
        code => Code::from_number(code).name(),
    }
}

/// The span of a call at its server; disabled, it costs a look at the callsite.
pub(crate) fn server_span(call: &Cx) -> Span {
    let span = info_span!(
        "rpc.server",
        otel.kind = "server",
        rpc.system.name = SYSTEM,
        rpc.method = call.method(),
        network.peer.address = %call.peer().ip(),
        network.peer.port = call.peer().port(),
        trace_id = Empty,
        parent_span_id = Empty,
        rpc.response.status_code = Empty,
        error.type = Empty,
    );
    record_trace(&span, call.trace());
    span
}

/// The span of a call at its client, if anybody looks: a call has little room.
pub(crate) fn client_span(method: &Method, trace: Option<TraceContext>) -> Option<Box<Span>> {
    let span = info_span!(
        "rpc.client",
        otel.kind = "client",
        rpc.system.name = SYSTEM,
        rpc.method = method.name,
        trace_id = Empty,
        parent_span_id = Empty,
        rpc.response.status_code = Empty,
        error.type = Empty,
    );
    record_trace(&span, trace);
    (!span.is_disabled()).then(|| Box::new(span))
}

fn record_trace(span: &Span, trace: Option<TraceContext>) {
    if let Some(trace) = trace.filter(|_| !span.is_disabled()) {
        let trace_id = u128::from_be_bytes(trace.trace_id);
        let span_id = u64::from_be_bytes(trace.span_id);
        span.record("trace_id", format_args!("{trace_id:032x}").to_string());
        span.record("parent_span_id", format_args!("{span_id:016x}").to_string());
    }
}

/// How the call ended.
pub(crate) fn record_end(span: &Span, code: u32) {
    if span.is_disabled() {
        return;
    }
    let name = name_of(code);
    span.record("rpc.response.status_code", name);
    if code != 0 {
        span.record("error.type", name);
    }
}

/// The number of a client's end of a call, as on the wire.
pub(crate) fn code_of<T>(end: &Result<(u32, T), Status>) -> u32 {
    match end {
        Ok((code, _)) => *code,
        Err(status) => status.code().number(),
    }
}

#[cfg(feature = "metrics")]
pub(crate) mod metrics {
    use std::time::Duration;

    use super::{Code, Method, SYSTEM, name_of};

    /// What histograms and counters are about.
    fn labels(method: &Method, code: &'static str) -> [(&'static str, &'static str); 3] {
        [
            ("rpc.system.name", SYSTEM),
            ("rpc.method", method.name),
            ("rpc.response.status_code", code),
        ]
    }

    pub(crate) fn served(method: &Method, code: u32, served: Duration) {
        let labels = labels(method, name_of(code));
        ::metrics::histogram!("rpc.server.call.duration", &labels).record(served.as_secs_f64());
    }

    pub(crate) fn refused(method: &Method, code: Code) {
        let labels = labels(method, code.name());
        ::metrics::counter!("rpc.server.refused_calls", &labels).increment(1);
    }

    pub(crate) fn called(method: &Method, code: u32, took: Duration) {
        let labels = labels(method, name_of(code));
        ::metrics::histogram!("rpc.client.call.duration", &labels).record(took.as_secs_f64());
    }
}

#[cfg(not(feature = "metrics"))]
pub(crate) mod metrics {
    use std::time::Duration;

    use super::{Code, Method};

    pub(crate) fn served(_: &Method, _: u32, _: Duration) {}
    pub(crate) fn refused(_: &Method, _: Code) {}
}
