//! Atomic operations on the peer's memory (`fi_atomic(3)`).

mod builder;
mod operands;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use crate::error::{Error, Phase, Result};
use crate::id::{FabricAddr, OperationId, UserContext};
use crate::info::{AtomicOp, CompareOp};
use crate::mr::RegionSlice;
use crate::op_error::Failed;

use super::op::{Op, Queued, QueuedOp};
use super::post::{Posting, post_op, post_queued};
use super::remote::RemoteRegions;
use super::target::{PostTarget, Scope};
use super::{Endpoint, RdmEndpoint};
use builder::Described;

pub(super) use builder::AtomicSpec;
pub use operands::{AtomicMemory, AtomicResults, AtomicValue, NumbersOf, Operands};

impl Endpoint {
    /// Changes numbers in the peer's memory, each atomically (`fi_atomic`, `fi_atomicv`,
    /// `fi_atomicmsg`): one, or an array of them, in one remote range or up to four, one after the
    /// other. It ends when all of them have been changed, or refused.
    ///
    /// ```no_run
    /// # async fn count(endpoint: tokio_fabric::Endpoint, remote: tokio_fabric::RemoteRegion)
    /// # -> tokio_fabric::Result<()> {
    /// use tokio_fabric::{info::{AtomicOp, CompareOp}};
    ///
    /// let word = remote.slice(..8)?;
    /// endpoint.atomic(AtomicOp::Sum, 1u64, word).await?;
    /// let before: u64 = endpoint.fetch_atomic(AtomicOp::Sum, 1u64, word).await?;
    /// let seen = endpoint.compare_atomic(CompareOp::Swap, 2u64, 0u64, word).await?;
    /// # assert_eq!((before, seen), (1, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// At the peer each number is changed by the processor, at once: with regard to other such
    /// operations, of whatever endpoint and domain, and to those of
    /// [`MemoryRegion`](crate::MemoryRegion) there. Writes, receives and copies are not among
    /// these. An array is changed number by number, and others may see it half done. Operations to
    /// one peer are done in the order in which they were posted, those that fetch included.
    ///
    /// The peer's region must have been registered with
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE); what is fetched takes
    /// [`Access::REMOTE_READ`](crate::Access::REMOTE_READ). The addresses must be multiples of the
    /// number's size (a `Vec<u8>` may begin anywhere; a [`MappedBuffer`](crate::buf::MappedBuffer)
    /// begins with a page). What is refused for whatever [reason](crate::error::Refusal) leaves all
    /// numbers as they were, and does to the connection what
    /// [`on_refusal`](crate::ep::EndpointBuilder::on_refusal) says.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the operation is not offered for the type
    /// ([`Domain::atomic_attr`](crate::Domain::atomic_attr)), and toward a peer that has no atomic
    /// operations, as every C peer: libfabric's protocol has none.
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more numbers than one operation takes
    /// (`FI_EMSGSIZE`). In a domain with [`MrMode::LOCAL`](crate::info::MrMode::LOCAL) operands and
    /// results are in regions, or [`InvalidArgument`](crate::ErrorKind::InvalidArgument).
    #[doc(alias("fi_atomic", "fi_atomicv", "fi_atomicmsg"))]
    pub fn atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        remote: impl Into<RemoteRegions>,
    ) -> Atomic {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        Atomic(Described::update(target, op, operands, remote.into()))
    }

    /// As [`atomic`](Self::atomic), and gives the numbers that were there before
    /// (`fi_fetch_atomic`). [`AtomicOp::Read`] changes nothing: of its operands only the type and
    /// the count are looked at.
    #[doc(alias("fi_fetch_atomic", "fi_fetch_atomicv", "fi_fetch_atomicmsg"))]
    pub fn fetch_atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        remote: impl Into<RemoteRegions>,
    ) -> FetchAtomic<O::Results> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        FetchAtomic::new(Described::fetch(target, op, operands, remote.into()))
    }

    /// Puts the operand in the place of each number for which the comparison holds, and gives the
    /// numbers that were there before (`fi_compare_atomic`); else as [`atomic`](Self::atomic).
    /// `compare` holds as many numbers as `operands`.
    #[doc(alias("fi_compare_atomic", "fi_compare_atomicv", "fi_compare_atomicmsg"))]
    pub fn compare_atomic<O: Operands, C: Operands<Value = O::Value>>(
        &self,
        op: CompareOp,
        compare: C,
        operands: O,
        remote: impl Into<RemoteRegions>,
    ) -> FetchAtomic<O::Results> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        let described = Described::compare(target, op, compare, operands, remote.into());
        FetchAtomic::new(described)
    }

    /// An [`atomic`](Self::atomic) operation of at most 128 bytes that is forgotten
    /// (`fi_inject_atomic`). Counters count it.
    ///
    /// # Errors
    /// As for [`inject`](Self::inject), and for [`atomic`](Self::atomic).
    #[doc(alias = "fi_inject_atomic")]
    pub fn inject_atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        remote: impl Into<RemoteRegions>,
    ) -> Result<()> {
        self.atomic(op, operands, remote).0.inject()
    }
}

impl RdmEndpoint {
    /// Changes numbers in a peer's memory, as [`Endpoint::atomic`] does. If it turns out when the
    /// connection is made that the peer has no atomic operations, those that were posted end as
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> Atomic {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        Atomic(Described::update(target, op, operands, remote.into()))
    }

    /// The same, and gives the numbers that were there before, as [`Endpoint::fetch_atomic`].
    pub fn fetch_atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> FetchAtomic<O::Results> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        FetchAtomic::new(Described::fetch(target, op, operands, remote.into()))
    }

    /// The same by comparing, as [`Endpoint::compare_atomic`].
    pub fn compare_atomic<O: Operands, C: Operands<Value = O::Value>>(
        &self,
        op: CompareOp,
        compare: C,
        operands: O,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> FetchAtomic<O::Results> {
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        let described = Described::compare(target, op, compare, operands, remote.into());
        FetchAtomic::new(described)
    }

    /// An [`atomic`](Self::atomic) operation of at most 128 bytes that is forgotten
    /// (`fi_inject_atomic`). Counters count it.
    ///
    /// # Errors
    /// As for [`inject`](Self::inject), and for [`atomic`](Self::atomic).
    pub fn inject_atomic<O: Operands>(
        &self,
        op: AtomicOp,
        operands: O,
        peer: FabricAddr,
        remote: impl Into<RemoteRegions>,
    ) -> Result<()> {
        self.atomic(op, operands, peer, remote).0.inject()
    }
}

/// An atomic operation to be posted; see [`Endpoint::atomic`] and [`RdmEndpoint::atomic`].
#[must_use = "nothing is changed until this is awaited or posted"]
pub struct Atomic(Described);

impl Atomic {
    /// Ends only when the numbers at the peer have been changed (`FI_DELIVERY_COMPLETE`), which is
    /// so in any case.
    pub fn delivery_complete(self) -> Self {
        self
    }
}

/// An atomic operation to be posted that gives what was there before; see
/// [`Endpoint::fetch_atomic`] and [`Endpoint::compare_atomic`].
#[must_use = "nothing is changed until this is awaited or posted"]
pub struct FetchAtomic<R>(Described, PhantomData<fn() -> R>);

impl<R> FetchAtomic<R> {
    fn new(described: Described) -> Self {
        FetchAtomic(described, PhantomData)
    }

    /// Puts the results into this part of a region, which comes back; it takes
    /// [`Access::READ`](crate::Access::READ). They have this machine's byte order.
    pub fn results_into(mut self, slice: RegionSlice) -> FetchAtomic<RegionSlice> {
        self.0.put_results_into(slice);
        FetchAtomic::new(self.0)
    }
}

/// What both builders have: setters, and the forms in which they post.
macro_rules! atomic_forms {
    ($builder:ident $(<$results:ident>)?, $output:ty) => {
        impl$(<$results: AtomicResults>)? $builder$(<$results>)? {
            /// More is to come: hold it back, to be gathered with the next posts (`FI_MORE`).
            pub fn more(mut self) -> Self {
                self.0.options.more = true;
                self
            }

            /// Goes out only when all that was posted to the same peer before has ended, and before
            /// anything that is posted later (`FI_FENCE`).
            pub fn fence(mut self) -> Self {
                self.0.options.fence = true;
                self
            }

            /// Ends it with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when it has taken
            /// this long, the time included in which it waits for its turn. Default: no limit. What
            /// has gone out may have been done.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.options.timeout = Some(timeout);
                self
            }

            /// Posts now and returns the operation's future. If the context is full, the operation
            /// waits its turn within the future.
            ///
            /// # Errors
            /// What can be known now, as of [`Endpoint::atomic`]; the endpoint is not connected.
            pub fn post(self) -> Result<PostedAtomic<$output>> {
                PostedAtomic::post(self.0, true)
            }

            /// As [`post`](Self::post), but a full context is
            /// [`ErrorKind::Again`](crate::ErrorKind::Again).
            pub fn try_post(self) -> Result<PostedAtomic<$output>> {
                PostedAtomic::post(self.0, false)
            }

            /// Posts now and lets the operation go on to its end without a future
            /// ([`Op::detach`](crate::op::Op::detach)).
            ///
            /// # Errors
            /// As of [`post`](Self::post).
            pub fn detach(self) -> Result<()> {
                self.post().map(PostedAtomic::detach)
            }

            /// Reports to the endpoint's completion queue, with this context, instead of a future.
            /// There, results are the buffer of the [`Completion`](crate::Completion), in this
            /// machine's byte order, unless they went into a region.
            pub fn queue(self, context: impl Into<UserContext>) -> Queued<Self> {
                Queued::new(self, context.into())
            }
        }

        impl$(<$results: AtomicResults>)? IntoFuture for $builder$(<$results>)? {
            type Output = Result<$output>;
            type IntoFuture = PostingAtomic<$output>;

            /// Posts, synchronously; polling only waits.
            fn into_future(self) -> Self::IntoFuture {
                PostingAtomic(Some(self.post()))
            }
        }

        impl$(<$results: AtomicResults>)? Queued<$builder$(<$results>)?> {
            /// Posts now. The future that is returned is of the operation's acceptance only.
            ///
            /// # Errors
            /// As for the form without a queue; [`ErrorKind::BadState`](crate::ErrorKind::BadState)
            /// if the endpoint has no queue for this direction.
            pub fn post(self) -> Result<QueuedOp<AtomicMemory>, Failed<AtomicMemory>> {
                let prepared = self.prepare(|it| it.0.prepare());
                post_queued(prepared.map_err(|it| Failed::new(it, None))?, true)
            }

            /// As [`post`](Self::post), but a full context or queue is
            /// [`ErrorKind::Again`](crate::ErrorKind::Again).
            pub fn try_post(self) -> Result<OperationId, Failed<AtomicMemory>> {
                let prepared = self.prepare(|it| it.0.prepare());
                let posted = post_queued(prepared.map_err(|it| Failed::new(it, None))?, false);
                posted.map(|op| op.id())
            }
        }

        impl$(<$results: AtomicResults>)? IntoFuture for Queued<$builder$(<$results>)?> {
            type Output = Result<OperationId, Failed<AtomicMemory>>;
            type IntoFuture = Posting<QueuedOp<AtomicMemory>, AtomicMemory>;

            /// Posts, synchronously; polling waits for acceptance.
            fn into_future(self) -> Self::IntoFuture {
                Posting::new(self.post())
            }
        }

        /// Shows what, and on how much, but no numbers.
        impl$(<$results>)? fmt::Debug for $builder$(<$results>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($builder)).field(&self.0).finish()
            }
        }
    };
}

atomic_forms!(Atomic, ());
atomic_forms!(FetchAtomic<R>, R);

/// A posted atomic operation: a future of what it gives. It runs whether or not the future is
/// polled.
///
/// # Cancel safety
/// Dropping it withdraws the operation: one that has not started never does; one that has runs to
/// its end. [`detach`](Self::detach) lets it go on without a future.
/// `tokio::time::timeout(limit, op)` is always legal.
#[must_use = "dropped, it is withdrawn if it has not started; `detach` lets it go on"]
pub struct PostedAtomic<R> {
    op: Op<AtomicMemory>,
    results: PhantomData<fn() -> R>,
}

impl<R: AtomicResults> PostedAtomic<R> {
    fn post(described: Described, wait: bool) -> Result<Self> {
        let op = post_op(described.prepare()?, wait).map_err(Failed::into_error)?;
        Ok(PostedAtomic {
            op,
            results: PhantomData,
        })
    }

    /// Its name, unique within the endpoint.
    pub fn id(&self) -> OperationId {
        self.op.id()
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.op.phase()
    }

    /// Asks it to end early (`fi_cancel`); the answer is its own end: Canceled, or its result when
    /// it had started. `true` if it was still to be had.
    pub fn cancel(&self) -> bool {
        self.op.cancel()
    }

    /// Lets it go on to its end without a future, as [`Op::detach`].
    pub fn detach(self) {
        self.op.detach();
    }
}

impl<R: AtomicResults> Future for PostedAtomic<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.op).poll(cx));
        let (_, memory) = ended.map_err(Failed::into_error)?;
        Poll::Ready(Ok(R::from_memory(memory)))
    }
}

impl<R> fmt::Debug for PostedAtomic<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)
    }
}

/// A posted atomic operation's future, or the reason why it was not posted.
#[must_use = "an operation that is dropped before it starts is withdrawn"]
#[derive(Debug)]
pub struct PostingAtomic<R>(Option<Result<PostedAtomic<R>>>);

impl<R: AtomicResults> Future for PostingAtomic<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let posted = self.0.as_mut();
        let posted = posted.expect("an operation is not polled after its end");
        let ended = match posted {
            Ok(op) => ready!(Pin::new(op).poll(cx)),
            Err(error) => Err(Error::clone(error)),
        };
        self.0 = None;
        Poll::Ready(ended)
    }
}
