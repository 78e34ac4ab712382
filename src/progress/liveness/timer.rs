//! The times at which heartbeats are due. Connections share them: thousands wake the driver some
//! dozens of times a second while they are watched, and about once while they are idle.

use std::time::{Duration, Instant};

use crate::limits::{HEARTBEAT_STEP_MAX, HEARTBEAT_STEP_MIN};

/// The times at which a driver's heartbeats are due.
#[derive(Clone, Copy, Debug)]
pub(in crate::progress) struct HeartbeatTimer {
    epoch: Instant,
}

impl HeartbeatTimer {
    pub(in crate::progress) fn new(epoch: Instant) -> Self {
        HeartbeatTimer { epoch }
    }

    /// Returns the next time for heartbeats of this interval, not before `at`.
    pub(super) fn at(&self, at: Instant, interval: Duration) -> Instant {
        let step = (interval / 64).clamp(HEARTBEAT_STEP_MIN, HEARTBEAT_STEP_MAX);
        let steps = at.saturating_duration_since(self.epoch).as_nanos() / step.as_nanos();
        let steps = u32::try_from(steps + 1).unwrap_or(u32::MAX);
        self.epoch + step.saturating_mul(steps)
    }
}
