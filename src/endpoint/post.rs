//! What all operation builders share: from a builder to a posted operation, in its three forms.
//!
//! # The way of a post
//!
//! 1. The builder (`msg.rs`, `tagged.rs`, `rma.rs`) describes the operation.
//! 2. This file checks the endpoint's capabilities and the buffers, and turns the buffers into a
//!    `buf::Payload`: raw parts with their owners.
//! 3. The `Operation` (`proto/op.rs`) is the one record: kind, memory, options, phase, and where it
//!    reports. It goes to its target (`target.rs`): the port of the endpoint; of a connectionless
//!    one the port of the peer (`rdm/ports.rs`), or the receives that all its ports share.
//! 4. Under the connection's lock the machine (`proto/conn`) checks the state, reserves what the
//!    report needs (`cq/slots.rs`) or lets the operation wait its turn, and keeps the record until
//!    the end. Lanes (`tx/lane.rs`), fences, announcements and awaited answers hold its key.
//! 5. The header is encoded from the record when its frame joins the batch (`tx/batch.rs`). The
//!    memory leaves the record only while the transport has it.
//!
//! A message of `Endpoint::inject` has no record: its bytes are written as they go out, those that
//! go out together lie in one buffer (`tx/injected.rs`), and their ends are counted. On an idle
//! connection a post is sent within the call (`progress/inline_send.rs`); otherwise the driver
//! gathers what is queued.
//!
//! What an endpoint can do is computed when it is opened, from the Info and the endpoint's kind
//! (`info/sides.rs`), and so are its default flags (`defaults.rs`). Each post asks it, and so does
//! each access of a peer.

use std::marker::PhantomData;

use crate::buf::{IoBufs, LocalUse};
use crate::cq::CompletionFlags;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::info::Caps;
use crate::limits::INJECT_SIZE_MAX;
use crate::mr::Access;
use crate::op_error::Failed;
use crate::progress::{OpCell, PostOptions, Report};
use crate::proto::OpKind;

use super::atomic::AtomicSpec;
use super::common::Common;
use super::op::{Op, OpOutput, Queued, QueuedOp};
use super::remote::RemoteRegions;
use super::target::{CopiedSend, OpHandle, PostTarget};

/// An operation described but not posted.
pub(super) trait OpBuilder<B: IoBufs>: Sized {
    fn operation_kind(&self) -> OperationKind;
    /// Of which interface it is: what its completion's flags say beside the direction.
    fn completion_flags(&self) -> CompletionFlags;
    /// The endpoint it is posted to.
    fn common(&self) -> &Common;
    /// The capabilities of the endpoint that it takes.
    fn caps(&self) -> Caps;
    /// How it is posted, besides whether it waits for room.
    fn options(&self) -> PostOptions;
    /// Splits into where it is posted, the buffers, and what is to be done with them.
    fn into_parts(self) -> (PostTarget, B, OpSpec);
}

/// What is to be done with the buffers.
pub(super) enum OpSpec {
    Send {
        tag: Option<u64>,
        data: Option<u64>,
        ack: bool,
    },
    /// Copied bytes.
    Inject {
        tag: Option<u64>,
        data: Option<u64>,
    },
    Receive,
    /// A message of any length up to this, into memory that is allocated then.
    ReceiveAny {
        max: usize,
    },
    /// Until fewer bytes than these are left.
    ReceiveMany {
        free_min: usize,
    },
    Write {
        remote: RemoteRegions,
        data: Option<u64>,
        ack: bool,
        commit: bool,
    },
    Read {
        remote: RemoteRegions,
    },
    Atomic(Box<AtomicSpec>),
}

/// What a receive does: of any length up to `max`, if that is given.
pub(super) fn receive_spec(max: Option<usize>) -> OpSpec {
    match max {
        None => OpSpec::Receive,
        Some(max) => OpSpec::ReceiveAny { max },
    }
}

impl OpSpec {
    fn usage(&self) -> LocalUse {
        match self {
            // Who receives a message of any length gives no memory.
            OpSpec::Send { .. } | OpSpec::Inject { .. } | OpSpec::ReceiveAny { .. } => {
                LocalUse::Send
            }
            OpSpec::Receive | OpSpec::ReceiveMany { .. } => LocalUse::Receive,
            OpSpec::Write { .. } => LocalUse::Write,
            OpSpec::Read { .. } => LocalUse::Read,
            OpSpec::Atomic(spec) => spec.usage(),
        }
    }

    /// What a connection is asked for, with local memory of this length.
    #[inline]
    pub(super) fn into_op_kind(self, len: usize, domain: &Domain) -> Result<OpKind> {
        match self {
            OpSpec::Send { tag, data, ack } => Ok(OpKind::Send { data, ack, tag }),
            OpSpec::Inject { tag, data } => Ok(OpKind::Inject { data, tag }),
            OpSpec::Receive | OpSpec::ReceiveAny { .. } | OpSpec::ReceiveMany { .. } => {
                Ok(OpKind::Receive)
            }
            OpSpec::Write {
                remote,
                data,
                ack,
                commit,
            } => Ok(OpKind::Write {
                data,
                ack,
                commit,
                segments: remote.segments(len, Access::REMOTE_WRITE, domain)?,
            }),
            OpSpec::Read { remote } => Ok(OpKind::Read {
                segments: remote.segments(len, Access::REMOTE_READ, domain)?,
            }),
            OpSpec::Atomic(spec) => spec.into_op_kind(len, domain),
        }
    }
}

/// Posts to a future. `wait`: a full context makes the operation wait instead of failing with
/// Again.
pub(super) fn post_op<B: IoBufs, R: OpOutput, D: OpBuilder<B>>(
    builder: D,
    wait: bool,
) -> Result<Op<B, R>, Failed<B>> {
    let described = describe(builder, wait)?;
    let described = match described.post_copied()? {
        Ok((copied, buffers)) => return Ok(Op::copied(copied, buffers)),
        Err(described) => described,
    };
    let cell = OpCell::new();
    let (handle, _) = described.post(|_| Report::Future(cell.clone()))?;
    Ok(Op::new(handle, cell))
}

/// Posts to the completion queue of its direction.
pub(super) fn post_queued<B: IoBufs, D: OpBuilder<B>>(
    queued: Queued<D>,
    wait: bool,
) -> Result<QueuedOp<B>, Failed<B>> {
    let Queued {
        builder,
        context,
        completion,
    } = queued;
    let operation = builder.operation_kind();
    if builder.common().queue_for(operation).is_none() {
        let message = "it was opened without a transmit_queue";
        let error = Error::new(ErrorKind::BadState, message).with_operation(operation);
        let (_, buffers, _) = builder.into_parts();
        return Err(Failed::new(error, Some(buffers)));
    }
    let flags = builder.completion_flags();
    let report = |common: &Common| Report::Queue {
        queue: common.queue_for(operation).expect("seen above").clone(),
        context,
        flags,
        errors_only: !completion && common.defaults.errors_only(operation),
        slot: None,
        waiting: None,
    };
    let (handle, posted) = describe(builder, wait)?.post(report)?;
    Ok(QueuedOp {
        waiter: handle.waiter(),
        handle,
        waiting: posted.waiting,
        buffers: PhantomData,
    })
}

/// What a builder describes, whose endpoint may do it with these buffers.
struct Described<B> {
    operation: OperationKind,
    options: PostOptions,
    target: PostTarget,
    buffers: B,
    spec: OpSpec,
}

fn describe<B: IoBufs, D: OpBuilder<B>>(builder: D, wait: bool) -> Result<Described<B>, Failed<B>> {
    let operation = builder.operation_kind();
    let options = PostOptions {
        wait,
        ..builder.options()
    };
    let need = builder.caps();
    let (target, buffers, spec) = builder.into_parts();
    let common = target.common();
    let may = common.caps.check(need);
    if let Err(error) = may.and_then(|()| common.check_buffers(&buffers)) {
        let error = error.with_operation(operation);
        return Err(Failed::new(error, Some(buffers)));
    }
    Ok(Described {
        operation,
        options,
        target,
        buffers,
        spec,
    })
}

impl<B: IoBufs> Described<B> {
    /// Posts a small message by a copy of its bytes, if nothing but its future awaits it: then it
    /// takes no record. The buffers stay with the future. `Err` within: it is no such message, or
    /// there is no room for it now.
    #[inline]
    fn post_copied(self) -> Result<Result<(CopiedSend, B), Self>, Failed<B>> {
        let PostOptions {
            fence,
            matched,
            timeout,
            more,
            ..
        } = self.options;
        let OpSpec::Send {
            tag: None,
            data,
            ack: false,
        } = self.spec
        else {
            return Ok(Err(self));
        };
        let is_plain = !fence && !matched && timeout.is_none();
        let bytes = (self.buffers.single_bytes())
            .filter(|bytes| is_plain && bytes.len() <= INJECT_SIZE_MAX);
        let Some(bytes) = bytes else {
            return Ok(Err(self));
        };
        match self.target.post_copied(bytes, data, more) {
            Ok(Some(copied)) => Ok(Ok((copied, self.buffers))),
            Ok(None) => Ok(Err(self)),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(self, error: Error) -> Failed<B> {
        Failed::new(error.with_operation(self.operation), Some(self.buffers))
    }

    fn post(
        self,
        report: impl FnOnce(&Common) -> Report,
    ) -> Result<(OpHandle, crate::progress::PostedOp), Failed<B>> {
        let Described {
            operation,
            options,
            target,
            buffers,
            spec,
        } = self;
        let fail = |error: Error, buffers| Failed::new(error.with_operation(operation), buffers);
        let common = target.common();
        let payload = match buffers.into_payload(spec.usage()) {
            Ok(payload) => payload,
            Err((error, buffers)) => return Err(fail(error, Some(buffers))),
        };
        if let Err(error) = common.check_regions(&payload) {
            return Err(fail(error, B::from_payload(payload)));
        }
        let payload = match spec {
            OpSpec::ReceiveAny { max } => match common.memory_on_arrival(max) {
                Ok(payload) => payload,
                Err(error) => return Err(fail(error, None)),
            },
            _ => payload,
        };
        let report = report(common);
        target
            .post(spec, payload, report, options)
            .map_err(|(error, payload)| fail(error, B::from_payload(payload)))
    }
}

/// How many buffers, and their bytes.
pub(super) fn measure<B: IoBufs>(buffers: &B) -> (usize, usize) {
    (buffers.count(), buffers.total_len())
}

/// The forms in which builders post: awaited, `post`, `try_post`, and the same through a queue.
macro_rules! posting_forms {
    ($builder:ident, $bound:ident, $output:ty) => {
        impl<B: crate::buf::$bound> $builder<B> {
            /// Posts now and returns the operation's future. If the context is full, the operation
            /// waits for room, in order, whether or not the future is polled; dropping the future
            /// withdraws it.
            ///
            /// # Errors
            /// Errors that can be detected before anything is sent: an invalid argument, or a
            /// connection that is not open. The buffers are returned. A connected endpoint refuses
            /// everything except receives with [`NotConnected`](crate::ErrorKind::NotConnected)
            /// before it is connected, and with [`BadState`](crate::ErrorKind::BadState) after this
            /// side has closed it. After its connection was lost, it refuses everything with the
            /// cause of the loss ([`is_connection_lost`](crate::Error::is_connection_lost) is
            /// true), except a receive for a message that had already arrived.
            pub fn post(self) -> crate::Result<super::Op<B, $output>, crate::Failed<B>> {
                super::post::post_op(self, true)
            }

            /// As [`post`](Self::post), but fails with
            /// [`ErrorKind::Again`](crate::ErrorKind::Again), which returns the buffers, if the
            /// context is full.
            pub fn try_post(self) -> crate::Result<super::Op<B, $output>, crate::Failed<B>> {
                super::post::post_op(self, false)
            }

            /// Posts now and lets the operation run to completion without a future
            /// ([`Op::detach`](crate::op::Op::detach)).
            ///
            /// # Errors
            /// As for [`post`](Self::post).
            pub fn detach(self) -> crate::Result<(), crate::Failed<B>> {
                self.post().map(super::Op::detach)
            }

            /// Fails with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if the operation has
            /// not completed after this time, which includes the time it waits for room. Default:
            /// no limit.
            ///
            /// The buffers are returned, unless the kernel is using them at that moment: then they
            /// are freed later. If a request has been sent, the peer still executes it and the
            /// response is ignored: a write that timed out may have been performed, and a read no
            /// longer writes to its buffer. If a receive times out while its message is being
            /// received, the message is kept for the next receive, as if the receive had been
            /// dropped.
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            /// Reports to the endpoint's completion queue, with this context, instead of a future.
            pub fn queue(self, context: impl Into<crate::UserContext>) -> super::Queued<Self> {
                super::Queued::new(self, context.into())
            }
        }

        impl<B: crate::buf::$bound> std::future::IntoFuture for $builder<B> {
            type Output = crate::Result<($output, B), crate::Failed<B>>;
            type IntoFuture = super::post::Posting<super::Op<B, $output>, B>;

            /// Posts, synchronously; polling only waits.
            fn into_future(self) -> Self::IntoFuture {
                super::post::Posting::new(self.post())
            }
        }

        super::post::queued_forms!($builder, $bound);
    };
}
pub(super) use posting_forms;

/// The forms in which builders post through a queue.
macro_rules! queued_forms {
    ($builder:ident, $bound:ident) => {
        /// Shows how much, never what: the bytes are the user's.
        impl<B: crate::buf::$bound> std::fmt::Debug for $builder<B> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let (count, len) = super::post::measure(&self.buffers);
                f.debug_struct(stringify!($builder))
                    .field("endpoint", &self.target.common().id)
                    .field("buffers", &count)
                    .field("len", &len)
                    .finish_non_exhaustive()
            }
        }

        impl<B: crate::buf::$bound> super::Queued<$builder<B>> {
            /// Posts now. The returned future only waits until the operation is accepted.
            ///
            /// # Errors
            /// As for the form without a queue; [`ErrorKind::BadState`](crate::ErrorKind::BadState)
            /// if the endpoint has no queue for this direction.
            pub fn post(self) -> crate::Result<super::QueuedOp<B>, crate::Failed<B>> {
                super::post::post_queued(self, true)
            }

            /// As [`post`](Self::post), but fails with
            /// [`ErrorKind::Again`](crate::ErrorKind::Again), which returns the buffers, if the
            /// context or the queue is full.
            pub fn try_post(self) -> crate::Result<crate::id::OperationId, crate::Failed<B>> {
                super::post::post_queued(self, false).map(|op| op.id())
            }
        }

        impl<B: crate::buf::$bound> std::future::IntoFuture for super::Queued<$builder<B>> {
            type Output = crate::Result<crate::id::OperationId, crate::Failed<B>>;
            type IntoFuture = super::post::Posting<super::QueuedOp<B>, B>;

            /// Posts, synchronously; polling waits for acceptance.
            fn into_future(self) -> Self::IntoFuture {
                super::post::Posting::new(self.post())
            }
        }
    };
}
pub(super) use queued_forms;

/// A posted operation's future, or the reason why it was not posted.
#[must_use = "an operation that is dropped before it starts is withdrawn"]
#[derive(Debug)]
pub struct Posting<F, B> {
    state: Option<Result<F, Failed<B>>>,
}

impl<F, B> Posting<F, B> {
    pub(super) fn new(posted: Result<F, Failed<B>>) -> Self {
        Posting {
            state: Some(posted),
        }
    }
}

impl<F: Unpin, B> Unpin for Posting<F, B> {}

impl<T, F, B> Future for Posting<F, B>
where
    F: Future<Output = Result<T, Failed<B>>> + Unpin,
{
    type Output = Result<T, Failed<B>>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        match self
            .state
            .as_mut()
            .expect("an operation is not polled after its end")
        {
            Ok(op) => {
                let polled = std::pin::Pin::new(op).poll(cx);
                if polled.is_ready() {
                    self.state = None;
                }
                polled
            }
            Err(_) => match self.state.take() {
                Some(Err(failed)) => std::task::Poll::Ready(Err(failed)),
                _ => unreachable!("matched above"),
            },
        }
    }
}
