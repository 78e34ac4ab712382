//! A server that listens.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::Notify;
use tokio_fabric::eq::ConnRequest;
use tokio_fabric::{Fabric, PassiveEndpoint};

use super::authorize::Authorize;
use super::builtin::{Builtin, MethodDescription, ServerDescription, ServerHealth};
use super::connection::ServerConnection;
use super::route::{Request, Stack};
use super::service::{Handling, Incoming, Routes};
use super::{Server, ServerLimits};
use crate::drive::Hub;
use crate::lend::{BodyRoom, ChunkPool};
use crate::limits::{BODIES_PER_SERVER, CALLS_PER_CONNECTION_MAX, FRAME_MAX, RETRY_AFTER};
use crate::observe::MethodStats;
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection, Window};

/// What the connections of a server share.
pub(crate) struct ServerShared {
    pub(crate) routes: Arc<Routes>,
    stack: Option<Box<dyn Stack>>,
    pub(crate) authorize: Option<Box<dyn Authorize>>,
    has_auth_key: bool,
    pub(crate) limits: ServerLimits,
    pub(crate) chunks: Arc<ChunkPool>,
    /// Set before anything listens.
    hub: OnceLock<Weak<Hub<ServerConnection>>>,
    /// For requests by reference, of all connections.
    pub(crate) bodies: BodyRoom,
    /// What a client may have under way.
    window: Mutex<Window>,
    running: AtomicUsize,
    started: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) is_draining: AtomicBool,
    /// A call or a connection has ended while it drains.
    pub(crate) idle: Notify,
}

/// The place of a call that runs, among all that may.
pub(crate) struct CallPermit(Arc<ServerShared>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.notice_idle();
    }
}

impl ServerShared {
    /// A place, if one is left or it is for what is always answered.
    pub(crate) fn admit(self: &Arc<Self>, is_builtin: bool) -> Option<CallPermit> {
        let running = self.running.fetch_add(1, Ordering::AcqRel);
        // Dropped, it gives the place back.
        let permit = CallPermit(Arc::clone(self));
        if running >= self.limits.calls && !is_builtin {
            return None;
        }
        self.started.fetch_add(1, Ordering::Relaxed);
        Some(permit)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was announced while a connection with this window was made went to the others.
    fn announce_if_other(&self, connection: &ServerConnection, agreed: Window) {
        let window = self.window();
        if *window != agreed {
            connection.announce(*window);
        }
    }

    pub(crate) fn notice_idle(&self) {
        if self.is_draining.load(Ordering::Acquire) {
            self.idle.notify_one();
        }
    }

    /// Passes a call to its handler, through the layers that there are.
    pub(crate) fn dispatch(&self, call: Incoming<'_>) -> Result<Handling> {
        match &self.stack {
            Some(stack) if !self.routes.at(call.cx.call().route).is_builtin => {
                Ok(stack.pass(Request::new(&call)))
            }
            _ => self.routes.handle(call),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    fn hub(&self) -> Option<Arc<Hub<ServerConnection>>> {
        self.hub.get().and_then(Weak::upgrade)
    }

    fn stats(&self) -> ServerStats {
        ServerStats {
            connections: self.hub().map_or(0, |it| it.connection_count()),
            running: self.running(),
            started: self.started.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            violations: self.violations.load(Ordering::Relaxed),
        }
    }

    pub(super) fn health(&self) -> ServerHealth {
        ServerHealth {
            stats: self.stats(),
            calls_max: self.limits.calls as u64,
            connections_max: self.limits.connections as u64,
        }
    }

    pub(super) fn describe(&self) -> ServerDescription {
        let mut methods: Vec<_> = self.routes.all().iter().collect();
        methods.sort_by_key(|it| it.method.name);
        let methods = methods.into_iter().map(|it| MethodDescription {
            name: it.method.name.to_owned(),
            id: it.method.id,
            to_end: it.method.to_end,
            idempotent: it.method.idempotent,
            stats: it.counters.snapshot(),
        });
        ServerDescription {
            codec: self.routes.codec.unwrap_or_default().to_string(),
            health: self.health(),
            window: self.window().calls,
            frame_max: FRAME_MAX as u32,
            methods: methods.collect(),
        }
    }
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerStats {
    /// Connections there are.
    pub connections: usize,
    /// Calls whose handlers are at work, those included that were answered as cancelled and go on.
    pub running: usize,
    /// Calls that were admitted.
    pub started: u64,
    /// Calls that were refused, none of which has run.
    pub refused: u64,
    /// Connections that were closed for what their client sent.
    pub violations: u64,
}

/// A server that listens, in the background, until this is dropped: its connections end then.
/// [`drain`](Self::drain) ends them in order.
#[must_use = "dropped, it listens no more"]
pub struct Listening {
    pub(super) shared: Arc<ServerShared>,
    pub(super) hub: Arc<Hub<ServerConnection>>,
    pub(super) listener: PassiveEndpoint,
}

impl Listening {
    pub(super) async fn open(
        server: Server,
        fabric: Fabric,
        address: impl ToSocketAddrs,
    ) -> Result<Listening> {
        let Server {
            services,
            configure,
            limits,
            authorize,
            stack,
            auth_key,
            ..
        } = server;
        let builtin = Arc::new(Builtin::default());
        let routes = Arc::new(Routes::new(services, builtin.clone())?);
        let shared = Arc::new(ServerShared {
            stack: stack.map(|make| make(Arc::clone(&routes))),
            routes,
            authorize,
            has_auth_key: auth_key.is_some(),
            hub: OnceLock::new(),
            limits,
            chunks: ChunkPool::new(),
            bodies: BodyRoom::new(BODIES_PER_SERVER),
            window: Mutex::new(limits.window),
            running: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            idle: Notify::new(),
        });
        // It is read before anything listens, too.
        let _ = builtin.server.set(Arc::downgrade(&shared));
        let addresses = lookup_host(address).await.map_err(|error| {
            Status::not_started(Code::Unavailable, format!("the address: {error}"))
        })?;
        let accept = {
            let shared = Arc::clone(&shared);
            move |request| {
                if let Some(hub) = shared.hub() {
                    accept(&hub, &shared, request);
                }
            }
        };
        let hub = Arc::new(Hub::open(
            fabric,
            configure,
            auth_key,
            limits.connections,
            accept,
        )?);
        // It is read before anything listens.
        let _ = shared.hub.set(Arc::downgrade(&hub));
        let mut failed = Status::not_started(Code::Unavailable, "the name has no address");
        for address in addresses {
            match hub.fabric.passive_endpoint(&hub.events).listen_at(address) {
                Ok(listener) => {
                    return Ok(Listening {
                        shared,
                        hub,
                        listener,
                    });
                }
                Err(error) => failed = error.into(),
            }
        }
        Err(failed)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// What has become of the calls of each method, by its name.
    pub fn method_stats(&self) -> impl Iterator<Item = (&'static str, MethodStats)> {
        let methods = self.shared.routes.all().iter();
        methods.map(|it| (it.method.name, it.counters.snapshot()))
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn shared(&self) -> &Arc<ServerShared> {
        &self.shared
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn hub(&self) -> &Arc<Hub<ServerConnection>> {
        &self.hub
    }

    /// Moves the window of all clients, those that are connected and those to come: the calls that
    /// each may have open, 1 to 1,024, and the bytes of their requests, 64 KiB or more. A client
    /// that has more under way when it learns of a smaller one ends that first.
    pub fn set_window(&self, calls: u32, bytes: u32) {
        let new = Window {
            calls: calls.clamp(1, CALLS_PER_CONNECTION_MAX),
            bytes: bytes.max(FRAME_MAX as u32),
        };
        // Held, so that the last one is what each client hears last.
        let mut window = self.shared.window();
        *window = new;
        self.hub
            .connections()
            .iter()
            .for_each(|it| it.announce(new));
    }

    /// Ends in order: new calls are refused as [`Code::Draining`], those that run may go on until
    /// the deadline and are cancelled then. It listens no more, and returns when all connections
    /// have ended, which takes little longer than the deadline whatever clients do.
    ///
    /// # Cancel safety
    /// Dropping the future ends all connections at once.
    pub async fn drain(self, deadline: Duration) {
        super::drain::drain(self, deadline).await;
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening")
            .field("address", &self.local_addr())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Decides about a connection; accepting it takes a task.
fn accept(hub: &Arc<Hub<ServerConnection>>, shared: &Arc<ServerShared>, request: ConnRequest) {
    let refused = if shared.is_draining.load(Ordering::Acquire) {
        Some(Status::not_started(Code::Draining, ""))
    } else if hub.connection_count() >= shared.limits.connections {
        let status = Status::not_started(Code::Overloaded, "as many connections as it takes");
        Some(status.with_retry_after(RETRY_AFTER))
    } else if request.has_auth_key() != shared.has_auth_key {
        let what = match shared.has_auth_key {
            true => "this server asks for an authorization key",
            false => "this server has no authorization key",
        };
        Some(Status::not_started(Code::Unauthenticated, what))
    } else {
        None
    };
    let hello = Hello::decode(request.data());
    let refused = refused.or_else(|| {
        let of_server = shared.routes.codec.unwrap_or_default();
        let what = match &hello {
            Ok(client) if client.codec.is_none() || client.codec == of_server => return None,
            Ok(client) => format!("this server speaks {of_server}, not {}", client.codec),
            Err(error) => error.0.to_owned(),
        };
        Some(Status::not_started(Code::BadRequest, what))
    });
    let (Ok(client), None) = (hello, &refused) else {
        if let Some(status) = refused {
            // A client that has gone by now needs no answer.
            let _ = request.reject().data(Rejection::encode(&status)).send();
        }
        return;
    };
    let (hub, shared) = (Arc::downgrade(hub), Arc::clone(shared));
    tokio::spawn(async move {
        let peer = request.peer_addr();
        if let Err(status) = establish(&hub, shared, request, client).await {
            tracing::debug!(%peer, %status, "a connection was not made");
        }
    });
}

async fn establish(
    hub: &Weak<Hub<ServerConnection>>,
    shared: Arc<ServerShared>,
    request: ConnRequest,
    client: Hello,
) -> Result<()> {
    let gone = || Status::not_started(Code::Unavailable, "the server has gone");
    let (connection, accepting, window) = {
        let hub = hub.upgrade().ok_or_else(gone)?;
        let window = *shared.window();
        let endpoint = hub.endpoint(window.calls)?;
        let peer = request.peer_addr();
        let server = Arc::clone(&shared);
        let connection = ServerConnection::new(endpoint.clone(), peer, server, &client, window);
        // The client's first call finds it.
        hub.insert(endpoint.id(), &connection);
        let own = Hello {
            calls: window.calls,
            bytes: window.bytes.into(),
            codec: shared.routes.codec.unwrap_or_default(),
            ..Hello::default()
        };
        let accepting = endpoint.accept(request).data(own.encode());
        (connection, accepting.into_future(), window)
    };
    let endpoint = &connection.endpoint;
    let accepted = accepting.await;
    if accepted.is_err()
        && let Some(hub) = hub.upgrade()
    {
        hub.remove(endpoint.id());
    }
    accepted?;
    shared.announce_if_other(&connection, window);
    // A drain that has begun meanwhile did not see it.
    if shared.is_draining.load(Ordering::Acquire) {
        connection.drain();
    }
    if endpoint.peer_incarnation().is_none() {
        // Refusals that say why, and ends that both sides agree on, are the library's own.
        let _ = endpoint.shutdown().await;
        return Err(Status::not_started(
            Code::Unavailable,
            "a peer without the extension",
        ));
    }
    Ok(())
}
