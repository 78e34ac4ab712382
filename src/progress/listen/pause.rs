//! Decides whether accepting pauses while the limit of half-open connections is reached.
//!
//! ```text
//!              as many as may be are half open               it pauses in vain
//!   Accepting ─────────────────────────────────▶ Pausing ─────────────────────▶ Evicting
//!       ▲                                           │                              │
//!       ├── no connection waits at the system ──────┘                              │
//!       └─────────────── a while later ────────────────────────────────────────────┘
//! ```
//! More clients than may be half open can connect at the same time without being an attack: while
//! accepting pauses, they wait in the system's backlog, and none is closed. But strangers who
//! connect and stay silent would keep others out in this way. So pausing ends when no request is
//! decided for a while, and after a longer while in any case. Then each new connection evicts the
//! oldest one of the host that has the most, so that a host that floods the listener harms only
//! itself.
//!
//! Time is counted in ticks. A process that was suspended has read no requests meanwhile: that time
//! counts as one tick, however long it was.

use std::time::{Duration, Instant};

use crate::edges::{check_edge, state_machine};
use crate::limits::{
    ACCEPT_PAUSE_TICKS, ACCEPT_PAUSE_TICKS_SILENT, EVICTING_TIME, HANDSHAKE_TIMEOUT_DEFAULT,
};

/// The states of an [`AcceptPause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseState {
    /// No connection waits for room.
    Accepting,
    /// Connections may wait in the system's backlog until there is room.
    Pausing,
    /// A new connection takes the place of another.
    Evicting,
}

state_machine! { PauseState {
    Accepting => [Pausing],
    Pausing => [Accepting, Evicting],
    Evicting => [Accepting],
}}

/// The state of pausing; see the module's documentation.
#[derive(Debug)]
pub(super) struct AcceptPause {
    state: PauseState,
    tick: Duration,
    /// While pausing: when the tick ends. Otherwise: when the pauses so far are forgotten.
    due: Option<Instant>,
    /// Ticks of this pause and of those before it.
    ticks: u32,
    /// Ticks since the last decision.
    silent: u32,
}

impl AcceptPause {
    pub(super) fn new(handshake_timeout: Duration) -> Self {
        // Half of a handshake's time limit is enough for the first of many requests to arrive.
        let silent = handshake_timeout.min(HANDSHAKE_TIMEOUT_DEFAULT) / 2;
        AcceptPause {
            state: PauseState::Accepting,
            tick: silent / ACCEPT_PAUSE_TICKS_SILENT,
            due: None,
            ticks: 0,
            silent: 0,
        }
    }

    fn go(&mut self, to: PauseState, due: Instant) {
        check_edge(&self.state, &to);
        (self.state, self.due) = (to, Some(due));
        self.silent = 0;
    }

    /// Called when the limit of half-open connections is reached. Returns true if new ones are to
    /// wait in the system's backlog.
    pub(super) fn pauses(&mut self, now: Instant) -> bool {
        if self.state == PauseState::Accepting {
            self.go(PauseState::Pausing, now + self.tick);
        }
        self.state == PauseState::Pausing
    }

    /// Called when no connection waits for room among the half-open ones.
    pub(super) fn end(&mut self, now: Instant) {
        if self.state == PauseState::Pausing {
            self.go(PauseState::Accepting, now + EVICTING_TIME);
        }
    }

    /// Called when the handler has decided about a connection, which was half open until then.
    pub(super) fn on_decision(&mut self) {
        self.silent = 0;
    }

    /// Returns the time at which [`handle_due`](Self::handle_due) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns true if connections in the system's backlog need not wait any more.
    pub(super) fn handle_due(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        if self.state == PauseState::Evicting {
            self.go(PauseState::Accepting, now);
        }
        if self.state == PauseState::Accepting {
            (self.due, self.ticks) = (None, 0);
            return false;
        }
        self.due = Some(now + self.tick);
        self.ticks += 1;
        self.silent += 1;
        let in_vain = self.silent >= ACCEPT_PAUSE_TICKS_SILENT || self.ticks >= ACCEPT_PAUSE_TICKS;
        if in_vain {
            tracing::warn!("too many connections are half open: the oldest are closed");
            self.go(PauseState::Evicting, now + EVICTING_TIME);
        }
        in_vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::EdgeCoverage;

    const TICK: Duration = Duration::from_millis(500);

    fn pausing() -> (AcceptPause, Instant) {
        let mut pause = AcceptPause::new(Duration::MAX);
        let now = Instant::now();
        assert!(pause.pauses(now));
        (pause, now)
    }

    /// Lets ticks pass in which nothing is decided. Returns true if pausing has ended.
    fn ticks(pause: &mut AcceptPause, now: &mut Instant, count: u32) -> bool {
        (0..count).any(|_| {
            *now += TICK;
            pause.handle_due(*now)
        })
    }

    /// Silent strangers delay others once, and then not again for minutes.
    #[test]
    fn a_pause_in_which_nothing_is_decided_ends() {
        let coverage = EdgeCoverage::begin("PauseState");
        let (mut pause, mut now) = pausing();
        assert!(!ticks(&mut pause, &mut now, ACCEPT_PAUSE_TICKS_SILENT - 1));
        assert!(pause.pauses(now), "not yet");
        assert!(ticks(&mut pause, &mut now, 1));
        assert!(!pause.pauses(now));
        pause.end(now);
        let later = now + EVICTING_TIME;
        assert_eq!(pause.due(), Some(later));
        pause.handle_due(later - TICK);
        assert!(!pause.pauses(now), "silence has been seen");
        pause.handle_due(later);
        assert_eq!(pause.due(), None);
        assert!(pause.pauses(later), "and is forgotten");
        pause.end(later);
        coverage.expect_all();
    }

    /// Many clients that are slow, but send requests, are waited for; strangers who send a request
    /// now and then, or make room now and then, do not keep others out for longer than that.
    #[test]
    fn pauses_go_on_while_there_are_decisions_but_not_without_end() {
        for is_ended in [false, true] {
            let (mut pause, mut now) = pausing();
            for _ in 0..ACCEPT_PAUSE_TICKS - 1 {
                assert!(!ticks(&mut pause, &mut now, 1));
                pause.on_decision();
                if is_ended {
                    pause.end(now);
                }
                assert!(pause.pauses(now));
            }
            assert!(ticks(&mut pause, &mut now, 1));
            assert!(!pause.pauses(now));
        }
    }

    /// A process that was suspended has read nothing meanwhile.
    #[test]
    fn time_in_which_this_side_does_not_run_is_one_tick() {
        let (mut pause, now) = pausing();
        assert!(!pause.handle_due(now + Duration::from_secs(3600)));
        assert!(pause.pauses(now));
    }
}
