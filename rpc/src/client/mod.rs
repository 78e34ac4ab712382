//! The client: channels and their calls.

mod call;
mod channel;
mod check;
mod connection;
mod items;
mod layered;
mod lending;
mod request;
mod service;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::info::AuthKey;
use tokio_fabric::{Domain, Fabric, Hints};

use crate::drive::{Configure, Hub};
use crate::limits::DEADLINE;
use crate::observe::ChannelStats;
use crate::status::{Code, Result, Status};

pub use call::Call;
use channel::ChannelInner;
#[cfg(feature = "tower")]
pub(crate) use channel::{random_of, shorten};
use connection::Reservation;
pub use items::received;
pub use layered::{CallPath, DirectPath, LayeredCall, LayeredPath};
pub use lending::{FailedCall, LendingCall, LendingFuture, Loan};
pub use service::ChannelService;

/// Largest number of endpoints of a channel's domain at a time, including the one that has just
/// ended.
const ENDPOINTS_MAX: usize = 64;

/// A connection to a server, shared by any number of clients of its services. Clones refer to the
/// same channel.
///
/// A channel has one connection at a time. When that is lost, or the server drains, the channel
/// reconnects, with increasing pauses. Calls made meanwhile fail at once, as not started, unless
/// they [wait](Call::wait_for_ready). No call is sent twice. The connection is closed when the last
/// clone is dropped and the last call has completed.
///
/// Calls may be awaited in any runtime. The channel belongs to the one in which it was connected:
/// when that ends, so do the connection and all calls.
///
/// ```
/// use tokio_fabric_rpc::{Channel, Cx, Result, Server, service};
///
/// #[service]
/// trait Double {
///     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
/// }
///
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u32) -> Result<u32> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let server = Server::new().add(DoubleServer::new(Doubler)).bind("127.0.0.1:0").await?;
/// let channel = Channel::connect(server.local_addr()).await?;
/// let client = DoubleClient::over(channel.clone());
/// assert_eq!(client.double(21).await?, 42);
/// assert_eq!(channel.stats().succeeded, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Channel {
    inner: Arc<ChannelInner>,
}

impl Channel {
    /// Connects to a server, with the default settings.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if there is no server at the address: at once if it is refused, or
    /// after 10 s for each address that does not answer; the server's status if it rejects the
    /// connection.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt is given up.
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Channel> {
        Channel::builder().connect(address).await
    }

    /// Starts building a channel with other settings.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder {
            fabric: None,
            configure: None,
            deadline: Some(DEADLINE),
            auth_key: None,
        }
    }

    /// The server's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.current().endpoint.peer_addr()
    }

    /// The domain of its connections.
    pub fn domain(&self) -> &Domain {
        self.inner.domain()
    }

    /// Waits until there is a connection to a server that is not draining, or until there will be
    /// none: the channel was closed, or its runtime has ended. Then calls fail at once.
    ///
    /// # Cancel safety
    /// Cancel safe: waiting changes nothing.
    pub async fn ready(&self) {
        self.inner.ready().await;
    }

    /// True if a call would be sent immediately.
    pub fn is_ready(&self) -> bool {
        self.inner.current().with_machine(|it| it.has_room())
    }

    /// Calls of the current connection that have not been answered, including those that were
    /// cancelled.
    pub fn open_calls(&self) -> usize {
        self.inner.current().with_machine(|it| it.open())
    }

    /// Statistics: connections, and calls by outcome.
    pub fn stats(&self) -> ChannelStats {
        self.inner.counters.snapshot()
    }

    /// Closes the connection for all clones of the channel, which does not reconnect: outstanding
    /// calls fail with [`Code::ConnectionLost`].
    ///
    /// # Cancel safety
    /// Once the future has been polled, the channel closes even if the future is dropped.
    pub async fn close(&self) {
        self.inner.set_closed();
        let connection = self.inner.current();
        connection.closing.notify_one();
        // The result says no more than that the connection has ended.
        let _ = connection.endpoint.shutdown().await;
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer_addr())
            .field("open_calls", &self.open_calls())
            .finish_non_exhaustive()
    }
}

/// Connects a [`Channel`]. You get one from [`Channel::builder`].
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric::Driver;
/// use tokio_fabric_rpc::{AuthKey, Channel, Result, Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let key = AuthKey::new(*b"16 random bytes!");
/// let server = Server::new().auth_key(key.clone()).bind("127.0.0.1:0").await?;
/// let channel = Channel::builder()
///     .auth_key(key)
///     .deadline(Duration::from_secs(1))
///     .domain(|domain| domain.driver(Driver::Thread))
///     .connect(server.local_addr())
///     .await?;
/// assert!(channel.is_ready());
/// # Ok(()) }
/// ```
#[must_use = "nothing is connected before `connect`"]
pub struct ChannelBuilder {
    fabric: Option<Fabric>,
    configure: Option<Configure>,
    deadline: Option<Duration>,
    auth_key: Option<AuthKey>,
}

impl ChannelBuilder {
    /// The fabric to connect through. Default: a new one with default hints.
    pub fn fabric(mut self, fabric: &Fabric) -> Self {
        self.fabric = Some(fabric.clone());
        self
    }

    /// Configures the domain that the channel opens, for instance its driver.
    pub fn domain(
        mut self,
        configure: impl FnOnce(DomainBuilder) -> DomainBuilder + Send + 'static,
    ) -> Self {
        self.configure = Some(Box::new(configure));
        self
    }

    /// The deadline of calls that set none; `None`: no deadline. Default: 10 s.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Connects only to a server that proves that it has this key, and proves it to the server
    /// ([`Server::auth_key`](crate::Server::auth_key)).
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.auth_key = Some(key);
        self
    }

    /// Connects to the first of the addresses that answers. Later connections go to the same
    /// addresses.
    ///
    /// # Errors
    /// As for [`Channel::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt is given up.
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Channel> {
        let addresses = lookup_host(address).await.map_err(|error| {
            Status::not_started(Code::Unavailable, format!("the address: {error}"))
        })?;
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => Fabric::open(Hints::new())?,
        };
        // A connection request from a peer is dropped: a channel has no listener.
        let hub = Hub::open(fabric, self.configure, self.auth_key, ENDPOINTS_MAX, drop)?;
        let inner = ChannelInner::open(hub, addresses.collect(), self.deadline).await?;
        Ok(Channel { inner })
    }
}

impl fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
