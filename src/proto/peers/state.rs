//! What is known of one peer.

use std::time::Instant;

use super::AttemptId;

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
            alarm: None,
        }
    }
}
