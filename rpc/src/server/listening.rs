//! A server that listens.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{ToSocketAddrs, lookup_host};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_fabric::eq::ConnRequest;
use tokio_fabric::{Domain, Fabric, PassiveEndpoint};

use super::authorize::Authorize;
use super::builtin::{Builtin, MethodDescription, ServerDescription, ServerHealth};
use super::connection::ServerConnection;
use super::fetches::{BodyPermit, FetchTable};
use super::route::{Request, Stack};
use super::service::{Handling, Incoming, RoutedMethod, Routes};
use super::unauthorized::Unauthorized;
use super::{AuthKeys, ClientKey, Server, ServerLimits};
use crate::caught::{BoundedLog, caught, caught_async, log};
use crate::cx::Cx;
use crate::drive::{EndpointSettings, Hub, runtime_with_timers, spawn, within_runtime};
use crate::lend::ChunkPool;
use crate::limits::{CALLS_PER_CONNECTION_MAX, FRAME_MAX, RETRY_AFTER};
use crate::observe::MethodStats;
#[cfg(feature = "metrics")]
use crate::observe::metrics;
use crate::peer::Peer;
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection, Window, key_name};

/// The reason with which a draining server refuses calls and connections.
pub(super) const DRAINING: &str = "it takes no new calls: use another server, or its successor";

/// State that the connections of a server share.
pub(crate) struct ServerShared {
    pub(crate) routes: Arc<Routes>,
    stack: Option<Box<dyn Stack>>,
    authorize: Option<Box<dyn Authorize>>,
    auth_keys: AuthKeys,
    pub(super) unauthorized: Unauthorized,
    pub(super) slow_logged: BoundedLog,
    /// Set once the server listens.
    listener: OnceLock<Weak<PassiveEndpoint>>,
    pub(crate) limits: ServerLimits,
    pub(crate) chunks: Arc<ChunkPool>,
    /// Set before anything listens.
    hub: OnceLock<Weak<Hub<ServerConnection>>>,
    /// The requests by reference of all connections.
    pub(super) fetches: FetchTable,
    /// The window of each client.
    window: Mutex<Window>,
    running: AtomicUsize,
    /// Number of calls of unknown methods.
    pub(crate) unknown: AtomicU64,
    pub(crate) violations: AtomicU64,
    /// Number of connections that ended with an error.
    pub(super) lost: AtomicU64,
    pub(crate) is_draining: AtomicBool,
    /// Whether the drain's deadline has passed.
    pub(crate) is_cut: AtomicBool,
    /// Notifies a drain that a call or a connection has ended.
    pub(crate) idle: Notify,
}

/// The place of a running call, among all places of the server.
pub(crate) struct CallPermit {
    server: Arc<ServerShared>,
    /// The place among the calls of the method, if the method has a limit of its own.
    of_method: Option<OwnedSemaphorePermit>,
    /// The room of a request that was read by reference.
    of_body: Option<BodyPermit>,
}

impl CallPermit {
    /// Keeps the room until the call's handler has ended.
    pub(super) fn hold(&mut self, room: BodyPermit) {
        self.of_body = Some(room);
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        // SeqCst orders this with the start of a drain: either the drain sees this change, or this
        // sees the drain.
        self.server.running.fetch_sub(1, Ordering::SeqCst);
        self.server.notice_idle();
    }
}

impl ServerShared {
    /// Makes `permit` one for a call of a connection that has `calls` calls: if a place is free, if
    /// another connection has more calls and an unread request to give up, or if the method is
    /// always answered. `permit`: the place that the last call has left.
    #[inline]
    pub(crate) fn admit(
        self: &Arc<Self>,
        permit: &mut Option<CallPermit>,
        route: usize,
        calls: usize,
    ) -> bool {
        let routed = self.routes.at(route);
        if let Some(left) = permit {
            left.of_method = None;
            // A call of a method that is always answered may have left a place above the limit.
            if self.running() > self.limits.calls && !routed.is_builtin {
                *permit = None;
            } else if routed.room.is_none() {
                return true;
            }
        }
        self.try_admit(permit, routed) || {
            let others = self.running() - usize::from(permit.is_some());
            let of_method = (others < self.limits.calls).then_some(route);
            let is_free = self.fetches.give_place(calls, of_method);
            is_free && self.try_admit(permit, routed)
        }
    }

    fn try_admit(self: &Arc<Self>, permit: &mut Option<CallPermit>, routed: &RoutedMethod) -> bool {
        if permit.is_none() {
            let running = self.running.fetch_add(1, Ordering::AcqRel);
            // Dropping the permit frees the place.
            let taken = CallPermit {
                server: Arc::clone(self),
                of_method: None,
                of_body: None,
            };
            if running >= self.limits.calls && !routed.is_builtin {
                return false;
            }
            *permit = Some(taken);
        }
        let (Some(permit), Some(room)) = (permit, &routed.room) else {
            return true;
        };
        permit.of_method = Arc::clone(room).try_acquire_owned().ok();
        permit.of_method.is_some()
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the current window to a new connection, if the window has changed since the
    /// connection's HELLO: announcements meanwhile went only to the other connections.
    fn announce_if_other(&self, connection: &ServerConnection, agreed: Window) {
        let window = self.window();
        if *window != agreed {
            connection.announce(*window);
        }
    }

    pub(crate) fn notice_idle(&self) {
        if self.is_draining.load(Ordering::SeqCst) {
            self.idle.notify_one();
        }
    }

    /// Calls the program's authorization, if there is one.
    #[inline]
    pub(crate) fn authorize(&self, call: &Cx) -> Result<()> {
        match &self.authorize {
            Some(hook) => {
                caught("what authorizes calls", || hook.authorize(call)).unwrap_or_else(|| {
                    let what = "what authorizes calls has panicked";
                    Err(Status::not_started(Code::Internal, what))
                })
            }
            None => Ok(()),
        }
    }

    /// Passes a call to its handler, through the server's layers.
    #[inline]
    pub(crate) fn dispatch(&self, call: &mut Incoming<'_>) -> Result<Handling> {
        match &self.stack {
            Some(stack) if !self.routes.at(call.cx.call().route).is_builtin => {
                Ok(stack.pass(Request::new(call)))
            }
            _ => self.routes.handle(call),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn hub(&self) -> Option<Arc<Hub<ServerConnection>>> {
        self.hub.get().and_then(Weak::upgrade)
    }

    fn stats(&self) -> ServerStats {
        let methods = || self.routes.all().iter().map(|it| it.counters.snapshot());
        let unknown = self.unknown.load(Ordering::Relaxed);
        ServerStats {
            connections: self.hub().map_or(0, |it| it.connection_count()),
            running: self.running(),
            started: methods().map(|it| it.started).sum(),
            refused: unknown + methods().map(|it| it.refused).sum::<u64>(),
            violations: self.violations.load(Ordering::Relaxed),
            unauthorized_calls: self.unauthorized.calls(),
            unauthorized_connections: self.unauthorized.connections() + self.bad_certificates(),
            connections_lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of clients whose certificates were rejected.
    fn bad_certificates(&self) -> u64 {
        let listener = self.listener.get().and_then(Weak::upgrade);
        listener.map_or(0, |it| it.stats().unauthorized)
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
            signature: it.method.signature.clone(),
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

/// Counts of a server's connections and calls; see [`Listening::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServerStats {
    /// Established connections.
    pub connections: usize,
    /// Calls whose handlers are running, including those that were cancelled and continue
    /// (`#[rpc(to_end)]`).
    pub running: usize,
    /// Calls whose handlers were started.
    pub started: u64,
    /// Calls whose handlers were not started: refused, not decodable, or cancelled before the
    /// start.
    pub refused: u64,
    /// Connections that were closed because their client violated the protocol.
    pub violations: u64,
    /// Calls that [`Authorize`] refused; `refused` counts them too.
    pub unauthorized_calls: u64,
    /// Connections that were refused because the client has no authorization key that the server
    /// knows, or because its certificate was rejected.
    pub unauthorized_connections: u64,
    /// Connections that ended with an error: the client died while awaiting a call, was silent, or
    /// reset the connection. A client that awaits nothing may end with its process. The log of the
    /// layer below has each connection's error.
    pub connections_lost: u64,
}

#[cfg(feature = "metrics")]
impl ServerStats {
    /// As [`ChannelStats::record_metrics`](crate::ChannelStats::record_metrics). Calls are recorded
    /// per method: [`MethodStats::record_metrics`].
    pub fn record_metrics(&self, labels: &[::metrics::Label]) {
        let set = |name, value| ::metrics::gauge!(name, labels.to_vec()).set(value);
        set("rpc.server.connections", self.connections as f64);
        set("rpc.server.active_calls", self.running as f64);
        let lost = self.connections_lost;
        metrics::count("rpc.server.connections.lost", labels.to_vec(), lost);
        metrics::count("rpc.server.violations", labels.to_vec(), self.violations);
        let turned_away = [
            ("call", self.unauthorized_calls),
            ("connection", self.unauthorized_connections),
        ];
        metrics::count_each("rpc.server.unauthorized", labels, "kind", &turned_away);
    }
}

/// A running server, which [`Server::bind`] returns.
///
/// It serves in the background until it is dropped, which closes all connections at once;
/// [`drain`](Self::drain) closes them gracefully.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric_rpc::{Cx, Result, service, testing};
///
/// #[service]
/// trait Double {
///     async fn double(&self, cx: &Cx, number: u32) -> Result<u32>;
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let mock = DoubleMock::new();
/// mock.on_double(|number| async move { Ok(2 * number) });
/// let (channel, server) = testing::pair(DoubleServer::new(mock)).await?;
/// server.set_window(16, 1 << 20);
/// DoubleClient::over(channel).double(21).await?;
/// let (_, stats) = server.method_stats().find(|(name, _)| *name == "Double/double").unwrap();
/// assert_eq!((stats.succeeded, server.stats().connections), (1, 1));
/// server.drain(Duration::from_secs(1)).await;
/// # Ok(()) }
/// ```
#[must_use = "dropped, it listens no more"]
pub struct Listening {
    pub(super) shared: Arc<ServerShared>,
    pub(super) hub: Arc<Hub<ServerConnection>>,
    pub(super) listener: Arc<PassiveEndpoint>,
}

impl Listening {
    /// Opens the server. An error concerns listening, not a call.
    pub(super) async fn open(
        server: Server,
        fabric: Fabric,
        address: impl ToSocketAddrs,
    ) -> Result<Listening> {
        let opened = Listening::try_open(server, fabric, address).await;
        opened.map_err(|status| status.of_step("the server cannot listen"))
    }

    async fn try_open(
        server: Server,
        fabric: Fabric,
        address: impl ToSocketAddrs,
    ) -> Result<Listening> {
        let Server {
            services,
            methods_max,
            open_domain,
            limits,
            authorize,
            stack,
            auth_keys,
            ..
        } = server;
        auth_keys.check()?;
        let calls = limits.window.calls;
        if !(1..=CALLS_PER_CONNECTION_MAX).contains(&calls) {
            let what =
                format!("window: {calls} calls, 1 to {CALLS_PER_CONNECTION_MAX} are possible");
            return Err(Status::not_started(Code::Internal, what));
        }
        runtime_with_timers()?;
        let builtin = Arc::new(Builtin::default());
        let routes = Arc::new(Routes::new(services, builtin.clone(), &methods_max)?);
        let shared = Arc::new(ServerShared {
            stack: stack.map(|make| make(Arc::clone(&routes))),
            routes,
            authorize,
            auth_keys,
            unauthorized: Unauthorized::default(),
            slow_logged: BoundedLog::default(),
            listener: OnceLock::new(),
            hub: OnceLock::new(),
            limits,
            chunks: ChunkPool::new(),
            fetches: FetchTable::new(),
            window: Mutex::new(limits.window),
            running: AtomicUsize::new(0),
            unknown: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            idle: Notify::new(),
        });
        // Set once, before anything listens.
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
            open_domain,
            EndpointSettings::default(),
            limits.connections,
            accept,
        )?);
        // Set once, before anything listens.
        let _ = shared.hub.set(Arc::downgrade(&hub));
        let mut failed = Status::not_started(Code::Unavailable, "the name has no address");
        for address in addresses {
            match hub.fabric.passive_endpoint(&hub.events).listen_at(address) {
                Ok(listener) => {
                    let listener = Arc::new(listener);
                    // Listens at the first address that can be listened at.
                    let _ = shared.listener.set(Arc::downgrade(&listener));
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

    /// The address at which the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The domain of the server's connections, for its statistics and for memory that handlers
    /// register.
    pub fn domain(&self) -> &Domain {
        &self.hub.domain
    }

    /// Statistics: connections and calls.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Statistics of each method, with its name.
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

    /// Changes the window of all present and later clients: the number of calls that each may have
    /// open, 1 to 1,024, and the bytes of their requests, at least 64 KiB. A client that exceeds a
    /// smaller window first waits until enough of its calls have completed.
    pub fn set_window(&self, calls: u32, bytes: u32) {
        let new = Window {
            calls: calls.clamp(1, CALLS_PER_CONNECTION_MAX),
            bytes: bytes.max(FRAME_MAX as u32),
        };
        // The lock is held so that all clients get the windows in the same order.
        let mut window = self.shared.window();
        *window = new;
        self.hub
            .connections()
            .iter()
            .for_each(|it| it.announce(new));
    }

    /// Closes the server gracefully. It stops listening and refuses new calls with
    /// [`Code::Draining`]. Running calls may continue until the deadline, and are then cancelled.
    /// Returns the server's last statistics when all connections are closed, shortly after the
    /// deadline at the latest, whatever the clients do.
    ///
    /// # Cancel safety
    /// Dropping the future closes all connections at once.
    pub async fn drain(self, deadline: Duration) -> ServerStats {
        let (shared, runtime) = (Arc::clone(&self.shared), self.hub.runtime.clone());
        within_runtime(runtime, super::drain::drain(self, deadline)).await;
        shared.stats()
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

/// Decides about a connection request. An accepted request takes a task.
fn accept(hub: &Arc<Hub<ServerConnection>>, shared: &Arc<ServerShared>, request: ConnRequest) {
    let refused = if shared.is_draining.load(Ordering::Acquire) {
        Some(Status::not_started(Code::Draining, DRAINING))
    } else if hub.connection_count() >= shared.limits.connections {
        let status = Status::not_started(Code::Overloaded, "as many connections as it takes");
        Some(status.with_retry_after(RETRY_AFTER))
    } else {
        None
    };
    let hello = Hello::decode(request.data());
    let name = key_name(request.data());
    let key = shared.auth_keys.find(request.has_auth_key(), name);
    let refused = refused.or_else(|| {
        let status = Status::not_started(Code::Unauthenticated, *key.as_ref().err()?);
        shared
            .unauthorized
            .note_connection(request.peer_addr(), &status);
        Some(status)
    });
    let refused = refused.or_else(|| {
        let of_server = shared.routes.codec.unwrap_or_default();
        let what = match &hello {
            Ok(client) if client.codec.is_none() || client.codec == of_server => return None,
            Ok(client) => format!("this server speaks {of_server}, not {}", client.codec),
            Err(error) => error.text("client", "server"),
        };
        Some(Status::not_started(Code::BadRequest, what))
    });
    let (Ok(client), Ok(key), None) = (hello, key, &refused) else {
        if let Some(status) = refused {
            // A client that is gone by now gets no answer.
            let _ = request.reject().data(Rejection::encode(&status)).send();
        }
        return;
    };
    let peer = request.peer_addr();
    let of_server = Arc::clone(shared);
    let not_made = move |status: Status| match status.code() {
        // The client has not proven that it has the key that it names.
        Code::Unauthenticated => of_server.unauthorized.note_connection(peer, &status),
        _ => log(|| tracing::debug!(%peer, %status, "a connection was not made")),
    };
    match establish(hub, shared, request, &client, key) {
        Ok(establishing) => {
            spawn(async move { establishing.await.unwrap_or_else(not_made) });
        }
        Err(status) => not_made(status),
    }
}

/// Counts the connection immediately, so that the limit also holds for simultaneous requests.
fn establish(
    hub: &Arc<Hub<ServerConnection>>,
    shared: &Arc<ServerShared>,
    request: ConnRequest,
    client: &Hello,
    (key_name, key): ClientKey<'_>,
) -> Result<impl Future<Output = Result<()>> + use<>> {
    let window = *shared.window();
    let endpoint = hub.endpoint_with_key(window.calls, key)?;
    let certificates = request.peer_certificates().cloned();
    let peer = Peer::new(request.peer_addr(), certificates, key_name.cloned());
    let server = Arc::clone(shared);
    let connection = ServerConnection::new(endpoint.clone(), peer, server, client, window);
    // Inserted first, so that the client's first call finds the connection.
    hub.insert(endpoint.id(), &connection);
    let own = Hello {
        calls: window.calls,
        bytes: window.bytes.into(),
        codec: shared.routes.codec.unwrap_or_default(),
        ..Hello::default()
    };
    let accepting = endpoint.accept(request).data(own.encode()).into_future();
    let (hub, shared) = (Arc::downgrade(hub), Arc::clone(shared));
    Ok(async move {
        let accepted = match caught_async("accepting", accepting).await {
            Some(accepted) => accepted.map_err(Status::from),
            None => Err(Status::new(Code::Internal, "it was not accepted")),
        };
        if accepted.is_err()
            && let Some(hub) = hub.upgrade()
        {
            hub.remove(endpoint.id());
        }
        accepted?;
        shared.announce_if_other(&connection, window);
        // A drain that began meanwhile did not see the connection.
        if shared.is_draining.load(Ordering::Acquire) {
            connection.drain();
        }
        if endpoint.peer_incarnation().is_none() {
            // Typed refusals and coordinated shutdown need the library's extension.
            let _ = endpoint.shutdown().await;
            let what = "a peer without the extension";
            return Err(Status::not_started(Code::Unavailable, what));
        }
        Ok(())
    })
}
