//! A channel as a `tower_service::Service` of typed calls.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::connection::Reservation;
use super::{Call, Channel, FailedCall, LendingCall, LendingFuture, Loan};
use crate::drive::within_runtime;
use crate::limits::LAYERS_GRACE;
use crate::status::{CallFailure, Status};

/// A channel as a `tower_service::Service` of calls: it makes each call over its own channel, even
/// if the call was created with another channel.
///
/// Put layers of `tower` around it (limits, retries, load balancing). You get one from
/// [`Channel::service`].
///
/// It is ready while the channel has a connection with room for a call, otherwise pending; it never
/// fails because a server is away, since the server may return. It is also ready when the channel
/// is closed and while the server refuses the channel's authorization key; its calls then fail.
/// While it waits, it also becomes ready when the deadline of the last call that it made passes, so
/// that a layer that makes that call again sees the call fail. Readiness belongs to one clone, and
/// reserves room until the clone makes its call or is dropped. Calls made without a service may
/// still take the room that was free; a call of the service then waits for the window.
///
/// ```
/// use std::future::poll_fn;
/// use tower_service::Service;
/// # use tokio_fabric_rpc::{Cx, Result, service, testing};
/// # #[service] trait Double { async fn double(&self, cx: &Cx, number: u32) -> Result<u32>; }
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// let client = DoubleClient::over(channel.clone());
/// let mut service = channel.service();
/// let call = client.double(21);
/// poll_fn(|cx| Service::<tokio_fabric_rpc::Call<u32>>::poll_ready(&mut service, cx)).await?;
/// assert_eq!(service.call(call).await?, 42);
/// # Ok(()) }
/// ```
pub struct ChannelService {
    channel: Channel,
    /// The future by which this clone waits for room.
    waiting: Option<Pin<Box<dyn Future<Output = Option<Reservation>> + Send + Sync>>>,
    /// The room that this clone has reserved. `Some`: the clone is ready.
    reserved: Option<Reservation>,
    /// The deadline of the last call made by this clone, or by the original before it was cloned:
    /// `Retry` of `tower` makes a call again by a clone.
    last_deadline: Option<Instant>,
}

impl Channel {
    /// The channel as a `tower_service::Service` of calls.
    pub fn service(&self) -> ChannelService {
        ChannelService {
            channel: self.clone(),
            waiting: None,
            reserved: None,
            last_deadline: None,
        }
    }
}

impl Clone for ChannelService {
    fn clone(&self) -> Self {
        ChannelService {
            last_deadline: self.last_deadline,
            ..self.channel.service()
        }
    }
}

impl ChannelService {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.reserved.as_ref().is_some_and(Reservation::is_of_use) {
            return Poll::Ready(());
        }
        self.reserved = None;
        if self.waiting.is_none() {
            self.reserved = self.channel.inner.current().reserve();
        }
        if self.reserved.is_none() {
            let (channel, deadline) = (&self.channel.inner, self.last_deadline);
            let waiting = self.waiting.get_or_insert_with(|| {
                let (channel, runtime) = (channel.clone(), channel.runtime().clone());
                Box::pin(within_runtime(runtime, async move {
                    let is_refused = || channel.is_refused();
                    until(deadline, channel.reserve(is_refused)).await.flatten()
                }))
            });
            self.reserved = ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
        }
        Poll::Ready(())
    }
}

impl<T, E: From<Status> + CallFailure> Service<Call<T, E>> for ChannelService {
    type Response = T;
    type Error = E;
    type Future = Call<T, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        self.poll_room(cx).map(Ok)
    }

    fn call(&mut self, call: Call<T, E>) -> Call<T, E> {
        let mut call = call.over(&self.channel);
        self.last_deadline = call.fix_deadline(Instant::now());
        call.holding(self.reserved.take())
    }
}

/// Lent memory is returned with the result, or in the error.
impl<T, E: From<Status> + CallFailure, L: Loan> Service<LendingCall<T, E, L>> for ChannelService {
    type Response = (T, L::Buffers);
    type Error = FailedCall<L::Buffers, E>;
    type Future = LendingFuture<T, E, L>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_room(cx).map(Ok)
    }

    fn call(&mut self, call: LendingCall<T, E, L>) -> LendingFuture<T, E, L> {
        let mut call = call.over(&self.channel);
        self.last_deadline = call.fix_deadline(Instant::now());
        call.into_future().holding(self.reserved.take())
    }
}

/// Waits for a service, at most until the deadline of the last call, which a layer is about to make
/// again. `None`: the deadline has just passed. A deadline that passed long ago is ignored, since
/// no layer makes that call again.
pub(crate) async fn until<T>(
    deadline: Option<Instant>,
    ready: impl Future<Output = T>,
) -> Option<T> {
    match deadline.filter(|it| it.elapsed() <= LAYERS_GRACE) {
        Some(deadline) => timeout_at(deadline, ready).await.ok(),
        None => Some(ready.await),
    }
}

/// Measures the load as the number of outstanding calls of the channel's connection, plus the
/// number of services that are ready for a call.
#[cfg(feature = "tower")]
impl tower::load::Load for ChannelService {
    type Metric = usize;

    fn load(&self) -> usize {
        self.channel.inner.current().load()
    }
}

impl fmt::Debug for ChannelService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChannelService")
            .field(&self.channel)
            .finish()
    }
}
