//! The state guarded by a port's lock, by concern, and which of its states occur together.
//!
//! A port combines several state machines, each with its drawing: the connection's
//! [`Lifecycle`](crate::proto::Lifecycle), the [`LinkLife`], the peer's liveness, and whether the
//! end was delivered (`closed.rs`). What is [submitted](Submitted) is asked of the link. Whenever
//! the lock is released one of these rows holds, which debug builds check ([`PortState::check`]):
//!
//! | life | lifecycle | link | receive | send | closed |
//! |---|---|---|---|---|---|
//! | Open, Flushing, Draining | Idle | - | - | - | Open |
//! | Open, Flushing, Draining | Connecting, Accepting, Connected | yes | any | any | Open |
//! | AwaitingEof | Connected | yes | any | - | Open |
//! | Retracting | Connecting, Accepting, Connected | yes | any | any | Open |
//! | Lingering | Closed | yes | without leases, no watch | - | InOrder, Lost |
//! | Closed | Closed | - or yes until the next turn | any, with a link | - | InOrder, Lost |
//!
//! A port of a connectionless endpoint has five more fields (`rdm/attachment.rs`), which are
//! checked too:
//!
//! | | is set |
//! |---|---|
//! | `attempt` | while Connecting; it stays when the connection is up |
//! | `after` | in Retracting, and only there |
//! | `superseded` | from Draining on; before that once either side begins to close |
//! | `carries_over` | from a reconnection on, until its connection is up |
//! | `presence` | from Connected on, over reconnections, until the end was delivered |
//!
//! Also: a batch is submitted exactly while the machine has handed one out; the end of a stream is
//! not watched once the stream has ended; and a dead peer is a fault of the connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::buf::Stage;
use crate::cq::CqSlot;
use crate::error::{Error, Result};
use crate::id::UserContext;
use crate::progress::commit::Commit;
use crate::progress::deadlines::Deadlines;
use crate::progress::deferred::Deferred;
use crate::progress::inline_send::{InlineSend, PeerProcessor};
use crate::progress::link_life::LinkLife;
use crate::progress::liveness::PortLiveness;
use crate::progress::local::LocalState;
use crate::progress::pollable::NextTurn;
use crate::progress::receive_context::PortReceives;
use crate::progress::report::Report;
use crate::proto::Connection;
use crate::sync::Waiters;
use crate::transport::{Link, Submitted};

use super::{Bindings, PortCounts, PortKind, PortParts};

/// Everything that a port's lock guards.
pub(in crate::progress) struct PortState {
    /// The protocol: operations, frames, matching.
    pub(in crate::progress) machine: Connection<Report>,
    /// The link, from which the machine receives and to which it sends.
    pub(in crate::progress) io: PortIo,
    /// The result of connecting.
    pub(in crate::progress) connect: ConnectResult,
    /// The state of the link, from its beginning to its end.
    pub(in crate::progress) life: LinkLife,
    /// The wakers of futures that await the end.
    pub(in crate::progress) close_waiters: Waiters,
    /// Wakers of the readers of inboxes.
    pub(in crate::progress) readers: Option<Box<Waiters>>,
    pub(in crate::progress) liveness: PortLiveness,
    pub(in crate::progress) timers: PortTimers,
    pub(in crate::progress) inline_send: InlineSend,
    pub(in crate::progress) bindings: Bindings,
    /// Slots reserved for completions of peers' writes whose payload is being received.
    pub(in crate::progress) remote_slots: VecDeque<CqSlot>,
    /// A peer's write that is being made persistent.
    pub(in crate::progress) committing: Option<Arc<Commit>>,
    pub(in crate::progress) kind: PortKind,
    /// The receives that it shares with other ports; `None`: the machine has its own.
    pub(in crate::progress) receives: Option<Box<PortReceives>>,
    /// Incremented by every post and every receive, to distinguish idle connections from active
    /// ones.
    pub(in crate::progress) activity: u64,
    pub(in crate::progress) counts: PortCounts,
    #[cfg(feature = "metrics")]
    pub(in crate::progress) latencies: super::LatencySampler,
    pub(in crate::progress) deferred: Deferred,
}

/// The link, and the submissions to it.
pub(in crate::progress) struct PortIo {
    pub(in crate::progress) link: Option<Box<dyn Link>>,
    pub(in crate::progress) peer_processor: PeerProcessor,
    /// The progress of the link's move to shared memory.
    pub(in crate::progress) path: LocalState,
    /// Received bytes that the machine has not taken yet.
    pub(in crate::progress) stage: Option<Stage>,
    pub(in crate::progress) peer: Option<SocketAddr>,
    pub(in crate::progress) local: Option<SocketAddr>,
}

impl PortIo {
    fn new(peer: Option<SocketAddr>) -> Self {
        PortIo {
            link: None,
            peer_processor: PeerProcessor::default(),
            path: LocalState::default(),
            stage: None,
            peer,
            local: None,
        }
    }

    /// Returns the link's pending submissions.
    pub(in crate::progress) fn submitted(&self) -> Submitted {
        let link = self.link.as_ref();
        link.map(|link| link.submitted()).unwrap_or_default()
    }

    /// Takes back everything that was submitted to the link.
    pub(in crate::progress) fn cancel_submitted(&mut self) {
        if let Some(link) = &mut self.link {
            link.cancel_receive();
            link.cancel_send();
        }
    }

    /// Takes back the submissions that hold leases of regions that peers can access. Returns true
    /// if there were any.
    pub(in crate::progress) fn cancel_leased(&mut self) -> bool {
        let leases = self.submitted().leases;
        if leases {
            self.cancel_submitted();
        }
        leases
    }

    /// Ends our stream.
    pub(in crate::progress) fn finish_stream(&mut self) {
        if let Some(link) = &mut self.link {
            link.finish();
        }
    }

    /// Drops the link, which ends everything submitted before its memory is freed.
    pub(in crate::progress) fn drop_link(&mut self) {
        self.link = None;
        self.path.go(LocalState::default());
    }

    /// Resets everything for another attempt. Called once the link has returned everything.
    pub(in crate::progress) fn reset(&mut self) {
        self.drop_link();
        *self = PortIo::new(self.peer);
    }
}

/// The result of connecting, for the future that awaits it.
#[derive(Debug, Default)]
pub(in crate::progress) struct ConnectResult {
    pub(in crate::progress) result: Option<Result<Bytes>>,
    pub(in crate::progress) waker: Option<Waker>,
    /// The context given with the call, reported with its event.
    pub(in crate::progress) context: Option<UserContext>,
    /// True from the acceptance of a request until there is a result: the connection comes from the
    /// listener, or is being established.
    pub(in crate::progress) is_accepting: bool,
    /// True if the last handle was dropped while accepting: the connection is established, then
    /// closed.
    pub(in crate::progress) is_abandoned: bool,
}

/// Times at which the port must have a turn.
#[derive(Debug, Default)]
pub(in crate::progress) struct PortTimers {
    /// Deadlines of operations with a time limit.
    pub(in crate::progress) deadlines: Deadlines,
    /// The time for which the driver has registered a turn of this port.
    pub(in crate::progress) alarm: Option<Instant>,
    /// A registered time that the driver must remove.
    pub(in crate::progress) stale_alarm: Option<Instant>,
}

impl PortTimers {
    /// Returns the alarm to register. `None` after the last turn, or if an alarm as early is
    /// registered. `other`: a deadline besides those of operations. The driver has one alarm per
    /// port: a later one that is registered becomes [stale](Self::stale_alarm).
    pub(in crate::progress) fn next_alarm(
        &mut self,
        turn: NextTurn,
        now: Instant,
        other: Option<Instant>,
    ) -> Option<Instant> {
        if turn == NextTurn::Never {
            self.cancel_alarm();
            return None;
        }
        self.alarm = self.alarm.filter(|at| *at > now);
        let next = other.into_iter().chain(self.deadlines.first()).min()?;
        if self.alarm.is_some_and(|at| at <= next) {
            return None;
        }
        self.cancel_alarm();
        self.alarm = Some(next);
        Some(next)
    }

    /// Cancels the alarm. Otherwise each connection that has come up would get a needless turn.
    pub(in crate::progress) fn cancel_alarm(&mut self) {
        self.stale_alarm = self.alarm.take().or(self.stale_alarm);
    }
}

impl PortState {
    pub(super) fn new(parts: PortParts, bindings: Bindings, liveness: PortLiveness) -> Self {
        PortState {
            machine: parts.machine,
            io: PortIo::new(parts.peer),
            connect: ConnectResult::default(),
            life: LinkLife::new(),
            close_waiters: Waiters::default(),
            readers: None,
            liveness,
            timers: PortTimers::default(),
            inline_send: InlineSend::default(),
            bindings,
            remote_slots: VecDeque::new(),
            committing: None,
            kind: parts.kind,
            receives: parts.receives,
            activity: 0,
            counts: PortCounts::default(),
            #[cfg(feature = "metrics")]
            latencies: super::LatencySampler::default(),
            deferred: Deferred::default(),
        }
    }

    /// Binds proofs of a key to the connection, if the connection is secure.
    pub(in crate::progress) fn bind_proofs(&mut self) {
        let link = self.io.link.as_ref();
        if let Some(identity) = link.and_then(|link| link.peer_identity()) {
            self.machine.bind_proofs(identity.binding);
        }
    }

    /// Adds the peer's address to the error, if it is known.
    pub(in crate::progress) fn about_peer(&self, error: Error) -> Error {
        match self.io.peer {
            Some(peer) => error.with_peer(peer),
            None => error,
        }
    }

    /// Checks the states against the module's table.
    #[cfg(debug_assertions)]
    pub(super) fn check(&self, is_superseded: bool) {
        use crate::progress::link_life::LinkState;
        use crate::proto::Lifecycle;
        use Lifecycle::{Accepting, Connected, Connecting, Idle};
        use LinkState::{AwaitingEof, Closed, Draining, Flushing, Lingering, Open, Retracting};

        let (life, lifecycle) = (self.life.state(), self.machine.lifecycle());
        let (has_link, submitted) = (self.io.link.is_some(), self.io.submitted());
        let is_row = match (life, lifecycle) {
            (Open | Flushing | Draining, Idle) => !has_link,
            (Open | Flushing | Draining | Retracting, Connecting | Accepting | Connected) => {
                has_link
            }
            (AwaitingEof, Connected) => has_link && !submitted.send,
            (Lingering, Lifecycle::Closed { .. }) => {
                has_link && !submitted.send && !submitted.watch && !submitted.leases
            }
            (Closed, Lifecycle::Closed { .. }) => !submitted.send,
            _ => false,
        };
        let has_ended = lifecycle.is_closed();
        let is_rdm_row = match &self.kind {
            PortKind::Msg => !is_superseded,
            PortKind::Rdm(attachment) => {
                let is_up = lifecycle == Connected && life != Retracting;
                (lifecycle != Connecting || attachment.has_attempt())
                    && (life == Retracting) == attachment.is_followed()
                    && (is_superseded || !self.life.is_final())
                    && !(is_up && attachment.carries_over())
                    && (!has_ended && (is_up || attachment.carries_over()))
                        == attachment.is_reported_up()
            }
        };
        let is_consistent = is_row
            && is_rdm_row
            && submitted.send == self.machine.is_transmit_out()
            && (!submitted.watch || self.machine.may_hear_end() || self.machine.fault().is_some())
            && (!self.liveness.machine.is_dead() || self.machine.fault().is_some());
        assert!(
            is_consistent,
            "no such state of a port: {life:?}, {lifecycle:?}, link {has_link}, {submitted:?}, \
             superseded {is_superseded}, {is_rdm_row}, {:?}",
            self.liveness.machine,
        );
    }
}
