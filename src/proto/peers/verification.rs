//! Judges requests that have not proven a key, and verifies them.

use std::time::Instant;

use super::address::wins;
use super::state::{PeerState, RequestProof, Verification};
use super::{AttemptId, Close, Command, Peers, Request, pause_after};
use crate::id::PeerAddr;
use crate::limits::{RDM_CHECK_TIMEOUT, RDM_CHECKS_MAX};

/// The owner's next step with the connection of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerificationOutcome {
    /// The peer has restarted: the connection replaces the old one, which ends.
    Promote,
    /// The connection has to be closed.
    Drop,
}

/// The verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Reject,
    Accept,
    /// Reject the request, and dial the peer's address by a second connection.
    Verify,
    /// Reject the request: two unproven requests name this peer.
    Contest,
    /// Reject the request, and dial the peer.
    Dial,
    /// Reject the request, and find out whether the peer's connection still exists.
    Doubt,
}

impl Peers {
    /// True if the request would be accepted, or cause doubt, if its sender proved the key.
    pub(crate) fn would_count(&self, request: &Request) -> bool {
        let state = self.peers.get(&request.from).map(|peer| &peer.state);
        if request.from == request.to {
            return self.is_request_of_oneself(request, state);
        }
        let proven = Request {
            is_proven: true,
            ..*request
        };
        // A connection is in doubt only if the peer itself asks for another one.
        matches!(self.evaluate(&proven), Verdict::Accept | Verdict::Doubt)
    }

    /// Judges a request by the state of the peer that it names.
    pub(super) fn evaluate(&self, request: &Request) -> Verdict {
        let Some(peer) = self.peers.get(&request.from) else {
            let is_welcome = self.closing.is_none();
            let has_room = request.is_known || self.has_room_for(request.from);
            return match is_welcome && has_room {
                true => Verdict::Accept,
                false => Verdict::Reject,
            };
        };
        let is_unproven = !request.is_proven;
        let accept_if = |is_acceptable| match is_acceptable {
            true => Verdict::Accept,
            false => Verdict::Reject,
        };
        match peer.state {
            _ if self.closing.is_some() && peer.wanted.is_none() => Verdict::Reject,
            // The retired peer comes back, and is counted again.
            PeerState::Disconnected { .. } if peer.retired.is_some() => {
                accept_if(request.is_known || self.has_room_for(request.from))
            }
            PeerState::Disconnected { .. } if is_unproven && peer.contested && !peer.undialable => {
                Verdict::Dial
            }
            PeerState::Dialling { .. } if is_unproven && peer.contested => Verdict::Reject,
            PeerState::Disconnected { .. } | PeerState::Ending { .. } => Verdict::Accept,
            PeerState::Dialling { .. } => accept_if(wins(request.from, request.to)),
            PeerState::Accepting {
                proof: RequestProof::Unproven { .. } | RequestProof::Retracted,
                ..
            } if is_unproven => Verdict::Contest,
            // A peer that has a connection asks for no other: the peer may have given up the
            // connection that is up here.
            PeerState::Up { incarnation, .. } if incarnation == request.incarnation => {
                Verdict::Doubt
            }
            PeerState::Up { .. } if is_unproven => Verdict::Verify,
            PeerState::Up { .. } => Verdict::Accept,
            PeerState::Accepting { incarnation, .. } => {
                accept_if(incarnation != request.incarnation)
            }
        }
    }

    /// Dials the address of a connected peer by a second connection, since an unproven request
    /// names the peer with another incarnation. Does nothing if the peer cannot be dialled, if a
    /// verification of the peer is in progress or paused, or if too many verifications are in
    /// progress.
    pub(super) fn begin_verification(&mut self, at: PeerAddr, now: Instant) {
        let attempt = self.new_attempt();
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let is_due =
            peer.verification.is_none() && peer.next_verification.is_none_or(|after| after <= now);
        if !is_due || peer.undialable || self.verifications >= RDM_CHECKS_MAX {
            return;
        }
        let until = now + RDM_CHECK_TIMEOUT;
        peer.verification = Some(Verification { attempt, until });
        self.verifications += 1;
        self.commands
            .push_back(Command::Verify { peer: at, attempt });
        self.set_timer(at, now);
    }

    /// Ends a verification. False: the verification was given up before.
    pub(super) fn end_verification(&mut self, at: PeerAddr, attempt: AttemptId) -> bool {
        let Some(peer) = self.peers.get_mut(&at) else {
            return false;
        };
        let ended = peer.verification.take_if(|it| it.attempt == attempt);
        self.verifications -= usize::from(ended.is_some());
        ended.is_some()
    }

    /// Counts a failed verification, since the request was not the peer's: the pause before the
    /// next verification doubles.
    pub(super) fn count_failed_verification(&mut self, at: PeerAddr, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.next_verification = Some(now + pause_after(peer.failed_verifications));
            peer.failed_verifications = peer.failed_verifications.saturating_add(1);
        }
        self.set_timer(at, now);
    }

    /// Handles a verification that has become a connection with the listener at the peer's address.
    /// The new connection replaces a connection with another incarnation; if the old connection is
    /// ending or has ended, the new one is the peer's connection from now on.
    pub(crate) fn handle_verified(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        incarnation: u32,
        now: Instant,
    ) -> VerificationOutcome {
        if !self.end_verification(at, attempt) {
            return VerificationOutcome::Drop;
        }
        let takes_place = self.peers.get(&at).is_some_and(|peer| match peer.state {
            PeerState::Up {
                incarnation: held, ..
            } => held != incarnation,
            PeerState::Disconnected { .. } | PeerState::Ending { .. } => true,
            PeerState::Dialling { .. } | PeerState::Accepting { .. } => false,
        });
        if !takes_place {
            self.count_failed_verification(at, now);
            return VerificationOutcome::Drop;
        }
        self.adopt_connection(at, attempt, incarnation, now);
        VerificationOutcome::Promote
    }

    /// Handles a failed verification. `incarnation`: the listener at the peer's address has
    /// rejected the dial and reported this incarnation; `None`: it has reported none. Without a
    /// key, the reject proves as much as a connection does.
    pub(crate) fn handle_verification_failed(
        &mut self,
        at: PeerAddr,
        attempt: AttemptId,
        incarnation: Option<u32>,
        now: Instant,
    ) {
        if !self.end_verification(at, attempt) {
            return;
        }
        let Some(peer) = self.peers.get(&at) else {
            return;
        };
        match (peer.state, incarnation) {
            (
                PeerState::Up {
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
                self.set_timer(at, now);
            }
            _ => self.count_failed_verification(at, now),
        }
    }
}
