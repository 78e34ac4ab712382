//! Who was turned away: counted, and logged at a bounded rate, since strangers cause these events.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::caught::log;
use crate::cx::Cx;
use crate::limits::UNAUTHORIZED_LOGGED_PER_SECOND;
use crate::status::Status;

/// Counts of calls and connections that were refused because of who made them.
#[derive(Debug, Default)]
pub(crate) struct Unauthorized {
    calls: AtomicU64,
    connections: AtomicU64,
    logged: Mutex<LogRate>,
}

impl Unauthorized {
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a call that is not authorized.
    #[cold]
    pub(super) fn note_call(&self, call: &Cx, status: &Status) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.admit() {
            let (peer, method) = (call.peer(), call.method());
            log(|| tracing::info!(%peer, method, %status, left_out, "a call is not authorized"));
        }
    }

    /// Counts a connection whose client has no key, another key, or none that is known here.
    #[cold]
    pub(super) fn note_connection(&self, peer: SocketAddr, status: &Status) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.admit() {
            log(|| tracing::info!(%peer, %status, left_out, "a client is not authorized"));
        }
    }

    fn admit(&self) -> Option<u64> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.admit(Instant::now())
    }
}

/// Bounds the number of events that are logged per second.
#[derive(Debug, Default)]
struct LogRate {
    begun: Option<Instant>,
    /// Events since then that were logged, and that were not.
    logged: u32,
    left_out: u64,
}

impl LogRate {
    /// Returns the number of events that were left out before this one; `None`: so is this one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let second = Duration::from_secs(1);
        if self
            .begun
            .is_none_or(|begun| now.duration_since(begun) >= second)
        {
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
