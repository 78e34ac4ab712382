//! What the driver drives: connections, and the sockets of datagram endpoints.

use std::sync::Arc;
use std::time::Instant;

use crate::transport::Clock;

use super::budget::Budget;
use super::liveness::{HeartbeatTimer, PeerLiveness};
use super::port::Port;

/// What a turn has left to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turned {
    /// Nothing, for ever.
    pub(super) is_over: bool,
    /// More at once: the budget was spent.
    pub(super) is_cut: bool,
    /// When there must be another turn, if no earlier one was asked for.
    pub(super) alarm: Option<Instant>,
    /// The turn that was asked for then is not wanted any more.
    pub(super) stale: Option<Instant>,
}

pub(super) trait Driven: Send + Sync {
    /// One turn that begins now, within what is left, but for a step of each kind.
    fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> Turned;

    /// Tries its socket without the reactor's word. True if there was anything: a turn is due.
    fn try_link(&self) -> bool;

    /// A region was closed: takes kernel operations on it back. True if there were any.
    fn regions_changed(&self) -> bool {
        false
    }

    /// When the timer has its next heartbeat, and whether it must have a turn before that.
    fn before_heartbeat(&self, _now: Instant, _peers: &PeerLiveness) -> (Option<Instant>, bool) {
        (None, false)
    }

    /// Judges whether its peer is alive. When to do so again.
    fn heartbeat(
        &self,
        _now: Instant,
        _timer: HeartbeatTimer,
        _peers: &mut PeerLiveness,
    ) -> Option<Instant> {
        None
    }

    /// The connection that it is, if it is one.
    fn connection(self: Arc<Self>) -> Option<Arc<Port>> {
        None
    }

    /// It is to end in order.
    fn begin_close(&self);

    /// The driver is going away: everything ends here and now.
    fn driver_gone(&self);
}

impl Driven for Port {
    fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> Turned {
        self.turn(now, clock, left)
    }

    fn try_link(&self) -> bool {
        self.try_link()
    }

    fn regions_changed(&self) -> bool {
        self.regions_changed()
    }

    fn before_heartbeat(&self, now: Instant, peers: &PeerLiveness) -> (Option<Instant>, bool) {
        self.before_heartbeat(now, peers)
    }

    fn heartbeat(
        &self,
        now: Instant,
        timer: HeartbeatTimer,
        peers: &mut PeerLiveness,
    ) -> Option<Instant> {
        self.heartbeat(now, timer, peers)
    }

    fn connection(self: Arc<Self>) -> Option<Arc<Port>> {
        Some(self)
    }

    fn begin_close(&self) {
        self.begin_close();
    }

    fn driver_gone(&self) {
        self.driver_gone();
    }
}
