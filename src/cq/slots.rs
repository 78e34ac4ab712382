//! The slot of a completion in its queue: reserved when the operation is accepted, filled when the
//! operation ends. In between the queue keeps the slot free, so that reporting the completion
//! cannot fail.

use super::Completion;
use crate::sync::{Slot, WakeList};

/// A reserved slot for one completion. Dropping it frees the slot.
#[derive(Debug)]
#[must_use = "a slot that is dropped frees its place"]
pub(crate) struct CqSlot {
    slot: Slot<Completion>,
}

impl CqSlot {
    pub(crate) fn new(slot: Slot<Completion>) -> Self {
        CqSlot { slot }
    }

    /// Puts the completion at the end of the queue. The caller drops `wakes` with no lock held.
    pub(crate) fn fill(self, completion: Completion, wakes: &mut WakeList) {
        self.slot.fill(completion, wakes);
    }

    /// Frees the slot of an operation that is not reported. The caller drops `wakes` with no lock
    /// held.
    pub(crate) fn free(self, wakes: &mut WakeList) {
        self.slot.free(wakes);
    }
}
