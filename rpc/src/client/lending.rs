//! Calls that lend memory.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_fabric::{Domain, Error};

use super::request::CallRecord;
use super::{Call, Channel, Reservation};
use crate::lend::{LendBuf, LendBufMut, LentRead, LentWrite};
#[cfg(feature = "tower")]
use crate::method::Method;
use crate::status::{CallError, CallFailure, Code, Result, Started, Status, sealed as failure};
use crate::wire::{LentRegions, TraceContext};

/// The memory that a call lends: one [`LentRead`] or [`LentWrite`], or a tuple of up to four.
/// Sealed.
pub trait Loan: sealed::Pieces {}

mod sealed {
    use super::{Context, Domain, Error, LentRegions, Poll};

    /// The pieces of memory that a call lends.
    pub trait Pieces: Send + Unpin {
        /// The buffers that are returned.
        type Buffers;

        /// Registers all pieces, or returns the error that prevents it.
        fn lend(&mut self, domain: &Domain) -> Result<LentRegions, Error>;
        /// Becomes ready once no peer can access any piece.
        fn poll_return(&mut self, cx: &mut Context<'_>) -> Poll<()>;
        /// Takes the buffers that were returned; `None` if any buffer is lost.
        fn take(&mut self) -> Option<Self::Buffers>;
    }
}

use sealed::Pieces;

macro_rules! one {
    ($name:ident, $bound:ident) => {
        impl<B: $bound> Loan for $name<B> {}

        impl<B: $bound> Pieces for $name<B> {
            type Buffers = B;

            fn lend(&mut self, domain: &Domain) -> Result<LentRegions, Error> {
                Ok(LentRegions::from_iter([$name::lend(self, domain)?]))
            }

            fn poll_return(&mut self, cx: &mut Context<'_>) -> Poll<()> {
                $name::poll_return(self, cx).map(drop)
            }

            fn take(&mut self) -> Option<B> {
                $name::take(self)
            }
        }
    };
}

one!(LentRead, LendBuf);
one!(LentWrite, LendBufMut);

macro_rules! tuple {
    ($($piece:ident $at:tt),*) => {
        impl<$($piece: Loan),*> Loan for ($($piece,)*) {}

        impl<$($piece: Loan),*> Pieces for ($($piece,)*) {
            type Buffers = ($($piece::Buffers,)*);

            fn lend(&mut self, domain: &Domain) -> Result<LentRegions, Error> {
                let mut regions = LentRegions::new();
                $( regions.extend(self.$at.lend(domain)?); )*
                Ok(regions)
            }

            fn poll_return(&mut self, cx: &mut Context<'_>) -> Poll<()> {
                // Polls all pieces at once, so that access to each is revoked now.
                let ready = [$( self.$at.poll_return(cx).is_ready() ),*];
                match ready.iter().all(|it| *it) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }

            fn take(&mut self) -> Option<Self::Buffers> {
                Some(($( self.$at.take()?, )*))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// The error of a call that lent memory, together with the memory.
///
/// ```
/// use tokio_fabric_rpc::{Code, Cx, Lend, Pull, Result, Status, service, testing};
///
/// #[service]
/// trait Store {
///     async fn put(&self, cx: &Cx, data: Pull) -> Result<()>;
/// }
///
/// # struct Full;
/// # impl Store for Full {
/// #     async fn put(&self, _: &Cx, _: Pull) -> Result<()> {
/// #         Err(Status::application(1, "the disk is full"))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(StoreServer::new(Full)).await?;
/// let failed = StoreClient::over(channel).put(Lend::read(vec![1, 2, 3])).await.unwrap_err();
/// assert_eq!(failed.error().code(), Code::Application(1));
/// let (_status, data) = failed.into_parts();
/// assert_eq!(data, Some(vec![1, 2, 3]));
/// # Ok(()) }
/// ```
///
/// This loop makes the call again with the returned memory, where that is safe and useful:
///
/// ```
/// # use tokio_fabric_rpc::{Code, Cx, Lend, Pull, Result, service};
/// # #[service] trait Store { async fn put(&self, cx: &Cx, data: Pull) -> Result<()>; }
/// async fn put(store: &StoreClient, mut data: Vec<u8>) -> Result<()> {
///     loop {
///         let failed = match store.put(Lend::read(data)).wait_for_ready().await {
///             Ok(_) => return Ok(()),
///             Err(failed) => failed,
///         };
///         let status = failed.error();
///         let may_pass = matches!(
///             status.code(),
///             Code::Overloaded | Code::Draining | Code::Unavailable | Code::ConnectionLost
///         );
///         if !(status.is_not_started() && may_pass) {
///             return Err(failed.into());
///         }
///         tokio::time::sleep(status.retry_after().unwrap_or_default()).await;
///         data = failed.into_parts().1.expect("the domain's driver has not ended");
///     }
/// }
/// ```
pub struct FailedCall<B, E = Status> {
    error: E,
    buffers: Option<B>,
}

impl<B, E> FailedCall<B, E> {
    /// Creates the error of a call whose memory does not come back.
    pub(super) fn without_buffers(error: E) -> FailedCall<B, E> {
        let buffers = None;
        FailedCall { error, buffers }
    }

    /// The error.
    pub fn error(&self) -> &E {
        &self.error
    }

    /// The error alone; the memory is freed.
    pub fn into_error(self) -> E {
        self.error
    }

    /// The error and the memory. The memory is `None` only if the domain's driver has ended while
    /// using it, or if a layer has kept the call and its memory beyond the deadline.
    pub fn into_parts(self) -> (E, Option<B>) {
        (self.error, self.buffers)
    }
}

impl<B, E: CallFailure> CallFailure for FailedCall<B, E> {
    fn status(&self) -> Option<&Status> {
        self.error.status()
    }
}

impl<B, E: failure::Sealed> failure::Sealed for FailedCall<B, E> {
    fn status_mut(&mut self) -> Option<&mut Status> {
        self.error.status_mut()
    }
}

impl<B> FailedCall<B, Status> {
    /// Whether the handler may have run.
    pub fn started(&self) -> Started {
        self.error.started()
    }
}

impl<B> From<FailedCall<B, Status>> for Status {
    fn from(failed: FailedCall<B, Status>) -> Status {
        failed.error
    }
}

/// The error alone, so that `?` returns it; the memory is freed.
impl<B, E> From<FailedCall<B, CallError<E>>> for CallError<E> {
    fn from(failed: FailedCall<B, CallError<E>>) -> CallError<E> {
        failed.error
    }
}

impl<B, E: fmt::Display> fmt::Display for FailedCall<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Shows whether there is memory, but not the bytes, which are the user's.
impl<B, E: fmt::Debug> fmt::Debug for FailedCall<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedCall")
            .field("error", &self.error)
            .field("has_buffers", &self.buffers.is_some())
            .finish()
    }
}

impl<B, E: fmt::Debug + fmt::Display> std::error::Error for FailedCall<B, E> {}

/// A call that lends memory.
///
/// Awaiting it returns the result and the memory. It has the settings of a [`Call`]. It can be
/// cloned if the memory is shared (`Bytes`, `Arc<[u8]>`) or static, and lent for reading.
#[must_use = "nothing is called until this is awaited"]
pub struct LendingCall<T, E, L> {
    call: Call<T, E>,
    loan: L,
}

impl<T, E: From<Status> + CallFailure> Call<T, E> {
    /// Adds memory to the call, for the code that `#[service]` generates.
    #[doc(hidden)]
    pub fn lending<L: Loan>(self, loan: L) -> LendingCall<T, E, L> {
        LendingCall { call: self, loan }
    }
}

impl<T, E: From<Status> + CallFailure, L: Loan> LendingCall<T, E, L> {
    /// Moves the call to another channel.
    pub(crate) fn over(mut self, channel: &Channel) -> Self {
        self.call = self.call.over(channel);
        self
    }

    /// Returns the runtime of the call's channel.
    pub(crate) fn runtime(&self) -> &Handle {
        self.call.runtime()
    }

    /// As [`Call::fix_deadline`].
    pub(crate) fn fix_deadline(&mut self, begun: Instant) -> Option<Instant> {
        self.call.fix_deadline(begun)
    }

    /// Returns whether the call can be made again; see [`Call::can_be_made_again`].
    #[cfg(feature = "tower")]
    pub(crate) fn can_be_made_again(&self) -> bool {
        self.call.can_be_made_again()
    }

    #[cfg(feature = "tower")]
    pub(crate) fn method(&self) -> &'static Method {
        self.call.method()
    }

    /// Returns the domain of the call's channel.
    #[cfg(feature = "tower")]
    pub(crate) fn domain(&self) -> &Domain {
        self.call.domain()
    }

    /// Makes the call a further attempt; see [`Call::attempt_again`].
    #[cfg(feature = "tower")]
    pub(crate) fn attempt_again(&mut self, begun: Instant, started: Started) {
        self.call.attempt_again(begun, started);
    }

    pub(super) fn record(&self) -> CallRecord {
        self.call.record()
    }

    /// Ends the call, which waited until its deadline and was not sent; see [`Call::late`]. Its
    /// memory was not lent.
    pub(super) fn fail_late(
        mut self,
        what: &'static str,
        begun: Instant,
    ) -> FailedCall<L::Buffers, E> {
        FailedCall {
            error: self.call.late(what, begun).into(),
            buffers: self.loan.take(),
        }
    }

    /// As [`Call::deadline`].
    pub fn deadline(mut self, within: Duration) -> Self {
        self.call = self.call.deadline(within);
        self
    }

    /// As [`Call::no_deadline`].
    pub fn no_deadline(mut self) -> Self {
        self.call = self.call.no_deadline();
        self
    }

    /// As [`Call::wait_for_ready`].
    pub fn wait_for_ready(mut self) -> Self {
        self.call = self.call.wait_for_ready();
        self
    }

    /// As [`Call::meta`].
    pub fn meta(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.call = self.call.meta(name, value);
        self
    }

    /// As [`Call::trace`].
    pub fn trace(mut self, trace: impl Into<Option<TraceContext>>) -> Self {
        self.call = self.call.trace(trace);
        self
    }
}

/// A clone makes the same call once more, with the same memory.
impl<T, E, L: Clone> Clone for LendingCall<T, E, L> {
    fn clone(&self) -> Self {
        LendingCall {
            call: self.call.clone(),
            loan: self.loan.clone(),
        }
    }
}

impl<T, E, L> fmt::Debug for LendingCall<T, E, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LendingCall").field(&self.call).finish()
    }
}

impl<T, E: From<Status> + CallFailure, L: Loan> IntoFuture for LendingCall<T, E, L> {
    type Output = Result<(T, L::Buffers), FailedCall<L::Buffers, E>>;
    type IntoFuture = LendingFuture<T, E, L>;

    /// Registers the memory. The call is sent when the future is polled.
    fn into_future(mut self) -> LendingFuture<T, E, L> {
        let state = match self.loan.lend(self.call.domain()) {
            Ok(regions) => State::Calling(self.call.lend(&regions)),
            Err(error) => {
                let mut status = Status::not_started(Code::Unavailable, "").with_source(&error);
                self.call.describe(&mut status);
                State::Returning(Err(status.into()))
            }
        };
        LendingFuture {
            state,
            loan: self.loan,
        }
    }
}

#[allow(clippy::large_enum_variant, reason = "a call needs no allocation")]
enum State<T, E> {
    Calling(Call<T, E>),
    /// The call has ended with this result, and its memory is on its way back.
    Returning(Result<T, E>),
    Done,
}

/// The future of a call that lends memory; it returns the result and the memory.
///
/// # Cancel safety
/// Dropping the future first revokes the peers' access to the memory, then cancels the call. The
/// memory is freed once the system no longer uses it; [`cancel`](Self::cancel) returns the memory
/// instead.
#[must_use = "dropped, the call is cancelled"]
pub struct LendingFuture<T, E, L> {
    // The order matters: access to lent memory is revoked before the call is cancelled.
    loan: L,
    state: State<T, E>,
}

impl<T, E, L> Unpin for LendingFuture<T, E, L> {}

impl<T, E, L: Loan> LendingFuture<T, E, L> {
    /// Cancels the call, and returns the memory as soon as no peer can access it, however the peer
    /// behaves. `None` if the result was returned before, or if the domain's driver has ended while
    /// using the memory.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::timeout;
    /// # use tokio_fabric_rpc::{Cx, Lend, Push, Result, service, testing};
    /// # use std::future::IntoFuture;
    /// # #[service] trait Store { async fn get(&self, cx: &Cx, into: Push) -> Result<u64>; }
    /// # struct Slow;
    /// # impl Store for Slow {
    /// #     async fn get(&self, _: &Cx, _: Push) -> Result<u64> { std::future::pending().await }
    /// # }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<()> {
    /// # let (channel, _server) = testing::pair(StoreServer::new(Slow)).await?;
    /// # let store = StoreClient::over(channel);
    /// let mut call = store.get(Lend::write(vec![0; 1000])).into_future();
    /// if timeout(Duration::from_millis(50), &mut call).await.is_err() {
    ///     let buffer = call.cancel().await.unwrap();
    ///     assert_eq!(buffer.len(), 1000); // It can be lent to another server now.
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future is the same as dropping the call.
    pub async fn cancel(mut self) -> Option<L::Buffers> {
        poll_fn(|cx| {
            let returned = self.loan.poll_return(cx);
            // `poll_return` has revoked access already.
            self.state = State::Done;
            returned
        })
        .await;
        self.loan.take()
    }
}

impl<T, E: From<Status> + CallFailure, L> LendingFuture<T, E, L> {
    /// Holds the room reserved for the call.
    pub(crate) fn holding(mut self, reserved: Option<Reservation>) -> Self {
        self.state = match self.state {
            State::Calling(call) => State::Calling(call.holding(reserved)),
            state => state,
        };
        self
    }
}

impl<T, E: From<Status> + CallFailure, L: Loan> Future for LendingFuture<T, E, L> {
    type Output = Result<(T, L::Buffers), FailedCall<L::Buffers, E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let State::Calling(call) = &mut this.state {
            let end = ready!(Pin::new(call).poll(cx));
            this.state = State::Returning(end);
        }
        ready!(this.loan.poll_return(cx));
        let buffers = this.loan.take();
        let State::Returning(end) = std::mem::replace(&mut this.state, State::Done) else {
            unreachable!("a call is not polled after its end");
        };
        Poll::Ready(match (end, buffers) {
            (Ok(value), Some(buffers)) => Ok((value, buffers)),
            (Ok(_), None) => Err(FailedCall {
                error: Status::new(Code::Internal, "lent memory did not come back").into(),
                buffers: None,
            }),
            (Err(error), buffers) => Err(FailedCall { error, buffers }),
        })
    }
}

impl<T, E, L> fmt::Debug for LendingFuture<T, E, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling(_) => "under way",
            State::Returning(_) => "ended, its memory is returning",
            State::Done => "ended",
        };
        f.debug_struct("LendingFuture")
            .field("state", &state)
            .finish()
    }
}
