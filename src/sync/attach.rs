//! Objects that can be bound to a memory region (`fi_mr_bind` of `fi_mr(3)`), counters and
//! endpoints, as the region uses them. The region holds them weakly, so that they can be closed
//! first, as the page requires.

use super::WakeList;

/// A counter or an endpoint that regions are bound to.
pub(crate) trait Attachable: Send + Sync {
    /// Returns false once it is closed: then it no longer keeps a region from being closed.
    fn is_open(&self) -> bool;

    /// Counts a peer's access of the kind that it was bound for. The caller wakes the wakers,
    /// without locks.
    fn count(&self, wakes: &mut WakeList);
}
