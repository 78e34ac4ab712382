//! The values that [`Peers`] and its owner exchange.

use std::time::Duration;

use super::AttemptId;
#[cfg(doc)]
use super::Peers;
use crate::id::PeerAddr;

/// The settings of an endpoint's peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSettings {
    /// A random number that changes when the endpoint is opened anew.
    pub(crate) incarnation: u32,
    /// How long an operation may wait for a connection.
    pub(crate) connect_deadline: Duration,
    /// Connections that are idle for so long are closed; `None`: never.
    pub(crate) idle: Option<Duration>,
    /// How many peers may be connected that the application has not asked for.
    pub(crate) strangers_max: usize,
}

/// A peer's request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The sender: the address it comes from, with the port that it says it listens at.
    pub(crate) from: PeerAddr,
    /// Our address, as the sender knows it.
    pub(crate) to: PeerAddr,
    /// The sender's incarnation.
    pub(crate) incarnation: u32,
    /// It cannot be dialled (the firewall bit).
    pub(crate) undialable: bool,
    /// It has proven the endpoint's key.
    pub(crate) is_proven: bool,
    /// The application knows its address: no quota applies.
    pub(crate) is_known: bool,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Reject,
    /// Accept; an attempt of ours is given up for it.
    Accept(AttemptId),
    /// Accept the other side of a connection to ourselves, which only receives.
    AcceptSelf,
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Passing,
    /// The peer rejected it.
    Rejected,
    /// No attempt will succeed.
    Final,
}

/// Why a peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The connect deadline has passed.
    Deadline,
    /// It has rejected too many attempts in a row.
    Rejected,
    /// No attempt will succeed.
    Final,
    /// It cannot be dialled, and is not connected.
    Undialable,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// It is idle: closed in order.
    Idle,
    /// The peer has restarted, and knows nothing of it.
    Restarted,
}

/// What the owner is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Dial {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// Report the traffic of this connection by [`Peers::handle_activity`].
    CheckIdle {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    Close {
        peer: PeerAddr,
        attempt: AttemptId,
        why: Close,
    },
    /// Ask over this connection, now, whether the peer still has it: its request says otherwise. If
    /// it does not answer, the connection ends as lost.
    Doubt {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// Dial the peer's address on the side, without its port, and report the result by
    /// [`Peers::handle_verified`] or [`Peers::handle_verification_failed`].
    Verify {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// A verification has timed out.
    EndVerification {
        attempt: AttemptId,
    },
    /// Give up an attempt that the peer's request began, since it has failed, unless the bytes that
    /// have come on it make it a connection.
    Retract {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// End what waits for this peer, and give up an attempt in progress.
    GiveUp {
        peer: PeerAddr,
        why: GiveUp,
    },
}
