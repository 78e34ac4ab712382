//! The trace that a call belongs to.

use crate::limits::TRACE_LEN;

/// Name of the metadata entry with W3C's `tracestate`: data that tracing systems add to a trace. A
/// peer of an older version only passes it to its handler.
pub(crate) const TRACE_STATE: &str = "tracestate";

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
/// let client = TraceClient::over(channel);
/// assert_eq!(client.id().trace(trace).await?, [7; 16]);
/// // Of a request by HTTP, whose header may be absent or malformed.
/// let header = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
/// let id = client.id().trace(header.and_then(TraceContext::from_traceparent)).await?;
/// assert_eq!(id[..2], [0x0a, 0xf7]);
/// assert_eq!(client.id().trace(None).await?, [0; 16]);
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
    /// Reads W3C's `traceparent`, as in an HTTP header: `00-{trace_id}-{span_id}-{flags}` in
    /// hexadecimal. `None`: the text is malformed or has an id of zeros, and must be ignored.
    ///
    /// ```
    /// use tokio_fabric_rpc::TraceContext;
    ///
    /// let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let trace = TraceContext::from_traceparent(header).unwrap();
    /// assert_eq!((trace.trace_id[0], trace.flags), (0x0a, 1));
    /// assert_eq!(trace.to_traceparent(), header);
    /// ```
    pub fn from_traceparent(text: &str) -> Option<TraceContext> {
        let mut parts = text.trim().split('-');
        let version = hexadecimal::<1>(parts.next()?)?;
        let trace_id = hexadecimal(parts.next()?)?;
        let span_id = hexadecimal(parts.next()?)?;
        let [flags] = hexadecimal(parts.next()?)?;
        // A later version may have more parts. 255 is not a version.
        let is_known = match version {
            [0] => parts.next().is_none(),
            [version] => version != u8::MAX,
        };
        let is_some = trace_id != [0; 16] && span_id != [0; 8];
        (is_known && is_some).then_some(TraceContext {
            trace_id,
            span_id,
            flags,
        })
    }

    /// Returns the context as W3C's `traceparent`.
    pub fn to_traceparent(self) -> String {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        format!("00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }

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

/// Reads `N` bytes of exactly two lower-case hexadecimal digits each.
fn hexadecimal<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let is_digit = |it: &u8| matches!(it, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 2 * N || !digits.iter().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}
