//! The addresses of those who send to a connectionless endpoint, by the numbers that its receives
//! know them by.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::proto::SourceId;

/// The address of each sender. Written by the endpoint's table of peers, read by whoever names a
/// sender, an unread completion included: so it is no part of the endpoint, and keeps nothing of it
/// open. Its lock is taken last and alone.
#[derive(Debug, Default)]
pub(crate) struct SourceAddresses {
    by_source: Mutex<HashMap<SourceId, SocketAddr>>,
}

impl SourceAddresses {
    fn lock(&self) -> MutexGuard<'_, HashMap<SourceId, SocketAddr>> {
        self.by_source
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of this sender, unless it was forgotten.
    pub(crate) fn get(&self, source: SourceId) -> Option<SocketAddr> {
        self.lock().get(&source).copied()
    }

    pub(super) fn insert(&self, source: SourceId, address: SocketAddr) {
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
