//! The part of a datagram endpoint's statistics that its machine knows.

use crate::stats::{DgramStats, ReceiveStats};

use super::Dgram;

impl<T> Dgram<T> {
    /// Returns the operations that have not ended, and the datagrams that wait; the owner adds the
    /// rest.
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
