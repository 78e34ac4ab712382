//! Whether a client reads what it is answered.
//!
//! A slot is free here once its answer is on its way, so a client that sends requests without end,
//! and reads nothing, would have this side keep all of the answers. An honest one has read the
//! answer before it uses a slot again. So within as many requests as it has slots one slot is used
//! twice, and all that was sent before them has gone out.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio_fabric::Endpoint;

use crate::limits::READING_CHECK_SHARE;
use crate::wire::Violation;

#[derive(Debug, Default)]
pub(super) struct ReadingCheck {
    /// Frames that were given to the endpoint.
    frames: AtomicU64,
    /// Requests since the last look.
    requests: AtomicU64,
    /// How many frames there were then.
    looked_at: AtomicU64,
}

impl ReadingCheck {
    pub(super) fn count_frame(&self) {
        self.frames.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks, if it is time to. Called by the one task that reads requests.
    ///
    /// # Errors
    /// The client does not read.
    pub(super) fn check_at_request(
        &self,
        calls_max: u32,
        endpoint: &Endpoint,
    ) -> Result<(), Violation> {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if requests < u64::from(READING_CHECK_SHARE * calls_max) {
            return Ok(());
        }
        self.requests.store(0, Ordering::Relaxed);
        let frames = self.frames.load(Ordering::Relaxed);
        let before = self.looked_at.swap(frames, Ordering::Relaxed);
        match endpoint.stats().operations.sends.ended() >= before {
            true => Ok(()),
            false => Err(Violation("requests of a client that does not read")),
        }
    }
}
