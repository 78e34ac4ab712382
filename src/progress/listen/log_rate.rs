//! A bound on the number of events that are logged per second, for events that strangers cause.

use std::time::{Duration, Instant};

use crate::limits::UNAUTHORIZED_LOGGED_PER_SECOND;

/// Counts the events of the current second.
#[derive(Debug, Default)]
pub(super) struct LogRate {
    begun: Option<Instant>,
    /// Events since then that were logged, and that were not.
    logged: u32,
    left_out: u64,
}

impl LogRate {
    /// Returns the number of events that were left out before this one; `None`: so is this one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        let second = Duration::from_secs(1);
        let is_over = |begun| now.saturating_duration_since(begun) >= second;
        if self.begun.is_none_or(is_over) {
            (self.begun, self.logged) = (Some(now), 0);
        }
        if self.logged >= UNAUTHORIZED_LOGGED_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_logged_at_a_bounded_rate_and_those_left_out_are_counted() {
        let (mut rate, now) = (LogRate::default(), Instant::now());
        for _ in 0..UNAUTHORIZED_LOGGED_PER_SECOND {
            assert_eq!(rate.admit(now), Some(0));
        }
        let late = now + Duration::from_millis(999);
        assert_eq!((rate.admit(now), rate.admit(late)), (None, None));
        assert_eq!(rate.admit(now + Duration::from_secs(1)), Some(2));
        assert_eq!(rate.admit(now + Duration::from_secs(1)), Some(0));
    }
}
