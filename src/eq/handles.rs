//! The handles of an event queue: once the last of them is dropped, the queue has no reader.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::sync::{
    Lock, ManualProgress, ProgressWaiter, Reader, Ring, WaiterKey, Waiters, WakeList, poll_driving,
};

use super::Event;

/// State that all handles of one queue share.
pub(super) struct Handles {
    ring: Ring<Event>,
    watching: Lock<Waiters>,
    /// Progress that reading the queue drives: that of the domains and listeners with manual
    /// progress that report here.
    driven: Lock<Vec<Weak<ManualProgress>>>,
    /// Number of changes of `driven`; 0: reading drives nothing.
    driven_changes: AtomicUsize,
}

impl Handles {
    pub(super) fn new(ring: Ring<Event>) -> Self {
        Handles {
            ring,
            watching: Lock::new(Waiters::default()),
            driven: Lock::new(Vec::new()),
            driven_changes: AtomicUsize::new(0),
        }
    }

    /// Lets reading the queue drive this progress from now on, also for readers that wait already.
    pub(super) fn add_driven(&self, progress: &Arc<ManualProgress>) {
        let mut driven = self.driven.lock("report to an event queue");
        driven.retain(|held| held.strong_count() > 0);
        if !driven
            .iter()
            .any(|held| held.as_ptr() == Arc::as_ptr(progress))
        {
            driven.push(Arc::downgrade(progress));
        }
        drop(driven);
        self.driven_changes.fetch_add(1, Ordering::AcqRel);
        self.ring.wake_readers();
    }

    /// Returns the number of changes; 0 if reading drives nothing.
    pub(super) fn driven_changes(&self) -> usize {
        self.driven_changes.load(Ordering::Acquire)
    }

    /// Returns the progress objects to drive.
    pub(super) fn driven(&self) -> Vec<Arc<ManualProgress>> {
        let driven = self.driven.lock("read an event queue");
        driven.iter().filter_map(Weak::upgrade).collect()
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

/// One reader of an event queue, which drives the progress of the objects that report there.
pub(super) struct EventReader {
    reader: Reader<Event>,
    waiters: Vec<ProgressWaiter>,
    /// The value of `driven_changes` from which `waiters` was made.
    change: usize,
}

impl EventReader {
    pub(super) fn new(reader: Reader<Event>) -> Self {
        EventReader {
            reader,
            waiters: Vec::new(),
            change: 0,
        }
    }

    pub(super) fn ring(&self) -> &Ring<Event> {
        self.reader.ring()
    }

    pub(super) fn poll_pop(
        &mut self,
        handles: &Handles,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Event>> {
        let change = handles.driven_changes();
        if change != self.change {
            let driven = handles.driven();
            self.waiters = (driven.iter().map(Some)).map(ProgressWaiter::new).collect();
            self.change = change;
        }
        if change == 0 {
            return self.reader.poll_pop(cx);
        }
        let reader = &mut self.reader;
        let polled = poll_driving(&mut self.waiters, cx, |cx| reader.poll_pop(cx));
        // An object that was added since then has found no reader to wake.
        if polled.is_pending() && handles.driven_changes() != change {
            cx.waker().wake_by_ref();
        }
        polled
    }
}

impl Clone for EventReader {
    fn clone(&self) -> Self {
        EventReader::new(self.reader.clone())
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

    /// Returns whether the queue has no reader any more; otherwise registers the task.
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
