//! The client: channels and their calls.

mod call;
mod check;
mod connection;
mod items;
mod layered;
mod lending;
mod reconnect;
mod request;
mod service;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::info::AuthKey;
use tokio_fabric::{Domain, Fabric, Hints};

use crate::caught::caught;
use crate::drive::{Configure, Hub};
use crate::limits::{CALLS_PER_CONNECTION, CONNECT_TIMEOUT, DEADLINE};
use crate::observe::{ChannelCounters, ChannelStats};
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection};

pub use call::Call;
use connection::ClientConnection;
use connection::Reservation;
pub use items::received;
pub use layered::{CallPath, DirectPath, LayeredCall, LayeredPath};
pub use lending::{FailedCall, LendingCall, LendingFuture, Loan};
#[cfg(feature = "tower")]
pub(crate) use reconnect::{random_of, shorten};
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

pub(crate) struct ChannelInner {
    /// The connection that was made last.
    current: Mutex<Arc<ClientConnection>>,
    /// Notifies that another connection was made, or that none will be.
    changed: Notify,
    /// Whether no further connection will be made: the channel was closed, or its runtime has
    /// ended.
    is_closed: AtomicBool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) counters: ChannelCounters,
    /// The server's addresses.
    addresses: Vec<SocketAddr>,
    /// Reads the messages and events of the connections.
    hub: Hub<ClientConnection>,
}

impl ChannelInner {
    pub(crate) fn current(&self) -> Arc<ClientConnection> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.hub.domain
    }

    /// Waits until there is a connection that takes calls, or until none will be made any more.
    pub(crate) async fn ready(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed() || self.current().with_machine(|machine| machine.is_open()) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until a call would be sent at once, and reserves its room. `None`: this and all later
    /// calls would fail at once.
    pub(crate) async fn reserve(&self) -> Option<Reservation> {
        loop {
            self.ready().await;
            let connection = self.current();
            let mut freed = std::pin::pin!(connection.freed.notified());
            freed.as_mut().enable();
            let reservation = connection.reserve();
            if reservation.is_some() {
                return reservation;
            }
            if connection.with_machine(|machine| machine.is_open()) {
                freed.await;
            } else if self.is_closed() {
                return None;
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Wakes the tasks that wait for a connection.
    fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.notify_changed();
    }

    /// The wakers of the waiting tasks are the program's.
    fn notify_changed(&self) {
        caught("a waker", || self.changed.notify_waiters());
    }

    /// Connects to the first of the addresses that answers.
    async fn connect(
        hub: &Hub<ClientConnection>,
        addresses: &[SocketAddr],
    ) -> Result<Arc<ClientConnection>> {
        let mut failed = Status::not_started(Code::Unavailable, "the name has no address");
        for address in addresses {
            match connect_to(hub, *address).await {
                Ok(connection) => return Ok(connection),
                Err(status) => failed = status,
            }
        }
        Err(failed)
    }
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
        &self.inner.hub.domain
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

/// Notifies the task that reconnects.
impl Drop for ChannelInner {
    fn drop(&mut self) {
        self.current().closing.notify_one();
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
        let addresses: Vec<SocketAddr> = addresses.collect();
        let connection = ChannelInner::connect(&hub, &addresses).await?;
        let inner = Arc::new(ChannelInner {
            current: Mutex::new(connection),
            changed: Notify::new(),
            is_closed: AtomicBool::new(false),
            deadline: self.deadline,
            addresses,
            counters: ChannelCounters::default(),
            hub,
        });
        inner.counters.connect();
        tokio::spawn(reconnect::keep_connected(Arc::downgrade(&inner)));
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

async fn connect_to(
    hub: &Hub<ClientConnection>,
    address: SocketAddr,
) -> Result<Arc<ClientConnection>> {
    let endpoint = hub.endpoint(CALLS_PER_CONNECTION)?;
    let connection = ClientConnection::new(endpoint.clone());
    // Inserted first, so that messages that the server sends at once find the connection.
    hub.insert(endpoint.id(), &connection);
    let hello = Hello::default().encode();
    let connecting = endpoint.connect(address).timeout(CONNECT_TIMEOUT);
    let agreed = connecting
        .data(hello)
        .await
        .map_err(|error| Rejection::decode(error.data()).unwrap_or_else(|| error.into()));
    let agreed = agreed.and_then(|data| {
        if endpoint.peer_incarnation().is_none() {
            let what = "the peer lacks the library's extension, which calls rest on";
            return Err(Status::not_started(Code::Unavailable, what));
        }
        Hello::decode(&data).map_err(|error| Status::not_started(Code::Unavailable, error.0))
    });
    match agreed {
        Ok(server) => {
            connection.agree(&server);
            Ok(connection)
        }
        Err(status) => {
            hub.remove(endpoint.id());
            Err(status)
        }
    }
}
