//! Posted operations as futures.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::task::coop;

use crate::buf::IoBufs;
use crate::cq::SourceName;
use crate::error::{Phase, Result};
use crate::id::{EndpointId, OperationId};
use crate::op_error::Failed;
use crate::progress::{AwaitedOp, Report};
use crate::proto::Operation;
use crate::sync::ProgressWaiter;

use super::target::{CopiedSend, OpHandle};

/// The result of a successful operation besides its buffers: the number of bytes, or [`Received`]
/// for a message. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::op::{Op, OpOutput};
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{Failed, buf::IoBufs};
///
/// /// Works for sends, receives, reads and writes.
/// async fn finish<B: IoBufs, R: OpOutput>(op: Op<B, R>) -> Result<R, Failed<B>> {
///     Ok(op.await?.0)
/// }
///
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 8]).post()?;
/// assert_eq!(finish(a.send("now").post()?).await?, 3);
/// assert_eq!(finish(receive).await?.len, 3);
/// # Ok(()) }
/// ```
///
/// [`Received`]: crate::op::Received
pub trait OpOutput: sealed::FromCompletion + Send {}

pub(super) mod sealed {
    /// Turns the end of an operation into the value that its future returns.
    pub trait FromCompletion: Sized {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed by this")]
        fn from_completion(fields: super::CompletionFields) -> Self;
    }
}

/// Fields of a successful operation's completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionFields {
    pub(super) len: usize,
    pub(super) data: Option<u64>,
    pub(super) tag: Option<u64>,
    pub(super) source: Option<SourceName>,
    pub(super) endpoint: Option<EndpointId>,
}

#[allow(private_interfaces, reason = "as in the trait")]
impl sealed::FromCompletion for usize {
    fn from_completion(fields: CompletionFields) -> usize {
        fields.len
    }
}

impl OpOutput for usize {}

/// A posted operation: a future that returns its result and its buffers.
///
/// The operation runs whether or not the future is polled. `R` is the type of the result: a number
/// of bytes, or [`Received`](super::Received).
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 8]).post()?; // Posted: it runs from now on.
/// a.send("now").detach()?; // This runs to completion without a future.
/// let (received, _buffer) = receive.await?;
/// assert_eq!(received.len, 3);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropping the future withdraws the operation. If the operation has not started, it never starts.
/// If it has started, it runs to completion, and its buffers live as long as the kernel or a peer
/// may access them. [`detach`](Self::detach) lets it run to completion in either case. Dropping a
/// *receive* removes it from the queue; a message already matched to it returns to the head of the
/// unexpected messages, so no message is lost. If the message is longer than the dropped buffers,
/// only the part that fits them is kept. Leaking the future is safe, and so is
/// `tokio::time::timeout(limit, op)`.
///
/// The future takes part in Tokio's cooperative budget, as registrations and queues do: a task
/// whose operations have always completed when it awaits them does not starve other tasks.
#[must_use = "dropped, it is withdrawn if it has not started; `detach` lets it go on"]
pub struct Op<B: IoBufs, R: OpOutput = usize> {
    state: OpState<B>,
    waiter: ProgressWaiter,
    finished: bool,
    output: PhantomData<fn() -> R>,
}

/// The place where an operation's future looks for its end.
enum OpState<B> {
    Recorded {
        handle: OpHandle,
        /// `None` once it was detached or withdrawn.
        awaited: Option<AwaitedOp>,
    },
    /// A small message that was copied; its buffers stay with the future.
    Copied {
        send: CopiedSend,
        buffers: Option<B>,
    },
}

/// Nothing in the future is pinned.
impl<B: IoBufs, R: OpOutput> Unpin for Op<B, R> {}

impl<B: IoBufs, R: OpOutput> Op<B, R> {
    pub(super) fn new(handle: OpHandle, awaited: AwaitedOp) -> Self {
        let waiter = handle.waiter();
        let awaited = Some(awaited);
        Op::with_state(OpState::Recorded { handle, awaited }, waiter)
    }

    /// Creates the future of a small message that was copied.
    pub(super) fn copied(send: CopiedSend, buffers: B) -> Self {
        let waiter = send.waiter();
        let buffers = Some(buffers);
        Op::with_state(OpState::Copied { send, buffers }, waiter)
    }

    fn with_state(state: OpState<B>, waiter: ProgressWaiter) -> Self {
        Op {
            state,
            waiter,
            finished: false,
            output: PhantomData,
        }
    }

    /// Its id, unique within the endpoint.
    pub fn id(&self) -> OperationId {
        match &self.state {
            OpState::Recorded { handle, .. } => handle.name(),
            OpState::Copied { send, .. } => send.name(),
        }
    }

    /// How far the operation has got.
    pub fn phase(&self) -> Phase {
        match &self.state {
            OpState::Recorded {
                awaited: Some(awaited),
                ..
            } if awaited.has_ended() => Phase::Ended,
            OpState::Recorded { handle, .. } => handle.phase(),
            OpState::Copied { send, .. } => send.phase(),
        }
    }

    /// Requests cancellation (`fi_cancel`). The operation then fails with Canceled, or returns its
    /// result if it had started. Returns `true` if it had not.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self) -> bool {
        match &self.state {
            OpState::Recorded { handle, .. } => handle.cancel(),
            OpState::Copied { send, .. } => send.cancel(),
        }
    }

    /// Lets the operation run to completion without a future, as a task does when its Tokio
    /// `JoinHandle` is dropped.
    ///
    /// The operation owns its buffers until then. Its completion is reported only to the counters
    /// bound for it. A detached send is delivered as long as the connection lives, also during a
    /// [`shutdown`](crate::Endpoint::shutdown) or when the endpoint is dropped. A detached receive
    /// takes a message, which is dropped.
    pub fn detach(mut self) {
        // If the operation has ended, its buffers are dropped here, with no lock held.
        if let OpState::Recorded { awaited, .. } = &mut self.state {
            drop(awaited.take().and_then(AwaitedOp::detach));
        }
        self.finished = true;
    }
}

impl<B: IoBufs, R: OpOutput> Future for Op<B, R> {
    type Output = Result<(R, B), Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let this = &mut *self;
        assert!(!this.finished, "a future is not polled after its end");
        let waiter = &mut this.waiter;
        let (handle, awaited) = match &mut this.state {
            OpState::Recorded { handle, awaited } => (&*handle, awaited),
            OpState::Copied { send, buffers } => {
                let ended = ready!(waiter.poll(cx, |cx| send.poll(cx.waker())));
                budget.made_progress();
                this.finished = true;
                return Poll::Ready(match ended {
                    Ok(()) => Ok(sent_output(buffers)),
                    Err(error) => {
                        send.forget(true);
                        Err(Failed::new(error, buffers.take()))
                    }
                });
            }
        };
        let awaited = awaited.as_mut().expect("held until dropped");
        let mut stale = None; // Dropped with nothing borrowed.
        let ended = |cx: &mut std::task::Context<'_>| {
            let ended = awaited.poll(cx.waker(), &mut stale);
            ended.map(|_| ())
        };
        ready!(match handle.readers_drive() {
            None => waiter.poll(cx, ended),
            Some(list) => waiter.poll_reading(list, cx, ended),
        });
        budget.made_progress();
        this.finished = true;
        let ended = awaited.poll(cx.waker(), &mut stale);
        ended.map(|op| into_output(op, handle))
    }
}

/// Returns the output of a small message that was copied and has been sent.
fn sent_output<B: IoBufs, R: OpOutput>(buffers: &mut Option<B>) -> (R, B) {
    let buffers = (buffers.take()).expect("a future is not polled after its end");
    let fields = CompletionFields {
        len: buffers.total_len(),
        data: None,
        tag: None,
        source: None,
        endpoint: None,
    };
    (R::from_completion(fields), buffers)
}

/// Turns an operation's end into its future's result, and moves its buffers back (the second of
/// their two moves).
#[inline]
fn into_output<B: IoBufs, R: OpOutput>(
    op: &mut Operation<Report>,
    handle: &OpHandle,
) -> Result<(R, B), Failed<B>> {
    let buffers = B::from_payload(op.take_payload());
    let end = &op.end;
    match (&end.result, buffers) {
        (Ok(()), Some(buffers)) => {
            // A connected endpoint has only one peer, so it looks no sender up.
            let names = handle.names_sources();
            let fields = CompletionFields {
                len: end.len,
                data: end.data,
                tag: end.tag,
                source: names.then(|| handle.source_name(end)).flatten(),
                endpoint: names.then(|| handle.endpoint_of(end)).flatten(),
            };
            Ok((R::from_completion(fields), buffers))
        }
        (Err(error), buffers) => {
            let failed = Failed::new(error.clone(), buffers);
            Err(failed.with_lengths(end.len, end.overflow))
        }
        (Ok(()), None) => unreachable!("an operation gives back the buffers it was given"),
    }
}

impl<B: IoBufs, R: OpOutput> Drop for Op<B, R> {
    fn drop(&mut self) {
        match &mut self.state {
            OpState::Recorded { handle, awaited } => {
                if let Some(awaited) = awaited.take_if(|_| !self.finished) {
                    handle.withdraw(awaited);
                }
            }
            OpState::Copied { send, .. } if !self.finished => send.forget(false),
            OpState::Copied { .. } => {}
        }
    }
}

debug_fields!([B: IoBufs, R: OpOutput] Op<B, R>, self => id: self.id(), phase: self.phase());

/// An operation that will report to a completion queue and has not been posted yet.
///
/// You get one from the `queue(context)` of every operation. Await it, which waits until the
/// operation is accepted, or [`post`](Self::post) it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// for context in 0..4u64 {
///     b.recv(vec![0; 8]).queue(context).await?; // Waits if the context or the queue is full.
/// }
/// a.send("hello").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert_eq!(completion.context.0, 0);
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted until this is awaited or posted"]
pub struct Queued<D> {
    pub(super) builder: D,
    pub(super) context: crate::id::UserContext,
    /// Reports the operation also if it succeeds.
    pub(super) completion: bool,
}

impl<D> Queued<D> {
    pub(super) fn new(builder: D, context: crate::id::UserContext) -> Self {
        Queued {
            builder,
            context,
            completion: false,
        }
    }

    /// Reports the operation also if it succeeds, to a queue that is bound with
    /// [`selective_transmit`](crate::ep::EndpointBuilder::selective_transmit) (`FI_COMPLETION`).
    /// Other queues report every operation.
    #[doc(alias("FI_COMPLETION", "FI_SELECTIVE_COMPLETION"))]
    pub fn completion(mut self) -> Self {
        self.completion = true;
        self
    }
}

debug_fields!([D: fmt::Debug] Queued<D>, self => builder: self.builder, context: self.context);

/// A future that waits until an operation that reports to a completion queue is accepted.
///
/// It returns the operation's id as soon as the operation is accepted: immediately, unless the
/// operation's context or the completion queue is full. The queue then reports the completion. If
/// the operation is never accepted (the connection is lost first), this future returns the error
/// and the buffers, and the queue reports nothing: each operation reports in exactly one place.
/// When the connection is lost, a receive of a connected endpoint still waits if a message that
/// arrived before the loss is kept for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (_a, b) = Net::loopback().pair().await?;
/// let posted = b.recv(vec![0; 8]).queue(7).post()?;
/// assert!(posted.is_accepted());
/// let id = posted.await?;
/// assert!(b.cancel(id)); // Its completion says so.
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert!(completion.result.unwrap_err().error.is_canceled());
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// If the future is dropped while the operation waits for room, the operation is withdrawn and its
/// buffers are freed, unless it was [detached](Self::detach). Dropping it later has no effect.
#[must_use = "dropped, it is withdrawn if it waits for room; `detach` lets it go on"]
pub struct QueuedOp<B: IoBufs> {
    pub(super) handle: OpHandle,
    pub(super) waiting: Option<AwaitedOp>,
    pub(super) waiter: ProgressWaiter,
    pub(super) buffers: PhantomData<fn() -> B>,
}

impl<B: IoBufs> QueuedOp<B> {
    /// The operation's id, for [`Endpoint::cancel`](crate::Endpoint::cancel).
    pub fn id(&self) -> OperationId {
        self.handle.name()
    }

    /// True once the operation is accepted.
    pub fn is_accepted(&self) -> bool {
        self.waiting.as_ref().is_none_or(AwaitedOp::has_ended)
    }

    /// Lets the operation continue without a future that waits for its acceptance. If it is
    /// accepted, the queue reports its completion; otherwise only counters count it.
    pub fn detach(mut self) {
        drop(self.waiting.take().and_then(AwaitedOp::detach));
    }
}

impl<B: IoBufs> Future for QueuedOp<B> {
    type Output = Result<OperationId, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        let id = self.id();
        let QueuedOp {
            handle,
            waiting,
            waiter,
            ..
        } = &mut *self;
        let mut stale = None; // Dropped with nothing borrowed.
        let accepted = match waiting {
            Some(awaited) => {
                let accepted = |cx: &mut std::task::Context<'_>| {
                    let accepted = awaited.poll_accepted(cx.waker(), &mut stale);
                    accepted.map_err(|op| {
                        let failed = op.end.result.clone().err();
                        let error = failed.expect("only a failure ends it before its acceptance");
                        Failed::new(error, B::from_payload(op.take_payload()))
                    })
                };
                ready!(match handle.readers_drive() {
                    None => waiter.poll(cx, accepted),
                    Some(list) => waiter.poll_reading(list, cx, accepted),
                })
            }
            None => Ok(()),
        };
        budget.made_progress();
        self.waiting = None;
        Poll::Ready(accepted.map(|()| id))
    }
}

impl<B: IoBufs> Drop for QueuedOp<B> {
    fn drop(&mut self) {
        if let Some(awaited) = &self.waiting {
            self.handle.withdraw_waiting(awaited);
        }
    }
}

debug_fields!([B: IoBufs] QueuedOp<B>, self => id: self.id());
