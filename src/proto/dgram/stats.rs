//! What a datagram endpoint's machine knows of itself for its owner's statistics.

use crate::stats::{DgramStats, ReceiveStats};

use super::Dgram;

impl<T> Dgram<T> {
    /// The operations that have not ended, and the datagrams that wait; the rest is its owner's.
    pub(crate) fn stats(&self) -> DgramStats {
        DgramStats {
            in_flight: self.transmit.used,
            waiting: self.transmit.backlog.len(),
            receives: ReceiveStats {
                posted: self.receive.used,
                waiting: self.receive.backlog.len(),
                unexpected_messages: self.unexpected.len(),
                unexpected_bytes: self.held_bytes,
            },
            ..DgramStats::default()
        }
    }
}
