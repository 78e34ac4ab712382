//! Waking the listening task, for all peers or one.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Wake, Waker};

use crate::stats::ListenerStats;

/// The waker of the listening task, and the reasons to wake it.
#[derive(Debug, Default)]
pub(super) struct ListenWake {
    pub(super) stopping: AtomicBool,
    pub(super) gone: AtomicBool,
    pub(super) ready: Mutex<ReadyPeers>,
}

#[derive(Debug, Default)]
pub(super) struct ReadyPeers {
    pub(super) peers: Vec<u64>,
    pub(super) task: Option<Waker>,
    pub(super) stats: ListenerStats,
}

impl ListenWake {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, ReadyPeers> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        let task = self.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Wakes the listening task for one peer.
pub(super) struct PeerWaker {
    shared: Weak<ListenWake>,
    peer: u64,
}

impl PeerWaker {
    pub(super) fn new(shared: &Arc<ListenWake>, peer: u64) -> Arc<Self> {
        Arc::new(PeerWaker {
            shared: Arc::downgrade(shared),
            peer,
        })
    }
}

impl Wake for PeerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().peers.push(self.peer);
            shared.wake();
        }
    }
}
