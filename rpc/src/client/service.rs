//! A channel as a `tower_service::Service` of typed calls.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tower_service::Service;

use super::{Call, CallFuture, Channel};
use crate::status::Status;

/// Makes the calls that it is given over its channel, whichever channel they were described with:
/// `tower`'s layers (limits, retries, balancing) go around it. Made by [`Channel::service`].
///
/// It is ready while the channel has a connection with room for a call, and pending otherwise:
/// never ready once the end of the connection is known, and never an error for a server that may
/// come back. Room that two clones have seen is taken by one of them; the other's call then waits
/// for the window.
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
    /// Of this clone alone, while it waits.
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Channel {
    /// As a `tower_service::Service` of calls.
    pub fn service(&self) -> ChannelService {
        ChannelService {
            channel: self.clone(),
            waiting: None,
        }
    }
}

impl Clone for ChannelService {
    fn clone(&self) -> Self {
        self.channel.service()
    }
}

impl<T, E: From<Status>> Service<Call<T, E>> for ChannelService {
    type Response = T;
    type Error = E;
    type Future = CallFuture<T, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        if self.waiting.is_none() && self.channel.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let channel = &self.channel;
        let waiting = self.waiting.get_or_insert_with(|| {
            let channel = channel.inner.clone();
            Box::pin(async move { channel.room().await })
        });
        ready!(waiting.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<T, E>) -> CallFuture<T, E> {
        call.over(&self.channel).into_future()
    }
}

impl fmt::Debug for ChannelService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChannelService")
            .field(&self.channel)
            .finish()
    }
}
