//! What the driver drives: connections, and the sockets of datagram endpoints.

use std::sync::Arc;
use std::time::Instant;

use super::liveness::VisitGrid;
use super::port::Port;

pub(super) trait Driven: Send + Sync {
    /// One turn. Returns whether it is over, and when it must have a turn, if no earlier one was
    /// asked for.
    fn turn(&self, now: Instant) -> (bool, Option<Instant>);

    /// Tries its socket without the reactor's word. True if there was anything: a turn is due.
    fn try_link(&self) -> bool;

    /// A region was closed: takes kernel operations on it back. True if there were any.
    fn regions_changed(&self) -> bool {
        false
    }

    /// The next visit it is listed for, and whether it must have a turn first.
    fn before_visit(&self) -> (Option<Instant>, bool) {
        (None, false)
    }

    /// Looks for its peer's signs of life. When to do so again.
    fn visit(&self, _now: Instant, _grid: VisitGrid) -> Option<Instant> {
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
    fn turn(&self, now: Instant) -> (bool, Option<Instant>) {
        self.turn(now)
    }

    fn try_link(&self) -> bool {
        self.try_link()
    }

    fn regions_changed(&self) -> bool {
        self.regions_changed()
    }

    fn before_visit(&self) -> (Option<Instant>, bool) {
        self.before_visit()
    }

    fn visit(&self, now: Instant, grid: VisitGrid) -> Option<Instant> {
        self.visit(now, grid)
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
