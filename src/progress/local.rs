//! A port's part in moving its connection to shared memory (`transport/local`).
//!
//! ```text
//!              the peer is elsewhere, or offers nothing
//!   Offered ──────────────────────────────────────────▶ Network
//!      │ connected, to a peer of this host                 ▲
//!      ▼                                                   │ it failed, or as many as
//!    Quiet ◀────────── the peer is not ready ──────┐       │ may have shared memory
//!      ├─ traffic, this side has accepted ─▶ Expecting ────┤
//!      └─ more of it, this side has connected      │       │
//!                      │                both are admitted  │
//!                      └──────────────────▶ Sharing ───────┘
//! ```
//! The connecting side asks for shared memory once the connection has carried some traffic. The
//! accepting side expects the request a little earlier. So thousands of idle connections cost
//! nothing. Each side admits the connection before shared memory is allocated. A failure changes
//! only the reason that [`Port::path`] returns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{LOCAL_ACCEPTOR_TRAFFIC_DIVISOR, LOCAL_CONNECTIONS_MAX};
use crate::log::hold_event;
use crate::path::{LocalPath, NotLocal, Path};
use crate::proto::Lifecycle;
use crate::slab::Key;
use crate::transport::{
    Expectation, LocalOffer, LocalParts, OnMet, Token, is_of_this_host, meet, offer,
};

use super::blocking::run_blocking;
use super::engine::Engine;
use super::port::{Port, PortState};

/// The progress of a port's move to shared memory.
#[derive(Debug)]
pub(super) enum LocalState {
    Network(NotLocal),
    Offered {
        /// The token of this side's offer.
        token: Token,
        /// True if this side has connected, and so asks for shared memory.
        asks: bool,
    },
    Expecting {
        _expectation: Expectation,
    },
    Quiet {
        next: NextStep,
        /// The number of sends and receives at which the step is taken.
        at: u64,
    },
    /// The two sides set up shared memory, or have done so; the link knows whether its bytes go
    /// through it.
    Sharing {
        _share: LocalShare,
    },
}

/// The step that a side takes once there is traffic.
#[derive(Clone, Debug)]
pub(super) enum NextStep {
    /// Ask the peer, which has made this offer in its HELLO.
    Ask(Box<LocalOffer>),
    /// Expect the peer's request, with the token of this side's offer.
    Expect(Token),
}

// Every attempt to connect begins anew.
state_machine! { LocalState {
    Network => [Network, Offered],
    Offered => [Network, Offered, Quiet],
    Quiet => [Network, Offered, Expecting, Sharing],
    Expecting => [Network, Offered, Sharing],
    Sharing => [Network, Offered, Quiet],
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

/// Counts one connection of a domain as having shared memory, until the share is dropped.
#[derive(Debug)]
pub(super) struct LocalShare(Arc<AtomicUsize>);

impl LocalShare {
    /// `None`: the limit is reached.
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

/// Configuration and count of shared-memory connections, common to the ports of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalConfig {
    path: LocalPath,
    /// Number of sends and receives of a connection before it asks for shared memory.
    after: u64,
    shares: Arc<AtomicUsize>,
}

impl LocalConfig {
    pub(crate) fn new(path: LocalPath, after: u64) -> Self {
        LocalConfig {
            path,
            after,
            ..LocalConfig::default()
        }
    }
}

/// A reference of another thread to one connection of a port; void after a reconnect.
struct PortHandle {
    engine: Weak<Engine>,
    key: Key,
    connects: u64,
}

impl PortHandle {
    /// `None`: the connection has ended.
    fn with<R>(&self, then: impl FnOnce(&Port, &mut PortState) -> R) -> Option<R> {
        let port = self.engine.upgrade()?.port(self.key.to_bits())?;
        let mut state = port.lock("local");
        let is_this = state.counts.connects == self.connects;
        is_this.then(|| then(&port, &mut state))
    }

    fn is_current(&self) -> bool {
        self.with(|_, _| ()).is_some()
    }

    /// Handles the result of meeting the peer.
    fn met(&self, met: Result<LocalParts>) {
        self.with(|port, state| {
            if let LocalState::Sharing { .. } = state.io.path
                && let Err(error) = met.and_then(|parts| port.localize(state, parts))
            {
                port.set_local(state, LocalState::Network(NotLocal::Failed(error)));
            }
        });
    }

    /// Handles a request that the peer did not expect (yet): the next one waits for more traffic.
    fn came_too_early(&self, theirs: Box<LocalOffer>) {
        self.with(|port, state| {
            if let LocalState::Sharing { .. } = state.io.path {
                port.await_traffic(state, NextStep::Ask(theirs));
            }
        });
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
                    let token = ours.token;
                    LocalState::Offered { token, asks: false }
                }
                None => LocalState::Network(NotLocal::Failed(Error::new(
                    ErrorKind::System,
                    "the host has no identity",
                ))),
            },
        };
        self.set_local(state, next);
    }

    /// Called when the attempt has begun: notes that the side that connects will ask.
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

    /// Called when the connection is up: checks whether the peer is on this host.
    pub(super) fn local_connected(&self, state: &mut PortState) {
        let LocalState::Offered { token, asks } = state.io.path else {
            return;
        };
        let theirs = state.machine.take_peer_local();
        let number = state.machine.peer_hello().map(|it| it.incarnation);
        let why_not = match theirs.map(|it| LocalOffer::from_bytes(*it)).zip(number) {
            None => NotLocal::NotOffered,
            Some((theirs, number)) if !is_of_this_host(&theirs, number) => NotLocal::OtherHost,
            Some((theirs, _)) => {
                return self.await_traffic(
                    state,
                    match asks {
                        true => NextStep::Ask(Box::new(theirs)),
                        false => NextStep::Expect(token),
                    },
                );
            }
        };
        self.set_local(state, LocalState::Network(why_not));
    }

    fn await_traffic(&self, state: &mut PortState, next: NextStep) {
        let after = self.engine.local.after;
        let after = match next {
            NextStep::Ask(_) => after,
            NextStep::Expect(_) => after / LOCAL_ACCEPTOR_TRAFFIC_DIVISOR,
        };
        let at = state.counts.moves() + after;
        self.set_local(state, LocalState::Quiet { next, at });
    }

    /// Takes the next step to shared memory once there is traffic. Called with every turn.
    #[inline]
    pub(super) fn localize_if_busy(&self, state: &mut PortState) {
        if let LocalState::Quiet { at, .. } = state.io.path
            && state.counts.moves() >= at
        {
            self.take_next_step(state);
        }
    }

    #[cold]
    fn take_next_step(&self, state: &mut PortState) {
        let LocalState::Quiet { next, .. } = &state.io.path else {
            return;
        };
        match next.clone() {
            NextStep::Ask(theirs) => {
                if self.admit(state) {
                    let handle = self.handle(state);
                    let has_thread =
                        run_blocking(move || match meet(&theirs, || handle.is_current()) {
                            Ok(None) => handle.came_too_early(theirs),
                            Ok(Some(parts)) => handle.met(Ok(parts)),
                            Err(error) => handle.met(Err(error)),
                        });
                    if !has_thread {
                        let error = Error::new(ErrorKind::System, "no thread to meet the peer on");
                        self.set_local(state, LocalState::Network(NotLocal::Failed(error)));
                    }
                }
            }
            NextStep::Expect(token) => {
                let next = match Expectation::new(token, self.when_asked(state)) {
                    Ok(_expectation) => LocalState::Expecting { _expectation },
                    Err(error) => LocalState::Network(NotLocal::Failed(error)),
                };
                self.set_local(state, next);
            }
        }
    }

    /// Returns the function that decides, on another thread, whether a peer that asks is admitted.
    fn when_asked(&self, state: &PortState) -> impl FnOnce() -> Option<OnMet> + Send + 'static {
        let handle = self.handle(state);
        move || {
            let is_admitted = handle.with(|port, state| {
                matches!(state.io.path, LocalState::Expecting { .. }) && port.admit(state)
            });
            is_admitted?.then(|| Box::new(move |met| handle.met(met)) as OnMet)
        }
    }

    /// Admits the connection to shared memory. Returns false if the limit is reached.
    fn admit(&self, state: &mut PortState) -> bool {
        let share = LocalShare::take(&self.engine.local.shares);
        let is_admitted = share.is_some();
        let next = match share {
            Some(_share) => LocalState::Sharing { _share },
            None => LocalState::Network(NotLocal::Limit),
        };
        self.set_local(state, next);
        is_admitted
    }

    fn localize(&self, state: &mut PortState, parts: LocalParts) -> Result<()> {
        let ended = || Error::new(ErrorKind::BadState, "the connection has ended");
        let link = state.io.link.as_mut().ok_or_else(ended)?;
        link.localize(parts, &*self.engine.transport)?;
        let span = self.span.clone();
        hold_event(move || tracing::debug!(parent: &span, "both ends share memory"));
        Ok(())
    }

    fn handle(&self, state: &PortState) -> PortHandle {
        PortHandle {
            engine: Arc::downgrade(&self.engine),
            key: self.key(),
            connects: state.counts.connects,
        }
    }

    /// Returns the path of the connection's bytes.
    pub(crate) fn path(&self) -> Path {
        let state = self.lock("path");
        match &state.io.path {
            _ if state.is_local() => Path::Local,
            LocalState::Network(why) => Path::Network(why.clone()),
            _ => Path::Network(NotLocal::NotYet),
        }
    }
}

impl PortState {
    /// Returns true while the bytes of both directions go through shared memory.
    pub(super) fn is_local(&self) -> bool {
        self.io.link.as_ref().is_some_and(|link| link.is_local())
    }
}
