//! The interface of a memory region to the objects that are bound to it: counters and endpoints
//! (`fi_mr_bind` of `fi_mr(3)`). The region holds them weakly, so that they can be closed before
//! the region, as the page requires.

use super::WakeList;

/// A counter or an endpoint that regions are bound to.
pub(crate) trait Attachable: Send + Sync {
    /// Returns false once the object is closed: then it no longer keeps a region from being closed.
    fn is_open(&self) -> bool;

    /// Counts a peer's access of the kind that the object was bound for. The caller drops `wakes`
    /// with no lock held.
    fn count(&self, wakes: &mut WakeList);
}
