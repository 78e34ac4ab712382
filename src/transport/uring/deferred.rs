//! What comes up under a ring's lock and runs code of others: done once that is released.

use std::mem;

use crate::sync::WakeList;
use crate::transport::{DirectBuffer, SendBatch};

/// Dropped after the lock: wakes, and drops what operations held.
#[derive(Default)]
pub(super) struct DeferredActions {
    pub(super) wakers: WakeList,
    pub(super) sends: Vec<SendBatch>,
    pub(super) receives: Vec<DirectBuffer>,
}

impl DeferredActions {
    /// All there is, for the caller that still holds the lock.
    pub(super) fn take(&mut self) -> DeferredActions {
        mem::take(self)
    }
}
