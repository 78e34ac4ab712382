//! What is known of one peer.

use std::time::Instant;

use super::{AttemptId, CLAIM_TIMEOUT};

/// Where the connection to a peer is.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// There is none, and none is begun before `until`.
    Away { until: Instant },
    /// Ours is under way. `aside`: the peer is this endpoint itself, and its request was accepted.
    Dialling { attempt: AttemptId, aside: bool },
    /// The peer's is under way.
    Accepting {
        attempt: AttemptId,
        incarnation: u32,
        since: Instant,
        /// It has proven the endpoint's key.
        is_proven: bool,
    },
    /// It is there.
    Up {
        attempt: AttemptId,
        incarnation: u32,
        since: Instant,
        /// What had gone over it when it was last looked at, if it could have been closed then.
        activity: Option<u64>,
        quiet_since: Instant,
        look_at: Option<Instant>,
    },
    /// It takes no posts any more, but has not ended.
    Ending { attempt: AttemptId, since: Instant },
}

impl State {
    pub(super) fn attempt(&self) -> Option<AttemptId> {
        match self {
            State::Away { .. } => None,
            State::Dialling { attempt, .. }
            | State::Accepting { attempt, .. }
            | State::Up { attempt, .. }
            | State::Ending { attempt, .. } => Some(*attempt),
        }
    }
}

/// The peer's address is dialled on the side, since somebody claims to be the peer in another life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) attempt: AttemptId,
    /// It is given up then.
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) state: State,
    /// Something waits for a connection, since then.
    pub(super) wanted: Option<Instant>,
    /// Attempts that came to nothing since a connection held.
    pub(super) failures: u32,
    /// Rejections in a row.
    pub(super) rejections: u32,
    /// It said that it cannot be dialled.
    pub(super) undialable: bool,
    /// It came by itself, and nothing was posted to it yet.
    pub(super) uninvited: bool,
    /// Several claimed to be it, or one that did kept others waiting: it is dialled, and no claim
    /// accepted, until it is connected.
    pub(super) contested: bool,
    /// The attempt that was given up for that.
    pub(super) retracted: Option<AttemptId>,
    pub(super) check: Option<Check>,
    /// No check before that, after so many that found the claim wrong.
    pub(super) check_after: Option<Instant>,
    pub(super) checks_in_vain: u32,
    /// It is only remembered: its place among those that are.
    pub(super) gone: Option<u64>,
    /// When to look at it.
    pub(super) alarm: Option<Instant>,
}

impl Peer {
    pub(super) fn new(now: Instant) -> Self {
        Peer {
            state: State::Away { until: now },
            wanted: None,
            failures: 0,
            rejections: 0,
            undialable: false,
            uninvited: false,
            contested: false,
            retracted: None,
            check: None,
            check_after: None,
            checks_in_vain: 0,
            gone: None,
            alarm: None,
        }
    }

    /// When the attempt of one that only claims to be this peer is given up.
    pub(super) fn claim_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Accepting {
                attempt,
                since,
                is_proven: false,
                ..
            } if self.retracted != Some(attempt) => {
                (self.wanted.is_some() || self.contested).then(|| since + CLAIM_TIMEOUT)
            }
            _ => None,
        }
    }
}
