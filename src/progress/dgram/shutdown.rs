//! The end of a datagram endpoint: queued sends are sent if there is room for them in time.
//!
//! ```text
//!          close requested            the driver runs             sent, or late
//!   Open ──────────────────▶ Requested ──────────────▶ Flushing ────────────────▶ Closed
//!     └──────────── the driver ends ───────┴──────────────────────────────────────────▲
//! ```

use std::time::Instant;

use crate::edges::{check_edge, state_machine};
use crate::limits::DATAGRAM_FLUSH_TIMEOUT;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DgramShutdownState {
    #[default]
    Open,
    /// No post is accepted any more. The flush waits for the driver, which alone has the backend's
    /// clock.
    Requested,
    /// Queued sends wait for room.
    Flushing,
    Closed,
}

use DgramShutdownState::{Closed, Flushing, Open, Requested};

state_machine! { DgramShutdownState {
    Open => [Requested, Closed],
    Requested => [Flushing, Closed],
    Flushing => [Closed],
    Closed => [],
}}

#[derive(Debug, Default)]
pub(super) struct DgramShutdown {
    state: DgramShutdownState,
    /// Meaningful while flushing.
    deadline: Option<Instant>,
}

impl DgramShutdown {
    /// Returns true while the endpoint is closing, and has not ended.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, Requested | Flushing)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == Closed
    }

    /// Returns the time until which queued sends may wait for room.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn request(&mut self) {
        if self.state == Open {
            self.go(Requested);
        }
    }

    /// Called when the driver runs. Returns true if the endpoint must end now.
    pub(super) fn on_tick(&mut self, now: Instant, has_queued: bool) -> bool {
        if self.state == Requested {
            self.go(Flushing);
            self.deadline = now.checked_add(DATAGRAM_FLUSH_TIMEOUT);
        }
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        self.state == Flushing && (!has_queued || is_late)
    }

    pub(super) fn close(&mut self) {
        if self.state != Closed {
            self.go(Closed);
        }
    }

    /// Moves along a legal edge, which voids the deadline.
    fn go(&mut self, to: DgramShutdownState) {
        check_edge(&self.state, &to);
        self.state = to;
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::EdgeCoverage;

    #[test]
    fn every_edge_of_the_end_is_walked() {
        let coverage = EdgeCoverage::begin("DgramShutdownState");
        let now = Instant::now();
        for (requests, flushes) in [(false, false), (true, false), (true, true)] {
            let mut shutdown = DgramShutdown::default();
            assert!(!shutdown.is_closing() && !shutdown.on_tick(now, false));
            if requests {
                shutdown.request();
                assert!(shutdown.is_closing());
            }
            if flushes {
                assert!(!shutdown.on_tick(now, true));
                assert!(shutdown.on_tick(now, false), "all has gone");
                let late = shutdown.deadline().expect("it does not wait indefinitely");
                assert!(shutdown.on_tick(late, true));
            }
            shutdown.close();
            assert!(!shutdown.is_closing() && shutdown.deadline().is_none());
        }
        coverage.expect_all();
    }
}
