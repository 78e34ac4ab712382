//! Counts that a port keeps under its lock, and statistics read from its machines on request.

use crate::progress::port::Port;
use crate::stats::{EndpointStats, OperationStats};

/// The counts that no other part of a port keeps.
#[derive(Debug, Default)]
pub(in crate::progress) struct PortCounts {
    pub(in crate::progress) operations: OperationStats,
    pub(in crate::progress) accesses: u64,
    pub(in crate::progress) bytes_received: u64,
    pub(in crate::progress) backend_sends: u64,
    pub(in crate::progress) backend_receives: u64,
    pub(in crate::progress) connects: u64,
    pub(in crate::progress) losses: u64,
    /// Number of events of the machine, most of them completed operations.
    pub(in crate::progress) published: u64,
}

impl PortCounts {
    pub(in crate::progress) fn received(&mut self, len: usize) {
        self.backend_receives += 1;
        self.bytes_received += len as u64;
    }

    /// Returns how often the link has sent or received.
    pub(in crate::progress) fn moves(&self) -> u64 {
        self.backend_sends + self.backend_receives
    }
}

impl Port {
    pub(crate) fn stats(&self) -> EndpointStats {
        let state = self.lock("stats");
        let counts = &state.counts;
        let mut operations = counts.operations;
        if let Some(receives) = &state.receives {
            operations.receives.add(&receives.ended());
        }
        EndpointStats {
            operations,
            accesses: counts.accesses,
            bytes_sent: state.liveness.sent,
            bytes_received: counts.bytes_received,
            backend_sends: counts.backend_sends,
            backend_receives: counts.backend_receives,
            connects: counts.connects,
            losses: counts.losses,
            probes: state.liveness.probes,
            probe_misses: state.liveness.machine.misses(),
            connections_local: usize::from(state.is_local()),
            ..state.machine.stats()
        }
    }
}
