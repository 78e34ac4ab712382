//! Operations before they are posted, and the forms in which they are posted.
//!
//! # The way of a post
//!
//! 1. A call of the endpoint (`msg.rs`, `tagged.rs`, `rma.rs`) makes a [`Posting`]: the buffers,
//!    the `OpKind` (`proto/op.rs`) that the connection will have, the options, and the target.
//! 2. This file checks the endpoint's capabilities and the buffers, and turns the buffers into a
//!    `buf::Payload`: raw parts with their owners.
//! 3. The `Operation` (`proto/op.rs`) is the one record: kind, memory, options, phase, and the
//!    destination of its report. It goes to its target (`target.rs`): the port of a connected
//!    endpoint; for a connectionless endpoint, the port of the peer (`rdm/ports.rs`), or the
//!    receives that all its ports share.
//! 4. Under the connection's lock the machine (`proto/conn`) checks the state, reserves what the
//!    report needs (`cq/slots.rs`) or lets the operation wait its turn, and keeps the record until
//!    the end. Lanes (`tx/lane.rs`), fences, announcements and awaited answers hold its key.
//! 5. The header is encoded from the record when its frame joins the batch (`tx/batch.rs`). The
//!    memory leaves the record only while the transport has it.
//!
//! A small message that only its future awaits, or that `Endpoint::inject` sends, has no record.
//! The post writes its frame into a buffer that it shares with the messages that are sent together
//! with it (`tx/injected.rs`), and it has ended when the connection's count has passed its number
//! (`progress/sent.rs`). On an idle connection a post is sent within the call
//! (`progress/inline_send.rs`); otherwise the driver gathers what is queued.
//!
//! An endpoint's capabilities (`info/sides.rs`) and default flags (`defaults.rs`) are computed when
//! it is opened, from the Info and the endpoint's kind. Each post and each access of a peer checks
//! the capabilities.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::buf::{IoBufs, LocalUse, Payload};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{OperationId, UserContext};
use crate::limits::INJECT_SIZE_MAX;
use crate::op_error::Failed;
use crate::progress::{AwaitedOp, PostOptions, Report};
use crate::proto::{OpKind, Operation};
use crate::sync::OwnedRecord;

use super::kind::{AwaitedKind, DataKind, FencedKind, GatheredKind, PostingKind};
use super::op::{Op, Queued, QueuedOp};
use super::target::{OpHandle, PostTarget};

/// An operation that has not been posted yet, as the calls of an endpoint return it. `K` is its
/// kind; [`SendMessage`](crate::op::SendMessage), [`RmaWrite`](crate::op::RmaWrite) and the other
/// names are its kinds.
///
/// Await it, or [`post`](Self::post) it and await it later, or give it a context with
/// [`queue`](Self::queue), so that it reports to the endpoint's completion queue.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 8]).queue(1).await?; // It reports to a queue.
/// let sending = a.send("hello").imm(7).post()?; // It runs from now on.
/// sending.await?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted until this is awaited or posted"]
pub struct Posting<B: IoBufs, K: PostingKind> {
    pub(super) target: PostTarget,
    pub(super) buffers: B,
    /// The operation, or the error with which the post fails.
    pub(super) operation: Result<OpKind>,
    /// For a receive that allocates memory when its message arrives: the length of the longest
    /// message.
    max: Option<usize>,
    pub(super) options: PostOptions,
    kind: PhantomData<fn() -> K>,
}

impl<B: IoBufs, K: PostingKind> Posting<B, K> {
    pub(super) fn new(target: PostTarget, buffers: B, operation: Result<OpKind>) -> Self {
        Posting {
            target,
            buffers,
            operation,
            max: None,
            options: PostOptions::default(),
            kind: PhantomData,
        }
    }

    /// Describes a receive into `buffers`, or, with `max`, of a message of at most this many bytes
    /// whose memory is allocated when it arrives.
    pub(super) fn receive(target: PostTarget, buffers: B, max: Option<usize>) -> Self {
        Posting {
            max,
            ..Posting::new(target, buffers, Ok(OpKind::Receive))
        }
    }

    /// Reports to the endpoint's completion queue, with this context, instead of a future.
    pub fn queue(self, context: impl Into<UserContext>) -> Queued<Self> {
        Queued::new(self, context.into())
    }
}

impl<B: IoBufs, K: AwaitedKind> Posting<B, K> {
    /// Posts now and returns the operation's future. If the context is full, the operation waits
    /// for room, in order, whether or not the future is polled; dropping the future withdraws it.
    ///
    /// # Errors
    /// Errors that can be detected before anything is sent: an invalid argument, or a connection
    /// that is not open. The buffers are returned. A connected endpoint refuses everything except
    /// receives with [`NotConnected`](ErrorKind::NotConnected) before it is connected, and with
    /// [`BadState`](ErrorKind::BadState) after this side has closed it. After its connection was
    /// lost, it refuses everything with the cause of the loss
    /// ([`is_connection_lost`](Error::is_connection_lost) is true), except a receive for a message
    /// that had already arrived.
    pub fn post(self) -> Result<Op<B, K::Output>, Failed<B>> {
        self.post_op(true)
    }

    /// As [`post`](Self::post), but fails with [`ErrorKind::Again`], which returns the buffers, if
    /// the context is full.
    pub fn try_post(self) -> Result<Op<B, K::Output>, Failed<B>> {
        self.post_op(false)
    }

    /// Posts now and lets the operation run to completion without a future
    /// ([`Op::detach`](crate::op::Op::detach)).
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub fn detach(self) -> Result<(), Failed<B>> {
        self.post().map(Op::detach)
    }

    /// Fails with [`ErrorKind::TimedOut`] if the operation has not completed after this time, which
    /// includes the time it waits for room. Default: no limit.
    ///
    /// The buffers are returned, unless the kernel is using them at that moment: then they are
    /// freed later. If a request has been sent, the peer still executes it and the response is
    /// ignored: a write that timed out may have been performed, and a read no longer writes to its
    /// buffer. If a receive times out while its message is being received, the message is kept for
    /// the next receive, as if the receive had been dropped.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Posts with a future. With `wait`, the operation waits if the context is full, instead of
    /// failing with Again.
    pub(super) fn post_op(mut self, wait: bool) -> Result<Op<B, K::Output>, Failed<B>> {
        self.options.wait = wait;
        match self
            .check()
            .and_then(|operation| self.post_copied(operation))
        {
            Ok(Some(number)) => {
                let send = self.target.into_copied_send(number);
                return Ok(Op::copied(send, self.buffers));
            }
            Ok(None) => {}
            Err(error) => return Err(Failed::new(error, Some(self.buffers))),
        }
        let (handle, awaited) = self.post_record(Report::Future)?;
        let awaited = awaited.expect("a future awaits its record");
        Ok(Op::new(handle, awaited))
    }
}

impl<B: IoBufs, K: FencedKind> Posting<B, K> {
    /// Sends the operation only when all operations posted to the same peer before have completed,
    /// and before any that is posted later (`FI_FENCE`).
    #[doc(alias = "FI_FENCE")]
    pub fn fence(mut self) -> Self {
        self.options.fence = true;
        self
    }
}

impl<B: IoBufs, K: GatheredKind> Posting<B, K> {
    /// Announces more operations: this one may be held back, to be sent together with the next
    /// posts, by one system call (`FI_MORE`). It is sent at the driver's next turn in any case.
    #[doc(alias = "FI_MORE")]
    pub fn more(mut self) -> Self {
        self.options.more = true;
        self
    }
}

impl<B: IoBufs, K: DataKind> Posting<B, K> {
    /// Sends 64 bits of remote CQ data with the message or write (`FI_REMOTE_CQ_DATA`). The peer's
    /// completion queue reports a write with data when all of it is in memory.
    #[doc(alias("fi_senddata", "fi_writedata", "FI_REMOTE_CQ_DATA"))]
    pub fn imm(mut self, data: u64) -> Self {
        self.edit(|operation| operation.set_data(data));
        self
    }

    /// Completes when the buffers may be reused (`FI_INJECT_COMPLETE`). This is the default, unless
    /// the Info's `tx.op_flags` specify another. A write completes later if both sides have the
    /// extension, because the peer then answers every write.
    #[doc(alias = "FI_INJECT_COMPLETE")]
    pub fn inject_complete(mut self) -> Self {
        self.edit(|operation| operation.set_level(false, false));
        self
    }

    /// Completes only when the operation no longer depends on the network and on this side
    /// (`FI_TRANSMIT_COMPLETE`). Over TCP that is when the peer has acknowledged it, as for
    /// [`delivery_complete`](Self::delivery_complete).
    #[doc(alias = "FI_TRANSMIT_COMPLETE")]
    pub fn transmit_complete(self) -> Self {
        self.delivery_complete()
    }

    /// Completes only when the peer's endpoint has received the message, or the bytes are in the
    /// peer's memory (`FI_DELIVERY_COMPLETE`).
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    pub fn delivery_complete(mut self) -> Self {
        self.edit(|operation| operation.set_level(true, false));
        self
    }
}

impl<B: IoBufs, K: PostingKind> Posting<B, K> {
    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut OpKind)) {
        if let Ok(operation) = &mut self.operation {
            edit(operation);
        }
    }

    /// Checks that the endpoint has the capabilities and accepts the buffers; returns the
    /// operation.
    #[inline]
    fn check(&self) -> Result<&OpKind> {
        let operation = self.operation.as_ref().map_err(Error::clone)?;
        let common = self.target.common();
        let may = (common.caps).check(self.target.caps(operation, &self.options));
        match may.and_then(|()| common.check_buffers(&self.buffers)) {
            Ok(()) => Ok(operation),
            Err(error) => Err(error.with_operation(operation.operation())),
        }
    }

    /// Posts a copy of a small message that only its future awaits, and returns its number. Such a
    /// message needs no record, and its buffers stay with the future. `None`: the message does not
    /// qualify, or there is no room for it now.
    #[inline]
    fn post_copied(&self, operation: &OpKind) -> Result<Option<u64>> {
        let &OpKind::Send {
            tag: None,
            data,
            ack: false,
        } = operation
        else {
            return Ok(None);
        };
        let PostOptions {
            fence,
            matched,
            timeout,
            more,
            ..
        } = self.options;
        let bytes = self.buffers.single_bytes();
        let bytes = bytes.filter(|bytes| bytes.len() <= INJECT_SIZE_MAX);
        match bytes {
            Some(bytes) if !fence && !matched && timeout.is_none() => {
                let posted = self.target.post_copied(bytes, data, more);
                posted.map_err(|error| error.with_operation(OperationKind::Send))
            }
            _ => Ok(None),
        }
    }

    /// Posts an operation that reports to the completion queue for its direction.
    pub(super) fn post_queued(
        mut self,
        context: UserContext,
        completion: bool,
        wait: bool,
    ) -> Result<QueuedOp<B>, Failed<B>> {
        self.options.wait = wait;
        let report = self.check().and_then(|operation| {
            let kind = operation.operation();
            let common = self.target.common();
            let queue = common.queue_for(kind).ok_or_else(|| {
                let message = "it was opened without a transmit_queue";
                Error::new(ErrorKind::BadState, message).with_operation(kind)
            });
            Ok(Report::Queue {
                queue: queue?.clone(),
                context,
                flags: self.target.interface(operation),
                errors_only: !completion && common.defaults.errors_only(kind),
                slot: None,
            })
        });
        let report = match report {
            Ok(report) => report,
            Err(error) => return Err(Failed::new(error, Some(self.buffers))),
        };
        let (handle, waiting) = self.post_record(report)?;
        Ok(QueuedOp {
            waiter: handle.waiter(),
            handle,
            waiting,
            buffers: PhantomData,
        })
    }

    /// Makes the record of a checked operation and posts it. The returned `AwaitedOp` awaits the
    /// operation's end; or, if the operation reports elsewhere and waits for room, its acceptance.
    fn post_record(self, report: Report) -> Result<(OpHandle, Option<AwaitedOp>), Failed<B>> {
        let Posting {
            target,
            buffers,
            operation,
            max,
            options,
            ..
        } = self;
        let mut operation = match operation {
            Ok(operation) => operation,
            Err(error) => return Err(Failed::new(error, Some(buffers))),
        };
        let kind = operation.operation();
        let fail = |error: Error, buffers| Failed::new(error.with_operation(kind), buffers);
        let common = target.common();
        let payload = match buffers.into_payload(local_use(&operation, max)) {
            Ok(payload) => payload,
            Err((error, buffers)) => return Err(fail(error, Some(buffers))),
        };
        let checked = common.check_regions(&payload);
        let checked = checked.and_then(|()| operation.cut_remote_to(payload.len()));
        if let Err(error) = checked {
            return Err(fail(error, B::from_payload(payload)));
        }
        let payload = match max {
            Some(max) => match common.memory_on_arrival(max) {
                Ok(payload) => payload,
                Err(error) => return Err(fail(error, None)),
            },
            None => payload,
        };
        let is_awaited = matches!(report, Report::Future);
        let record = Operation::new(operation, payload, report, options);
        let (record, awaited) = match is_awaited {
            true => {
                let (record, awaited) = OwnedRecord::awaited(record);
                (record, Some(awaited))
            }
            false => (OwnedRecord::new(record), None),
        };
        match target.post(record) {
            Ok((handle, posted)) => Ok((handle, awaited.or(posted.waiting))),
            Err((error, payload)) => Err(fail(error, B::from_payload(payload))),
        }
    }
}

/// Returns how an operation uses its local buffers.
fn local_use(operation: &OpKind, max: Option<usize>) -> LocalUse {
    match operation {
        // A receive with `max` is given no memory.
        OpKind::Receive if max.is_none() => LocalUse::Receive,
        OpKind::Send { .. } | OpKind::Inject { .. } | OpKind::Receive => LocalUse::Send,
        OpKind::Write { .. } => LocalUse::Write,
        OpKind::Read { .. } => LocalUse::Read,
        OpKind::Atomic(request) if request.fetches() => LocalUse::Read,
        OpKind::Atomic(_) => LocalUse::Write,
    }
}

/// Posts copied bytes. The operation never waits, and only counters count its end.
pub(super) fn inject(target: PostTarget, mut operation: OpKind, bytes: &[u8]) -> Result<()> {
    let options = PostOptions::default();
    let need = target.caps(&operation, &options);
    target.common().caps.check(need)?;
    operation.cut_remote_to(bytes.len())?;
    let payload = Payload::copied(bytes);
    let operation = Operation::new(operation, payload, Report::Nowhere, options);
    let posted = target.post(OwnedRecord::new(operation));
    posted.map(drop).map_err(|(error, _)| error)
}

impl<B: IoBufs, K: AwaitedKind> IntoFuture for Posting<B, K> {
    type Output = Result<(K::Output, B), Failed<B>>;
    type IntoFuture = PostFuture<Op<B, K::Output>, B>;

    /// Posts, synchronously; polling only waits.
    fn into_future(self) -> Self::IntoFuture {
        PostFuture::new(self.post())
    }
}

/// Shows the lengths, never the bytes, which are the user's.
impl<B: IoBufs, K: PostingKind> fmt::Debug for Posting<B, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posting")
            .field("endpoint", &self.target.common().id)
            .field("operation", &self.operation.as_ref().map(OpKind::operation))
            .field("buffers", &self.buffers.count())
            .field("len", &self.buffers.total_len())
            .finish_non_exhaustive()
    }
}

impl<B: IoBufs, K: PostingKind> Queued<Posting<B, K>> {
    /// Posts now. The returned future only waits until the operation is accepted.
    ///
    /// # Errors
    /// As for the form without a queue; [`ErrorKind::BadState`] if the endpoint has no queue for
    /// this direction.
    pub fn post(self) -> Result<QueuedOp<B>, Failed<B>> {
        (self.builder).post_queued(self.context, self.completion, true)
    }

    /// As [`post`](Self::post), but fails with [`ErrorKind::Again`], which returns the buffers, if
    /// the context or the queue is full.
    pub fn try_post(self) -> Result<OperationId, Failed<B>> {
        let posted = (self.builder).post_queued(self.context, self.completion, false);
        posted.map(|op| op.id())
    }
}

impl<B: IoBufs, K: PostingKind> IntoFuture for Queued<Posting<B, K>> {
    type Output = Result<OperationId, Failed<B>>;
    type IntoFuture = PostFuture<QueuedOp<B>, B>;

    /// Posts, synchronously; polling waits for acceptance.
    fn into_future(self) -> Self::IntoFuture {
        PostFuture::new(self.post())
    }
}

/// A posted operation's future, or the reason why it was not posted.
#[must_use = "an operation that is dropped before it starts is withdrawn"]
#[derive(Debug)]
pub struct PostFuture<F, B> {
    state: Option<Result<F, Failed<B>>>,
}

impl<F, B> PostFuture<F, B> {
    pub(super) fn new(posted: Result<F, Failed<B>>) -> Self {
        PostFuture {
            state: Some(posted),
        }
    }
}

impl<F: Unpin, B> Unpin for PostFuture<F, B> {}

impl<T, F, B> Future for PostFuture<F, B>
where
    F: Future<Output = Result<T, Failed<B>>> + Unpin,
{
    type Output = Result<T, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.state.as_mut() {
            Some(Ok(op)) => {
                let polled = Pin::new(op).poll(cx);
                if polled.is_ready() {
                    self.state = None;
                }
                polled
            }
            _ => match self.state.take() {
                Some(Err(failed)) => Poll::Ready(Err(failed)),
                _ => panic!("an operation is not polled after its end"),
            },
        }
    }
}
