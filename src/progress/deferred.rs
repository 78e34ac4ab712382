//! Work that is deferred under a port's lock until the lock is released.

use std::cell::Cell;
use std::mem;

use crate::buf::Payload;
use crate::sync::WakeList;

/// Wakers to wake, and buffers to drop: the drop of a user's buffer may run the user's code, and so
/// may a waker.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) wakes: WakeList,
    pub(super) drops: Vec<Payload>,
}

impl Deferred {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.drops.is_empty()
    }

    /// Takes the work, to be [run](Self::run) after the lock is released.
    pub(super) fn take(&mut self) -> Deferred {
        Deferred {
            wakes: mem::take(&mut self.wakes),
            drops: mem::replace(&mut self.drops, take_list()),
        }
    }

    pub(super) fn run(self) {
        let Deferred { wakes, mut drops } = self;
        drop(wakes);
        drops.clear();
        // The user's code may have posted, and left a list here too; one list is enough.
        let _ = SPARE.try_with(|spare| spare.set(drops));
    }
}

thread_local! {
    /// The list that this thread emptied last, for reuse.
    static SPARE: Cell<Vec<Payload>> = const { Cell::new(Vec::new()) };
}

/// Returns an empty list, reused if this thread has one.
fn take_list() -> Vec<Payload> {
    // A thread that is ending has none.
    SPARE.try_with(Cell::take).unwrap_or_default()
}

/// Frees the list that this thread keeps for reuse.
#[cfg(feature = "test-util")]
pub(super) fn drop_kept() {
    let _ = SPARE.try_with(Cell::take);
}
