//! A port: one endpoint's connection, shared by handles and the driver.
//!
//! This file has the port's opening, its lock and its getters. `port/state.rs` has the state that
//! the lock guards; `posting.rs`, `establish.rs` and `link_life` have the calls of handles;
//! `turn.rs` has the driver's turn.

mod config;
mod counts;
#[cfg(feature = "metrics")]
mod latency;
mod state;
mod waker;

use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use tracing::Span;

use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::EndpointId;
use crate::log::emit_held;
use crate::mr::AuthSecret;
use crate::proto::{Connection, Lifecycle, OpKey, Sizes};
use crate::random::RandomSource;
use crate::slab::Key;
use crate::sync::{Lock, MutexGuard, Waiters};
use crate::wire::Nonce;

use super::closed::CloseWatch;
use super::engine::Engine;
use super::liveness::PortLiveness;
use super::pollable::Pollable;
use super::rdm::{RdmAttachment, SupersededFlag};
use super::receive_context::PortReceives;
use super::report::{AwaitedOp, Report};
use super::sent::SentMark;

pub(crate) use config::{Bindings, CounterSet, ExtensionConfig};
pub(super) use counts::PortCounts;
#[cfg(feature = "metrics")]
pub(super) use latency::LatencySampler;
pub(super) use state::{PortIo, PortState, PortTimers};
pub(super) use waker::PortWaker;

/// Sizes of a port's queues.
pub(crate) type PortSizes = Sizes;

/// The result of a post: the operation's key. If the operation waits for room and reports to a
/// queue, also the record by which its acceptance is awaited.
#[derive(Debug)]
pub(crate) struct PostedOp {
    pub(crate) key: OpKey,
    pub(crate) waiting: Option<AwaitedOp>,
}

/// One endpoint's connection.
pub(crate) struct Port {
    id: EndpointId,
    pub(super) engine: Arc<Engine>,
    pub(super) state: Lock<PortState>,
    pub(super) waker: Waker,
    /// The connection's span, within the domain's. Entered wherever the protocol may log.
    pub(super) span: Span,
    /// The key that both sides have proven once the connection is up.
    auth_key: Option<AuthSecret>,
    pub(super) port_waker: Arc<PortWaker>,
    pub(super) superseded: SupersededFlag,
    /// Records which of the awaited copied messages have ended.
    pub(super) sent: SentMark,
    /// Number of turns.
    #[cfg(test)]
    pub(super) turns: std::sync::atomic::AtomicU64,
}

/// The kind of endpoint a port belongs to, where ports differ. Chosen when the port is made, like
/// the [`Connection`]'s receives; an enum, so that the driver treats both kinds alike.
pub(super) enum PortKind {
    /// Connected (`FI_EP_MSG`): the port is the endpoint's only one.
    Msg,
    /// Connectionless (`FI_EP_RDM`): the endpoint has a port for each peer.
    Rdm(Box<RdmAttachment>),
}

/// The parts of which a port is made; they depend on its kind.
pub(super) struct PortParts {
    pub(super) machine: Connection<Report>,
    pub(super) peer: Option<SocketAddr>,
    /// The receives that it shares with other ports; `None`: the machine has its own.
    pub(super) receives: Option<Box<PortReceives>>,
    pub(super) kind: PortKind,
}

impl Port {
    /// Returns whether this side or the peer has closed the connection.
    pub(crate) fn is_closed_in_order(&self) -> bool {
        matches!(self.lifecycle(), Lifecycle::Closed { in_order: true })
    }
}

impl CloseWatch for Port {
    fn with_end<R>(&self, run: impl FnOnce(bool, &mut Waiters) -> R) -> R {
        let mut state = self.lock("closed");
        let has_ended = state.machine.lifecycle().is_closed();
        run(has_ended, &mut state.close_waiters)
    }
}

impl Port {
    /// Opens a port without a connection, and enters it in the engine. `id` names its endpoint.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        id: EndpointId,
        sizes: PortSizes,
        extension: ExtensionConfig,
        bindings: Bindings,
    ) -> Result<Arc<Port>> {
        let params = extension.params(engine);
        Port::open_with(engine, id, extension, bindings, |_| PortParts {
            machine: Connection::new(sizes, params),
            peer: None,
            receives: None,
            kind: PortKind::Msg,
        })
    }

    /// Opens a port from parts, which are made once its waker exists.
    pub(super) fn open_with(
        engine: &Arc<Engine>,
        id: EndpointId,
        extension: ExtensionConfig,
        bindings: Bindings,
        parts: impl FnOnce(&Waker) -> PortParts,
    ) -> Result<Arc<Port>> {
        engine.check_alive()?;
        let port_waker = PortWaker::new(engine);
        let waker = Waker::from(Arc::clone(&port_waker));
        let mut parts = parts(&waker);
        let key = extension.auth_key.as_ref();
        demand_key(&mut parts.machine, key, &engine.random)?;
        let liveness = PortLiveness::new(extension.liveness, engine.next_spread());
        let span = tracing::info_span!(
            parent: &engine.span,
            "connection",
            endpoint = ?id,
            peer = parts.peer.map(tracing::field::display),
        );
        let state = PortState::new(parts, bindings, liveness);
        let port = Arc::new(Port {
            id,
            engine: Arc::clone(engine),
            state: Lock::new(state),
            waker,
            span,
            auth_key: extension.auth_key,
            port_waker,
            superseded: SupersededFlag::default(),
            sent: SentMark::default(),
            #[cfg(test)]
            turns: std::sync::atomic::AtomicU64::new(0),
        });
        let pollable: Arc<dyn Pollable> = Arc::clone(&port) as _;
        port.port_waker.insert_port(engine, pollable)?;
        Ok(port)
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns the port's key in its engine.
    pub(crate) fn key(&self) -> Key {
        self.port_waker.key()
    }

    /// Returns the authorization key that a peer must prove.
    pub(crate) fn auth_key(&self) -> Option<&AuthSecret> {
        self.auth_key.as_ref()
    }

    pub(super) fn lock(&self, purpose: &'static str) -> PortGuard<'_> {
        PortGuard {
            state: Some(self.state.lock(purpose)),
            #[cfg(debug_assertions)]
            superseded: &self.superseded,
        }
    }

    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        self.lock("phase")
            .machine
            .phase(key)
            .unwrap_or(Phase::Ended)
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock("peer address").io.peer
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.lock("local address").io.local
    }

    /// Returns true if the peer ran on the driver's processor when that was last looked up.
    pub(crate) fn shares_processor(&self) -> bool {
        self.lock("processor").io.peer_processor.is_shared
    }

    /// Calls `ask` with the connection's socket, under the port's lock.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] without a connection that has a socket; otherwise the error of
    /// `ask`.
    pub(crate) fn ask_socket<R>(
        &self,
        ask: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> Result<R> {
        let state = self.lock("ask the socket");
        let socket = state.io.link.as_ref().and_then(|link| link.socket());
        let none = || Error::new(ErrorKind::BadState, "there is no connection with a socket");
        let answer = ask(socket.ok_or_else(none)?);
        answer.map_err(|error| Error::from_io(&error, "asking the socket of a connection"))
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lock("lifecycle").machine.lifecycle()
    }

    /// Returns the peer's HELLO; `None` before it is connected, and for a plain peer.
    pub(crate) fn peer_incarnation(&self) -> Option<u64> {
        let state = self.lock("peer");
        state.machine.peer_hello().map(|hello| hello.incarnation)
    }

    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").machine.unexpected_bytes()
    }
}

/// Makes the machine demand a proof of `key`, if there is a key. Called before each attempt to
/// connect.
pub(super) fn demand_key(
    machine: &mut Connection<Report>,
    key: Option<&AuthSecret>,
    random: &RandomSource,
) -> Result<()> {
    if let Some(key) = key {
        let mut nonce: Nonce = [0; 32];
        random.fill(&mut nonce, "an endpoint with a key")?;
        machine.demand_key(key.clone(), nonce);
    }
    Ok(())
}

/// The held lock of a port. Its drop releases the lock, then runs the work deferred under it.
pub(super) struct PortGuard<'a> {
    state: Option<MutexGuard<'a, PortState>>,
    #[cfg(debug_assertions)]
    superseded: &'a SupersededFlag,
}

impl Deref for PortGuard<'_> {
    type Target = PortState;

    fn deref(&self) -> &PortState {
        self.state.as_deref().expect("held until dropped")
    }
}

impl DerefMut for PortGuard<'_> {
    fn deref_mut(&mut self) -> &mut PortState {
        self.state.as_deref_mut().expect("held until dropped")
    }
}

impl Drop for PortGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            #[cfg(debug_assertions)]
            if !std::thread::panicking() {
                state.check(self.superseded.get());
            }
            let shared = state.receives.as_ref();
            // Most posts defer nothing.
            if !state.deferred.is_empty() || shared.is_some_and(|it| it.has_deferred()) {
                return run_deferred(state);
            }
            drop(state);
            emit_held();
        }
    }
}

/// Releases the lock, and runs what was deferred under it.
#[inline(never)]
fn run_deferred(mut state: MutexGuard<'_, PortState>) {
    let deferred = state.deferred.take();
    let shared = state.receives.as_mut().map(|it| it.take_deferred());
    drop(state);
    // If a log subscriber panics, unwinding drops `deferred` and `shared`, which does the rest.
    emit_held();
    deferred.run();
    drop(shared);
}

debug_fields!(Port, self => id: self.id);
