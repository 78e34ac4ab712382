//! How much is done before others have their turn: one allowance, passed down from a poll of the
//! driver to the turns of its ports, and to what a turn takes in and hands out.
//!
//! Bytes bound a bulk transfer, each step counts as some of them, and time bounds what neither
//! tells: how long the protocol takes over what has come.

use std::time::Instant;

use crate::limits::{STEP_BYTES, TURN_BYTES_MAX, TURN_TIME_MAX};

/// What is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    bytes: usize,
    /// By the backend's clock.
    until: Option<Instant>,
}

impl Budget {
    /// Of a poll of the driver that begins now: after it the runtime has its turn.
    pub(super) fn of_poll(now: Instant) -> Self {
        Budget {
            until: now.checked_add(TURN_TIME_MAX),
            ..Budget::of_call()
        }
    }

    /// Of a call of the application's, which has no clock: after it the driver has its turn.
    pub(super) fn of_call() -> Self {
        Budget {
            bytes: TURN_BYTES_MAX,
            until: None,
        }
    }

    /// A step was done, which moved so many bytes.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes.max(STEP_BYTES));
    }

    /// It is `now`: nothing is left if the time is over.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            self.bytes = 0;
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// `STEP_BYTES`: what a step costs beside its bytes, so that steps without any are bounded too.
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
            by_steps.spend(0);
        }
        assert!(by_steps.is_spent());
        let mut by_time = Budget::of_poll(now);
        by_time.tick(now + TURN_TIME_MAX - Duration::from_nanos(1));
        assert!(!by_time.is_spent());
        by_time.tick(now + TURN_TIME_MAX);
        assert!(by_time.is_spent());
    }
}
