//! Where an operation reports: to its future, to a completion queue, or nowhere (ruling 2).

use std::sync::Arc;
use std::task::Waker;

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
    /// The operation ends without having been accepted: its owner does not wait with this waker for
    /// room in its queue any more, and is woken to look at what else it has.
    pub(super) fn give_up_waiting(&self, waker: &Waker, wakes: &mut WakeList) {
        if let Report::Queue {
            queue, slot: None, ..
        } = self
            && queue.withdraw(waker)
        {
            wakes.push(waker.clone());
        }
    }

    /// Has the operation its slot, if it reports to a queue? Who awaits the acceptance is woken.
    /// `false`: there is none now; if the operation waits, `waker` is woken when there is.
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
