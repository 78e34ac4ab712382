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
    /// Connections that have been idle for this long are closed; `None`: never.
    pub(crate) idle: Option<Duration>,
    /// Maximum number of connected peers that the application has not asked for.
    pub(crate) strangers_max: usize,
}

/// A peer's request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The sender: the address that it connects from, with the port at which it says it listens.
    pub(crate) from: PeerAddr,
    /// Our address, as the sender knows it.
    pub(crate) to: PeerAddr,
    /// The sender's incarnation.
    pub(crate) incarnation: u32,
    /// The sender cannot be dialled (the firewall bit).
    pub(crate) undialable: bool,
    /// The sender has proven the endpoint's key.
    pub(crate) is_proven: bool,
    /// The application knows the sender's address: no quota applies.
    pub(crate) is_known: bool,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Reject,
    /// Accept, as this attempt; an attempt that this side has begun is given up.
    Accept(AttemptId),
    /// Accept the other side of a connection to ourselves, which only receives.
    AcceptSelf,
}

/// The reason why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Passing,
    /// The peer rejected the attempt.
    Rejected,
    /// No attempt will succeed.
    Final,
}

/// The reason why a peer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The connect deadline has passed.
    Deadline,
    /// The peer has rejected too many attempts in a row.
    Rejected,
    /// No attempt will succeed.
    Final,
    /// The peer cannot be dialled, and is not connected.
    Undialable,
}

/// The reason why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// The connection is idle: closed in order.
    Idle,
    /// The peer has restarted, and does not know the connection.
    Restarted,
}

/// A task for the owner; commands are run in order.
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
    /// Ask the peer now, over this connection, whether it still has the connection: its request
    /// says otherwise. Without an answer, the connection ends as lost.
    Doubt {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// Dial the peer's address by a second connection, which does not use the port of the first
    /// one, and report the result by [`Peers::handle_verified`] or
    /// [`Peers::handle_verification_failed`].
    Verify {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// End a verification that has timed out.
    EndVerification {
        attempt: AttemptId,
    },
    /// Give up the attempt that the peer's request began, as failed, unless the bytes that have
    /// come on it make it a connection.
    Retract {
        peer: PeerAddr,
        attempt: AttemptId,
    },
    /// End the operations that wait for this peer, and give up an attempt in progress.
    GiveUp {
        peer: PeerAddr,
        why: GiveUp,
    },
}
