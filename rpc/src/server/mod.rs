//! The side that is called.

mod authorize;
mod bodies;
mod builtin;
mod connection;
mod drain;
mod items;
mod listening;
mod route;
mod running;
mod service;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::ToSocketAddrs;
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::info::AuthKey;
use tokio_fabric::{Fabric, Hints};

use crate::drive::Configure;
use crate::limits::{
    BYTES_PER_CONNECTION, CALLS_PER_CONNECTION, CALLS_PER_CONNECTION_MAX, CALLS_PER_SERVER,
    CONNECTIONS_PER_SERVER, DRAIN_DEADLINE,
};
use crate::status::Result;
use crate::wire::Window;
use route::MakeStack;

pub use authorize::Authorize;
pub use builtin::{MethodDescription, ServerDescription, ServerHealth};
pub use listening::{Listening, ServerStats};
pub use route::{BoxError, Request, Route, RouteFuture};
pub use service::{Handling, Incoming, Method, Reply, Service};
#[cfg(feature = "test-util")]
pub(crate) use {connection::ServerConnection, listening::ServerShared};

/// Resolves when the server is to drain.
type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server of some services, before it listens.
///
/// Calls are handled where their frames are read, as far as that goes without waiting; a handler
/// that waits goes on in a task of its own. So a handler must not block its thread.
#[must_use = "nothing listens before `bind` or `listen`"]
pub struct Server {
    services: Vec<Arc<dyn Service>>,
    fabric: Option<Fabric>,
    configure: Option<Configure>,
    limits: ServerLimits,
    authorize: Option<Box<dyn Authorize>>,
    stack: Option<MakeStack>,
    auth_key: Option<AuthKey>,
    drain_on: Option<Signal>,
    drain_deadline: Duration,
}

/// What a server takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) calls: usize,
    /// At first.
    pub(crate) window: Window,
    pub(crate) connections: usize,
}

impl Default for Server {
    fn default() -> Self {
        Server::new()
    }
}

impl Server {
    /// Without services, with all defaults.
    pub fn new() -> Server {
        Server {
            services: Vec::new(),
            fabric: None,
            configure: None,
            limits: ServerLimits {
                calls: CALLS_PER_SERVER,
                window: Window {
                    calls: CALLS_PER_CONNECTION,
                    bytes: BYTES_PER_CONNECTION as u32,
                },
                connections: CONNECTIONS_PER_SERVER,
            },
            authorize: None,
            stack: None,
            auth_key: None,
            drain_on: None,
            drain_deadline: DRAIN_DEADLINE,
        }
    }

    /// Serves this too: a `..Server` that `#[service]` has written.
    #[allow(
        clippy::should_implement_trait,
        reason = "it takes any service, and is no sum"
    )]
    pub fn add(mut self, service: impl Service) -> Server {
        self.services.push(Arc::new(service));
        self
    }

    /// The fabric to listen through. Default: one with all defaults.
    pub fn fabric(mut self, fabric: &Fabric) -> Server {
        self.fabric = Some(fabric.clone());
        self
    }

    /// Sets up the domain that the server opens: its driver, its shards, whether it spins.
    pub fn domain(
        mut self,
        configure: impl FnOnce(DomainBuilder) -> DomainBuilder + Send + 'static,
    ) -> Server {
        self.configure = Some(Box::new(configure));
        self
    }

    /// Calls that run at a time, of all connections. What comes beyond is refused at once as
    /// [`Code::Overloaded`](crate::Code::Overloaded). Default 4,096.
    pub fn calls_max(mut self, calls: usize) -> Server {
        self.limits.calls = calls;
        self
    }

    /// Calls that a client may have open on a connection, 1 to 1,024; it holds back what comes
    /// beyond. Default 256.
    pub fn window(mut self, calls: u32) -> Server {
        self.limits.window.calls = calls.clamp(1, CALLS_PER_CONNECTION_MAX);
        self
    }

    /// Connections at a time; others are rejected as
    /// [`Code::Overloaded`](crate::Code::Overloaded). Default 10,240.
    pub fn connections_max(mut self, connections: usize) -> Server {
        self.limits.connections = connections;
        self
    }

    /// Lets this decide about each call before it is decoded. Default: who is connected may call.
    pub fn authorize(mut self, authorize: impl Authorize) -> Server {
        self.authorize = Some(Box::new(authorize));
        self
    }

    /// Takes connections only of those who prove that they have the same key; no byte of it goes
    /// over the wire ([`ChannelBuilder::auth_key`](crate::ChannelBuilder::auth_key)). Others are
    /// rejected as [`Code::Unauthenticated`](crate::Code::Unauthenticated). What follows is as
    /// plain as ever.
    pub fn auth_key(mut self, key: AuthKey) -> Server {
        self.auth_key = Some(key);
        self
    }

    /// Puts a layer around all services: limits, load shedding, whatever `tower` has. A stack of
    /// several is one, too; set again, it is another one. A layer that fails instead of passing a
    /// call on refuses it, as not started. Without a layer calls go to their handlers directly.
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

    /// Drains when the future is ready, and [`listen`](Self::listen) then returns.
    pub fn drain_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Server {
        self.drain_on = Some(Box::pin(signal));
        self
    }

    /// How long calls may go on when it drains. Default 30 s.
    pub fn drain_deadline(mut self, deadline: Duration) -> Server {
        self.drain_deadline = deadline;
        self
    }

    /// Listens, and serves in the background until what is returned is dropped or drained.
    ///
    /// # Errors
    /// [`Code::Unavailable`](crate::Code::Unavailable) if the address cannot be had;
    /// [`Code::Internal`](crate::Code::Internal) if two methods have one number on the wire, or two
    /// services different codecs.
    pub async fn bind(self, address: impl ToSocketAddrs) -> Result<Listening> {
        let fabric = match &self.fabric {
            Some(fabric) => fabric.clone(),
            None => Fabric::open(Hints::new())?,
        };
        Listening::open(self, fabric, address).await
    }

    /// Listens and serves until [`drain_on`](Self::drain_on) says so, or for as long as the future
    /// is polled.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind).
    ///
    /// # Cancel safety
    /// Dropping the future ends all connections.
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
