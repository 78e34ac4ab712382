//! What a request of somebody who has proven nothing is worth, and how it is checked.

use std::net::SocketAddr;
use std::time::Instant;

use super::address::wins;
use super::state::{Check, State};
use super::{AttemptId, CHECK_TIMEOUT, CHECKS_MAX, Close, Command, Peers, Request, pause_after};

/// What becomes of the connection of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckEnd {
    /// The peer has restarted: it takes the old one's place, which ends.
    Promote,
    /// It is closed.
    Drop,
}

/// What to do about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Reject,
    Accept,
    /// Reject it, and look who is at its address.
    Check,
    /// Reject it: two claim to be this peer.
    Contest,
    /// Reject it, and dial the peer.
    Dial,
}

impl Peers {
    /// Whether the request is worth that its sender proves its key: it would be accepted then.
    pub(crate) fn would_accept(&self, request: &Request) -> bool {
        let state = self.peers.get(&request.from).map(|peer| &peer.state);
        if request.from == request.to {
            return self.is_request_of_oneself(request, state);
        }
        let proven = Request {
            is_proven: true,
            ..*request
        };
        self.judge(&proven) == Verdict::Accept
    }

    pub(super) fn judge(&self, request: &Request) -> Verdict {
        let Some(peer) = self.peers.get(&request.from) else {
            let is_welcome = self.closing.is_none();
            let has_room = request.is_known || self.has_room_for(request.from);
            return match is_welcome && has_room {
                true => Verdict::Accept,
                false => Verdict::Reject,
            };
        };
        let is_claim = !request.is_proven;
        let accept_if = |is_acceptable| match is_acceptable {
            true => Verdict::Accept,
            false => Verdict::Reject,
        };
        match peer.state {
            _ if self.closing.is_some() && peer.wanted.is_none() => Verdict::Reject,
            // It comes back, to where nobody is counted who has gone.
            State::Away { .. } if peer.gone.is_some() => {
                accept_if(request.is_known || self.has_room_for(request.from))
            }
            State::Away { .. } if is_claim && peer.contested && !peer.undialable => Verdict::Dial,
            State::Dialling { .. } if is_claim && peer.contested => Verdict::Reject,
            State::Away { .. } | State::Ending { .. } => Verdict::Accept,
            State::Dialling { .. } => accept_if(wins(request.from, request.to)),
            State::Accepting {
                is_proven: false, ..
            } if is_claim => Verdict::Contest,
            State::Up { incarnation, .. } if is_claim => match incarnation == request.incarnation {
                true => Verdict::Reject,
                false => Verdict::Check,
            },
            State::Accepting { incarnation, .. } | State::Up { incarnation, .. } => {
                accept_if(incarnation != request.incarnation)
            }
        }
    }

    /// Somebody claims to be a peer that is connected, in another life: whoever is at its address
    /// is asked.
    pub(super) fn check_claim(&mut self, at: SocketAddr, now: Instant) {
        let attempt = self.new_attempt();
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let is_due = peer.check.is_none() && peer.check_after.is_none_or(|after| after <= now);
        if !is_due || peer.undialable || self.checks >= CHECKS_MAX {
            return;
        }
        let until = now + CHECK_TIMEOUT;
        peer.check = Some(Check { attempt, until });
        self.checks += 1;
        self.commands
            .push_back(Command::Check { peer: at, attempt });
        self.set_alarm(at, now);
    }

    /// The check is over. False: it was given up before.
    pub(super) fn end_check(&mut self, at: SocketAddr, attempt: AttemptId) -> bool {
        let Some(peer) = self.peers.get_mut(&at) else {
            return false;
        };
        let check = peer.check.take_if(|check| check.attempt == attempt);
        self.checks -= usize::from(check.is_some());
        check.is_some()
    }

    /// What was claimed was not so: whoever claims next waits longer for a check.
    pub(super) fn checked_in_vain(&mut self, at: SocketAddr, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.check_after = Some(now + pause_after(peer.checks_in_vain));
            peer.checks_in_vain = peer.checks_in_vain.saturating_add(1);
        }
        self.set_alarm(at, now);
    }

    /// A check has become a connection, with whoever is at the peer's address. It takes the place
    /// of the one with another life of the peer; and if that ends or has ended meanwhile, it is the
    /// connection: nothing is gained by ending it for another with the same peer.
    pub(crate) fn check_connected(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) -> CheckEnd {
        if !self.end_check(at, attempt) {
            return CheckEnd::Drop;
        }
        let takes_place = self.peers.get(&at).is_some_and(|peer| match peer.state {
            State::Up {
                incarnation: held, ..
            } => held != incarnation,
            State::Away { .. } | State::Ending { .. } => true,
            State::Dialling { .. } | State::Accepting { .. } => false,
        });
        if !takes_place {
            self.checked_in_vain(at, now);
            return CheckEnd::Drop;
        }
        self.stays(at, attempt, incarnation, now);
        CheckEnd::Promote
    }

    /// A check has come to nothing. `incarnation`: that of whoever is at the peer's address, if it
    /// said so when it rejected us. Without a key that is as good as a connection.
    pub(crate) fn check_failed(
        &mut self,
        at: SocketAddr,
        attempt: AttemptId,
        incarnation: Option<u32>,
        now: Instant,
    ) {
        if !self.end_check(at, attempt) {
            return;
        }
        let Some(peer) = self.peers.get(&at) else {
            return;
        };
        match (peer.state, incarnation) {
            (
                State::Up {
                    attempt,
                    incarnation: held,
                    ..
                },
                Some(said),
            ) if held != said => {
                self.commands.push_back(Command::Close {
                    peer: at,
                    attempt,
                    why: Close::Restarted,
                });
                self.set_alarm(at, now);
            }
            _ => self.checked_in_vain(at, now),
        }
    }
}
