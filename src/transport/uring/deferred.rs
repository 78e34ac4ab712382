//! Work that arises under a ring's lock and runs foreign code: done once the lock is released.

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
    /// Takes all of it, for a caller that still holds the lock.
    pub(super) fn take(&mut self) -> DeferredActions {
        mem::take(self)
    }
}
