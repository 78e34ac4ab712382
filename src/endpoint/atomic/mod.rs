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
use super::post::PostFuture;
use super::remote::RemoteRegions;
use super::target::{PostTarget, Scope};
use super::{Endpoint, RdmEndpoint};
use builder::Described;

pub use operands::{AtomicMemory, AtomicResults, AtomicValue, NumbersOf, Operands};

impl Endpoint {
    /// Atomically changes numbers in the peer's memory (`fi_atomic`, `fi_atomicv`, `fi_atomicmsg`):
    /// one, or an array of them, in one remote range or in up to four, which are used in order. The
    /// operation completes when all of them have been changed, or when the peer has refused it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::buf::MappedBuffer;
    /// use tokio_fabric::info::{AtomicOp, CompareOp};
    /// use tokio_fabric::testing::{Net, connect};
    ///
    /// let net = Net::loopback();
    /// let (client, server) = (net.peer()?, net.peer()?);
    /// let (endpoint, _server) = connect(&client, &server).await?;
    /// let region = server.domain.register(MappedBuffer::new(4096)?).await?;
    ///
    /// let word = region.remote().slice(..8)?; // The server sends this to its peers.
    /// endpoint.atomic(AtomicOp::Sum, 1u64, word).await?;
    /// let before: u64 = endpoint.fetch_atomic(AtomicOp::Sum, 1u64, word).await?;
    /// let seen = endpoint.compare_atomic(CompareOp::Swap, 2u64, 0u64, word).await?;
    /// assert_eq!((before, seen), (1, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// The peer's processor changes each number atomically with respect to other atomic operations,
    /// whatever their endpoint and domain, and to the atomic methods of the peer's
    /// [`MemoryRegion`](crate::MemoryRegion). It is not atomic with respect to writes, receives and
    /// copies. The numbers of an array are changed one by one, so others may see it half changed.
    /// Operations to one peer, including those that fetch, are performed in the order in which they
    /// were posted.
    ///
    /// The peer's region must have been registered with
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE); operations that fetch also need
    /// [`Access::REMOTE_READ`](crate::Access::REMOTE_READ). Addresses must be multiples of the
    /// number's size (a `Vec<u8>` may begin anywhere; a [`MappedBuffer`](crate::buf::MappedBuffer)
    /// begins at a page). A refused operation, whatever the [reason](crate::error::Refusal),
    /// changes no number; [`on_refusal`](crate::ep::EndpointBuilder::on_refusal) determines what
    /// happens to the connection.
    ///
    /// # Errors
    /// - [`Unsupported`](crate::ErrorKind::Unsupported) if the operation is not offered for the
    ///   type ([`Domain::atomic_attr`](crate::Domain::atomic_attr)), and if the peer has no atomic
    ///   operations. C peers have none, since libfabric's protocol has none.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge) for more numbers than one operation can process
    ///   (`FI_EMSGSIZE`).
    /// - [`InvalidArgument`](crate::ErrorKind::InvalidArgument) in a domain with
    ///   [`MrMode::LOCAL`](crate::info::MrMode::LOCAL) for operands or results outside of regions.
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

    /// As [`atomic`](Self::atomic), and returns the previous values of the numbers
    /// (`fi_fetch_atomic`). [`AtomicOp::Read`] changes nothing: it uses only the type and the count
    /// of its operands.
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

    /// Replaces each number for which the comparison is true by the operand, and returns the
    /// previous values of all numbers (`fi_compare_atomic`); otherwise as [`atomic`](Self::atomic).
    /// `compare` contains as many numbers as `operands`.
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

    /// Posts an [`atomic`](Self::atomic) operation of at most 128 bytes without a completion
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
    /// Changes numbers in a peer's memory, as [`Endpoint::atomic`] does. If the peer turns out to
    /// have no atomic operations when the connection is made, the posted operations fail with
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

    /// As [`atomic`](Self::atomic), and returns the previous values, as [`Endpoint::fetch_atomic`]
    /// does.
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

    /// Compares and replaces numbers, as [`Endpoint::compare_atomic`] does.
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

    /// Posts an [`atomic`](Self::atomic) operation of at most 128 bytes without a completion
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

/// An atomic operation that has not been posted yet; see [`Endpoint::atomic`] and
/// [`RdmEndpoint::atomic`].
///
/// Await it, or [`post`](Self::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 4]).await?;
///
/// let bits = region.remote();
/// let first = endpoint.atomic(AtomicOp::BitOr, [1u8, 0, 0, 4], bits).post()?;
/// let second = endpoint.atomic(AtomicOp::BitOr, [2u8, 0, 0, 0], bits).post()?;
/// tokio::try_join!(first, second)?; // Performed in this order.
/// let mut bytes = [0; 4];
/// region.read_at(0, &mut bytes)?;
/// assert_eq!(bytes, [3, 0, 0, 4]);
/// # Ok(()) }
/// ```
#[must_use = "nothing is changed until this is awaited or posted"]
pub struct Atomic(Described);

impl Atomic {
    /// Completes only when the numbers at the peer have been changed (`FI_DELIVERY_COMPLETE`),
    /// which is always the case.
    pub fn delivery_complete(self) -> Self {
        self
    }
}

/// An atomic operation that returns the previous values and has not been posted yet; see
/// [`Endpoint::fetch_atomic`] and [`Endpoint::compare_atomic`].
///
/// Await it, or [`post`](Self::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![7u8, 9]).await?;
/// let before = endpoint.fetch_atomic(AtomicOp::Max, [8u8, 8], region.remote()).await?;
/// assert_eq!(before, [7, 9]); // The region contains 8 and 9 now.
/// # Ok(()) }
/// ```
#[must_use = "nothing is changed until this is awaited or posted"]
pub struct FetchAtomic<R>(Described, PhantomData<fn() -> R>);

impl<R> FetchAtomic<R> {
    fn new(described: Described) -> Self {
        FetchAtomic(described, PhantomData)
    }

    /// Writes the results, in this machine's byte order, to this part of a region, which is
    /// returned. Needs [`Access::READ`](crate::Access::READ).
    pub fn results_into(mut self, slice: RegionSlice) -> FetchAtomic<RegionSlice> {
        self.0.put_results_into(slice);
        FetchAtomic::new(self.0)
    }
}

/// The methods of both builders: setters, and the forms of posting.
macro_rules! atomic_forms {
    ($builder:ident $(<$results:ident>)?, $output:ty) => {
        impl$(<$results: AtomicResults>)? $builder$(<$results>)? {
            /// Announces more operations: this one may be held back, to be sent together with the
            /// next posts (`FI_MORE`).
            pub fn more(mut self) -> Self {
                self.0.options.more = true;
                self
            }

            /// Sends the operation only when all operations posted to the same peer before have
            /// completed, and before any that is posted later (`FI_FENCE`).
            pub fn fence(mut self) -> Self {
                self.0.options.fence = true;
                self
            }

            /// Fails with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if the operation has
            /// not completed after this time, which includes the time it waits for room. Default:
            /// no limit. If it has been sent, it may have been performed.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.options.timeout = Some(timeout);
                self
            }

            /// Posts now and returns the operation's future. If the context is full, the operation
            /// waits for room, whether or not the future is polled.
            ///
            /// # Errors
            /// Errors of [`Endpoint::atomic`] that can be detected before anything is sent;
            /// [`NotConnected`](crate::ErrorKind::NotConnected).
            pub fn post(self) -> Result<PostedAtomic<$output>> {
                PostedAtomic::post(self.0, true)
            }

            /// As [`post`](Self::post), but fails with
            /// [`ErrorKind::Again`](crate::ErrorKind::Again) if the context is full.
            pub fn try_post(self) -> Result<PostedAtomic<$output>> {
                PostedAtomic::post(self.0, false)
            }

            /// Posts now and lets the operation run to completion without a future
            /// ([`Op::detach`](crate::op::Op::detach)).
            ///
            /// # Errors
            /// As for [`post`](Self::post).
            pub fn detach(self) -> Result<()> {
                self.post().map(PostedAtomic::detach)
            }

            /// Reports to the endpoint's completion queue, with this context, instead of a future.
            /// The results are then the buffer of the [`Completion`](crate::Completion), in this
            /// machine's byte order, unless they were written to a region.
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
            /// Posts now. The returned future only waits until the operation is accepted.
            ///
            /// # Errors
            /// As for the form without a queue; [`ErrorKind::BadState`](crate::ErrorKind::BadState)
            /// if the endpoint has no queue for this direction.
            pub fn post(self) -> Result<QueuedOp<AtomicMemory>, Failed<AtomicMemory>> {
                self.post_prepared(true)
            }

            /// As [`post`](Self::post), but fails with
            /// [`ErrorKind::Again`](crate::ErrorKind::Again) if the context or the queue is full.
            pub fn try_post(self) -> Result<OperationId, Failed<AtomicMemory>> {
                self.post_prepared(false).map(|op| op.id())
            }

            fn post_prepared(
                self,
                wait: bool,
            ) -> Result<QueuedOp<AtomicMemory>, Failed<AtomicMemory>> {
                let prepared = self.builder.0.prepare();
                let prepared = prepared.map_err(|error| Failed::new(error, None))?;
                prepared.post_queued(self.context, self.completion, wait)
            }
        }

        impl$(<$results: AtomicResults>)? IntoFuture for Queued<$builder$(<$results>)?> {
            type Output = Result<OperationId, Failed<AtomicMemory>>;
            type IntoFuture = PostFuture<QueuedOp<AtomicMemory>, AtomicMemory>;

            /// Posts, synchronously; polling waits for acceptance.
            fn into_future(self) -> Self::IntoFuture {
                PostFuture::new(self.post())
            }
        }

        /// Shows the operation and its size, but no numbers.
        impl$(<$results>)? fmt::Debug for $builder$(<$results>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($builder)).field(&self.0).finish()
            }
        }
    };
}

atomic_forms!(Atomic, ());
atomic_forms!(FetchAtomic<R>, R);

/// The future of an atomic operation that has been posted.
///
/// The operation runs whether or not the future is polled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![41u8]).await?;
/// let posted = endpoint.fetch_atomic(AtomicOp::Sum, 1u8, region.remote()).post()?;
/// // Other work, while the operation is in progress.
/// assert_eq!(posted.await?, 41);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropping the future withdraws the operation: if it has not started, it never does; if it has, it
/// runs to completion. [`detach`](Self::detach) lets it run to completion in either case.
/// `tokio::time::timeout(limit, op)` is safe.
#[must_use = "dropped, it is withdrawn if it has not started; `detach` lets it go on"]
pub struct PostedAtomic<R> {
    op: Op<AtomicMemory>,
    results: PhantomData<fn() -> R>,
}

impl<R: AtomicResults> PostedAtomic<R> {
    fn post(described: Described, wait: bool) -> Result<Self> {
        let op = described
            .prepare()?
            .post_op(wait)
            .map_err(Failed::into_error)?;
        Ok(PostedAtomic {
            op,
            results: PhantomData,
        })
    }

    /// Its id, unique within the endpoint.
    pub fn id(&self) -> OperationId {
        self.op.id()
    }

    /// How far the operation has got.
    pub fn phase(&self) -> Phase {
        self.op.phase()
    }

    /// Requests cancellation (`fi_cancel`). The operation then fails with Canceled, or returns its
    /// result if it had started. Returns `true` if it had not.
    pub fn cancel(&self) -> bool {
        self.op.cancel()
    }

    /// Lets it run to completion without a future, as [`Op::detach`] does.
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

/// The future of an atomic operation that was posted by awaiting it: it returns the result of the
/// [posted operation](PostedAtomic), or the error if posting failed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::future::IntoFuture;
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::op::PostingAtomic;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![41u8]).await?;
/// let future: PostingAtomic<u8> =
///     endpoint.fetch_atomic(AtomicOp::Sum, 1u8, region.remote()).into_future();
/// assert_eq!(future.await?, 41);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// As for [`PostedAtomic`].
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
