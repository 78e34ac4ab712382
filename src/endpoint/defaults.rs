//! Defaults of operations whose call specifies nothing (`op_flags` of `fi_endpoint(3)`).

use crate::error::OperationKind;
use crate::info::OpFlags;

/// The moment at which an operation that transmits has ended (`fi_cq(3)`, completion levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionLevel {
    /// Its buffers may be used again (`FI_INJECT_COMPLETE`).
    Injected,
    /// The peer has acknowledged the operation: its bytes are in the peer's memory.
    /// `FI_TRANSMIT_COMPLETE` requires only that the operation no longer depends on the network or
    /// this side, but over TCP only the peer knows that.
    Acknowledged,
    /// It is persistent at the peer (`FI_COMMIT_COMPLETE`).
    Persistent,
}

/// The default flags of an endpoint, in the form in which its operations use them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// Level of messages, which are never made persistent.
    pub(super) sends: CompletionLevel,
    pub(super) writes: CompletionLevel,
    /// Receives that report to a queue are buffers for several messages (`FI_MULTI_RECV`).
    pub(super) multi_recv: bool,
    /// Destinations are multicast groups (`FI_MULTICAST`).
    pub(super) multicast: bool,
    /// Whether the transmit queue (and with the next field, the receive queue) reports a success
    /// only if the operation asks for it (`FI_SELECTIVE_COMPLETION`, unless `FI_COMPLETION` is a
    /// default flag).
    transmit_errors_only: bool,
    receive_errors_only: bool,
}

/// The queues of an endpoint that are bound selectively (`FI_SELECTIVE_COMPLETION`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SelectiveQueues {
    pub(super) transmit: bool,
    pub(super) receive: bool,
}

impl Defaults {
    /// Returns the defaults of an endpoint with these default flags and bindings.
    pub(super) fn new((tx, rx): (OpFlags, OpFlags), selective: SelectiveQueues) -> Self {
        let acknowledged = OpFlags::DELIVERY_COMPLETE | OpFlags::TRANSMIT_COMPLETE;
        let sends = match tx.intersects(acknowledged) {
            true => CompletionLevel::Acknowledged,
            false => CompletionLevel::Injected,
        };
        let writes = match tx.contains(OpFlags::COMMIT_COMPLETE) {
            true => CompletionLevel::Persistent,
            false => sends,
        };
        Defaults {
            sends,
            writes,
            multi_recv: rx.contains(OpFlags::MULTI_RECV),
            multicast: tx.contains(OpFlags::MULTICAST),
            transmit_errors_only: selective.transmit && !tx.contains(OpFlags::COMPLETION),
            receive_errors_only: selective.receive && !rx.contains(OpFlags::COMPLETION),
        }
    }

    /// Returns whether an operation of this kind is reported only if it fails, unless it requests a
    /// report.
    pub(super) fn errors_only(&self, operation: OperationKind) -> bool {
        match operation {
            OperationKind::Receive => self.receive_errors_only,
            _ => self.transmit_errors_only,
        }
    }
}
