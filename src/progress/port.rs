//! A port: one endpoint's connection as handles and driver share it.
//!
//! Here are its opening, its lock and its getters. `port/state.rs` has what the lock guards,
//! `posting.rs`, `establish.rs` and `link_life` what handles ask of it, and `turn.rs` what the
//! driver does with it.

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
use crate::sync::{Lock, MutexGuard};
use crate::wire::{Hello, Nonce};

use super::closed::{CloseNotify, CloseWatch};
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

/// A post: its operation, and, when it waits for room and reports to a queue, what awaits
/// its acceptance.
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
    /// Within the domain's; entered where the protocol may have something to say.
    pub(super) span: Span,
    /// What both sides of its connection have proven once it is up.
    auth_key: Option<AuthSecret>,
    pub(super) port_waker: Arc<PortWaker>,
    pub(super) superseded: SupersededFlag,
    /// Of messages that were copied.
    pub(super) sent: SentMark,
    /// Turns it has had.
    #[cfg(test)]
    pub(super) turns: std::sync::atomic::AtomicU64,
}

/// What kind of endpoint a port belongs to: where ports differ. Chosen when the port is made, as
/// the [`Connection`]'s receives are; an enum, so that the driver treats both kinds alike.
pub(super) enum PortKind {
    /// A connected one (`FI_EP_MSG`): the port is the endpoint's only one.
    Msg,
    /// A connectionless one (`FI_EP_RDM`), which has a port for each peer.
    Rdm(Box<RdmAttachment>),
}

/// What the kinds of port are made of.
pub(super) struct PortParts {
    pub(super) machine: Connection<Report>,
    pub(super) peer: Option<SocketAddr>,
    /// Those that it shares with other ports; `None`: the machine has its own.
    pub(super) receives: Option<Box<PortReceives>>,
    pub(super) kind: PortKind,
}

impl CloseWatch for Port {
    fn with_close_notify<R>(&self, run: impl FnOnce(&mut CloseNotify) -> R) -> R {
        run(&mut self.lock("closed").closed)
    }
}

impl Port {
    /// A port without a connection, known to the engine; `id` is its endpoint's.
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

    /// The same, of parts that are made when its waker is there.
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

    /// The port's name in its engine.
    pub(crate) fn key(&self) -> Key {
        self.port_waker.key()
    }

    /// The key without which it has no peer.
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

    /// True if the peer ran on the driver's processor when that was looked at last.
    pub(crate) fn shares_processor(&self) -> bool {
        self.lock("processor").io.peer_processor.is_shared
    }

    /// What this finds out of the connection's socket, under the port's lock.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] without a connection that has a socket; or the system's.
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

    /// What the peer said of itself; `None` before it is connected, and of a plain peer.
    pub(crate) fn peer_hello(&self) -> Option<Hello> {
        self.lock("peer").machine.peer_hello().copied()
    }

    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").machine.unexpected_bytes()
    }
}

/// Before an attempt at a connection: it takes proving this key, if there is one.
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

/// The port's lock, held. Released before what is deferred under it is run.
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
            // Nothing is, after the usual post.
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
    // A subscriber that panics leaves the rest to the drop of these.
    emit_held();
    deferred.run();
    drop(shared);
}

debug_fields!(Port, self => id: self.id);
