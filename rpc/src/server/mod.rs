//! The server and its settings.

mod authorize;
mod bodies;
mod builtin;
mod connection;
mod drain;
mod fetches;
mod items;
mod listening;
mod ranking;
mod route;
mod running;
mod service;
mod unauthorized;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::ToSocketAddrs;
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::info::AuthKey;
use tokio_fabric::{Domain, Fabric, Hints};

use crate::drive::OpenDomain;
use crate::limits::{
    BYTES_PER_CONNECTION, CALLS_PER_CONNECTION, CALLS_PER_SERVER, CONNECTIONS_PER_SERVER,
    CONNECTIONS_PER_SERVER_MAX, DEADLINE_MAX, DRAIN_DEADLINE, KEY_NAME_MAX,
};
use crate::status::{Code, Result, Status};
use crate::wire::Window;
use route::MakeStack;

pub use authorize::Authorize;
pub(crate) use builtin::METHODS;
pub use builtin::{MethodDescription, ServerDescription, ServerHealth};
pub use listening::{Listening, ServerStats};
pub use route::{BoxError, Request, Route, RouteFuture};
pub use service::{Handling, Incoming, Reply, Service};
#[cfg(feature = "test-util")]
pub(crate) use {connection::ServerConnection, listening::ServerShared};

/// A future that is ready when the server must drain.
type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server's settings and services.
///
/// [`bind`](Self::bind) starts the server in the background; [`listen`](Self::listen) runs the
/// server until it is drained.
///
/// The task that reads a call's request also runs its handler, until the handler must wait; the
/// handler then continues in a task of its own. A handler must therefore not block its thread. Mark
/// the method of a handler that computes for long with `#[rpc(spawn)]`;
/// [`slow_polls`](crate::MethodStats::slow_polls) counts the calls that show the need.
///
/// ```
/// use std::time::Duration;
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
/// let server = Server::new()
///     .add(DoubleServer::new(Doubler))
///     .calls_max(100)
///     .method_calls_max("Double/double", 10)
///     .bind("127.0.0.1:0")
///     .await?;
/// let client = DoubleClient::connect(server.local_addr()).await?;
/// assert_eq!(client.double(21).await?, 42);
/// server.drain(Duration::from_secs(1)).await; // Returns when all connections are closed.
/// # Ok(()) }
/// ```
#[must_use = "nothing listens before `bind` or `listen`"]
pub struct Server {
    services: Vec<Arc<dyn Service>>,
    /// Limits of single methods.
    methods_max: Vec<(String, usize)>,
    fabric: Option<Fabric>,
    open_domain: Option<OpenDomain>,
    limits: ServerLimits,
    authorize: Option<Box<dyn Authorize>>,
    stack: Option<MakeStack>,
    auth_keys: AuthKeys,
    drain_on: Option<Signal>,
    drain_deadline: Duration,
}

#[derive(Default)]
pub(crate) struct AuthKeys {
    unnamed: Option<AuthKey>,
    named: BTreeMap<Arc<str>, AuthKey>,
}

/// The name and the authorization key of a client, each `None` if the client has none.
pub(crate) type ClientKey<'k> = (Option<&'k Arc<str>>, Option<&'k AuthKey>);

impl AuthKeys {
    /// Finds the key of a client. `has_key`: whether the client has a key; `name`: the key's name.
    ///
    /// # Errors
    /// The reason why this server cannot accept the client, as text.
    fn find(&self, has_key: bool, name: Option<&str>) -> Result<ClientKey<'_>, &'static str> {
        let is_empty = self.unnamed.is_none() && self.named.is_empty();
        match (has_key, name) {
            (false, _) if is_empty => Ok((None, None)),
            (false, _) => Err("this server asks for an authorization key"),
            (true, _) if is_empty => Err("this server has no authorization key"),
            (true, None) => match &self.unnamed {
                Some(key) => Ok((None, Some(key))),
                None => Err("this server asks for an authorization key with a name"),
            },
            (true, Some(name)) => match self.named.get_key_value(name) {
                Some((name, key)) => Ok((Some(name), Some(key))),
                None => Err("this server has no authorization key of this name"),
            },
        }
    }

    /// Checks the names' lengths.
    fn check(&self) -> Result<()> {
        self.named.keys().try_for_each(|name| check_key_name(name))
    }
}

/// Checks the length of an authorization key's name.
pub(crate) fn check_key_name(name: &str) -> Result<()> {
    match name.len() {
        1..=KEY_NAME_MAX => Ok(()),
        len => {
            let what = format!("a name of an authorization key has {len} bytes, not 1 to 32");
            Err(Status::not_started(Code::Internal, what))
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) calls: usize,
    /// The initial window.
    pub(crate) window: Window,
    pub(crate) connections: usize,
    /// Longest time of a call.
    pub(crate) deadline: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Server::new()
    }
}

impl Server {
    /// A server without services, with the default settings.
    pub fn new() -> Server {
        Server {
            services: Vec::new(),
            methods_max: Vec::new(),
            fabric: None,
            open_domain: None,
            limits: ServerLimits {
                calls: CALLS_PER_SERVER,
                window: Window {
                    calls: CALLS_PER_CONNECTION,
                    bytes: BYTES_PER_CONNECTION as u32,
                },
                connections: CONNECTIONS_PER_SERVER,
                deadline: DEADLINE_MAX,
            },
            authorize: None,
            stack: None,
            auth_keys: AuthKeys::default(),
            drain_on: None,
            drain_deadline: DRAIN_DEADLINE,
        }
    }

    /// Adds a service: a value of a `..Server` type that `#[service]` has generated.
    #[allow(
        clippy::should_implement_trait,
        reason = "it takes any service, and is no sum"
    )]
    pub fn add(mut self, service: impl Service) -> Server {
        self.services.push(Arc::new(service));
        self
    }

    /// The fabric to listen through. Default: a new one with default hints.
    pub fn fabric(mut self, fabric: &Fabric) -> Server {
        self.fabric = Some(fabric.clone());
        self
    }

    /// Configures the domain that the server opens, for instance its driver and the number of
    /// drivers.
    pub fn domain(
        mut self,
        configure: impl FnOnce(DomainBuilder) -> DomainBuilder + Send + 'static,
    ) -> Server {
        self.open_domain = Some(Box::new(|builder| configure(builder).open()));
        self
    }

    /// Uses this open domain instead of opening one; [`fabric`](Self::fabric) must then be the
    /// domain's fabric. Channels and servers may share a domain. A domain with
    /// [`Driver::Local`](tokio_fabric::Driver::Local) must be passed this way, within the
    /// `local::block_on` that runs it; calls are then made, and handlers run, on that thread.
    pub fn in_domain(mut self, domain: &Domain) -> Server {
        let domain = domain.clone();
        self.open_domain = Some(Box::new(|_| Ok(domain)));
        self
    }

    /// The number of calls that may run at the same time, over all connections. Further calls are
    /// refused at once with [`Code::Overloaded`](crate::Code::Overloaded). Default: 4,096.
    pub fn calls_max(mut self, calls: usize) -> Server {
        self.limits.calls = calls;
        self
    }

    /// The number of calls of this method (`Service/method`) that may run at the same time, over
    /// all connections, so that expensive calls leave room for others. Further calls are refused at
    /// once with [`Code::Overloaded`](crate::Code::Overloaded). Default:
    /// [`calls_max`](Self::calls_max).
    pub fn method_calls_max(mut self, method: impl Into<String>, calls: usize) -> Server {
        self.methods_max.push((method.into(), calls));
        self
    }

    /// The number of open calls per connection, 1 to 1,024. Further calls wait at the client.
    /// Default: 256. [`bind`](Self::bind) fails with another number.
    pub fn window(mut self, calls: u32) -> Server {
        self.limits.window.calls = calls;
        self
    }

    /// The number of connections. Further connections are rejected with
    /// [`Code::Overloaded`](crate::Code::Overloaded). At most 131,072: the server allocates memory
    /// for the events of that many connections when it is opened. Default: 10,240.
    pub fn connections_max(mut self, connections: usize) -> Server {
        self.limits.connections = connections.min(CONNECTIONS_PER_SERVER_MAX);
        self
    }

    /// Limits the time of each call, from the arrival of its request, even if its client sets a
    /// later deadline or none; then the call fails with
    /// [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded). So a client that blocks reads of
    /// its lent memory, or does not read a stream, occupies a place no longer than that, or a
    /// second longer if a `#[rpc(to_end)]` handler waits for the client. Endless streams need a
    /// longer limit, or `Duration::MAX`, which is no limit. Default: 1 h.
    pub fn deadline_max(mut self, within: Duration) -> Server {
        self.limits.deadline = within;
        self
    }

    /// Authorizes each call before its arguments are decoded. Default: every connected client may
    /// make every call.
    pub fn authorize(mut self, authorize: impl Authorize) -> Server {
        self.authorize = Some(Box::new(authorize));
        self
    }

    /// Accepts only clients that prove that they have this key, which is never sent
    /// ([`ChannelBuilder::auth_key`](crate::ChannelBuilder::auth_key)). Other clients are rejected
    /// with [`Code::Unauthenticated`](crate::Code::Unauthenticated). The key does not encrypt the
    /// data that follows.
    pub fn auth_key(mut self, key: AuthKey) -> Server {
        self.auth_keys.unnamed = Some(key);
        self
    }

    /// As [`auth_key`](Self::auth_key), for clients that have the key of this name
    /// ([`ChannelBuilder::named_auth_key`](crate::ChannelBuilder::named_auth_key)), for instance
    /// one key per tenant. [`Cx::auth_key_name`](crate::Cx::auth_key_name) is the name of the key
    /// that a caller has proven to have. The name is sent, and has 1 to 32 bytes; otherwise
    /// [`bind`](Self::bind) fails. Another key of the same name replaces the first.
    pub fn named_auth_key(mut self, name: impl Into<Arc<str>>, key: AuthKey) -> Server {
        self.auth_keys.named.insert(name.into(), key);
        self
    }

    /// Puts a layer around all services: limits, load shedding, any other layer of `tower`, or a
    /// stack of layers. A later call replaces the layer. If the layer fails instead of passing a
    /// call on, the call is refused, as not started. Default: none; calls go directly to their
    /// handlers.
    ///
    /// ```
    /// # #[cfg(feature = "tower")] {
    /// use tokio_fabric_rpc::Server;
    /// use tower::ServiceBuilder;
    ///
    /// let layers = ServiceBuilder::new().load_shed().concurrency_limit(64);
    /// let server = Server::new().layer(layers);
    /// # }
    /// ```
    pub fn layer<L>(mut self, layer: L) -> Server
    where
        L: tower_layer::Layer<Route> + Send + 'static,
        L::Service: tower_service::Service<Request, Response = Reply> + Clone + Send + 'static,
        <L::Service as tower_service::Service<Request>>::Error: Into<BoxError>,
        <L::Service as tower_service::Service<Request>>::Future: Send,
    {
        self.stack = Some(route::layered(layer));
        self
    }

    /// Drains the server when the future is ready; [`listen`](Self::listen) then returns. No effect
    /// with [`bind`](Self::bind): call [`Listening::drain`] there.
    pub fn drain_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Server {
        self.drain_on = Some(Box::pin(signal));
        self
    }

    /// How long running calls may continue when [`drain_on`](Self::drain_on) drains the server.
    /// Default: 30 s.
    pub fn drain_deadline(mut self, deadline: Duration) -> Server {
        self.drain_deadline = deadline;
        self
    }

    /// Listens, and serves in the background until the returned value is dropped or drained.
    ///
    /// # Errors
    /// [`Code::Unavailable`](crate::Code::Unavailable) if the address is not available;
    /// [`Code::Internal`](crate::Code::Internal) if two methods have the same number on the wire,
    /// if services have different codecs, if [`method_calls_max`](Self::method_calls_max) names
    /// a method that does not exist, or if [`window`](Self::window) is out of its range;
    /// [`Code::Unavailable`](crate::Code::Unavailable) outside of a Tokio runtime with I/O and
    /// timers, whose [`fabric_error`](crate::Status::fabric_error) is of the kind
    /// [`NoRuntime`](tokio_fabric::ErrorKind::NoRuntime).
    pub async fn bind(self, address: impl ToSocketAddrs) -> Result<Listening> {
        let fabric = match &self.fabric {
            Some(fabric) => fabric.clone(),
            None => Fabric::open(Hints::new())?,
        };
        Listening::open(self, fabric, address).await
    }

    /// Listens and serves until the future of [`drain_on`](Self::drain_on) is ready and the server
    /// is drained; without that future, until the returned future is dropped. A program that shows
    /// its server's statistics calls [`bind`](Self::bind) instead, and [`Listening::drain`] at its
    /// end.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    ///
    /// # Cancel safety
    /// Dropping the future closes all connections at once.
    pub async fn listen(mut self, address: impl ToSocketAddrs) -> Result<()> {
        let (signal, deadline) = (self.drain_on.take(), self.drain_deadline);
        let listening = self.bind(address).await?;
        match signal {
            Some(signal) => signal.await,
            None => std::future::pending().await,
        }
        listening.drain(deadline).await;
        Ok(())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("services", &self.services.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
