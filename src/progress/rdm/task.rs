//! The endpoint's task: passes the events of ports and posts to the state machine in `proto/peers`,
//! and runs its commands. `requests.rs` has its decisions for the listener.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::id::PeerAddr;
use crate::limits::RDM_CLOSE_TIMEOUT;
use crate::proto::{
    AttemptId, Close, Command, ConnectionId, Failure, GiveUp, PeerSettings, Peers,
    VerificationOutcome,
};
use crate::sync::WaiterKey;

use super::super::engine::Engine;
use super::super::port::Port;
use super::notice::Notice;
use super::table::EndpointState;
use super::{IdlePolicy, Rdm};

pub(super) struct RdmTask {
    pub(super) rdm: Arc<Rdm>,
    pub(super) peers: Peers,
    /// Errors of the last attempts to reach peers that are still wanted, until they are connected
    /// or given up.
    reasons: HashMap<PeerAddr, Error>,
    /// The ports of verifications.
    verifications: HashMap<AttemptId, (Arc<Port>, ConnectionId)>,
    /// Its entry among the tasks that wait for the end of the engine.
    gone_key: Option<WaiterKey>,
}

impl RdmTask {
    pub(super) fn new(rdm: Arc<Rdm>, seed: u64) -> Self {
        let config = &rdm.config;
        let settings = PeerSettings {
            incarnation: rdm.incarnation.get(),
            connect_deadline: config.connect_deadline,
            idle: match config.idle {
                IdlePolicy::Keep => None,
                IdlePolicy::CloseAfter(time) => Some(time),
            },
            strangers_max: config.strangers_max,
        };
        RdmTask {
            peers: Peers::new(settings, seed),
            rdm,
            reasons: HashMap::new(),
            verifications: HashMap::new(),
            gone_key: None,
        }
    }

    /// Processes all notices and timeouts, and runs the resulting commands.
    pub(super) fn process_events(&mut self, now: Instant, task: Option<&Waker>) {
        while let Some(notice) = self.rdm.notices.pop(task) {
            self.handle_notice(notice, now);
        }
        if !self.peers.is_closing() && self.state() == EndpointState::Closing {
            self.begin_close(now);
        }
        self.peers.handle_timeout(now);
        self.run_commands(now);
    }

    fn handle_notice(&mut self, notice: Notice, now: Instant) {
        match notice {
            Notice::Want { peer } => self.peers.want(peer, now),
            Notice::Connected {
                peer,
                attempt,
                connection,
                incarnation,
            } => {
                self.rdm.lock_table("connected").connected(peer);
                match attempt.map(|attempt| (attempt, self.verifications.remove(&attempt))) {
                    Some((attempt, Some(check))) => {
                        self.handle_verified(peer, attempt, check, incarnation, now);
                    }
                    Some((attempt, None)) => {
                        self.reasons.remove(&peer);
                        self.peers.handle_connected(peer, attempt, incarnation, now);
                    }
                    None => drop(self.reasons.remove(&peer)),
                }
                if self.peers.is_closing() {
                    let port = self.rdm.lock_table("connected").port(connection);
                    port.inspect(|port| port.begin_close());
                }
            }
            Notice::Failed {
                peer,
                attempt,
                incarnation,
                error,
                ..
            } if self.verifications.contains_key(&attempt) => {
                self.end_verification(attempt, error);
                self.peers
                    .handle_verification_failed(peer, attempt, incarnation, now);
            }
            Notice::Failed {
                peer,
                attempt,
                failure,
                error,
                ..
            } => {
                tracing::debug!(%peer, %error, ?failure, "no connection yet");
                self.failed(peer, attempt, failure, error, now);
            }
            Notice::Ending { peer, attempt } => self.peers.handle_ending(peer, attempt, now),
            Notice::Closed {
                peer,
                attempt,
                connection,
                in_order,
            } => {
                let port = self.rdm.lock_table("closed").port(connection);
                let ended = port.map(|port| port.stats().counts_only());
                let ended = ended.unwrap_or_default();
                let port = (self.rdm.lock_table("closed")).remove(peer, connection, &ended);
                drop(port);
                match attempt {
                    Some(attempt) if self.verifications.remove(&attempt).is_some() => {
                        self.peers
                            .handle_verification_failed(peer, attempt, None, now);
                    }
                    Some(attempt) => self.peers.handle_closed(peer, attempt, in_order, now),
                    None => {}
                }
            }
        }
    }

    /// Handles a verification that has become a connection: replaces the peer's current connection
    /// by it, or closes it.
    fn handle_verified(
        &mut self,
        peer: PeerAddr,
        attempt: AttemptId,
        (port, connection): (Arc<Port>, ConnectionId),
        incarnation: u32,
        now: Instant,
    ) {
        match self.peers.handle_verified(peer, attempt, incarnation, now) {
            VerificationOutcome::Promote => {
                self.reasons.remove(&peer);
                let old = self
                    .rdm
                    .lock_table("promote")
                    .replace(peer, &port, connection);
                tracing::info!(%peer, "the peer has restarted");
                old.inspect(|old| old.end_now(restarted(peer)));
            }
            VerificationOutcome::Drop => port.begin_close(),
        }
    }

    /// Dials the peer's address with a second port, to learn which endpoint listens there.
    fn verify(&mut self, peer: PeerAddr, attempt: AttemptId, now: Instant) {
        let key = self.rdm.key_to(peer);
        match key.and_then(|key| self.rdm.unlisted_port(peer, key)) {
            Ok((port, connection)) => {
                let port_of_verification = (Arc::clone(&port), connection);
                self.verifications.insert(attempt, port_of_verification);
                self.dial_by(&port, peer, attempt);
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a claim cannot be checked");
                self.peers
                    .handle_verification_failed(peer, attempt, None, now);
            }
        }
    }

    fn end_verification(&mut self, attempt: AttemptId, error: Error) {
        if let Some((port, _)) = self.verifications.remove(&attempt) {
            port.end_now(error);
        }
    }

    /// Handles a failed attempt. The peer's port continues if an operation waits in it: one may
    /// have been posted while the peer's own request was being accepted.
    pub(super) fn failed(
        &mut self,
        peer: PeerAddr,
        attempt: AttemptId,
        failure: Failure,
        reason: Error,
        now: Instant,
    ) {
        let is_unused = || {
            let port = self.rdm.port_of(peer);
            port.is_none_or(|port| port.close_if_up())
        };
        if self.peers.is_wanted(peer) || !is_unused() {
            self.peers.want(peer, now);
            self.reasons.insert(peer, reason);
        }
        self.peers.handle_failed(peer, attempt, failure, now);
    }

    fn begin_close(&mut self, now: Instant) {
        self.peers.begin_close(now + RDM_CLOSE_TIMEOUT, now);
        let ports = self.rdm.lock_table("close all").all_ports();
        for port in ports {
            port.close_if_up();
        }
    }

    pub(super) fn run_commands(&mut self, now: Instant) {
        while let Some(command) = self.peers.poll_command() {
            match command {
                Command::Dial { peer, attempt } => self.dial(peer, attempt, now),
                Command::CheckIdle { peer, attempt } => {
                    let activity = self.rdm.port_of(peer).and_then(|port| port.activity());
                    self.peers.handle_activity(peer, attempt, activity, now);
                }
                Command::Close { peer, why, .. } => {
                    if let Some(port) = self.rdm.port_of(peer) {
                        match why {
                            Close::Idle => port.close_if_idle(),
                            Close::Restarted => port.end_now(restarted(peer)),
                        }
                    }
                }
                Command::Doubt { peer, .. } => {
                    self.rdm.port_of(peer).inspect(|port| port.doubt_peer());
                }
                Command::Verify { peer, attempt } => self.verify(peer, attempt, now),
                Command::EndVerification { attempt } => {
                    let error = Error::new(ErrorKind::TimedOut, "a check of the peer's claim");
                    self.end_verification(attempt, error);
                }
                Command::Retract { peer, attempt } => {
                    let port = self.rdm.port_of(peer);
                    port.inspect(|port| port.retract_unproven(attempt));
                }
                Command::GiveUp { peer, why } => self.give_up(peer, why, now),
            }
        }
    }

    fn dial(&mut self, peer: PeerAddr, attempt: AttemptId, now: Instant) {
        let key = self.rdm.key_to(peer);
        match key.and_then(|key| self.rdm.current_or_new(peer, key)) {
            Ok(port) => self.dial_by(&port, peer, attempt),
            Err(error) => self.failed(peer, attempt, Failure::Final, error, now),
        }
    }

    fn dial_by(&self, port: &Port, peer: PeerAddr, attempt: AttemptId) {
        // Bind to our own address, by which the peer knows us.
        let own = self.rdm.local_addr();
        let is_ours = !own.ip().is_unspecified() && own.is_ipv4() == peer.socket.is_ipv4();
        let mut from = own;
        from.set_port(0);
        port.dial(attempt, peer.socket, is_ours.then_some(from));
    }

    fn give_up(&mut self, peer: PeerAddr, why: GiveUp, now: Instant) {
        let reason = self.reasons.remove(&peer);
        let Some(port) = self.rdm.port_of(peer) else {
            return;
        };
        let error = if self.peers.is_closing() {
            Error::new(ErrorKind::Canceled, "the endpoint was closed")
        } else {
            let error = given_up(why, reason);
            tracing::warn!(%peer, %error, "the peer is given up");
            error
        };
        if let Err((attempt, incarnation)) = port.give_up(error.with_peer(peer.socket)) {
            self.peers.adopt_connection(peer, attempt, incarnation, now);
        }
    }
}

impl RdmTask {
    pub(super) fn poll(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Instant> {
        let own = (!self.rdm.config.shares_receives).then(|| Arc::clone(&self.rdm.config.receives));
        if let Some(receives) = &own {
            receives.set_waker(cx.waker());
        }
        if self.state() == EndpointState::Open
            && let Poll::Ready(why) = self.rdm.engine.poll_gone(&mut self.gone_key, cx.waker())
        {
            self.end(EndpointState::Gone, &why);
        }
        self.process_events(now, Some(cx.waker()));
        let expires = own.and_then(|receives| receives.expire(now));
        expires.into_iter().chain(self.peers.next_deadline()).min()
    }

    /// Returns true if the driver of its engine has ended, and nothing can connect any more.
    pub(super) fn is_gone(&self) -> bool {
        self.state() == EndpointState::Gone
    }

    pub(super) fn is_over(&self) -> bool {
        let table = self.rdm.lock_table("is over");
        table.state() != EndpointState::Open && !table.has_ports()
    }
}

impl RdmTask {
    fn state(&self) -> EndpointState {
        self.rdm.lock_table("state").state()
    }

    /// Ends all operations, and refuses later ones.
    fn end(&self, to: EndpointState, error: &Error) {
        let (ports, wakes) = {
            let mut table = self.rdm.lock_table("end");
            (table.all_ports(), table.end(to, error))
        };
        for port in ports {
            port.end_now(error.clone());
        }
        self.rdm.peer_feed.end(error);
        if !self.rdm.config.shares_receives {
            self.rdm.config.receives.close(error.clone());
        }
        drop(wakes);
    }
}

impl Drop for RdmTask {
    /// The endpoint or the runtime has ended: no more connections are made.
    fn drop(&mut self) {
        self.rdm.engine.forget_gone(&mut self.gone_key);
        match self.state() {
            EndpointState::Ended | EndpointState::Gone => {}
            EndpointState::Closing if self.is_over() => {
                let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
                self.end(EndpointState::Ended, &error);
            }
            EndpointState::Open | EndpointState::Closing => {
                self.end(EndpointState::Gone, &Engine::gone_error());
            }
        }
    }
}

fn restarted(peer: PeerAddr) -> Error {
    Error::new(ErrorKind::PeerClosed, "the peer has restarted").with_peer(peer.socket)
}

/// Makes the error of operations whose peer is given up.
fn given_up(why: GiveUp, reason: Option<Error>) -> Error {
    let last = |what: &str| match &reason {
        Some(reason) => format!("{what}; the last attempt: {}", reason.clone().nested()),
        None => what.to_owned(),
    };
    match why {
        GiveUp::Deadline => match reason.as_ref().map(Error::kind) {
            Some(kind) if is_of_this_side(kind) => {
                Error::new(kind, last("no connection could be begun in time"))
            }
            _ => {
                let what = last("the peer was not reached in time");
                Error::new(ErrorKind::Unreachable, what)
            }
        },
        GiveUp::Rejected => {
            let what = last("the peer rejects each request");
            Error::new(ErrorKind::ConnectionRefused, what)
        }
        GiveUp::Final => reason.unwrap_or_else(|| {
            Error::new(ErrorKind::Unreachable, "the peer cannot be connected to")
        }),
        GiveUp::Undialable => {
            let what = "the peer said that it cannot be dialled, and is not connected";
            Error::new(ErrorKind::Unreachable, what)
        }
    }
}

/// Returns true for errors of this machine, which lacks or refuses something: they say nothing
/// about the peer.
fn is_of_this_side(kind: ErrorKind) -> bool {
    use ErrorKind::{AddressInUse, AddressNotAvailable, LimitReached, System};
    matches!(
        kind,
        LimitReached | AddressNotAvailable | AddressInUse | System
    )
}
