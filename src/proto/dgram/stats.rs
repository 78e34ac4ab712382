//! The part of a datagram endpoint's statistics that the protocol machine knows.

use crate::stats::{DgramStats, ReceiveStats};

use super::Dgram;

impl<T> Dgram<T> {
    /// Returns the counts of operations that have not ended and of datagrams that wait; the owner
    /// adds the remaining statistics.
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
