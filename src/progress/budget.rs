//! Limits the work that is done before other ports and tasks have their turn. One budget is passed
//! from a poll of the driver to the turns of its ports, and to the outcomes and batches of a turn.
//!
//! Bytes bound a bulk transfer. Each step counts as some bytes. Time bounds the machine's
//! processing of received bytes, which bytes and steps do not measure.

use std::time::Instant;

use crate::limits::{STEP_BYTES, TURN_BYTES_MAX, TURN_TIME_MAX};

/// The unspent part of a budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    bytes: usize,
    /// Time at which the budget ends, by the backend's clock.
    until: Option<Instant>,
    /// Time at which the clock was last read.
    ticked: Option<Instant>,
}

impl Budget {
    /// Returns the budget of a poll of the driver that begins now. When it is spent, the driver
    /// yields to the runtime.
    pub(super) fn of_poll(now: Instant) -> Self {
        Budget {
            until: now.checked_add(TURN_TIME_MAX),
            ..Budget::of_call()
        }
    }

    /// Returns the budget of a call of the application, which has no clock; the driver does the
    /// rest.
    pub(super) fn of_call() -> Self {
        Budget {
            bytes: TURN_BYTES_MAX,
            until: None,
            ticked: None,
        }
    }

    /// Accounts for a step that moved so many bytes.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes.max(STEP_BYTES));
    }

    /// Accounts for a step that moved no bytes.
    pub(super) fn spend_step(&mut self) {
        self.spend(0);
    }

    /// Spends all that is left if the time is over.
    pub(super) fn tick(&mut self, now: Instant) {
        self.ticked = Some(now);
        if self.until.is_some_and(|until| until <= now) {
            self.bytes = 0;
        }
    }

    /// Returns the time at which the clock was last read, if that is after `then`.
    pub(super) fn ticked_since(&self, then: Instant) -> Option<Instant> {
        self.ticked.filter(|at| *at > then)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// `STEP_BYTES`: the cost of a step besides its bytes, so that steps without any are bounded
    /// too.
    #[test]
    fn it_is_spent_by_bytes_by_steps_and_by_time() {
        let now = Instant::now();
        let mut by_bytes = Budget::of_call();
        by_bytes.spend(TURN_BYTES_MAX - 1);
        assert!(!by_bytes.is_spent());
        by_bytes.spend(1);
        assert!(by_bytes.is_spent());
        let mut by_steps = Budget::of_call();
        for _ in 0..TURN_BYTES_MAX / STEP_BYTES {
            assert!(!by_steps.is_spent());
            by_steps.spend_step();
        }
        assert!(by_steps.is_spent());
        let mut by_time = Budget::of_poll(now);
        by_time.tick(now + TURN_TIME_MAX - Duration::from_nanos(1));
        assert!(!by_time.is_spent());
        by_time.tick(now + TURN_TIME_MAX);
        assert!(by_time.is_spent());
    }
}
