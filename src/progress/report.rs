//! Where an operation reports: to its future, to a completion queue, or nowhere (ruling 2).

use std::sync::Arc;

use crate::cq::{CompletionFlags, CompletionQueue, CqSlot};
use crate::id::UserContext;
use crate::proto::Operation;
use crate::sync::{AwaitedRecord, OwnedRecord, WakeList};

use super::receive_context::MultiReceive;

/// An operation's record in the hands of who works on it.
pub(crate) type OpRecord = OwnedRecord<Operation<Report>>;

/// The end of an operation, for who awaits it.
pub(crate) type AwaitedOp = AwaitedRecord<Operation<Report>>;

/// Where one operation reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// To the future that awaits its record.
    Future,
    /// To a completion queue; the slot is there once the operation is accepted. Until then the
    /// future of its acceptance awaits the record.
    Queue {
        queue: CompletionQueue,
        context: UserContext,
        /// Of which interface the operation is: what its completion's flags say beside the
        /// direction.
        flags: CompletionFlags,
        /// It is reported only if it fails (`FI_SELECTIVE_COMPLETION`).
        errors_only: bool,
        slot: Option<CqSlot>,
    },
    /// One message of a buffer for many, to a completion queue.
    Piece {
        multi: Arc<MultiReceive>,
        slot: CqSlot,
    },
    /// To counters only: injected, or its owner went away.
    Nowhere,
    /// Nowhere, and counted already: it was reported as timed out.
    Counted,
}

impl Report {
    /// Has the operation its slot, if it reports to a queue? `reserve` reserves one of that queue;
    /// who awaits the acceptance is woken. `false`: there is none now.
    pub(super) fn reserve(
        record: &mut OpRecord,
        wakes: &mut WakeList,
        reserve: impl FnOnce(&CompletionQueue) -> Option<CqSlot>,
    ) -> bool {
        let Report::Queue { queue, slot, .. } = &mut record.token else {
            return true;
        };
        if slot.is_none() {
            *slot = reserve(queue);
            if slot.is_none() {
                return false; // It goes on waiting.
            }
            record.accept(wakes);
        }
        true
    }
}

// loom's are larger.
#[cfg(not(loom))]
const _: () = assert!(OpRecord::IS_KEPT, "their memory is used again");
