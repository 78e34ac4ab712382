//! The endpoint's task: what `proto/peers` decides is carried out here, and what ports and posters
//! tell is told to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::proto::{
    Answer, AttemptId, Challenge, CheckEnd, Close, Command, ConnectionId, Failure, GiveUp,
    PeerSettings, Peers, Request, canonical,
};
use crate::wire::{ByteOrder, Offer, PeerData, RXM_REJECT, is_rxm_request};

use super::super::engine::Engine;
use super::super::listen::{Handover, IncomingRequest, RequestDecision, RequestHandler};
use super::super::port::Port;
use super::notice::Notice;
use super::side::{Accepting, NotTaken};
use super::table::Stage;
use super::{IdlePolicy, Rdm};

/// How long an endpoint that closes waits for connections that something was posted to.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a port that has just moved is replaced before a request goes unanswered.
const TRIES: usize = 4;

pub(super) struct RdmTask {
    rdm: Arc<Rdm>,
    peers: Peers,
    /// The request whose connection is about to be handed over.
    accepted: Option<Accepted>,
    /// Why the last attempt at a peer came to nothing.
    reasons: HashMap<SocketAddr, Error>,
    /// Ports on the side by which peers are checked.
    checks: HashMap<AttemptId, (Arc<Port>, ConnectionId)>,
    closing: bool,
    /// Everything has ended, since the engine's driver has.
    has_ended: bool,
}

struct Accepted {
    peer: SocketAddr,
    /// `None`: the accepted side of a connection to ourselves.
    attempt: Option<AttemptId>,
    asked: PeerData,
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
        };
        RdmTask {
            peers: Peers::new(settings, seed),
            rdm,
            accepted: None,
            reasons: HashMap::new(),
            checks: HashMap::new(),
            closing: false,
            has_ended: false,
        }
    }

    /// Hears what there is to hear, and does what follows from it.
    fn go_on(&mut self, now: Instant, task: Option<&Waker>) {
        while let Some(notice) = self.rdm.notices.pop(task) {
            self.handle_notice(notice, now);
        }
        if !self.closing && self.rdm.lock_table("stage").stage() == Stage::Closing {
            self.begin_close(now);
        }
        self.peers.tick(now);
        self.carry_out(now);
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
                match attempt.map(|attempt| (attempt, self.checks.remove(&attempt))) {
                    Some((attempt, Some(check))) => {
                        self.check_connected(peer, attempt, check, incarnation, now);
                    }
                    Some((attempt, None)) => {
                        self.reasons.remove(&peer);
                        self.peers.connected(peer, attempt, incarnation, now);
                    }
                    None => drop(self.reasons.remove(&peer)),
                }
                if self.closing {
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
            } if self.checks.contains_key(&attempt) => {
                self.end_check(attempt, error);
                self.peers.check_failed(peer, attempt, incarnation, now);
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
            Notice::Ending { peer, attempt } => self.peers.ending(peer, attempt, now),
            Notice::Closed {
                peer,
                attempt,
                connection,
                in_order,
            } => {
                let port = self.rdm.lock_table("closed").remove(peer, connection);
                drop(port);
                match attempt {
                    Some(attempt) if self.checks.remove(&attempt).is_some() => {
                        self.peers.check_failed(peer, attempt, None, now);
                    }
                    Some(attempt) => {
                        self.reasons.remove(&peer);
                        self.peers.closed(peer, attempt, in_order, now);
                    }
                    None => drop(self.reasons.remove(&peer)),
                }
            }
        }
    }

    /// A check has become a connection: the peer's, if that of its old life was there or has ended,
    /// and one too many if not.
    fn check_connected(
        &mut self,
        peer: SocketAddr,
        attempt: AttemptId,
        (port, connection): (Arc<Port>, ConnectionId),
        incarnation: u32,
        now: Instant,
    ) {
        match self.peers.check_connected(peer, attempt, incarnation, now) {
            CheckEnd::Promote => {
                let old = self
                    .rdm
                    .lock_table("promote")
                    .replace(peer, &port, connection);
                tracing::debug!(%peer, "the peer has restarted, as a check shows");
                old.inspect(|old| old.end_now(restarted(peer)));
            }
            CheckEnd::Drop => port.begin_close(),
        }
    }

    /// Dials the peer on the side, to see who is at its address.
    fn check(&mut self, peer: SocketAddr, attempt: AttemptId, now: Instant) {
        match self.rdm.unlisted_port(peer) {
            Ok((port, connection)) => {
                let port_of_check = (Arc::clone(&port), connection);
                self.checks.insert(attempt, port_of_check);
                self.dial_by(&port, peer, attempt);
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a claim cannot be checked");
                self.peers.check_failed(peer, attempt, None, now);
            }
        }
    }

    fn end_check(&mut self, attempt: AttemptId, error: Error) {
        if let Some((port, _)) = self.checks.remove(&attempt) {
            port.end_now(error);
        }
    }

    /// An attempt came to nothing. The peer's port goes on if anything waits there, which may have
    /// been posted while the peer's own request was being accepted.
    fn failed(
        &mut self,
        peer: SocketAddr,
        attempt: AttemptId,
        failure: Failure,
        reason: Error,
        now: Instant,
    ) {
        let is_left = || {
            let port = self.rdm.port_of(peer);
            port.is_none_or(|port| port.close_if_up())
        };
        if self.peers.is_wanted(peer) || !is_left() {
            self.peers.want(peer, now);
            self.reasons.insert(peer, reason);
        }
        self.peers.failed(peer, attempt, failure, now);
    }

    fn begin_close(&mut self, now: Instant) {
        self.closing = true;
        self.peers.close(now + CLOSE_TIMEOUT, now);
        let ports = self.rdm.lock_table("close all").all_ports();
        for port in ports {
            port.close_if_up();
        }
    }

    fn carry_out(&mut self, now: Instant) {
        while let Some(command) = self.peers.poll() {
            match command {
                Command::Dial { peer, attempt } => self.dial(peer, attempt, now),
                Command::LookAt { peer, attempt } => {
                    let activity = self.rdm.port_of(peer).and_then(|port| port.activity());
                    self.peers.looked_at(peer, attempt, activity, now);
                }
                Command::Close { peer, why, .. } => {
                    if let Some(port) = self.rdm.port_of(peer) {
                        match why {
                            Close::Idle => port.close_if_idle(),
                            Close::Restarted => port.end_now(restarted(peer)),
                        }
                    }
                }
                Command::Check { peer, attempt } => self.check(peer, attempt, now),
                Command::EndCheck { attempt } => {
                    let error = Error::new(ErrorKind::TimedOut, "a check of the peer's claim");
                    self.end_check(attempt, error);
                }
                Command::Retract { peer, attempt } => {
                    let port = self.rdm.port_of(peer);
                    port.inspect(|port| port.retract_claim(attempt));
                }
                Command::GiveUp { peer, why } => self.give_up(peer, why, now),
            }
        }
    }

    fn dial(&mut self, peer: SocketAddr, attempt: AttemptId, now: Instant) {
        match self.rdm.current_or_new(peer) {
            Ok(port) => self.dial_by(&port, peer, attempt),
            Err(error) => self.failed(peer, attempt, Failure::Final, error, now),
        }
    }

    fn dial_by(&self, port: &Port, peer: SocketAddr, attempt: AttemptId) {
        // So that the peer recognises us by the address that we are known by.
        let own = self.rdm.local_addr();
        let is_ours = !own.ip().is_unspecified() && own.is_ipv4() == peer.is_ipv4();
        let mut from = own;
        from.set_port(0);
        port.dial(attempt, peer, is_ours.then_some(from));
    }

    /// What the peer is to prove before its request counts. `None`: it offered no proof that could
    /// be right, or there are no random bytes.
    fn challenge(&self, asked: &PeerData, order: ByteOrder) -> Option<RequestDecision> {
        let extending = &self.rdm.config.extending;
        let secret = extending.auth_key.clone()?;
        let mut nonce = [0; 32];
        let random = &self.rdm.engine.random;
        random
            .fill(&mut nonce, "an endpoint with a key")
            .inspect_err(|error| tracing::warn!(%error, "a request cannot be answered"))
            .ok()?;
        let terms = extending.terms(&self.rdm.engine);
        let incarnation = self.rdm.incarnation;
        let (challenge, bytes) = Challenge::new(terms, secret, nonce, incarnation, (asked, order))?;
        Some(RequestDecision::Challenge(Box::new(challenge), bytes))
    }

    fn give_up(&mut self, peer: SocketAddr, why: GiveUp, now: Instant) {
        let reason = self.reasons.remove(&peer);
        let Some(port) = self.rdm.port_of(peer) else {
            return;
        };
        let error = if self.closing {
            Error::new(ErrorKind::Canceled, "the endpoint was closed")
        } else {
            given_up(why, reason)
        };
        if let Err((attempt, incarnation)) = port.give_up(error.with_peer(peer)) {
            self.peers.stays(peer, attempt, incarnation, now);
        }
    }

    /// Gives an accepted connection to the peer's port.
    fn adopt(&mut self, peer: SocketAddr, mut accepting: Accepting, now: Instant) {
        let attempt = accepting.attempt;
        for _ in 0..TRIES {
            let taken = match self.port_for(peer, attempt) {
                Ok(port) => port.take_over(accepting),
                Err(error) => {
                    tracing::debug!(%peer, %error, "a connection could not be accepted");
                    break;
                }
            };
            match taken {
                Ok(()) => return,
                // Ours had succeeded; the peer learns that by the end of its own.
                Err(NotTaken::Up(attempt, incarnation)) => {
                    return self.peers.stays(peer, attempt, incarnation, now);
                }
                Err(NotTaken::Moved(back)) => accepting = *back,
            }
        }
        if let Some(attempt) = attempt {
            self.failed(peer, attempt, Failure::Passing, lost(), now);
        }
    }

    fn port_for(&self, peer: SocketAddr, attempt: Option<AttemptId>) -> Result<Arc<Port>> {
        match attempt {
            Some(_) => self.rdm.current_or_new(peer),
            None => self.rdm.unlisted_port(peer).map(|(port, _)| port),
        }
    }
}

impl RequestHandler for RdmTask {
    fn on_request(
        &mut self,
        incoming: &IncomingRequest<'_>,
        now: Instant,
        _cx: &mut Context<'_>,
    ) -> RequestDecision {
        // What has happened before the request counts before it.
        self.go_on(now, None);
        if is_rxm_request(incoming.data) {
            return RequestDecision::Reject(Bytes::from_static(&RXM_REJECT));
        }
        let asked = match PeerData::read(incoming.data) {
            Ok(asked) if asked.port() != 0 => asked,
            _ => return RequestDecision::Reject(Bytes::new()),
        };
        // Who has a key talks to those only who have one too, and who has none to those who do not.
        let has_key = self.rdm.config.extending.auth_key.is_some();
        let reject = asked.reject(self.rdm.incarnation, has_key);
        if has_key != asked.offer().is_some_and(Offer::proves_key) {
            return RequestDecision::Reject(reject.into());
        }
        let (mut from, mut to) = (incoming.peer, incoming.local);
        from.set_port(asked.port());
        to.set_port(self.rdm.local_addr().port());
        let from = canonical(from);
        let request = Request {
            from,
            to: canonical(to),
            incarnation: asked.incarnation(),
            undialable: asked.is_behind_firewall(),
            is_proven: incoming.is_proven,
            is_known: self.rdm.lock_table("is known").is_known(from),
        };
        if has_key && !incoming.is_proven {
            let challenge = match self.peers.would_accept(&request) {
                true => self.challenge(&asked, incoming.params.order),
                false => None,
            };
            return challenge.unwrap_or_else(|| RequestDecision::Reject(reject.into()));
        }
        let answer = self.peers.request(&request, now);
        tracing::debug!(?request, ?answer, "asked for a connection");
        self.carry_out(now);
        let attempt = match answer {
            Answer::Reject => return RequestDecision::Reject(reject.into()),
            Answer::Accept(attempt) => Some(attempt),
            Answer::AcceptAside => None,
        };
        self.accepted = Some(Accepted {
            peer: request.from,
            attempt,
            asked,
        });
        RequestDecision::Accept
    }

    fn hand_over(&mut self, handover: Option<Handover>, now: Instant) {
        let Some(Accepted {
            peer,
            attempt,
            asked,
        }) = self.accepted.take()
        else {
            return;
        };
        match (handover, attempt) {
            (Some(handover), _) => {
                let accepting = Accepting {
                    attempt,
                    handover,
                    asked,
                };
                self.adopt(peer, accepting, now);
            }
            (None, Some(attempt)) => self.failed(peer, attempt, Failure::Passing, lost(), now),
            (None, None) => {}
        }
        self.carry_out(now);
    }

    fn on_broken(&mut self, _error: &Error, _cx: &mut Context<'_>) -> bool {
        // Told to the log already. Whoever is dialled from here is reached all the same.
        true
    }

    fn poll(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Instant> {
        let receives = Arc::clone(&self.rdm.config.receives);
        receives.set_waker(cx.waker());
        if !self.has_ended
            && self.rdm.lock_table("stage").stage() == Stage::Open
            && let Poll::Ready(why) = self.rdm.engine.poll_gone(cx)
        {
            self.has_ended = true;
            self.end(Stage::Gone, &why);
        }
        self.go_on(now, Some(cx.waker()));
        let expires = receives.expire(now, |timed| self.rdm.orphan_timed(timed));
        expires.into_iter().chain(self.peers.next_deadline()).min()
    }

    fn is_over(&self) -> bool {
        self.closing && !self.rdm.lock_table("is over").has_ports()
    }
}

impl RdmTask {
    /// Ends everything that is posted, and what is posted later.
    fn end(&self, stage: Stage, error: &Error) {
        let (ports, wakes) = {
            let mut table = self.rdm.lock_table("end");
            (table.all_ports(), table.end(stage, error))
        };
        for port in ports {
            port.end_now(error.clone());
        }
        self.rdm.peer_feed.end(error);
        self.rdm.config.receives.close(error.clone());
        drop(wakes);
    }
}

impl Drop for RdmTask {
    /// All has ended, or the runtime ends, and nobody will dial or accept any more.
    fn drop(&mut self) {
        if self.has_ended {
        } else if self.is_over() {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.end(Stage::Ended, &error);
        } else {
            self.end(Stage::Gone, &Engine::gone_error());
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::PeerClosed, "before its request was accepted")
}

fn restarted(peer: SocketAddr) -> Error {
    Error::new(ErrorKind::PeerClosed, "the peer has restarted").with_peer(peer)
}

/// What operations end with whose peer is given up.
fn given_up(why: GiveUp, reason: Option<Error>) -> Error {
    let last = |what: &str| match &reason {
        Some(reason) => format!("{what}; the last attempt: {}", reason.clone().nested()),
        None => what.to_owned(),
    };
    match why {
        GiveUp::Deadline => {
            let what = last("the peer was not reached in time");
            Error::new(ErrorKind::Unreachable, what)
        }
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
