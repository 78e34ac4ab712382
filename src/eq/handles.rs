//! The handles of an event queue: without the last of them it has no reader any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use crate::sync::{
    Lock, ManualProgress, ProgressWaiter, Reader, Ring, WaiterKey, Waiters, WakeList, poll_driving,
};

use super::Event;

/// Shared by all handles of one queue.
pub(super) struct Handles {
    ring: Ring<Event>,
    watching: Lock<Waiters>,
    /// What reading the queue drives: of the domains and listeners that report here those whose
    /// progress the application makes.
    driven: Lock<Vec<Weak<ManualProgress>>>,
    /// Steps with each change of that.
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

    /// Reading the queue drives this from now on, also by those who wait already.
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

    /// 0 where nothing is to be driven by reading.
    pub(super) fn driven_changes(&self) -> usize {
        self.driven_changes.load(Ordering::Acquire)
    }

    /// What is to be driven.
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

/// One reader of an event queue, which drives what reports there.
pub(super) struct EventReader {
    reader: Reader<Event>,
    waiters: Vec<ProgressWaiter>,
    /// The change that `waiters` are of.
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
        // What was added since found no reader to wake.
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

/// Notifies a task once no handle of an event queue is left; does not keep the queue itself.
pub(crate) struct HandleWatch {
    handles: Weak<Handles>,
    key: Option<WaiterKey>,
}

impl HandleWatch {
    pub(super) fn new(handles: Weak<Handles>) -> Self {
        HandleWatch { handles, key: None }
    }

    /// True once the queue has no reader any more; until then the task is registered.
    pub(crate) fn is_gone(&mut self, cx: &Context<'_>) -> bool {
        let handles: Option<Arc<Handles>> = self.handles.upgrade();
        // If the others have gone meanwhile, dropping this one wakes the task.
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
