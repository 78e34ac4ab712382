//! Trimming: a context frees its spare capacity when it has had no receive and no message for a
//! while.
//!
//! ```text
//!            a receive or a message        the driver's next turn
//!   Trimmed ────────────────────────▶ Due ────────────────────────▶ Active ⟲ activity
//!      ▲                                                              │
//!      └───────────── no activity for a while: capacity is freed ─────┘
//! ```

use std::time::Instant;

use super::state::ContextState;
use crate::limits::RECEIVE_CONTEXT_IDLE_MIN;

/// The activity of the context. A trimmed context has no timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TrimState {
    /// Trimmed at this activity count.
    Trimmed(u64),
    /// The driver was woken to start the timer.
    #[default]
    Due,
    /// The activity count at the last check, and the time of the next one.
    Active(u64, Instant),
}

impl ContextState {
    /// Returns true if the driver must be woken to start the timer: at the first activity since the
    /// context was trimmed.
    pub(super) fn needs_trim_timer(&mut self) -> bool {
        match self.trim_state {
            TrimState::Trimmed(seen) if seen != self.matcher.activity() => {
                self.trim_state = TrimState::Due;
                true
            }
            _ => false,
        }
    }

    /// Trims the context if it has been idle for [`RECEIVE_CONTEXT_IDLE_MIN`]; returns the time of
    /// the next check.
    pub(super) fn trim_when_quiet(&mut self, now: Instant) -> Option<Instant> {
        let activity = self.matcher.activity();
        self.trim_state = match self.trim_state {
            TrimState::Trimmed(seen) if seen == activity => self.trim_state,
            TrimState::Active(seen, at) if seen == activity && at <= now => {
                self.trim();
                TrimState::Trimmed(activity)
            }
            TrimState::Active(seen, at) if seen == activity => TrimState::Active(seen, at),
            // Activity does not restart the timer; the next check does.
            TrimState::Active(seen, at) if at > now => TrimState::Active(seen, at),
            _ => TrimState::Active(activity, now.checked_add(RECEIVE_CONTEXT_IDLE_MIN)?),
        };
        match self.trim_state {
            TrimState::Active(_, at) => Some(at),
            _ => None,
        }
    }

    fn trim(&mut self) {
        self.matcher.shrink();
        self.receives.shrink();
        self.backlog.shrink_to_fit();
        self.starved.shrink_to_fit();
        self.ports.shrink_to_fit();
    }
}
