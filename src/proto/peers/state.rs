//! The state of one peer.

use std::time::{Duration, Instant};

use super::AttemptId;
use crate::edges::{check_edge, state_machine};
use crate::limits::{RDM_CLAIM_PARTS, RDM_CLAIM_TIMEOUT};

/// The state of the connection to a peer, drawn in the [module](super).
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerState {
    /// There is no connection, and none is begun before `until`.
    Disconnected { until: Instant },
    /// Our attempt is in progress. `is_self_accepted`: the peer is this endpoint itself, and its
    /// request was accepted.
    Dialling {
        attempt: AttemptId,
        is_self_accepted: bool,
    },
    /// The peer's attempt is in progress.
    Accepting {
        attempt: AttemptId,
        incarnation: u32,
        proof: RequestProof,
    },
    /// The connection is up.
    Up {
        attempt: AttemptId,
        incarnation: u32,
        since: Instant,
        /// The traffic at the last idle check, if the connection could have been closed then.
        activity: Option<u64>,
        quiet_since: Instant,
        idle_check_at: Option<Instant>,
    },
    /// The connection takes no posts, but has not ended.
    Ending { attempt: AttemptId, since: Instant },
}

/// Whether an accepted request has proven the endpoint's key. If not, how much of its time is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestProof {
    Proven,
    /// `parts_left` parts of [`RDM_CLAIM_TIMEOUT`] are left; the current one ends at `part_ends`.
    Unproven {
        parts_left: u32,
        part_ends: Instant,
    },
    /// Unproven, and the attempt was retracted: it ends soon, unless it succeeds before.
    Retracted,
}

// Disconnected follows itself when a peer is given up or paused anew; Accepting, when another
// incarnation asks; Up, when a verification shows that the peer has restarted.
state_machine! { PeerState {
    Disconnected => [Dialling, Accepting, Up, Disconnected],
    Dialling => [Accepting, Up, Disconnected],
    Accepting => [Accepting, Up, Disconnected],
    Up => [Accepting, Up, Ending, Disconnected],
    Ending => [Accepting, Up, Disconnected],
}}

impl PeerState {
    pub(super) fn attempt(&self) -> Option<AttemptId> {
        match self {
            PeerState::Disconnected { .. } => None,
            PeerState::Dialling { attempt, .. }
            | PeerState::Accepting { attempt, .. }
            | PeerState::Up { attempt, .. }
            | PeerState::Ending { attempt, .. } => Some(*attempt),
        }
    }
}

/// A dial of the peer's address by a second connection, since an unproven request names the peer
/// with another incarnation than that of its first connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verification {
    pub(super) attempt: AttemptId,
    /// Time at which the verification times out.
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: PeerState,
    /// The time since which an operation waits for a connection, if one does.
    pub(super) wanted: Option<Instant>,
    /// Failed attempts since the last connection that held.
    pub(super) failures: u32,
    /// Rejections in a row.
    pub(super) rejections: u32,
    /// The peer has reported that it cannot be dialled.
    pub(super) undialable: bool,
    /// The application did not know the peer when it connected, and has posted nothing to it yet.
    pub(super) unsolicited: bool,
    /// Several unproven requests named the peer, or one delayed an operation: until the peer is
    /// connected, it is dialled, and no unproven request in its name is accepted.
    pub(super) contested: bool,
    pub(super) verification: Option<Verification>,
    /// No verification begins before this time, after failed ones.
    pub(super) next_verification: Option<Instant>,
    pub(super) failed_verifications: u32,
    /// The peer's number among the retired peers, if it is only remembered.
    pub(super) retired: Option<u64>,
    /// Time of the peer's next update.
    pub(super) timer: Option<Instant>,
}

/// Returns the length of one part of an unproven attempt's time.
fn claim_part() -> Duration {
    RDM_CLAIM_TIMEOUT / RDM_CLAIM_PARTS
}

impl RequestProof {
    /// Returns the proof of a request that is accepted now.
    pub(super) fn of_request(is_proven: bool, now: Instant) -> Self {
        match is_proven {
            true => RequestProof::Proven,
            false => RequestProof::Unproven {
                parts_left: RDM_CLAIM_PARTS,
                part_ends: now + claim_part(),
            },
        }
    }
}

impl Peer {
    pub(super) fn new(now: Instant) -> Self {
        Peer {
            state: PeerState::Disconnected { until: now },
            wanted: None,
            failures: 0,
            rejections: 0,
            undialable: false,
            unsolicited: false,
            contested: false,
            verification: None,
            next_verification: None,
            failed_verifications: 0,
            retired: None,
            timer: None,
        }
    }

    /// Moves along a legal edge.
    pub(super) fn go(&mut self, to: PeerState) {
        check_edge(&self.state, &to);
        self.state = to;
    }

    /// Marks the peer as up, and clears its rejections, contest and failed verifications.
    pub(super) fn connected(&mut self, attempt: AttemptId, incarnation: u32, now: Instant) {
        self.wanted = None;
        self.rejections = 0;
        self.contested = false;
        self.failed_verifications = 0;
        self.next_verification = None;
        self.go(PeerState::Up {
            attempt,
            incarnation,
            since: now,
            activity: None,
            quiet_since: now,
            idle_check_at: None,
        });
    }

    /// Returns when the current part of the unproven attempt's time ends, if that time is limited.
    pub(super) fn unproven_part_ends(&self) -> Option<Instant> {
        match self.state {
            PeerState::Accepting {
                proof: RequestProof::Unproven { part_ends, .. },
                ..
            } => (self.wanted.is_some() || self.contested).then_some(part_ends),
            _ => None,
        }
    }

    /// Ends a part of the unproven attempt's time. True if that was the last part: the attempt has
    /// to be retracted.
    pub(super) fn end_unproven_part(&mut self, now: Instant) -> bool {
        let PeerState::Accepting { proof, .. } = &mut self.state else {
            return false;
        };
        let RequestProof::Unproven {
            parts_left,
            part_ends,
        } = proof
        else {
            return false;
        };
        // While this side was late, the peer could not prove itself, or its proof lies unread. The
        // time before an operation waited for the peer also ends with a late part.
        let is_late = now.saturating_duration_since(*part_ends) >= claim_part() / 2;
        *parts_left -= u32::from(!is_late);
        *part_ends = now + claim_part();
        let is_last = *parts_left == 0;
        if is_last {
            *proof = RequestProof::Retracted;
        }
        is_last
    }
}
