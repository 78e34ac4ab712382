//! How a datagram endpoint ends: what is queued goes out if there is room for it in time.
//!
//! ```text
//!          close requested            the driver runs             sent, or late
//!   Open ──────────────────▶ Requested ──────────────▶ Flushing ────────────────▶ Closed
//!     └──────────── the driver ends ───────┴──────────────────────────────────────────▲
//! ```

use std::time::Instant;

use crate::edges::{check_edge, state_machine};
use crate::limits::DATAGRAM_FLUSH_TIMEOUT;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DgramShutdownState {
    #[default]
    Open,
    /// Nothing is posted any more; only the driver has the backend's clock.
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
    /// Of use while flushing.
    deadline: Option<Instant>,
}

impl DgramShutdown {
    /// True while this side is about to end, and has not.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, Requested | Flushing)
    }

    /// Until when queued sends may wait for room.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn request(&mut self) {
        if self.state == Open {
            self.go(Requested);
        }
    }

    /// The driver runs. True if the endpoint is to end now.
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

    /// Moves along a legal edge. The deadline of the state that is left is void.
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
