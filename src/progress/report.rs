//! The destination of an operation's report: its future, a completion queue, or nothing (ruling 2).

use std::sync::Arc;
use std::task::Waker;

use crate::cq::{CompletionFlags, CompletionQueue, CqSlot};
use crate::id::UserContext;
use crate::proto::Operation;
use crate::sync::{AwaitedRecord, OwnedRecord, WakeList};

use super::receive_context::MultiReceive;

/// The record of an operation, for the code that works on it.
pub(crate) type OpRecord = OwnedRecord<Operation<Report>>;

/// The record of an operation, for the future that awaits its end.
pub(crate) type AwaitedOp = AwaitedRecord<Operation<Report>>;

/// The destination of one operation's report.
#[derive(Debug)]
pub(crate) enum Report {
    /// The future that awaits the record.
    Future,
    /// A completion queue; `slot` is set once the operation is accepted. Until then the future of
    /// its acceptance awaits the record.
    Queue {
        queue: CompletionQueue,
        context: UserContext,
        /// Flags that name the interface of the operation, in addition to its direction.
        flags: CompletionFlags,
        /// True if it is reported only when it fails (`FI_SELECTIVE_COMPLETION`).
        errors_only: bool,
        slot: Option<CqSlot>,
    },
    /// A completion queue, for one message of a multi-receive buffer.
    Piece {
        multi: Arc<MultiReceive>,
        slot: CqSlot,
    },
    /// Counters only: the operation was injected, or its owner is gone.
    Nowhere,
    /// Nothing: the operation has already been counted, and reported as timed out.
    Counted,
}

impl Report {
    /// Withdraws `waker` from the queue of an operation that was not accepted. If the waker was
    /// registered there, wakes it: its owner may have other operations that wait.
    pub(super) fn give_up_waiting(&self, waker: &Waker, wakes: &mut WakeList) {
        if let Report::Queue {
            queue, slot: None, ..
        } = self
            && queue.withdraw(waker)
        {
            wakes.push(waker.clone());
        }
    }

    /// Reserves the slot of an operation that reports to a queue, unless it has one, and wakes the
    /// future that awaits its acceptance. Returns false if there is no slot now; if the operation
    /// waits, `waker` is woken when there is a slot.
    pub(super) fn reserve(
        record: &mut OpRecord,
        wakes: &mut WakeList,
        waker: Option<&Waker>,
    ) -> bool {
        let waker = waker.filter(|_| record.options.wait);
        let Report::Queue { queue, slot, .. } = &mut record.token else {
            return true;
        };
        if slot.is_none() {
            *slot = match waker {
                Some(waker) => queue.reserve_or_wake(waker),
                None => queue.try_reserve(),
            };
            if slot.is_none() {
                return false; // The operation goes on waiting.
            }
            record.accept(wakes);
        }
        true
    }
}
