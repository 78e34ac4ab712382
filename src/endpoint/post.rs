//! What all operation builders share: from a draft to a posted operation, in its three forms.

use std::marker::PhantomData;
use std::time::Duration;

use crate::buf::{IoBufs, LocalUse, Payload};
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::Context;
use crate::limits::{INJECT_SIZE_MAX, IOV_LIMIT};
use crate::mr::Access;
use crate::op_error::Failed;
use crate::progress::{Manner, OpCell, Report};
use crate::proto::Post;

use super::Endpoint;
use super::op::{Op, QueuedOp, Told};
use super::place::Place;
use super::region::check_regions;
use super::remote::RemoteRegions;

/// An operation described but not posted.
pub(super) trait Draft<B: IoBufs>: Sized {
    fn operation(&self) -> OperationKind;
    fn endpoint(&self) -> &Endpoint;
    /// Hold it back for the next post (`FI_MORE`).
    fn more(&self) -> bool {
        false
    }
    /// When it ends at the latest.
    fn timeout(&self) -> Option<Duration>;
    /// Splits into the endpoint, the buffers, and what is to be done with them.
    fn into_parts(self) -> (Endpoint, B, Shape);
}

/// What is to be done with the buffers.
pub(super) enum Shape {
    Send {
        data: Option<u64>,
        ack: bool,
    },
    Receive,
    Write {
        remote: RemoteRegions,
        data: Option<u64>,
        ack: bool,
        commit: bool,
    },
    Read {
        remote: RemoteRegions,
    },
}

impl Shape {
    fn usage(&self) -> LocalUse {
        match self {
            Shape::Send { .. } => LocalUse::Send,
            Shape::Receive => LocalUse::Receive,
            Shape::Write { .. } => LocalUse::Write,
            Shape::Read { .. } => LocalUse::Read,
        }
    }

    fn into_post(self, payload: Payload, domain: &Domain) -> Result<Post, (Error, Payload)> {
        match self {
            Shape::Send { data, ack } => Ok(Post::Send { payload, data, ack }),
            Shape::Receive => Ok(Post::Receive { payload }),
            Shape::Write {
                remote,
                data,
                ack,
                commit,
            } => {
                if commit && !domain.offers_persistence() {
                    let message = "commit_complete: the domain was opened without RMA_PMEM";
                    return Err((Error::new(ErrorKind::BadFlags, message), payload));
                }
                match remote.segments(payload.len(), Access::REMOTE_WRITE, domain) {
                    Ok(segments) => Ok(Post::Write {
                        payload,
                        data,
                        ack,
                        commit,
                        segments,
                    }),
                    Err(error) => Err((error, payload)),
                }
            }
            Shape::Read { remote } => {
                match remote.segments(payload.len(), Access::REMOTE_READ, domain) {
                    Ok(segments) => Ok(Post::Read { payload, segments }),
                    Err(error) => Err((error, payload)),
                }
            }
        }
    }
}

/// Posts to a future. `wait`: a full context makes the operation wait instead of failing with
/// Again.
pub(super) fn post_op<B: IoBufs, R: Told, D: Draft<B>>(
    draft: D,
    wait: bool,
) -> Result<Op<B, R>, Failed<B>> {
    let cell = OpCell::new();
    let report = Report::Future(cell.clone());
    let (endpoint, posted) = post(draft, report, wait)?;
    Ok(Op::new(Place::Connection(endpoint), posted.key, cell))
}

/// Posts to the completion queue of its direction.
pub(super) fn post_queued<B: IoBufs, D: Draft<B>>(
    draft: D,
    context: Context,
    wait: bool,
) -> Result<QueuedOp<B>, Failed<B>> {
    let queue = match queue_for(draft.endpoint(), draft.operation()) {
        Some(queue) => queue.clone(),
        None => {
            let error = Error::new(ErrorKind::BadState, "the endpoint has no transmit queue")
                .with_operation(draft.operation());
            let (_, buffers, _) = draft.into_parts();
            return Err(Failed::new(error, Some(buffers)));
        }
    };
    let report = Report::Queue {
        queue,
        context,
        slot: None,
        waiting: None,
    };
    let (endpoint, posted) = post(draft, report, wait)?;
    Ok(QueuedOp {
        place: Place::Connection(endpoint),
        key: posted.key,
        waiting: posted.waiting,
        buffers: PhantomData,
    })
}

fn queue_for(endpoint: &Endpoint, operation: OperationKind) -> Option<&CompletionQueue> {
    match operation {
        OperationKind::Receive => Some(&endpoint.inner.receive_queue),
        _ => endpoint.inner.transmit_queue.as_ref(),
    }
}

fn post<B: IoBufs, D: Draft<B>>(
    draft: D,
    report: Report,
    wait: bool,
) -> Result<(Endpoint, crate::progress::Posted), Failed<B>> {
    let operation = draft.operation();
    let manner = Manner {
        wait,
        more: draft.more(),
        timeout: draft.timeout(),
    };
    let (endpoint, buffers, shape) = draft.into_parts();
    let fail = |error: Error, buffers| Failed::new(error.with_operation(operation), buffers);
    if let Err(error) = check_buffers(endpoint.domain(), &buffers) {
        return Err(fail(error, Some(buffers)));
    }
    let payload = match buffers.into_payload(shape.usage()) {
        Ok(payload) => payload,
        Err((error, buffers)) => return Err(fail(error, Some(buffers))),
    };
    let posted = match check_regions(endpoint.domain(), endpoint.id(), &payload) {
        Ok(()) => shape.into_post(payload, endpoint.domain()),
        Err(error) => Err((error, payload)),
    };
    let posted = posted
        .and_then(|post| endpoint.inner.port.post(post, report, manner))
        .map_err(|(error, payload)| fail(error, B::from_payload(payload)))?;
    Ok((endpoint, posted))
}

/// Refuses what is too long to be copied.
pub(super) fn check_inject(bytes: &[u8]) -> Result<()> {
    if bytes.len() > INJECT_SIZE_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} bytes injected, at most {INJECT_SIZE_MAX} are copied",
                bytes.len()
            ),
        )
        .with_operation(OperationKind::Inject));
    }
    Ok(())
}

pub(super) fn check_buffers<B: IoBufs>(domain: &Domain, buffers: &B) -> Result<()> {
    let count = buffers.count();
    if count > IOV_LIMIT {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("{count} buffers, an operation takes at most {IOV_LIMIT}"),
        ));
    }
    if domain.wants_local_registration() && !buffers.is_registered() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the domain was opened with FI_MR_LOCAL: local buffers must be slices of regions",
        ));
    }
    Ok(())
}

/// The forms in which every builder posts: awaited, `post`, `try_post`, and the same through a
/// queue.
macro_rules! posting_forms {
    ($builder:ident, $bound:ident, $told:ty) => {
        impl<B: crate::buf::$bound> $builder<B> {
            /// Posts now and returns the operation's future. If the context is full, the operation
            /// waits its turn within the future.
            ///
            /// # Errors
            /// What can be known now: the endpoint is not connected, an argument is wrong. The
            /// buffers come back.
            pub fn post(self) -> crate::Result<super::Op<B, $told>, crate::Failed<B>> {
                super::post::post_op(self, true)
            }

            /// As [`post`](Self::post), but a full context is
            /// [`ErrorKind::Again`](crate::ErrorKind::Again), with the buffers.
            pub fn try_post(self) -> crate::Result<super::Op<B, $told>, crate::Failed<B>> {
                super::post::post_op(self, false)
            }

            /// Ends it with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when it has taken
            /// this long, the time included in which it waits for its turn. Default: no limit.
            ///
            /// The buffers come back, unless bytes of them are moving at that moment: then the
            /// system still uses them, and they are freed when it does not. What has gone out goes
            /// on to its end at the peer, and an answer that comes later is dropped: a timed out
            /// write may have been carried out, and a read writes to its buffer no more. A message
            /// that is just landing in a timed out receive is kept for the next one, as if the
            /// receive had been dropped.
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            /// Reports to the endpoint's completion queue, with this context, instead of a future.
            pub fn queue(self, context: impl Into<crate::Context>) -> super::Queued<Self> {
                super::Queued {
                    draft: self,
                    context: context.into(),
                }
            }
        }

        /// Tells how much, never what: the bytes are the user's.
        impl<B: crate::buf::$bound> std::fmt::Debug for $builder<B> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($builder))
                    .field("endpoint", &self.endpoint.id())
                    .field("buffers", &self.buffers.count())
                    .field("len", &self.buffers.total_len())
                    .finish_non_exhaustive()
            }
        }

        impl<B: crate::buf::$bound> super::Queued<$builder<B>> {
            /// Posts now. The future that is returned tells of the operation's acceptance only.
            ///
            /// # Errors
            /// As for the form without a queue; [`ErrorKind::BadState`](crate::ErrorKind::BadState)
            /// if the endpoint has no queue for this direction.
            pub fn post(self) -> crate::Result<super::QueuedOp<B>, crate::Failed<B>> {
                super::post::post_queued(self.draft, self.context, true)
            }

            /// As [`post`](Self::post), but a full context or queue is
            /// [`ErrorKind::Again`](crate::ErrorKind::Again), with the buffers.
            pub fn try_post(self) -> crate::Result<crate::OperationId, crate::Failed<B>> {
                super::post::post_queued(self.draft, self.context, false).map(|op| op.id())
            }
        }

        impl<B: crate::buf::$bound> std::future::IntoFuture for $builder<B> {
            type Output = crate::Result<($told, B), crate::Failed<B>>;
            type IntoFuture = super::post::Posting<super::Op<B, $told>, B>;

            /// Posts, synchronously; polling only waits.
            fn into_future(self) -> Self::IntoFuture {
                super::post::Posting::new(self.post())
            }
        }

        impl<B: crate::buf::$bound> std::future::IntoFuture for super::Queued<$builder<B>> {
            type Output = crate::Result<crate::OperationId, crate::Failed<B>>;
            type IntoFuture = super::post::Posting<super::QueuedOp<B>, B>;

            /// Posts, synchronously; polling waits for acceptance.
            fn into_future(self) -> Self::IntoFuture {
                super::post::Posting::new(self.post())
            }
        }
    };
}
pub(super) use posting_forms;

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
