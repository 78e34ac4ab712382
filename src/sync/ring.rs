//! The bounded ring under the event queue and the completion queue.
//!
//! An entry's place is reserved before the work that will fill it is accepted, so that delivery
//! cannot fail and needs no memory: the storage is allocated once, when the ring is made.
//!
//! ```text
//!   reserve ──> Slot ──fill──> filled ──pop──> a reader
//!                 └──drop──> free      <──────────┘
//! ```
//!
//! Invariants: reserved + filled <= capacity. Entries leave in the order they were filled, each to
//! exactly one reader. An event wakes all waiters (readers for entries, others for room), and each
//! checks again, so dropping a woken waiter loses no wake-up of another. Only our own code runs
//! under the lock: entries are dropped and peeked at, and wakers woken, outside of it. A reader
//! that finds no entry drives the manual progress of the domains and listeners that use the ring.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::{
    Dependence, Dependents, Lock, ManualProgress, ProgressList, ProgressWaiter, WaiterKey, Waiters,
    WakeList,
};
use crate::error::{Error, ErrorKind, Result};
use crate::stats::QueueStats;

/// Keeps the object that the ring was opened from while the ring is open.
pub(crate) type Keep = Box<dyn Any + Send + Sync>;

struct State<T> {
    items: VecDeque<T>,
    /// Number of slots handed out and neither filled nor dropped.
    reserved: usize,
    /// True while a peek has the first entry outside of `items`; it still counts as filled, and no
    /// reader may pass it.
    lent: bool,
    closed: bool,
    /// True once the last reader is gone: later entries are dropped.
    abandoned: bool,
    /// Number of entries that were filled in and kept.
    delivered: u64,
    /// Number of times that a place was wanted and none was free.
    full: u64,
    readers: Waiters,
    room: Waiters,
    keep: Option<Keep>,
}

struct Shared<T> {
    state: Lock<State<T>>,
    capacity: usize,
    dependents: Dependents,
    driven: ProgressList,
}

/// A bounded queue whose places are reserved first. Clones refer to the same queue.
pub(crate) struct Ring<T> {
    shared: Arc<Shared<T>>,
}

impl<T> State<T> {
    fn filled(&self) -> usize {
        self.items.len() + usize::from(self.lent)
    }

    /// Returns true if `count` places are free; counts the times that they are not.
    fn has_room_for(&mut self, count: usize, capacity: usize) -> bool {
        let has_room = !self.closed && count <= capacity - self.reserved - self.filled();
        self.full += u64::from(!has_room && !self.closed);
        has_room
    }

    /// Takes the first entry, unless a peek holds it: later entries must not pass it.
    fn pop(&mut self, wakes: &mut WakeList) -> Option<T> {
        if self.lent {
            return None;
        }
        let item = self.items.pop_front()?;
        self.room.take_all(wakes);
        Some(item)
    }

    /// Moves up to `max` entries to `into` and returns how many.
    fn pop_batch(&mut self, into: &mut Vec<T>, max: usize, wakes: &mut WakeList) -> usize {
        let count = if self.lent {
            0
        } else {
            self.items.len().min(max)
        };
        if count > 0 {
            into.extend(self.items.drain(..count));
            self.room.take_all(wakes);
        }
        count
    }

    fn check(&self, capacity: usize) {
        debug_assert!(self.reserved + self.filled() <= capacity);
        debug_assert!(self.items.capacity() >= capacity || self.closed);
    }
}

/// A weak reference to a ring.
pub(crate) struct WeakRing<T> {
    shared: Weak<Shared<T>>,
}

impl<T> WeakRing<T> {
    pub(crate) fn upgrade(&self) -> Option<Ring<T>> {
        self.shared.upgrade().map(|shared| Ring { shared })
    }
}

impl<T> Ring<T> {
    /// Makes a ring of exactly `capacity` places, all allocated here. `keep` is dropped at the
    /// close, or with the ring. Fails with `InvalidArgument` if `capacity` is 0, and with
    /// `LimitReached` if there is no memory for that many places.
    pub(crate) fn new(capacity: usize, keep: Option<Keep>) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "size: a queue has at least one entry",
            ));
        }
        let mut items = VecDeque::new();
        if items.try_reserve_exact(capacity).is_err() {
            return Err(Error::new(
                ErrorKind::LimitReached,
                format!("size: the system has no memory for a queue of {capacity} entries"),
            ));
        }
        let state = State {
            items,
            reserved: 0,
            lent: false,
            closed: false,
            abandoned: false,
            delivered: 0,
            full: 0,
            readers: Waiters::default(),
            room: Waiters::default(),
            keep,
        };
        Ok(Ring {
            shared: Arc::new(Shared {
                state: Lock::new(state),
                capacity,
                dependents: Dependents::new(),
                driven: ProgressList::new(),
            }),
        })
    }

    /// Returns a reference that does not keep the ring alive, for owners that an entry may keep
    /// alive.
    pub(crate) fn downgrade(&self) -> WeakRing<T> {
        WeakRing {
            shared: Arc::downgrade(&self.shared),
        }
    }

    /// Takes a place, if one is free and the ring is open.
    pub(crate) fn try_reserve(&self) -> Option<Slot<T>> {
        self.take_place(&mut self.shared.state.lock("reserve a slot"))
    }

    /// Takes a place. If none is free, `waker` is woken once when a place becomes free; a closed
    /// ring never wakes it. A waiter that stops waiting before must [withdraw](Self::withdraw) its
    /// waker, since the ring may never be read.
    pub(crate) fn reserve_or_wake(&self, waker: &Waker) -> Option<Slot<T>> {
        let mut state = self.shared.state.lock("reserve a slot or wait");
        let slot = self.take_place(&mut state);
        if slot.is_none() && !state.closed {
            state.room.register_once(waker);
        }
        slot
    }

    /// Withdraws a waker that waits by [`reserve_or_wake`](Self::reserve_or_wake). Returns true if
    /// it waited.
    pub(crate) fn withdraw(&self, waker: &Waker) -> bool {
        let mut state = self.shared.state.lock("wait no longer");
        let withdrawn = state.room.remove_once(waker);
        drop(state);
        withdrawn.is_some()
    }

    fn take_place(&self, state: &mut State<T>) -> Option<Slot<T>> {
        if !state.has_room_for(1, self.shared.capacity) {
            return None;
        }
        state.reserved += 1;
        state.check(self.shared.capacity);
        Some(Slot {
            shared: Some(Arc::clone(&self.shared)),
        })
    }

    /// Takes `count` places, or none if they are not all free or the ring is closed.
    pub(crate) fn try_reserve_many(&self, count: usize) -> Option<Vec<Slot<T>>> {
        let mut state = self.shared.state.lock("reserve slots");
        if !state.has_room_for(count, self.shared.capacity) {
            return None;
        }
        state.reserved += count;
        state.check(self.shared.capacity);
        drop(state);
        Some(self.slots(count))
    }

    /// Makes `count` slots, which were counted as reserved.
    fn slots(&self, count: usize) -> Vec<Slot<T>> {
        let slot = || Slot {
            shared: Some(Arc::clone(&self.shared)),
        };
        std::iter::repeat_with(slot).take(count).collect()
    }

    /// Waits for a place; `None` if the ring is closed. Dropping the future withdraws the wait.
    pub(crate) fn reserve(&self) -> Reserve<T> {
        Reserve {
            ring: self.clone(),
            key: None,
        }
    }

    /// Waits until `count` places are free at the same time, and takes them all. If the ring has
    /// fewer places, the wait never ends. `None` if it is closed. Dropping the future withdraws the
    /// wait.
    pub(crate) fn reserve_many(&self, count: usize) -> ReserveMany<T> {
        ReserveMany {
            one: self.reserve(),
            count,
        }
    }

    /// Takes the first entry, if there is one and no peek holds it.
    pub(crate) fn try_pop(&self) -> Option<T> {
        self.pop()
            .or_else(|| self.shared.driven.turn().then(|| self.pop()).flatten())
    }

    fn pop(&self) -> Option<T> {
        let mut wakes = WakeList::new();
        self.shared.state.lock("read a queue").pop(&mut wakes)
    }

    /// Moves up to `max` entries to the end of `into` and returns how many.
    pub(crate) fn try_pop_batch(&self, into: &mut Vec<T>, max: usize) -> usize {
        match self.pop_batch(into, max) {
            0 if max > 0 && self.shared.driven.turn() => self.pop_batch(into, max),
            count => count,
        }
    }

    fn pop_batch(&self, into: &mut Vec<T>, max: usize) -> usize {
        let mut wakes = WakeList::new();
        let mut state = self.shared.state.lock("read a queue");
        state.pop_batch(into, max, &mut wakes)
    }

    /// Makes readers drive this progress from now on, including those that wait already.
    pub(crate) fn drive(&self, progress: Option<&Arc<ManualProgress>>) {
        self.shared.driven.add(progress, || self.wake_readers());
    }

    /// Shows the first entry without taking it. Meanwhile other readers find the queue empty, since
    /// no reader may pass the entry; they are woken when the entry is back. `None` if there is
    /// none.
    ///
    /// The entry is moved out rather than shown under the lock, so that `look` may use the queue.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> Option<R> {
        let item = {
            let mut state = self.shared.state.lock("peek at a queue");
            if state.lent {
                return None;
            }
            let item = state.items.pop_front()?;
            state.lent = true;
            item
        };
        // Puts the entry back even if `look` panics.
        let lent = Lent {
            ring: self,
            item: Some(item),
        };
        lent.item.as_ref().map(look)
    }

    /// Adds a dependent with this name, until the result is dropped.
    pub(crate) fn depend(&self, name: Arc<str>) -> Option<Dependence> {
        self.shared.dependents.depend(name)
    }

    /// Closes the ring for all its readers, and drops its entries. While the ring has dependents or
    /// a slot is reserved, returns the reason and changes nothing.
    pub(crate) fn close(&self) -> Result<(), String> {
        let mut wakes = WakeList::new();
        let _keep;
        let _items;
        let mut state = self.shared.state.lock("close a queue");
        if state.reserved > 0 {
            let reserved = state.reserved;
            return Err(self.shared.dependents.names().unwrap_or_else(|| {
                format!("operations that have yet to report to it: {reserved}")
            }));
        }
        self.shared.dependents.close()?;
        state.closed = true;
        // The guard is the last of these locals, and so is dropped first: entries may be tickets,
        // and dropping a ticket decides it and wakes its holder.
        _items = std::mem::take(&mut state.items);
        _keep = state.keep.take();
        state.readers.take_all(&mut wakes);
        state.room.take_all(&mut wakes);
        Ok(())
    }

    /// Drops the entries in the ring, and all later ones: the last reader is gone.
    pub(crate) fn abandon(&self) {
        let _items;
        let mut wakes = WakeList::new();
        let mut state = self.shared.state.lock("abandon a queue");
        state.abandoned = true;
        // Dropped after the guard: entries may be tickets.
        _items = state.items.drain(..).collect::<Vec<_>>();
        state.room.take_all(&mut wakes);
    }

    /// Wakes the waiting readers, to check again.
    fn wake_readers(&self) {
        let mut wakes = WakeList::new();
        let mut state = self.shared.state.lock("wake readers");
        state.readers.take_all(&mut wakes);
        drop(state);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.state.lock("ask whether closed").closed
    }

    /// Returns whether both handles are of the same ring.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the number of entries to be read.
    pub(crate) fn len(&self) -> usize {
        self.shared.state.lock("count entries").filled()
    }

    /// Returns the number of places handed out and not filled yet.
    #[cfg(test)]
    pub(crate) fn reserved(&self) -> usize {
        self.shared.state.lock("count reservations").reserved
    }

    pub(crate) fn capacity(&self) -> usize {
        self.shared.capacity
    }

    pub(crate) fn stats(&self) -> QueueStats {
        let state = self.shared.state.lock("queue stats");
        QueueStats {
            capacity: self.shared.capacity,
            len: state.filled(),
            reserved: state.reserved,
            delivered: state.delivered,
            full: state.full,
        }
    }
}

impl<T> Clone for Ring<T> {
    fn clone(&self) -> Self {
        Ring {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock("show a queue");
        f.debug_struct("Ring")
            .field("capacity", &self.shared.capacity)
            .field("filled", &state.filled())
            .field("reserved", &state.reserved)
            .field("closed", &state.closed)
            .finish()
    }
}

/// The first entry, moved out of the ring while a peek shows it.
struct Lent<'a, T> {
    ring: &'a Ring<T>,
    item: Option<T>,
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut wakes = WakeList::new();
        let mut state = self.ring.shared.state.lock("end a peek");
        state.lent = false;
        if !state.closed && !state.abandoned {
            if let Some(item) = self.item.take() {
                state.items.push_front(item);
            }
            state.check(self.ring.shared.capacity);
            // Readers found the queue empty meanwhile.
            state.readers.take_all(&mut wakes);
        }
        // If the ring was closed meanwhile, the entry is lost like all others, and is dropped after
        // this function's locals.
    }
}

/// A reserved place. Filling it cannot fail; dropping it frees the place.
#[must_use = "a slot that is dropped frees its place"]
pub(crate) struct Slot<T> {
    /// `None` once filled.
    shared: Option<Arc<Shared<T>>>,
}

impl<T> Slot<T> {
    /// Puts the entry at the end of the queue. `wakes` wakes readers; the caller drops it with no
    /// lock held.
    pub(crate) fn fill(mut self, item: T, wakes: &mut WakeList) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let _unread; // Declared before the guard, so it is dropped after it.
        let mut state = shared.state.lock("fill a slot");
        debug_assert!(!state.closed, "a ring is not closed while a slot is out");
        state.reserved -= 1;
        if state.abandoned {
            _unread = item;
            state.room.take_all(wakes);
            return;
        }
        state.items.push_back(item);
        state.delivered += 1;
        state.check(shared.capacity);
        state.readers.take_all(wakes);
    }
}

impl<T> Slot<T> {
    /// Frees the place, as dropping does; tasks that wait for one are woken when `wakes` is
    /// dropped.
    pub(crate) fn free(mut self, wakes: &mut WakeList) {
        self.free_into(wakes);
    }

    fn free_into(&mut self, wakes: &mut WakeList) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        let mut state = shared.state.lock("free a slot");
        state.reserved -= 1;
        state.room.take_all(wakes);
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.free_into(&mut WakeList::new());
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

/// Waits for a place; made by [`Ring::reserve`]. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Reserve<T> {
    ring: Ring<T>,
    key: Option<WaiterKey>,
}

impl<T> Reserve<T> {
    /// Counts `count` places as reserved once they are free; ready with false if the ring is
    /// closed.
    fn poll_count(&mut self, cx: &mut Context<'_>, count: usize) -> Poll<bool> {
        let shared = &self.ring.shared;
        let _stale; // Declared before the guard, so a replaced waker is dropped after it.
        let mut state = shared.state.lock("wait to reserve");
        if state.closed {
            return Poll::Ready(false);
        }
        if !state.has_room_for(count, shared.capacity) {
            _stale = state.room.register(&mut self.key, cx.waker());
            return Poll::Pending;
        }
        state.reserved += count;
        state.check(shared.capacity);
        _stale = state.room.remove(&mut self.key);
        Poll::Ready(true)
    }
}

impl<T> Future for Reserve<T> {
    type Output = Option<Slot<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_open = ready!(self.poll_count(cx, 1));
        Poll::Ready(is_open.then(|| Slot {
            shared: Some(Arc::clone(&self.ring.shared)),
        }))
    }
}

/// Waits for several places; made by [`Ring::reserve_many`]. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct ReserveMany<T> {
    one: Reserve<T>,
    count: usize,
}

impl<T> Future for ReserveMany<T> {
    type Output = Option<Vec<Slot<T>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let count = self.count;
        let is_open = ready!(self.one.poll_count(cx, count));
        Poll::Ready(is_open.then(|| self.one.ring.slots(count)))
    }
}

impl<T> Drop for Reserve<T> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let mut state = self.ring.shared.state.lock("stop waiting for room");
            let stale = state.room.remove(&mut self.key);
            drop(state);
            drop(stale);
        }
    }
}

/// A reader that can wait; each clone is a reader of its own.
#[derive(Debug)]
pub(crate) struct Reader<T> {
    ring: Ring<T>,
    key: Option<WaiterKey>,
    waiter: ProgressWaiter,
}

impl<T> Reader<T> {
    pub(crate) fn new(ring: Ring<T>) -> Self {
        Reader {
            ring,
            key: None,
            waiter: ProgressWaiter::default(),
        }
    }

    pub(crate) fn ring(&self) -> &Ring<T> {
        &self.ring
    }

    /// Takes the next entry; `None` once the ring is closed. Takes part in Tokio's cooperative
    /// budget: a reader of a queue that never runs dry must not starve the driver on the same
    /// thread, on which everything else depends.
    pub(crate) fn poll_pop(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_with(cx, State::pop)
    }

    /// Takes up to `max` entries, which must not be 0, as [`Reader::poll_pop`] takes one; none once
    /// closed.
    pub(crate) fn poll_pop_batch(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Vec<T>> {
        debug_assert!(max > 0, "a batch of none is never ready");
        let batch = self.poll_with(cx, |state, wakes| {
            let mut batch = Vec::new();
            (state.pop_batch(&mut batch, max, wakes) > 0).then_some(batch)
        });
        batch.map(Option::unwrap_or_default)
    }

    fn poll_with<R>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl Fn(&mut State<T>, &mut WakeList) -> Option<R>,
    ) -> Poll<Option<R>> {
        let Reader { ring, key, waiter } = self;
        let shared = &*ring.shared;
        waiter.poll_reading(&shared.driven, cx, |cx| {
            let budget = ready!(coop::poll_proceed(cx));
            let mut wakes = WakeList::new();
            let _stale; // Declared before the guard, so a replaced waker is dropped after it.
            let mut state = shared.state.lock("wait to read");
            if state.closed {
                budget.made_progress();
                return Poll::Ready(None);
            }
            if let Some(taken) = take(&mut state, &mut wakes) {
                budget.made_progress();
                _stale = state.readers.remove(key);
                return Poll::Ready(Some(taken));
            }
            _stale = state.readers.register(key, cx.waker());
            Poll::Pending
        })
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Reader::new(self.ring.clone())
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let mut state = self.ring.shared.state.lock("stop reading");
            let stale = state.readers.remove(&mut self.key);
            drop(state);
            drop(stale);
        }
    }
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests;
