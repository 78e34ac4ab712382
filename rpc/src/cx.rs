//! What a handler knows of its call, and what calls made within it inherit.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Context;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lend::Bulk;
use crate::status::Code;
use crate::wire::{CallId, Metadata};

tokio::task_local! {
    static CURRENT: Cx;
}

/// A trace context of W3C, as it goes over the wire.
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
    pub(crate) fn to_bytes(self) -> [u8; crate::limits::TRACE_LEN] {
        let mut bytes = [0; crate::limits::TRACE_LEN];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..24].copy_from_slice(&self.span_id);
        bytes[24] = self.flags;
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; crate::limits::TRACE_LEN]) -> TraceContext {
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

/// Why a call is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CancelReason {
    /// The caller has dropped it, or its own clock says that its time is over.
    Caller = 1,
    /// Its time is over.
    Deadline = 2,
    /// The server drains, and the drain's time is over.
    Drain = 3,
    /// Its connection has ended.
    Connection = 4,
}

impl CancelReason {
    /// What the call is answered with.
    pub(crate) fn code(self) -> Code {
        match self {
            CancelReason::Caller => Code::Cancelled,
            CancelReason::Deadline => Code::DeadlineExceeded,
            CancelReason::Drain => Code::Draining,
            CancelReason::Connection => Code::ConnectionLost,
        }
    }
}

/// A call, as its handler sees it. Clones are of the same call.
///
/// A handler is dropped at its next await when its call is cancelled, times out, or loses its
/// connection, unless its method is `#[rpc(to_end)]`, which goes on and looks at
/// [`cancelled`](Self::cancelled) if it likes. [`shield`](Self::shield) lets a part go on.
#[derive(Clone)]
pub struct Cx(Arc<CallContext>);

pub(crate) struct CallContext {
    pub(crate) parts: CallParts,
    /// 0, or a [`CancelReason`].
    cancelled: AtomicU8,
    /// Its handler has begun; of a call that passes through layers.
    started: AtomicBool,
    /// Of the task that polls the handler.
    task: AtomicWaker,
    waiters: Notify,
}

/// What a call is made with.
pub(crate) struct CallParts {
    pub(crate) id: CallId,
    pub(crate) method: &'static crate::server::Method,
    /// Where the server has it.
    pub(crate) route: usize,
    pub(crate) peer: SocketAddr,
    pub(crate) received: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) metadata: Metadata,
    pub(crate) bulk: Arc<Bulk>,
}

impl Cx {
    pub(crate) fn new(parts: CallParts) -> Cx {
        Cx(Arc::new(CallContext {
            parts,
            cancelled: AtomicU8::new(0),
            started: AtomicBool::new(false),
            task: AtomicWaker::new(),
            waiters: Notify::new(),
        }))
    }

    /// The call whose handler runs here: in its own task, and where [`scope`](Self::scope) has
    /// carried it.
    pub fn current() -> Option<Cx> {
        CURRENT.try_with(Cx::clone).ok()
    }

    /// Who calls.
    pub fn peer(&self) -> SocketAddr {
        self.0.parts.peer
    }

    /// `Service/method` of the call.
    pub fn method(&self) -> &'static str {
        self.0.parts.method.name
    }

    /// When the call's time is over; `None`: never.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.parts.deadline
    }

    /// What is left of the call's time.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.0.parts.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// What the caller sent along.
    pub fn metadata(&self) -> &Metadata {
        &self.0.parts.metadata
    }

    /// The trace that the call is of, if the caller said.
    pub fn trace(&self) -> Option<TraceContext> {
        self.0.parts.trace
    }

    /// Why the call is not wanted any more, if so.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        Some(match self.0.cancelled.load(Ordering::Acquire) {
            1 => CancelReason::Caller,
            2 => CancelReason::Deadline,
            3 => CancelReason::Drain,
            4 => CancelReason::Connection,
            _ => return None,
        })
    }

    /// Waits until the call is not wanted any more: for what a handler spawns, and for methods that
    /// run to their end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn cancelled(&self) -> CancelReason {
        loop {
            let notified = self.0.waiters.notified();
            if let Some(reason) = self.cancel_reason() {
                return reason;
            }
            notified.await;
        }
    }

    /// Runs the future as a task of its own, which goes on when the handler is dropped. Calls made
    /// in it inherit the deadline all the same.
    ///
    /// # Cancel safety
    /// Dropping what is returned stops nothing.
    ///
    /// # Panics
    /// If the future does.
    pub fn shield<F>(&self, future: F) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let task = tokio::spawn(CURRENT.scope(self.clone(), future));
        async move {
            match task.await {
                Ok(output) => output,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // Only the end of the runtime cancels it, and with it this one.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// Carries the call into a task that the handler spawns: calls made there inherit its deadline
    /// and trace.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), future)
    }

    pub(crate) fn sync_scope<R>(&self, run: impl FnOnce() -> R) -> R {
        CURRENT.sync_scope(self.clone(), run)
    }

    pub(crate) fn set_started(&self) {
        self.0.started.store(true, Ordering::Release);
    }

    pub(crate) fn has_started(&self) -> bool {
        self.0.started.load(Ordering::Acquire)
    }

    pub(crate) fn id(&self) -> CallId {
        self.0.parts.id
    }

    pub(crate) fn call(&self) -> &CallParts {
        &self.0.parts
    }

    /// The first reason counts.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let cancelled = &self.0.cancelled;
        let _ = cancelled.compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Acquire);
        self.0.waiters.notify_waiters();
        self.0.task.wake();
    }

    /// The handler has something to do.
    pub(crate) fn wake(&self) {
        self.0.task.wake();
    }

    /// The task to be woken when the call is cancelled.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.0.task.register(cx.waker());
    }
}

/// Metadata and trace may be secret or long: what identifies the call.
impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("method", &self.0.parts.method.name)
            .field("peer", &self.0.parts.peer)
            .field("cancelled", &self.cancel_reason())
            .finish_non_exhaustive()
    }
}
