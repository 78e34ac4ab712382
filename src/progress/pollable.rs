//! What the driver polls: connections, and the sockets of datagram endpoints.

use std::sync::Arc;
use std::time::Instant;

use crate::transport::Clock;

use super::budget::Budget;
use super::liveness::{HeartbeatTimer, NextHeartbeat, PeerLiveness};
use super::port::Port;

/// When a port has its next turn, as far as its last one knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTurn {
    /// When it is woken, or at the alarm.
    WhenWoken,
    /// As soon as the others have had theirs: it spent the budget, and is queued still.
    Requeued,
    /// Never: it has ended.
    Never,
}

/// What a turn leaves to the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnResult {
    pub(super) next: NextTurn,
    /// A deadline to be registered, if none is registered for as early.
    pub(super) alarm: Option<Instant>,
    /// One that was registered, and is not wanted any more.
    pub(super) stale_alarm: Option<Instant>,
    /// Operations that ended in it.
    pub(super) completions: u64,
}

pub(super) trait Pollable: Send + Sync {
    /// One turn that begins now, within the budget, but for one step of each kind.
    fn turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> TurnResult;

    /// A turn that begins now, if its socket has anything although the reactor has not reported it
    /// ready.
    fn try_turn(&self, _: Instant, _: &dyn Clock, _: &mut Budget) -> Option<TurnResult> {
        None
    }

    /// A region was closed: takes kernel operations on it back. True if there were any.
    fn regions_changed(&self) -> bool {
        false
    }

    /// When its next heartbeat is registered for.
    fn next_heartbeat(&self) -> Option<Instant> {
        None
    }

    /// A heartbeat: judges whether its peer is alive.
    fn heartbeat(
        &self,
        _now: Instant,
        _timer: HeartbeatTimer,
        _peers: &mut PeerLiveness,
        _had_turn: bool,
    ) -> NextHeartbeat {
        NextHeartbeat::At(None)
    }

    /// The connection that it is, if it is one.
    fn connection(self: Arc<Self>) -> Option<Arc<Port>> {
        None
    }

    /// Begins its orderly end.
    fn begin_close(&self);

    /// The driver is going away: everything ends here and now.
    fn driver_gone(&self);
}

impl Pollable for Port {
    fn turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> TurnResult {
        self.turn(now, clock, budget)
    }

    fn try_turn(&self, now: Instant, clock: &dyn Clock, budget: &mut Budget) -> Option<TurnResult> {
        self.try_turn(now, clock, budget)
    }

    fn regions_changed(&self) -> bool {
        self.regions_changed()
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
