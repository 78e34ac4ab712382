//! The context of a call, for its handler, and the settings that calls made by the handler inherit.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Context;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_fabric::tls::PeerCertificates;

use crate::caught::caught;
use crate::drive::spawn;
use crate::limits::TRACE_STATE_MAX;
use crate::method::Method;
use crate::peer::{Extensions, Peer};
use crate::status::Code;
use crate::wire::{CallId, Metadata, TRACE_STATE, TraceContext};

thread_local! {
    /// The call of the future that is being polled: set around each poll, like Tokio's task-local
    /// values, but in fewer steps.
    static CURRENT: RefCell<Option<Cx>> = const { RefCell::new(None) };
}

/// Restores the previous call on drop.
struct Within(Option<Cx>);

impl Within {
    #[inline]
    fn enter(cx: Option<Cx>) -> Within {
        // A thread that is ending polls no futures.
        let last = CURRENT.try_with(|current| current.replace(cx));
        Within(last.ok().flatten())
    }
}

impl Drop for Within {
    #[inline]
    fn drop(&mut self) {
        let _own = CURRENT.try_with(|current| current.replace(self.0.take()));
    }
}

/// The reason why a call was cancelled; see [`Cx::cancelled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CancelReason {
    /// The caller has dropped the call, or its deadline has passed by the caller's clock.
    Caller = 1,
    /// The call's deadline has passed.
    Deadline = 2,
    /// The server is draining, and the drain's deadline has passed.
    Drain = 3,
    /// The call's connection has ended.
    Connection = 4,
}

impl CancelReason {
    /// Returns the code of the response to a cancelled call.
    pub(crate) fn code(self) -> Code {
        match self {
            CancelReason::Caller => Code::Cancelled,
            CancelReason::Deadline => Code::DeadlineExceeded,
            CancelReason::Drain => Code::Draining,
            CancelReason::Connection => Code::ConnectionLost,
        }
    }
}

/// A call, for its handler: the first argument of every method.
///
/// It has the deadline, the metadata and the caller's address. Clones refer to the same call.
///
/// When a call is cancelled, times out, or loses its connection, its handler is dropped at its next
/// await. A method with `#[rpc(to_end)]` continues instead; [`cancelled`](Self::cancelled) notifies
/// it of the cancellation. [`shield`](Self::shield) lets a part of a handler continue.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service]
/// trait Greet {
///     async fn greet(&self, cx: &Cx) -> Result<String>;
/// }
/// struct Greeter;
/// impl Greet for Greeter {
///     async fn greet(&self, cx: &Cx) -> Result<String> {
///         assert!(cx.time_left().is_some()); // Every call has a deadline by default.
///         let name = cx.metadata().value("name").unwrap_or(b"stranger");
///         Ok(format!("Hello, {}!", String::from_utf8_lossy(name)))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, _server) = testing::pair(GreetServer::new(Greeter)).await?;
/// let greeting = GreetClient::over(channel).greet().meta("name", "Ada").await?;
/// assert_eq!(greeting, "Hello, Ada!");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cx(Arc<CallContext>);

pub(crate) struct CallContext {
    pub(crate) parts: CallParts,
    /// 0, or a [`CancelReason`].
    cancelled: AtomicU8,
    /// Whether the handler has begun, or can no longer begin.
    started: AtomicBool,
    /// Whether the call is answered; its id may then belong to another call.
    answered: AtomicBool,
    /// The task that polls the handler.
    task: AtomicWaker,
    waiters: Notify,
    extensions: Extensions,
}

/// The parts of a call's context that are set when the call arrives.
pub(crate) struct CallParts {
    pub(crate) id: CallId,
    pub(crate) method: &'static Method,
    /// Index of the method at the server.
    pub(crate) route: usize,
    pub(crate) peer: Arc<Peer>,
    pub(crate) received: Instant,
    /// The time limit of the call, counted from `received`.
    pub(crate) budget: Duration,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) metadata: Metadata,
}

impl Cx {
    /// Creates the context of a call. Reuses `spare`, the context of a call that was answered at
    /// its first poll, if nothing else holds it: such a context was never registered with a task,
    /// and its parts are overwritten in place.
    #[inline]
    pub(crate) fn renew(
        spare: Option<Cx>,
        method: &'static Method,
        peer: &Arc<Peer>,
        write: impl FnOnce(&mut CallParts),
    ) -> Cx {
        if let Some(Cx(mut spare)) = spare
            && let Some(place) = Arc::get_mut(&mut spare)
        {
            place.parts.method = method;
            if !Arc::ptr_eq(&place.parts.peer, peer) {
                place.parts.peer = Arc::clone(peer);
            }
            write(&mut place.parts);
            *place.cancelled.get_mut() = 0;
            *place.started.get_mut() = false;
            *place.answered.get_mut() = false;
            return Cx(spare);
        }
        Cx::make(method, peer, write)
    }

    #[cold]
    fn make(method: &'static Method, peer: &Arc<Peer>, write: impl FnOnce(&mut CallParts)) -> Cx {
        let mut parts = CallParts {
            id: CallId::default(),
            method,
            route: 0,
            peer: Arc::clone(peer),
            received: Instant::now(),
            budget: Duration::ZERO,
            trace: None,
            metadata: Metadata::default(),
        };
        write(&mut parts);
        Cx(Arc::new(CallContext {
            parts,
            cancelled: AtomicU8::new(0),
            started: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            task: AtomicWaker::new(),
            waiters: Notify::new(),
            extensions: Extensions::default(),
        }))
    }

    /// The call whose handler runs in the current task. Other tasks have no current call, unless
    /// [`scope`](Self::scope) has set one.
    pub fn current() -> Option<Cx> {
        CURRENT.try_with(|it| it.borrow().clone()).ok().flatten()
    }

    /// Returns the deadline and the trace that a call made here inherits.
    #[inline]
    pub(crate) fn inherited() -> (Option<Instant>, Option<TraceContext>) {
        let inherited = CURRENT.try_with(|it| {
            let current = it.borrow();
            let cx = current.as_ref()?;
            Some((cx.deadline(), cx.trace()))
        });
        inherited.ok().flatten().unwrap_or_default()
    }

    /// The caller's address.
    pub fn peer(&self) -> SocketAddr {
        self.0.parts.peer.address
    }

    /// The certificates by which the caller has proven its identity when it connected: its own
    /// certificate first, then the chain to an authority, each in DER. `None` without TLS, and if
    /// the server's TLS configuration asks clients for none.
    pub fn peer_certificates(&self) -> Option<&PeerCertificates> {
        self.0.parts.peer.certificates.as_ref()
    }

    /// The name of the authorization key that the caller has proven to have when it connected
    /// ([`Server::named_auth_key`](crate::Server::named_auth_key)); `None` if the key has no name,
    /// or if there is no key.
    pub fn auth_key_name(&self) -> Option<&str> {
        self.0.parts.peer.key_name.as_deref()
    }

    /// Values of the program that belong to this call, for instance the caller's identity that
    /// [`Authorize`](crate::Authorize) has found. They are dropped with the last clone of this
    /// context.
    ///
    /// ```
    /// use tokio_fabric::testing::Net;
    /// use tokio_fabric_rpc::{Code, Cx, Result, Server, Status, service, testing};
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// #[service]
    /// trait Who {
    ///     async fn am_i(&self, cx: &Cx) -> Result<String>;
    /// }
    /// struct Answers;
    /// impl Who for Answers {
    ///     async fn am_i(&self, cx: &Cx) -> Result<String> {
    ///         let Tenant(name) = cx.extensions().get().expect("it is authorized");
    ///         Ok(name)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<()> {
    /// let server = Server::new().add(WhoServer::new(Answers)).authorize(|call: &Cx| {
    ///     match call.metadata().value("token") {
    ///         Some(b"secret") => drop(call.extensions().insert(Tenant("a".to_owned()))),
    ///         _ => return Err(Status::new(Code::Unauthenticated, "a token is missing")),
    ///     }
    ///     Ok(())
    /// });
    /// let (channel, _server) = testing::connect(&Net::new(0), server).await?;
    /// assert_eq!(WhoClient::over(channel).am_i().meta("token", "secret").await?, "a");
    /// # Ok(()) }
    /// ```
    pub fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }

    /// Values of the program that belong to the call's connection, and that all calls of the
    /// connection share, for instance the result of an expensive certificate check. They are
    /// dropped with the connection and its last call.
    pub fn connection_extensions(&self) -> &Extensions {
        &self.0.parts.peer.extensions
    }

    /// The name of the method, `Service/method`.
    pub fn method(&self) -> &'static str {
        self.0.parts.method.name
    }

    /// The deadline of the call: the earlier of the client's and the server's
    /// ([`Server::deadline_max`](crate::Server::deadline_max)); `None` if neither sets one.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.parts.received.checked_add(self.0.parts.budget)
    }

    /// The time left until the deadline.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline()?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// The metadata that the caller sent.
    pub fn metadata(&self) -> &Metadata {
        &self.0.parts.metadata
    }

    /// The trace that the call belongs to, if the caller sent one. The `tracestate` entry of the
    /// [metadata](Self::metadata) belongs to this trace.
    pub fn trace(&self) -> Option<TraceContext> {
        self.0.parts.trace
    }

    /// Returns the `tracestate` of the trace; empty if there is none, or if it is too long.
    pub(crate) fn trace_state(&self) -> &[u8] {
        let state = self.metadata().value(TRACE_STATE);
        let state = state.filter(|it| it.len() <= TRACE_STATE_MAX);
        state.unwrap_or_default()
    }

    /// The reason why the call was cancelled; `None` if it was not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        Some(match self.0.cancelled.load(Ordering::Acquire) {
            1 => CancelReason::Caller,
            2 => CancelReason::Deadline,
            3 => CancelReason::Drain,
            4 => CancelReason::Connection,
            _ => return None,
        })
    }

    /// Waits until the call is cancelled. Use it in tasks that a handler spawns, and in methods
    /// with `#[rpc(to_end)]`.
    ///
    /// # Cancel safety
    /// Cancel safe: waiting changes nothing.
    pub async fn cancelled(&self) -> CancelReason {
        loop {
            let notified = self.0.waiters.notified();
            if let Some(reason) = self.cancel_reason() {
                return reason;
            }
            notified.await;
        }
    }

    /// Runs the future in its own task, which continues if the handler is dropped. Calls made in
    /// this task still inherit the deadline.
    ///
    /// # Cancel safety
    /// Dropping the returned future does not stop the task.
    ///
    /// # Panics
    /// If the future panics.
    pub fn shield<F>(&self, future: F) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let task = spawn(self.scope(future));
        async move {
            match task.await {
                Ok(output) => output,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // Only the end of the runtime cancels the task, and it cancels this task too.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// Runs the future with this call as the current call, in a task that the handler spawns: calls
    /// made by the future inherit the deadline and the trace.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let cx = self.clone();
        async move {
            let mut future = pin!(future);
            poll_fn(|task| cx.sync_scope(|| future.as_mut().poll(task))).await
        }
    }

    #[inline]
    pub(crate) fn sync_scope<R>(&self, run: impl FnOnce() -> R) -> R {
        let _within = Within::enter(Some(self.clone()));
        run()
    }

    /// Returns true only to the first caller, which then counts the call as begun, or as ended
    /// before it began.
    pub(crate) fn begin(&self) -> bool {
        !self.0.started.swap(true, Ordering::AcqRel)
    }

    /// Like `begin`, for a call that no other task can begin or end.
    pub(crate) fn begin_alone(&self) {
        self.0.started.store(true, Ordering::Release);
    }

    pub(crate) fn has_started(&self) -> bool {
        self.0.started.load(Ordering::Acquire)
    }

    /// Called under the lock of the connection's machine.
    pub(crate) fn set_answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    /// Called under the lock of the connection's machine.
    pub(crate) fn is_answered(&self) -> bool {
        self.0.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn id(&self) -> CallId {
        self.0.parts.id
    }

    pub(crate) fn call(&self) -> &CallParts {
        &self.0.parts
    }

    /// Cancels the call. Only the first reason counts.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let cancelled = &self.0.cancelled;
        let _ = cancelled.compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Acquire);
        caught("a waker", || self.0.waiters.notify_waiters());
        self.0.task.wake();
    }

    /// Wakes the handler's task, which has work to do.
    pub(crate) fn wake(&self) {
        self.0.task.wake();
    }

    /// Registers the task to be woken when the call is cancelled.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.0.task.register(cx.waker());
    }
}

/// Shows what identifies the call, but not its metadata and trace, which may be secret or long.
impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("method", &self.0.parts.method.name)
            .field("peer", &self.0.parts.peer.address)
            .field("cancelled", &self.cancel_reason())
            .finish_non_exhaustive()
    }
}
