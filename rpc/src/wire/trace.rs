//! The trace that a call belongs to.

use crate::limits::TRACE_LEN;

/// A W3C trace context, as it is sent with a call.
///
/// A program that uses a tracing system sets it with [`Call::trace`](crate::Call::trace), and reads
/// it with [`Cx::trace`](crate::Cx::trace).
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, TraceContext, service, testing};
///
/// #[service]
/// trait Trace {
///     async fn id(&self, cx: &Cx) -> Result<[u8; 16]>;
/// }
/// struct Tracer;
/// impl Trace for Tracer {
///     async fn id(&self, cx: &Cx) -> Result<[u8; 16]> {
///         Ok(cx.trace().map_or([0; 16], |trace| trace.trace_id))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, _server) = testing::pair(TraceServer::new(Tracer)).await?;
/// let trace = TraceContext { trace_id: [7; 16], span_id: [1; 8], flags: 1 };
/// assert_eq!(TraceClient::over(channel).id().trace(trace).await?, [7; 16]);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span within it.
    pub span_id: [u8; 8],
    /// The flags of `traceparent`.
    pub flags: u8,
}

impl TraceContext {
    pub(crate) fn to_bytes(self) -> [u8; TRACE_LEN] {
        let mut bytes = [0; TRACE_LEN];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..24].copy_from_slice(&self.span_id);
        bytes[24] = self.flags;
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; TRACE_LEN]) -> TraceContext {
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        trace_id.copy_from_slice(&bytes[..16]);
        span_id.copy_from_slice(&bytes[16..24]);
        let flags = bytes[24];
        TraceContext {
            trace_id,
            span_id,
            flags,
        }
    }
}
