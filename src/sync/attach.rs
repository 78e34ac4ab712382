//! What can be bound to a memory region (`fi_mr_bind` of `fi_mr(3)`): counters and endpoints, as
//! the region sees them. It holds them weakly, so that they can be closed first, as the page asks.

use super::WakeList;

/// A counter or an endpoint that regions are bound to.
pub(crate) trait Attachable: Send + Sync {
    /// False once it is closed: then it no longer keeps a region from being closed.
    fn is_open(&self) -> bool;

    /// An access by a peer that it was bound for. Wakers are woken by the caller, without locks.
    fn count(&self, wakes: &mut WakeList);
}
