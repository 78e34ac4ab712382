//! Lists of buffers that are dropped once no lock is held. The lists themselves are used again.

use std::cell::Cell;

use crate::buf::Payload;

thread_local! {
    /// The list that this thread emptied last.
    static SPARE: Cell<Vec<Payload>> = const { Cell::new(Vec::new()) };
}

/// A list with nothing in it.
pub(super) fn empty() -> Vec<Payload> {
    // A thread that is ending has none to spare.
    SPARE.try_with(Cell::take).unwrap_or_default()
}

/// Drops what is in a list, which may run the user's code, and keeps the list.
pub(super) fn drop_all(mut list: Vec<Payload>) {
    list.clear();
    // The user's code may have posted, and left a list too; one is enough.
    let _ = SPARE.try_with(|spare| spare.set(list));
}

/// Frees the list that this thread keeps.
#[cfg(feature = "test-util")]
pub(super) fn drop_kept() {
    let _ = SPARE.try_with(Cell::take);
}
