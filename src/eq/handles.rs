//! The handles of an event queue: once the last of them is dropped, the queue has no reader.

use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use crate::sync::{Lock, Ring, WaiterKey, Waiters, WakeList};

use super::Event;

/// State that all handles of one queue share.
pub(super) struct Handles {
    ring: Ring<Event>,
    watching: Lock<Waiters>,
}

impl Handles {
    pub(super) fn new(ring: Ring<Event>) -> Self {
        Handles {
            ring,
            watching: Lock::new(Waiters::default()),
        }
    }

    fn register(&self, key: &mut Option<WaiterKey>, waker: &Waker) {
        let mut watching = self.watching.lock("watch a queue's handles");
        let stale = watching.register(key, waker);
        drop(watching);
        drop(stale);
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.ring.abandon();
        let mut wakes = WakeList::new();
        self.watching
            .lock("the last handle of a queue has gone")
            .take_all(&mut wakes);
    }
}

/// Notifies a task when no handle of an event queue is left. Does not keep the queue alive.
pub(crate) struct HandleWatch {
    handles: Weak<Handles>,
    key: Option<WaiterKey>,
}

impl HandleWatch {
    pub(super) fn new(handles: Weak<Handles>) -> Self {
        HandleWatch { handles, key: None }
    }

    /// Returns whether the queue has lost its last reader; otherwise registers the task.
    pub(crate) fn is_gone(&mut self, cx: &Context<'_>) -> bool {
        let handles: Option<Arc<Handles>> = self.handles.upgrade();
        // If all other handles were dropped meanwhile, dropping this one wakes the task.
        handles.is_none_or(|handles| {
            handles.register(&mut self.key, cx.waker());
            false
        })
    }
}

impl Drop for HandleWatch {
    fn drop(&mut self) {
        let Some(handles) = self.handles.upgrade() else {
            return;
        };
        let mut watching = handles.watching.lock("watch a queue no more");
        let stale = watching.remove(&mut self.key);
        drop(watching);
        drop(stale);
    }
}
