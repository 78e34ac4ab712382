//! The addresses of the senders of a connectionless endpoint, by their source ids.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::id::PeerAddr;
use crate::proto::SourceId;

/// The address of each sender. The endpoint's peer table writes it. Completions read it, even those
/// read after the endpoint is closed, so it holds no reference to the endpoint. Its lock is taken
/// last and alone.
#[derive(Debug, Default)]
pub(crate) struct SourceAddresses {
    by_source: Mutex<HashMap<SourceId, PeerAddr>>,
}

impl SourceAddresses {
    fn lock(&self) -> MutexGuard<'_, HashMap<SourceId, PeerAddr>> {
        self.by_source
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of this sender, unless it was forgotten.
    pub(crate) fn get(&self, source: SourceId) -> Option<PeerAddr> {
        self.lock().get(&source).copied()
    }

    pub(super) fn insert(&self, source: SourceId, address: PeerAddr) {
        self.lock().insert(source, address);
    }

    pub(super) fn remove(&self, source: SourceId) {
        self.lock().remove(&source);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}
