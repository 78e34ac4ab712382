//! A completion's place in its queue: reserved when the operation is accepted, filled when it ends.
//! Between the two the queue keeps the place free, so that reporting cannot fail.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Completion;
use crate::sync::{Reserve, Slot, WakeList};

/// A reserved place for one completion. Dropping it frees the place.
#[derive(Debug)]
#[must_use = "a slot that is dropped frees its place"]
pub(crate) struct CqSlot {
    slot: Slot<Completion>,
}

impl CqSlot {
    pub(super) fn new(slot: Slot<Completion>) -> Self {
        CqSlot { slot }
    }

    /// Puts the completion at the end of the queue. The caller drops `wakes` with no lock held.
    pub(crate) fn fill(self, completion: Completion, wakes: &mut WakeList) {
        self.slot.fill(completion, wakes);
    }
}

/// Waits for a place; `None` once the queue is closed. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct CqReserve {
    reserve: Reserve<Completion>,
}

impl CqReserve {
    pub(super) fn new(reserve: Reserve<Completion>) -> Self {
        CqReserve { reserve }
    }
}

impl Future for CqReserve {
    type Output = Option<CqSlot>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.reserve)
            .poll(cx)
            .map(|slot| slot.map(CqSlot::new))
    }
}
