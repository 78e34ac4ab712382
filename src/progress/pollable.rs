//! The trait of the objects that the driver polls: connections, datagram endpoints and shared
//! receive contexts.

use std::sync::Arc;
use std::time::Instant;

use crate::transport::Clock;

use super::budget::Budget;
use super::liveness::{HeartbeatTimer, NextHeartbeat, PeerLiveness};
use super::port::Port;

/// The time of a port's next turn, as decided at the end of its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTurn {
    /// When it is woken, or at the alarm.
    WhenWoken,
    /// After the other ready ports: the port spent the budget, and stays queued.
    Requeued,
    /// Never: it has ended.
    Never,
}

/// The result of a turn, for the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnResult {
    pub(super) next: NextTurn,
    /// Deadline to register, unless an earlier one is registered.
    pub(super) alarm: Option<Instant>,
    /// Deadline that was registered and is no longer wanted.
    pub(super) stale_alarm: Option<Instant>,
    /// Number of operations that ended in the turn.
    pub(super) completions: u64,
}

pub(super) trait Pollable: Send + Sync {
    /// Takes one turn that begins now. It stays within the budget, except for one step of each
    /// kind.
    fn turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> TurnResult;

    /// Takes a turn that begins now, if the socket has anything although the reactor has not
    /// reported it ready.
    fn try_turn(&self, _: Instant, _: &dyn Clock, _: &mut Budget) -> Option<TurnResult> {
        None
    }

    /// Begins or ends busy polling by [`try_turn`](Self::try_turn).
    fn set_polled(&self, _polled: bool) {}

    /// Called when a region was closed: takes back kernel operations on regions. Returns true if
    /// there were any.
    fn regions_changed(&self) -> bool {
        false
    }

    /// Returns the time for which the next heartbeat is registered.
    fn next_heartbeat(&self) -> Option<Instant> {
        None
    }

    /// Handles a heartbeat: judges whether the peer is alive.
    fn heartbeat(
        &self,
        _now: Instant,
        _timer: HeartbeatTimer,
        _peers: &mut PeerLiveness,
        _had_turn: bool,
    ) -> NextHeartbeat {
        NextHeartbeat::At(None)
    }

    /// Returns the connection, if this is one.
    fn connection(self: Arc<Self>) -> Option<Arc<Port>> {
        None
    }

    /// Begins the orderly close.
    fn begin_close(&self);

    /// Ends everything at once: the driver is going away.
    fn driver_gone(&self);
}

impl Pollable for Port {
    fn turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> TurnResult {
        self.turn(now, clock, budget)
    }

    fn try_turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> Option<TurnResult> {
        self.try_turn(now, clock, budget)
    }

    fn set_polled(&self, polled: bool) {
        if let Some(link) = &mut self.lock("busy polling").io.link {
            link.set_polled(polled);
        }
    }

    fn regions_changed(&self) -> bool {
        // The machine resolves each region again before it hands the region out.
        self.lock("regions changed").io.cancel_leased()
    }

    fn next_heartbeat(&self) -> Option<Instant> {
        self.next_heartbeat()
    }

    fn heartbeat(
        &self,
        now: Instant,
        timer: HeartbeatTimer,
        peers: &mut PeerLiveness,
        had_turn: bool,
    ) -> NextHeartbeat {
        self.heartbeat(now, timer, peers, had_turn)
    }

    fn connection(self: Arc<Self>) -> Option<Arc<Port>> {
        Some(self)
    }

    fn begin_close(&self) {
        self.end_service();
        self.begin_close();
    }

    fn driver_gone(&self) {
        self.driver_gone();
    }
}
