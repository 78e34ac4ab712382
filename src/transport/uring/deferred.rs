//! Work that arises under a ring's lock but runs foreign code, so it is done once the lock is
//! released.

use std::mem;

use crate::sync::WakeList;
use crate::transport::{DirectBuffer, SendBatch};

/// Dropped once the lock is released: the drop wakes tasks and frees the memory of operations.
#[derive(Default)]
pub(super) struct DeferredActions {
    pub(super) wakers: WakeList,
    pub(super) sends: Vec<SendBatch>,
    pub(super) receives: Vec<DirectBuffer>,
}

impl DeferredActions {
    /// Takes all deferred work, for a caller that still holds the lock.
    pub(super) fn take(&mut self) -> DeferredActions {
        mem::take(self)
    }
}
