//! The side that calls.

mod call;
mod connection;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{ToSocketAddrs, lookup_host};
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::{Fabric, Hints};

use crate::drive::{Configure, Hub};
use crate::limits::{CALLS_PER_CONNECTION, CONNECT_TIMEOUT, DEADLINE};
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection};

pub use call::{Call, CallFuture};
use connection::ClientConnection;

/// Endpoints of a channel's domain at a time, the one that has just ended included.
const ENDPOINTS_MAX: usize = 64;

/// A connection to a server, which any number of clients of its services share. Clones are of the
/// same connection; it closes with the last of them and of its calls.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<ChannelInner>,
}

pub(crate) struct ChannelInner {
    pub(crate) connection: Arc<ClientConnection>,
    pub(crate) deadline: Option<Duration>,
    /// Reads what comes for the connection.
    _hub: Hub<ClientConnection>,
}

impl Channel {
    /// Connects to a server, with all defaults.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if there is no server; the server's own status if it rejects.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was begun.
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Channel> {
        Channel::builder().connect(address).await
    }

    /// Starts a channel with settings of its own.
    pub fn builder() -> ChannelBuilder {
        ChannelBuilder {
            fabric: None,
            configure: None,
            deadline: Some(DEADLINE),
        }
    }

    /// The server's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.connection.endpoint.peer_addr()
    }

    /// True if a call would be sent at once.
    pub fn is_ready(&self) -> bool {
        self.inner.connection.with_machine(|it| it.has_room())
    }

    /// Calls whose answers have not come, those included that were given up.
    pub fn open_calls(&self) -> usize {
        self.inner.connection.with_machine(|it| it.open())
    }

    /// Ends the connection when what is under way has been answered, or refuses calls at once.
    ///
    /// # Cancel safety
    /// The end has begun once this is polled.
    pub async fn close(&self) {
        // An end is the worst that it says.
        let _ = self.inner.connection.endpoint.shutdown().await;
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

/// Settings of a [`Channel`]; made by [`Channel::builder`].
#[must_use = "nothing is connected before `connect`"]
pub struct ChannelBuilder {
    fabric: Option<Fabric>,
    configure: Option<Configure>,
    deadline: Option<Duration>,
}

impl ChannelBuilder {
    /// The fabric to connect through. Default: one with all defaults.
    pub fn fabric(mut self, fabric: &Fabric) -> Self {
        self.fabric = Some(fabric.clone());
        self
    }

    /// Sets up the domain that the channel opens: its driver, whether it spins.
    pub fn domain(
        mut self,
        configure: impl FnOnce(DomainBuilder) -> DomainBuilder + Send + 'static,
    ) -> Self {
        self.configure = Some(Box::new(configure));
        self
    }

    /// The time of calls that say nothing else; `None`: no end. Default 10 s.
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// As of [`Channel::connect`].
    pub async fn connect(self, address: impl ToSocketAddrs) -> Result<Channel> {
        let addresses = lookup_host(address).await.map_err(|error| {
            Status::not_started(Code::Unavailable, format!("the address: {error}"))
        })?;
        let fabric = match self.fabric {
            Some(fabric) => fabric,
            None => Fabric::open(Hints::new())?,
        };
        // A peer that asks for a connection asks for a listener, of which there is none here.
        let hub = Hub::open(fabric, self.configure, ENDPOINTS_MAX, drop)?;
        let mut failed = Status::not_started(Code::Unavailable, "the name has no address");
        for address in addresses {
            match connect_to(&hub, address).await {
                Ok(connection) => {
                    let inner = ChannelInner {
                        connection,
                        deadline: self.deadline,
                        _hub: hub,
                    };
                    return Ok(Channel {
                        inner: Arc::new(inner),
                    });
                }
                Err(status) => failed = status,
            }
        }
        Err(failed)
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
    // What the server says at once finds it.
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
            connection.with_machine(|machine| machine.agree(&server));
            Ok(connection)
        }
        Err(status) => {
            hub.remove(endpoint.id());
            Err(status)
        }
    }
}
