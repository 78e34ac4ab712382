//! The copies that `inject` makes: small, short-lived, and used over and over, so that injecting
//! asks nothing of the allocator.

use std::sync::Mutex;

use crate::limits::INJECT_SIZE_MAX;

/// Copies kept for later at most: more than are ever under way, but for a peer that does not read.
const KEPT_MAX: usize = 1024;

/// Shared by all threads: a copy is made where it is posted and done with where the driver runs.
static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A copy of these bytes, in memory of [`INJECT_SIZE_MAX`] bytes or more.
pub(super) fn copy(bytes: &[u8]) -> Vec<u8> {
    // Whoever would have to wait asks the allocator.
    let kept = KEPT.try_lock().ok().and_then(|mut kept| kept.pop());
    let mut copy = kept.unwrap_or_else(|| Vec::with_capacity(bytes.len().max(INJECT_SIZE_MAX)));
    copy.extend_from_slice(bytes);
    copy
}

/// Takes the memory of a copy that is of no use any more.
pub(super) fn keep(mut copy: Vec<u8>) {
    copy.clear();
    if let Ok(mut kept) = KEPT.try_lock()
        && kept.len() < KEPT_MAX
    {
        kept.push(copy);
    }
}

/// Frees what is kept for later.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    let mut kept = KEPT
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    *kept = Vec::new();
}
