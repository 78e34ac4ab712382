//! What comes up under a ring's lock and runs code of others: it is seen to once that is released.

use std::cell::Cell;
use std::mem;
use std::task::Waker;

use crate::transport::{Direct, SendBatch};

/// What to do after the lock is released.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) wakers: Vec<Waker>,
    pub(super) sends: Vec<SendBatch>,
    pub(super) receives: Vec<Direct>,
}

thread_local! {
    /// An empty list with room, so that a drive allocates none.
    static SPARE_LIST: Cell<Vec<Waker>> = const { Cell::new(Vec::new()) };
}

/// Frees the list that this thread keeps.
#[cfg(feature = "test-util")]
pub(in crate::transport) fn drop_kept() {
    let _ = SPARE_LIST.try_with(Cell::take);
}

impl Outbox {
    /// What there is, for who holds the lock still.
    pub(super) fn take(&mut self) -> Outbox {
        if self.wakers.is_empty() {
            // The list stays where it is, with its room.
            return Outbox {
                wakers: Vec::new(),
                sends: mem::take(&mut self.sends),
                receives: mem::take(&mut self.receives),
            };
        }
        let wakers = SPARE_LIST.try_with(Cell::take).unwrap_or_default();
        let next = Outbox {
            wakers,
            ..Outbox::default()
        };
        mem::replace(self, next)
    }

    /// Wakes and drops it all.
    pub(super) fn deliver(mut self) {
        if self.wakers.is_empty() {
            return;
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        // Fails only in a thread that is ending.
        let _ = SPARE_LIST.try_with(|spare| spare.set(self.wakers));
    }
}
