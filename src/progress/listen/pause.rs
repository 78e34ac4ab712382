//! Whether accepting pauses while as many connections are half open as may be.
//!
//! ```text
//!              as many as may be are half open               it pauses in vain
//!   Accepting ─────────────────────────────────▶ Pausing ─────────────────────▶ Evicting
//!       ▲                                           │                              │
//!       ├── no connection waits at the system ──────┘                              │
//!       └─────────────── a while later ────────────────────────────────────────────┘
//! ```
//! Clients that connect at once, more than may be half open, are no attack: while accepting pauses,
//! they wait in the system's backlog, and none is closed. But strangers who connect and stay silent
//! would keep others out by that. So pausing ends when nothing is decided for a while, and after a
//! longer while in any case. Then each connection that comes takes the place of the oldest of the
//! host that has the most, so that a host's storm costs that host alone.
//!
//! Time is counted in ticks: a process that did not run has read no requests meanwhile, and has one
//! tick behind it, however late.

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
    /// Connections may wait in the system's backlog, until there is room.
    Pausing,
    /// A connection takes the place of another.
    Evicting,
}

state_machine! { PauseState {
    Accepting => [Pausing],
    Pausing => [Accepting, Evicting],
    Evicting => [Accepting],
}}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct AcceptPause {
    state: PauseState,
    tick: Duration,
    /// Pausing: when the tick is over. Otherwise: when the pauses so far are forgotten.
    due: Option<Instant>,
    /// Ticks of this pause and of those before it.
    ticks: u32,
    /// Those since the last decision.
    silent: u32,
}

impl AcceptPause {
    pub(super) fn new(handshake_timeout: Duration) -> Self {
        // In half of the time of a handshake, the first of many requests has come.
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

    /// As many are half open as may be. True: what comes next waits in the system's backlog.
    pub(super) fn pauses(&mut self, now: Instant) -> bool {
        if self.state == PauseState::Accepting {
            self.go(PauseState::Pausing, now + self.tick);
        }
        self.state == PauseState::Pausing
    }

    /// No connection waits for room among those that are half open.
    pub(super) fn end(&mut self, now: Instant) {
        if self.state == PauseState::Pausing {
            self.go(PauseState::Accepting, now + EVICTING_TIME);
        }
    }

    /// The handler has decided about a connection, which was half open until then.
    pub(super) fn on_decision(&mut self) {
        self.silent = 0;
    }

    /// When [`handle_due`](Self::handle_due) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// True: what waits in the system's backlog need not wait any more.
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

    /// Ticks in which nothing is decided. True: pausing has ended.
    fn ticks(pause: &mut AcceptPause, now: &mut Instant, count: u32) -> bool {
        (0..count).any(|_| {
            *now += TICK;
            pause.handle_due(*now)
        })
    }

    /// Silent strangers delay others once, and then, for minutes, no more.
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

    /// A crowd that is slow, but comes, is waited for; strangers who send a request now and then,
    /// or make room now and then, do not keep others out for longer than that.
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

    /// A process that was stopped has read nothing meanwhile.
    #[test]
    fn time_in_which_this_side_does_not_run_is_one_tick() {
        let (mut pause, now) = pausing();
        assert!(!pause.handle_due(now + Duration::from_secs(3600)));
        assert!(pause.pauses(now));
    }
}
