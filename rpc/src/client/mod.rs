//! The client: channels and their calls.

mod backoff;
mod call;
mod channel;
mod check;
mod connect;
mod connection;
mod items;
mod layered;
mod lending;
mod request;
mod service;
mod target;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::ep::Liveness;
use tokio_fabric::info::AuthKey;
use tokio_fabric::{Domain, Fabric, Hints};

use crate::drive::{EndpointSettings, Hub, OpenDomain, within_runtime};
use crate::limits::{CONNECT_TIMEOUT, DEADLINE};
use crate::observe::ChannelStats;
use crate::server::check_key_name;
#[cfg(doc)]
use crate::status::Code;
use crate::status::Result;

pub use backoff::Backoff;
#[cfg(feature = "tower")]
pub(crate) use backoff::shorten;
pub use call::Call;
use channel::ChannelInner;
#[cfg(feature = "tower")]
pub(crate) use channel::random_of;
use connect::Connector;
pub(crate) use connection::Reservation;
pub use items::received;
pub use layered::{CallDescription, CallPath, DirectPath, LayeredCall, LayeredPath};
pub use lending::{FailedCall, LendingCall, LendingFuture, Loan};
pub use service::ChannelService;
#[cfg(feature = "tower")]
pub(crate) use service::until;
use target::{DynResolve, SystemResolver};
pub use target::{Resolve, Target};

/// Largest number of endpoints of a channel's domain at a time, including one that has just ended.
const ENDPOINTS_MAX: usize = 64;

/// A connection to a server, shared by any number of clients of its services. Clones refer to the
/// same channel.
///
/// A channel has one connection at a time. When that is lost, or the server drains, the channel
/// reconnects, with [increasing pauses](Backoff), and looks its [target's](Target) name up again
/// each time. Several addresses are tried as RFC 8305 says: the next one after 250 ms without an
/// answer, or at once if the connection is refused. Calls made meanwhile fail at once, as not
/// started, unless they [wait](Call::wait_for_ready). No call is sent twice. The connection is
/// closed when the last clone is dropped and the last call has completed.
///
/// Calls may be awaited in any runtime. The channel belongs to the runtime in which it was
/// connected: when that runtime ends, the connection and all calls end.
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
    /// Connects to a server, given an address or a name such as `"cache-2:7901"`, with the default
    /// settings.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if no address has a server: at once if the connections are refused, or
    /// 10 s after the last address was tried; the server's status if it rejects the connection.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt is given up.
    pub async fn connect(target: impl Into<Target>) -> Result<Channel> {
        Channel::builder().connect(target).await
    }

    /// Starts building a channel with other settings.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder {
            fabric: None,
            open_domain: None,
            deadline: Some(DEADLINE),
            endpoints: EndpointSettings::default(),
            resolver: Box::new(SystemResolver),
            connect_timeout: CONNECT_TIMEOUT,
            backoff: Backoff::default(),
        }
    }

    #[cfg(feature = "tower")]
    pub(crate) fn inner(&self) -> &ChannelInner {
        &self.inner
    }

    /// The target that the channel connects to.
    pub fn target(&self) -> &Target {
        &self.inner.connector.target
    }

    /// The server's address, if the channel is or was connected.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.current().endpoint.peer_addr()
    }

    /// The domain of the channel's connections.
    pub fn domain(&self) -> &Domain {
        self.inner.domain()
    }

    /// Waits for a connection to a server that is not draining. Also returns if there will be none,
    /// because the channel was closed or its runtime has ended; calls then fail at once.
    ///
    /// # Cancel safety
    /// Cancel safe: waiting changes nothing.
    pub async fn ready(&self) {
        self.inner.ready().await;
    }

    /// Connects now if the channel pauses between attempts or has not begun to connect; restarts
    /// the pauses. For a program that learns that a server is back.
    pub fn reconnect_now(&self) {
        self.inner.reconnect_now();
    }

    /// Looks the target's name up again. If the name no longer has the address of the present
    /// connection, the channel connects to another of its addresses; the old connection takes no
    /// more calls, and ends when its outstanding calls have ended. No call fails by this.
    ///
    /// A channel looks the name up by itself whenever it reconnects. Call this only to leave a
    /// server that keeps running at an address that must not be used any more.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if the name cannot be looked up, or none of its addresses answers. The
    /// channel goes on as before.
    ///
    /// # Cancel safety
    /// If the future is dropped, the channel goes on as before.
    pub async fn refresh(&self) -> Result<()> {
        let runtime = self.inner.runtime().clone();
        within_runtime(runtime, self.inner.refresh()).await
    }

    /// True if a call would be sent immediately.
    pub fn is_ready(&self) -> bool {
        self.inner.current().with_machine(|it| it.has_room())
    }

    /// Unanswered calls of the current connection, including cancelled calls.
    pub fn open_calls(&self) -> usize {
        self.inner.current().with_machine(|it| it.open())
    }

    /// Statistics: connections, and calls by outcome.
    pub fn stats(&self) -> ChannelStats {
        self.inner.stats()
    }

    /// Closes the connection for all clones of the channel; the channel does not reconnect.
    /// Outstanding calls fail with [`Code::ConnectionLost`].
    ///
    /// # Cancel safety
    /// Once the future has been polled, the channel closes even if the future is dropped.
    pub async fn close(&self) {
        self.inner.set_closed();
        let connection = self.inner.current();
        connection.closing.notify_one();
        // The result only says that the connection has ended.
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
    open_domain: Option<OpenDomain>,
    deadline: Option<Duration>,
    endpoints: EndpointSettings,
    resolver: Box<dyn DynResolve>,
    connect_timeout: Duration,
    backoff: Backoff,
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
        self.open_domain = Some(Box::new(|builder| configure(builder).open()));
        self
    }

    /// Uses this open domain instead of opening one; [`fabric`](Self::fabric) must then be the
    /// domain's fabric. Channels and servers may share a domain. A domain with
    /// [`Driver::Local`](tokio_fabric::Driver::Local) must be passed this way, within the
    /// `local::block_on` that runs it; calls are then made, and handlers run, on that thread.
    pub fn in_domain(mut self, domain: &Domain) -> Self {
        let domain = domain.clone();
        self.open_domain = Some(Box::new(|_| Ok(domain)));
        self
    }

    /// The deadline of calls that set none; `None`: no deadline. Default: 10 s.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Connects only to a server that proves that it has this key; the channel proves the same to
    /// the server ([`Server::auth_key`](crate::Server::auth_key)).
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        (self.endpoints.auth_key, self.endpoints.key_name) = (Some(key), None);
        self
    }

    /// As [`auth_key`](Self::auth_key), with the name by which the server finds the key
    /// ([`Server::named_auth_key`](crate::Server::named_auth_key)). The name has 1 to 32 bytes, and
    /// is sent.
    pub fn named_auth_key(mut self, name: impl Into<Arc<str>>, key: AuthKey) -> Self {
        (self.endpoints.auth_key, self.endpoints.key_name) = (Some(key), Some(name.into()));
        self
    }

    /// The resolver of names. Default: the system's file of hosts, and DNS.
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.resolver = Box::new(resolver);
        self
    }

    /// The time limit of connecting to one address, and of a lookup of the name. Default: 10 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The pauses between attempts to connect.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long a server may be silent while calls wait for it before it is probed, 50 ms to 32,767
    /// s. The server is declared dead within two of these intervals and 4.5 s, and its calls fail
    /// with [`Code::ConnectionLost`]. Default: 10 s.
    pub fn idle_interval(mut self, interval: Duration) -> Self {
        self.endpoints.liveness = self.endpoints.liveness.idle_interval(interval);
        self
    }

    /// How often the server is probed, and after how many unanswered probes it is declared dead
    /// (keepalive). It contains the [idle interval](Self::idle_interval). Default:
    /// `Liveness::default().idle_interval(Duration::from_secs(10))`.
    pub fn keepalive(mut self, liveness: Liveness) -> Self {
        self.endpoints.liveness = liveness;
        self
    }

    /// Connects to the first of the target's addresses that answers.
    ///
    /// # Errors
    /// As for [`Channel::connect`]; [`Code::Internal`] if a setting is out of its range;
    /// [`Code::Unavailable`] outside of a Tokio runtime with I/O and timers, whose
    /// [`fabric_error`](crate::Status::fabric_error) is of the kind
    /// [`NoRuntime`](tokio_fabric::ErrorKind::NoRuntime).
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt is given up.
    pub async fn connect(self, target: impl Into<Target>) -> Result<Channel> {
        let (backoff, deadline) = (self.backoff, self.deadline);
        let connector = self.connector(target.into())?;
        let inner = ChannelInner::open(connector, backoff, deadline).await?;
        Ok(Channel { inner })
    }

    /// Returns a channel that connects when it is first used, by a call or by [`Channel::ready`].
    /// So a program can start before its servers.
    ///
    /// Calls wait for the end of the first attempt to connect. If the attempt fails, these calls
    /// and later ones fail, as not started, until an attempt has succeeded; calls that
    /// [wait](Call::wait_for_ready) do not.
    ///
    /// ```
    /// use tokio_fabric_rpc::{Channel, Code, Result};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let channel = Channel::builder().connect_lazy("127.0.0.1:1")?; // Nothing listens there.
    /// assert_eq!(channel.check().await.unwrap_err().code(), Code::Unavailable);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Code::Internal`] if a setting is out of its range; [`Code::Unavailable`] if there is no
    /// Tokio runtime with timers. This does not check whether the name exists.
    pub fn connect_lazy(self, target: impl Into<Target>) -> Result<Channel> {
        let (backoff, deadline) = (self.backoff, self.deadline);
        let connector = self.connector(target.into())?;
        let inner = ChannelInner::open_lazily(connector, backoff, deadline)?;
        Ok(Channel { inner })
    }

    fn connector(self, target: Target) -> Result<Connector> {
        self.backoff.check()?;
        if let Some(name) = &self.endpoints.key_name {
            check_key_name(name)?;
        }
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => Fabric::open(Hints::new())?,
        };
        // A connection request from a peer is dropped: a channel has no listener.
        let hub = Hub::open(
            fabric,
            self.open_domain,
            self.endpoints,
            ENDPOINTS_MAX,
            drop,
        )?;
        Ok(Connector {
            hub,
            target,
            resolver: self.resolver,
            time_limit: self.connect_timeout,
            known: Mutex::default(),
            losses: Arc::default(),
        })
    }
}

impl fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
