//! A port as one of a connectionless endpoint's: attempts at its connection that may be given up
//! and begun again with everything that was posted kept, and word of what happens to the endpoint's
//! task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind};
use crate::proto::{AttemptId, Connection, Failure, Identity, Lifecycle, Peering, Receives};
use crate::wire::PeerData;

use super::super::arming::{PeerStream, RecvState};
use super::super::engine::Engine;
use super::super::listen::Handover;
use super::super::port::{Bindings, Port, PortKind, PortParts, PortState, demand_key};
use super::super::receive_context::PortReceives;
use super::super::shutdown::ShutdownState;
use super::Rdm;
use super::notice::{Notice, Notices};
use super::peer_feed::{PeerFeed, Presence};

/// What a port of a connectionless endpoint has beside its connection.
pub(in crate::progress) struct RdmAttachment {
    notices: Arc<Notices>,
    peer_feed: Arc<PeerFeed>,
    peer: SocketAddr,
    identity: Identity,
    pub(in crate::progress) receives: PortReceives,
    /// Which attempt is under way, or has become the connection.
    attempt: Option<AttemptId>,
    /// The last connection has ended by agreement, but not all that was posted was sent.
    is_left: bool,
    /// What follows when the link has given everything back.
    after: Option<After>,
    /// What the readers of the endpoint's peers have been told of the connection.
    presence: Presence,
}

/// What follows an attempt that is given up.
enum After {
    /// The task is told, and decides.
    Tell(Failure, Error),
    /// A request of the peer's is accepted.
    Accept(Accepting),
}

/// A request that is to be accepted.
pub(super) struct Accepting {
    /// `None`: the accepted side of a connection to ourselves.
    pub(super) attempt: Option<AttemptId>,
    pub(super) handover: Handover,
    pub(super) asked: PeerData,
}

/// Why a port does not take a connection over.
pub(super) enum NotTaken {
    /// Its own is up: this attempt of that incarnation had succeeded.
    Up(AttemptId, u32),
    /// It has ended, or ends.
    Moved(Box<Accepting>),
}

/// Whether another port is to be posted to: this one's connection ends. Set under the port's lock,
/// and read without.
#[derive(Debug, Default)]
pub(in crate::progress) struct Moved(AtomicBool);

impl Moved {
    fn set(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Port {
    /// A port of a connectionless endpoint, to this peer; without a connection.
    pub(super) fn open_to(
        engine: &Arc<Engine>,
        rdm: &Rdm,
        peer: SocketAddr,
        identity: Identity,
    ) -> crate::error::Result<Arc<Port>> {
        let config = &rdm.config;
        let bindings = Bindings {
            receive_queue: config.bindings.receive_queue.clone(),
            counters: config.bindings.counters.clone().boxed(),
            sources: config.bindings.sources.clone(),
            rma_events: config.bindings.rma_events,
            connected: None,
            events: None,
            shutdown: None,
            context: None,
        };
        let extending = config.extending.clone();
        Port::open_with(engine, config.id, extending, bindings, |waker| {
            let (receives, promised_bytes) = config.receives.attach(identity, waker);
            let peering = Peering {
                identity,
                promised_bytes,
                listening_port: rdm.local_addr().port(),
                incarnation: rdm.incarnation,
                rendezvous_min: config.rendezvous_min as u64,
            };
            let terms = config.extending.terms(engine);
            PortParts {
                machine: Connection::of_peer(config.sizes, terms, peering),
                peer: Some(peer),
                kind: PortKind::Rdm(Box::new(RdmAttachment {
                    notices: Arc::clone(&rdm.notices),
                    peer_feed: Arc::clone(&rdm.peer_feed),
                    peer,
                    identity,
                    receives,
                    attempt: None,
                    is_left: false,
                    after: None,
                    presence: Presence::default(),
                })),
            }
        })
    }

    /// True once nothing is to be posted here any more: the connection ends or has ended.
    pub(super) fn has_moved(&self) -> bool {
        self.moved.get()
    }

    /// Begins an attempt.
    pub(super) fn dial(&self, attempt: AttemptId, to: SocketAddr, from: Option<SocketAddr>) {
        let mut guard = self.lock("dial");
        let state = &mut *guard;
        let PortKind::Rdm(side) = &mut state.kind else {
            return;
        };
        side.attempt = Some(attempt);
        if !state.shutdown.is_open() || state.machine.lifecycle() != Lifecycle::Idle {
            let error = Error::new(ErrorKind::Canceled, "the port is in use");
            return side.tell_failed(Failure::Passing, error, &mut state.wakes);
        }
        match self.engine.transport.connect(to, from, self.waker.clone()) {
            Ok(link) => {
                state.link = Some(link);
                state.machine.begin_connect_peer();
                self.waker.wake_by_ref();
            }
            Err(error) => {
                let (failure, error) = side.failure_of(error);
                side.tell_failed(failure, error, &mut state.wakes);
            }
        }
    }

    /// Takes over an accepted connection; an attempt that is under way is given up for it, and
    /// everything posted is kept.
    pub(super) fn take_over(&self, accepting: Accepting) -> Result<(), NotTaken> {
        let mut guard = self.lock("take over");
        let state = &mut *guard;
        let retracting = state.shutdown.state() == ShutdownState::Retracting;
        if !state.shutdown.may_post()
            || state.machine.fault().is_some() && state.machine.lifecycle() == Lifecycle::Connected
        {
            return Err(NotTaken::Moved(Box::new(accepting)));
        }
        let PortKind::Rdm(side) = &mut state.kind else {
            return Err(NotTaken::Moved(Box::new(accepting)));
        };
        match state.machine.lifecycle() {
            Lifecycle::Connected => {
                let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
                return match side.attempt {
                    Some(attempt) => Err(NotTaken::Up(attempt, incarnation)),
                    None => Err(NotTaken::Moved(Box::new(accepting))),
                };
            }
            Lifecycle::Idle if !retracting => self.accept_now(state, accepting),
            _ => {
                side.attempt = accepting.attempt;
                self.retract(state, After::Accept(accepting));
            }
        }
        Ok(())
    }

    fn accept_now(&self, state: &mut PortState, accepting: Accepting) {
        let Accepting {
            attempt,
            handover,
            asked,
        } = accepting;
        let PortKind::Rdm(side) = &mut state.kind else {
            return;
        };
        side.attempt = attempt;
        match self
            .engine
            .transport
            .adopt(handover.link.raw, self.waker.clone())
        {
            Ok(link) => {
                state.local = Some(link.local_addr());
                state.link = Some(link);
                state.shutdown.limit_connect(handover.link.timeout);
                state.machine.begin_accept_peer(
                    &asked,
                    handover.link.params.order,
                    handover.proven,
                );
                self.waker.wake_by_ref();
            }
            Err(error) => side.tell_failed(Failure::Passing, error, &mut state.wakes),
        }
    }

    /// Gives up this attempt, which a request began, unless it has become a connection.
    pub(super) fn retract_claim(&self, attempt: AttemptId) {
        let mut state = self.lock("retract a claim");
        let is_it = matches!(&state.kind, PortKind::Rdm(side) if side.attempt == Some(attempt));
        if is_it && state.shutdown.is_open() && state.machine.lifecycle() == Lifecycle::Accepting {
            let what = "who asked for the connection said nothing more";
            let error = Error::new(ErrorKind::TimedOut, what);
            self.retract(&mut state, After::Tell(Failure::Passing, error));
        }
    }

    /// Gives up the attempt that is under way, but nothing that was posted.
    fn retract(&self, state: &mut PortState, after: After) {
        let PortKind::Rdm(side) = &mut state.kind else {
            return;
        };
        side.after = Some(after);
        self.begin_retracting(state);
    }

    /// Takes everything back from the link of an attempt that has come to nothing.
    fn begin_retracting(&self, state: &mut PortState) {
        state.shutdown.retract();
        state.stage = None;
        state.cancel_submitted();
        // The link's waker tells when everything is back.
        self.waker.wake_by_ref();
    }

    /// An attempt came to nothing: it is given up, and another may follow. At a connectionless
    /// endpoint what was posted waits for that.
    pub(in crate::progress) fn retract_failed(&self, state: &mut PortState) {
        let (PortKind::Rdm(side), Some(error)) = (&state.kind, state.machine.fault().cloned())
        else {
            return self.begin_retracting(state);
        };
        let is_dialled = state.machine.lifecycle() == Lifecycle::Connecting;
        let (failure, error) = match error.kind() {
            // Who came here says that it is the peer, and has not proven it.
            ErrorKind::NotAuthorized if !is_dialled => (Failure::Passing, error),
            ErrorKind::ConnectionRefused if self.differs_in_key(error.data()) => {
                let what = "one of the two has an authorization key, and the other has none";
                (
                    Failure::Final,
                    Error::new(ErrorKind::ConnectionRefused, what),
                )
            }
            _ => side.failure_of(error),
        };
        self.retract(state, After::Tell(failure, error));
    }

    /// The connection has ended by agreement; what the peer had no receive for goes over the next.
    pub(in crate::progress) fn reconnect(&self, state: &mut PortState) {
        if let PortKind::Rdm(side) = &mut state.kind {
            side.is_left = true;
        }
        let error = Error::new(ErrorKind::PeerClosed, "before it had a receive for this");
        self.retract(state, After::Tell(Failure::Passing, error));
    }

    /// True if a reject with this data says that one side has a key and the other has none.
    fn differs_in_key(&self, data: &[u8]) -> bool {
        let said = PeerData::read(data).ok().and_then(|said| said.offer());
        said.is_some_and(|offer| offer.proves_key() != self.auth_key().is_some())
    }

    /// Goes on once the link has given everything back.
    pub(in crate::progress) fn begin_again(&self, state: &mut PortState) {
        state.link = None;
        state.stage = None;
        state.local = None;
        (state.recv, state.peer_stream) = (RecvState::Idle, PeerStream::Open);
        match state.kind {
            PortKind::Rdm(_) => state.machine.begin_again(),
            PortKind::Msg => {
                let (machine, mut host) = state.machine_and_host(self);
                machine.handle_attempt_failed(&mut host);
            }
        }
        let keyed = demand_key(&mut state.machine, self.auth_key(), &self.engine.random);
        let PortKind::Rdm(side) = &mut state.kind else {
            // Without its key it is not to be used.
            if let Err(error) = keyed {
                self.fail(state, error);
                self.waker.wake_by_ref();
            }
            return;
        };
        let after = side.after.take();
        let after = match keyed {
            Ok(()) => after,
            Err(error) => Some(After::Tell(Failure::Final, error)),
        };
        match after {
            Some(After::Tell(failure, error)) => {
                side.tell_failed(failure, error, &mut state.wakes);
            }
            Some(After::Accept(accepting)) => self.accept_now(state, accepting),
            None => {}
        }
        self.waker.wake_by_ref();
    }

    /// What waits for the peer ends with this error. `Err`: the connection is up, by this attempt
    /// and with this incarnation of the peer.
    pub(super) fn give_up(&self, error: Error) -> Result<(), (AttemptId, u32)> {
        let mut state = self.lock("give up");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        if let (true, PortKind::Rdm(side)) = (is_up, &state.kind)
            && let Some(attempt) = side.attempt
        {
            let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
            return Err((attempt, incarnation));
        }
        if let PortKind::Rdm(side) = &mut state.kind {
            // An endpoint that closes gives up too, which says nothing of the peer.
            side.presence.is_given_up = error.kind() != ErrorKind::Canceled;
        }
        self.end_with(&mut state, error);
        Ok(())
    }

    /// The connection ends now, without a word to the peer.
    pub(super) fn end_now(&self, error: Error) {
        self.end_with(&mut self.lock("end now"), error);
    }

    fn end_with(&self, state: &mut PortState, error: Error) {
        if state.shutdown.is_final() {
            return;
        }
        if state.shutdown.state() == ShutdownState::Retracting {
            state.machine.forget_fault();
        }
        self.fail(state, error);
        self.begin_draining(state);
        self.waker.wake_by_ref();
    }

    /// Ends the connection in order, if it is up, or if nothing waits for it. False: something
    /// waits for an attempt, which goes on.
    pub(super) fn close_if_up(&self) -> bool {
        let state = self.lock("close if up");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        let is_up = is_up && !state.machine.has_carried_over();
        let waits = !is_up && state.machine.outstanding() > 0 && !state.shutdown.is_final();
        drop(state);
        if !waits {
            self.begin_close();
        }
        !waits
    }

    /// What has gone over the connection so far; `None` if it could not be closed now without
    /// anybody's missing it.
    pub(super) fn activity(&self) -> Option<u64> {
        self.lock("activity").activity()
    }

    /// Ends the connection in order, if it is up. One that is just being accepted is the peer's,
    /// who may have sent something over it, and one that ends already needs no word.
    pub(super) fn disconnect(&self) {
        let mut state = self.lock("disconnect");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        if is_up && state.shutdown.is_open() && !state.machine.has_carried_over() {
            self.begin_orderly_end(&mut state);
            self.waker.wake_by_ref();
        }
    }

    /// Ends the connection in order, unless something was posted to it or has come since it was
    /// looked at.
    pub(super) fn close_if_idle(&self) {
        let mut state = self.lock("close if idle");
        if state.activity().is_some() {
            self.begin_orderly_end(&mut state);
            self.waker.wake_by_ref();
        }
    }

    // What follows is told under the port's lock.

    /// Nothing is to be posted here from now on.
    pub(in crate::progress) fn moves(&self, state: &mut PortState) {
        let PortKind::Rdm(side) = &mut state.kind else {
            return;
        };
        side.after = None;
        if self.moved.set()
            && let Some(attempt) = side.attempt
        {
            let peer = side.peer;
            side.tell(Notice::Ending { peer, attempt }, &mut state.wakes);
        }
    }

    pub(in crate::progress) fn tell_connected(&self, state: &mut PortState) {
        if let PortKind::Rdm(side) = &mut state.kind {
            side.is_left = false;
            let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
            let notice = Notice::Connected {
                peer: side.peer,
                attempt: side.attempt,
                connection: side.identity.connection,
                incarnation,
            };
            side.tell(notice, &mut state.wakes);
            let said = (incarnation != 0).then_some(incarnation);
            let (presence, peer) = (&mut side.presence, side.peer);
            side.peer_feed
                .connected(presence, peer, said, &mut state.wakes);
        }
    }

    /// A reader of the endpoint's peers has come: the peer is up if the connection is.
    pub(super) fn present_peer(&self) {
        let mut guard = self.lock("present the peer");
        let state = &mut *guard;
        if let PortKind::Rdm(side) = &mut state.kind {
            let (presence, peer) = (&mut side.presence, side.peer);
            side.peer_feed.present(presence, peer, &mut state.wakes);
        }
    }

    /// `lost`: the reason, unless the connection ended in order.
    pub(in crate::progress) fn tell_closed(&self, state: &mut PortState, lost: Option<Error>) {
        if let PortKind::Rdm(side) = &mut state.kind {
            let in_order = lost.is_none();
            let (presence, peer) = (&mut side.presence, side.peer);
            side.peer_feed
                .closed(presence, peer, lost, &mut state.wakes);
            self.moved.set();
            side.receives.leave();
            let notice = Notice::Closed {
                peer: side.peer,
                attempt: side.attempt,
                connection: side.identity.connection,
                in_order,
            };
            side.tell(notice, &mut state.wakes);
        }
    }
}

impl PortState {
    fn activity(&self) -> Option<u64> {
        let PortKind::Rdm(side) = &self.kind else {
            return None;
        };
        let is_idle = self.shutdown.is_open()
            && self.machine.knows_end()
            && self.machine.outstanding() == 0
            && self.machine.is_transmit_drained()
            && !self.machine.is_read_paused()
            && side.receives.held() == 0;
        is_idle.then_some(self.activity)
    }
}

impl RdmAttachment {
    /// What an attempt's error means for the next.
    fn failure_of(&self, error: Error) -> (Failure, Error) {
        // It did not only go idle.
        let nobody_listens =
            error.kind() == ErrorKind::ConnectionRefused && error.data().is_empty();
        if self.is_left && nobody_listens {
            let what = "before it had a receive for this";
            return (Failure::Final, Error::new(ErrorKind::PeerClosed, what));
        }
        (failure_of(&error), error)
    }

    fn tell(&self, notice: Notice, wakes: &mut crate::sync::WakeList) {
        if let Some(task) = self.notices.push(notice) {
            wakes.push(task);
        }
    }

    fn tell_failed(&self, failure: Failure, error: Error, wakes: &mut crate::sync::WakeList) {
        if let Some(attempt) = self.attempt {
            let peer = self.peer;
            let notice = Notice::Failed {
                peer,
                attempt,
                failure,
                incarnation: rejecter(&error),
                error,
            };
            self.tell(notice, wakes);
        }
    }
}

/// The incarnation of who rejected an attempt: a peer of this library says it.
fn rejecter(error: &Error) -> Option<u32> {
    let said = PeerData::read(error.data()).ok()?;
    said.offer().map(|_| said.incarnation())
}

/// What an attempt's error means for the next.
fn failure_of(error: &Error) -> Failure {
    match error.kind() {
        // Who rejects says with which words of ours; the system says no without any.
        ErrorKind::ConnectionRefused if !error.data().is_empty() => Failure::Rejected,
        ErrorKind::ProtocolViolation
        | ErrorKind::Incompatible
        | ErrorKind::NotAuthorized
        | ErrorKind::DriverGone => Failure::Final,
        _ => Failure::Passing,
    }
}
