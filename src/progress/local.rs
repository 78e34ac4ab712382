//! A port's part in moving its connection to shared memory (`transport/local`).
//!
//! ```text
//!                       the peer is elsewhere, or offers nothing
//!   Offered ────────────────────────────────────────────────▶ Network
//!      │ connected, to a peer of this host                        ▲
//!      ├── this side has accepted ──▶ Expecting ──────────────────┤
//!      └── this side has connected ─▶ Quiet ──traffic──▶ Meeting ─┤ it failed
//!                                         both share memory │     │
//!                                        Expecting, Meeting ▼
//!                                                         Carried
//! ```
//! The side that has connected asks, once the connection has carried some traffic: thousands of
//! idle connections share no memory. A failure changes nothing but the reason
//! that [`Port::path`] returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind};
use crate::limits::{LOCAL_CONNECTIONS_MAX, LOCAL_TRAFFIC_MIN};
use crate::log::hold_event;
use crate::path::{LocalPath, NotLocal, Path};
use crate::proto::Lifecycle;
use crate::transport::{Expectation, LocalOffer, LocalParts, is_of_this_host, meet, offer};

use super::blocking::run_blocking;
use super::engine::Engine;
use super::port::{Port, PortState};

/// How far a port has come.
#[derive(Debug)]
pub(super) enum LocalState {
    Network(NotLocal),
    Offered {
        ours: LocalOffer,
        /// This side has connected.
        asks: bool,
    },
    Expecting {
        _expectation: Expectation,
    },
    Quiet {
        theirs: LocalOffer,
        /// Sends and receives before it was connected.
        begun: u64,
    },
    Meeting,
    Carried {
        _share: LocalShare,
    },
}

// Every attempt to connect begins anew.
state_machine! { LocalState {
    Network => [Network, Offered],
    Offered => [Network, Offered, Expecting, Quiet],
    Expecting => [Network, Offered, Carried],
    Quiet => [Network, Offered, Meeting],
    Meeting => [Network, Offered, Carried],
    Carried => [Network, Offered],
}}

impl Default for LocalState {
    fn default() -> Self {
        LocalState::Network(NotLocal::NotConnected)
    }
}

impl LocalState {
    pub(super) fn go(&mut self, to: LocalState) {
        check_edge(self, &to);
        *self = to;
    }
}

/// One of the connections of a driver that have shared memory.
#[derive(Debug)]
pub(super) struct LocalShare(Arc<AtomicUsize>);

impl LocalShare {
    /// `None`: as many as may have some.
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |now| (now < LOCAL_CONNECTIONS_MAX).then_some(now + 1);
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(LocalShare(Arc::clone(count)))
    }
}

impl Drop for LocalShare {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the ports of a driver have in common.
#[derive(Debug, Default)]
pub(super) struct LocalConfig {
    pub(super) path: LocalPath,
    shares: Arc<AtomicUsize>,
}

impl LocalConfig {
    pub(super) fn new(path: LocalPath) -> Self {
        LocalConfig {
            path,
            ..LocalConfig::default()
        }
    }
}

impl Port {
    /// Offers shared memory with the attempt that begins next.
    pub(super) fn offer_local(&self, state: &mut PortState) {
        let (engine, machine) = (&self.engine, &mut state.machine);
        let next = match engine.local.path {
            LocalPath::Off => LocalState::Network(NotLocal::Off),
            LocalPath::Auto if !engine.transport.may_localize() => {
                LocalState::Network(NotLocal::Backend)
            }
            LocalPath::Auto => match self.make_offer() {
                Some(ours) => {
                    machine.offer_local(ours.to_bytes());
                    LocalState::Offered { ours, asks: false }
                }
                None => LocalState::Network(NotLocal::Failed(Error::new(
                    ErrorKind::System,
                    "the host has no identity",
                ))),
            },
        };
        self.set_local(state, next);
    }

    /// The attempt has begun: the side that connects will ask.
    pub(super) fn note_who_asks(&self, state: &mut PortState) {
        if let LocalState::Offered { asks, .. } = &mut state.io.path {
            *asks = state.machine.lifecycle() == Lifecycle::Connecting;
        }
    }

    fn make_offer(&self) -> Option<LocalOffer> {
        let mut token = [0; 16];
        let random = &self.engine.random;
        random.fill(&mut token, "a connection of this host").ok()?;
        offer(self.engine.incarnation(), token)
    }

    fn set_local(&self, state: &mut PortState, to: LocalState) {
        if let LocalState::Network(NotLocal::Failed(error)) = &to {
            let (span, error) = (self.span.clone(), error.clone());
            hold_event(move || {
                tracing::info!(parent: &span, %error, "the connection stays on the network");
            });
        }
        state.io.path.go(to);
    }

    /// The connection is up: looks whether the peer is of this host.
    pub(super) fn local_connected(&self, state: &mut PortState) {
        let LocalState::Offered { ours, asks } = state.io.path else {
            return;
        };
        let hello = state.machine.peer_hello();
        let theirs = hello.and_then(|it| Some((LocalOffer::from_bytes(it.local?), it.incarnation)));
        let next = match theirs {
            None => LocalState::Network(NotLocal::NotOffered),
            Some((theirs, number)) if !is_of_this_host(&theirs, number) => {
                LocalState::Network(NotLocal::OtherHost)
            }
            Some((theirs, _)) if asks => LocalState::Quiet {
                theirs,
                begun: state.counts.moves(),
            },
            Some(_) => match Expectation::new(ours.token, self.when_met()) {
                Ok(_expectation) => LocalState::Expecting { _expectation },
                Err(error) => LocalState::Network(NotLocal::Failed(error)),
            },
        };
        self.set_local(state, next);
    }

    /// Asks the peer for shared memory once there is traffic. Called with every turn.
    #[inline]
    pub(super) fn ask_if_busy(&self, state: &mut PortState) {
        if let LocalState::Quiet { begun, .. } = state.io.path
            && state.counts.moves() - begun >= LOCAL_TRAFFIC_MIN
        {
            self.ask_for_local(state);
        }
    }

    #[cold]
    fn ask_for_local(&self, state: &mut PortState) {
        let LocalState::Quiet { theirs, .. } = state.io.path else {
            return;
        };
        self.set_local(state, LocalState::Meeting);
        let (then, engine, key) = (self.when_met(), Arc::downgrade(&self.engine), self.key());
        run_blocking(move || match meet(&theirs) {
            Ok(parts) => then(parts),
            Err(error) => {
                if let Some(port) = engine.upgrade().and_then(|it| it.port(key.to_bits())) {
                    let mut state = port.lock("not local");
                    if let LocalState::Meeting = state.io.path {
                        let failed = LocalState::Network(NotLocal::Failed(error));
                        port.set_local(&mut state, failed);
                    }
                }
            }
        });
    }

    /// Returns what is done with the memory that both sides share, on any thread.
    fn when_met(&self) -> impl FnOnce(LocalParts) + Send + 'static {
        let (engine, key) = (Arc::downgrade(&self.engine), self.key());
        move |parts| {
            let engine: Option<Arc<Engine>> = engine.upgrade();
            if let Some(port) = engine.and_then(|it| it.port(key.to_bits())) {
                port.localize(parts);
            }
        }
    }

    fn localize(&self, parts: LocalParts) {
        let mut guard = self.lock("localize");
        let state = &mut *guard;
        if !matches!(
            state.io.path,
            LocalState::Meeting | LocalState::Expecting { .. }
        ) {
            return; // The connection is another by now, or has ended.
        }
        let next = match (
            LocalShare::take(&self.engine.local.shares),
            &mut state.io.link,
        ) {
            (None, _) => LocalState::Network(NotLocal::Limit),
            (_, None) => LocalState::Network(NotLocal::NotConnected),
            (Some(_share), Some(link)) => {
                match self.engine.transport.localize(&mut **link, parts) {
                    Ok(()) => LocalState::Carried { _share },
                    Err(error) => LocalState::Network(NotLocal::Failed(error)),
                }
            }
        };
        self.set_local(state, next);
    }

    /// Returns which way the connection's bytes go.
    pub(crate) fn path(&self) -> Path {
        let state = self.lock("path");
        let is_local = state.io.link.as_ref().is_some_and(|link| link.is_local());
        match &state.io.path {
            _ if is_local => Path::Local,
            LocalState::Network(why) => Path::Network(why.clone()),
            _ => Path::Network(NotLocal::NotYet),
        }
    }
}
