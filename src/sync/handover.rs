//! A record that one side works on, and whose end the other side awaits: an operation, from its
//! post until its future has the result.
//!
//! [`OwnedRecord`] is the side that works on the record, [`AwaitedRecord`] the future's side. Both
//! are one pointer to the same memory, which is reused on the thread that frees it. The record
//! never moves: its owner changes it in place, [`OwnedRecord::hand_over`] ends that side, and the
//! future reads the record in place. An atomic word says which side owns the record:
//!
//! ```text
//!                     end                         the future has read it
//!   PENDING ─────────────────────────▶ ENDED ──────────────────────────────▶ freed
//!    │  │ └── accept ──▶ ACCEPTED ──┐  (the future's)
//!    │  │                           ├── detach ──▶ DETACHED ──┐
//!    │  └───────────────────────────┘                         ├─ dropped by its owner ─▶ freed
//!    └── abandon ────────────────────────▶ ABANDONED ─────────┘
//!
//!   PENDING, ACCEPTED ── dropped by its owner ──▶ OWNER_DROPPED ── the future is dropped ──▶ freed
//! ```
//! In all states but ENDED and OWNER_DROPPED the record belongs to the [`OwnedRecord`]. In PENDING
//! a bit says which side has the waker: without a bit, the future; with WAITING, either side may
//! take it, which clears the bit; with CLAIMED the owner has taken it, and is about to end or
//! accept the record. A future that is polled at that moment wakes its task at once, which polls
//! again.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::task::{Poll, Waker};

use crate::limits::{RECORD_SIZE, RECORDS_PER_THREAD_MAX};

use super::{AtomicUsize, NO_TASK, Ordering, UnsafeCell, WakeList, spin_loop, thread_local};

const PENDING: usize = 0;
const ACCEPTED: usize = 1;
const ENDED: usize = 2;
const DETACHED: usize = 3;
const ABANDONED: usize = 4;
const OWNER_DROPPED: usize = 5;
/// In PENDING: a waker waits to be taken.
const WAITING: usize = 8;
/// In PENDING: the owner has taken the waker.
const CLAIMED: usize = 16;

struct RecordNode<V> {
    word: AtomicUsize,
    waker: UnsafeCell<Option<Waker>>,
    /// Initialised until its owner drops it.
    record: UnsafeCell<MaybeUninit<V>>,
}

/// The side that works on a record.
pub(crate) struct OwnedRecord<V> {
    node: NonNull<RecordNode<V>>,
    owns: PhantomData<V>,
}

/// The side that awaits the end of a record.
pub(crate) struct AwaitedRecord<V> {
    node: NonNull<RecordNode<V>>,
    owns: PhantomData<V>,
}

// SAFETY: the record belongs to one side at a time. The word says to which, and is changed by
// operations that acquire and release.
unsafe impl<V: Send> Send for OwnedRecord<V> {}
// SAFETY: a shared `OwnedRecord` gives only shared access to the record.
unsafe impl<V: Sync> Sync for OwnedRecord<V> {}
// SAFETY: as for `OwnedRecord`.
unsafe impl<V: Send> Send for AwaitedRecord<V> {}
// SAFETY: a shared `AwaitedRecord` gives no access to the record.
unsafe impl<V: Send> Sync for AwaitedRecord<V> {}

/// The reason why the end of a record is no longer awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unawaited {
    /// The future was detached: the record goes on without it.
    Detached,
    /// The future that awaited the record was dropped.
    Abandoned,
}

impl<V> OwnedRecord<V> {
    /// Makes a record that no future awaits.
    #[inline]
    pub(crate) fn new(record: V) -> Self {
        OwnedRecord::with_word(record, DETACHED)
    }

    /// Makes a record, and the side that awaits its end.
    #[inline]
    pub(crate) fn awaited(record: V) -> (Self, AwaitedRecord<V>) {
        // Records under loom are larger.
        const {
            assert!(
                cfg!(loom) || is_kept::<RecordNode<V>>(),
                "their memory is used again"
            )
        };
        let held = OwnedRecord::with_word(record, PENDING);
        let awaited = AwaitedRecord {
            node: held.node,
            owns: PhantomData,
        };
        (held, awaited)
    }

    #[inline(always)]
    fn with_word(record: V, word: usize) -> Self {
        let at = take_memory::<RecordNode<V>>();
        let node = RecordNode {
            word: AtomicUsize::new(word),
            waker: UnsafeCell::new(None),
            record: UnsafeCell::new(MaybeUninit::new(record)),
        };
        // SAFETY: this memory is as large as a node, and no one else's.
        unsafe { at.write(node) };
        OwnedRecord {
            node: at,
            owns: PhantomData,
        }
    }

    /// Begins to await the record's acceptance or end. No future may await it already.
    pub(crate) fn await_acceptance(&mut self) -> AwaitedRecord<V> {
        // Checked in every build: two futures of one record would both free it.
        let began =
            (self.word()).compare_exchange(DETACHED, PENDING, Ordering::AcqRel, Ordering::Acquire);
        assert_eq!(began, Ok(DETACHED), "no future awaits it");
        AwaitedRecord {
            node: self.node,
            owns: PhantomData,
        }
    }

    fn word(&self) -> &AtomicUsize {
        // SAFETY: the node lives as long as a side of it does.
        unsafe { &self.node.as_ref().word }
    }

    /// Hands the record over to its future, whose task is woken when `wakes` is dropped. Returns
    /// the record if no future awaits it.
    #[inline]
    pub(crate) fn hand_over(self, wakes: &mut WakeList) -> Result<(), (Self, Unawaited)> {
        match self.leave_pending(ENDED, wakes) {
            PENDING => {
                mem::forget(self);
                Ok(())
            }
            ABANDONED => Err((self, Unawaited::Abandoned)),
            _ => Err((self, Unawaited::Detached)),
        }
    }

    /// Reports to the future that the record was accepted, and nothing more.
    pub(crate) fn accept(&self, wakes: &mut WakeList) {
        self.leave_pending(ACCEPTED, wakes);
    }

    /// Wakes the future's task, which polls again and finds nothing changed here.
    pub(crate) fn wake(&self, wakes: &mut WakeList) {
        self.leave_pending(PENDING, wakes);
    }

    /// Changes from PENDING to another state, and returns PENDING; in any other state changes
    /// nothing, and returns that state.
    #[inline]
    fn leave_pending(&self, to: usize, wakes: &mut WakeList) -> usize {
        let word = self.word();
        let mut now = PENDING;
        loop {
            let next = match now {
                PENDING => to,
                _ if now == PENDING | WAITING => PENDING | CLAIMED,
                kept => return kept,
            };
            match word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if next == to => return PENDING,
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // SAFETY: the node lives as long as a side of it does.
        let node = unsafe { self.node.as_ref() };
        // SAFETY: CLAIMED: the waker is this side's.
        let waker = node.waker.with_mut(|at| unsafe { (*at).take() });
        // Dropped with nothing locked, even if the other side has gone meanwhile.
        if let Some(waker) = waker {
            wakes.push(waker);
        }
        let claimed = PENDING | CLAIMED;
        match word.compare_exchange(claimed, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => PENDING,
            Err(kept) => kept,
        }
    }
}

impl<V> Deref for OwnedRecord<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        // SAFETY: as long as the `OwnedRecord` exists, it owns the record, which is initialised.
        unsafe {
            let node = self.node.as_ref();
            node.record.with(|at| (*at).assume_init_ref())
        }
    }
}

impl<V> DerefMut for OwnedRecord<V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        // SAFETY: as above, and this is the only borrow.
        unsafe {
            let node = self.node.as_ref();
            node.record.with_mut(|at| (*at).assume_init_mut())
        }
    }
}

impl<V> Drop for OwnedRecord<V> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the record is this side's, and no one uses it after this.
        unsafe {
            let node = self.node.as_ref();
            node.record.with_mut(|at| (*at).assume_init_drop());
        }
        // Once the other side has gone, nothing else changes the word.
        let has_gone = |word| matches!(word, DETACHED | ABANDONED);
        if has_gone(self.word().load(Ordering::Acquire))
            || has_gone(self.word().swap(OWNER_DROPPED, Ordering::AcqRel))
        {
            // SAFETY: the other side has gone.
            unsafe { free(self.node) }
        }
    }
}

impl<V> AwaitedRecord<V> {
    fn word(&self) -> &AtomicUsize {
        // SAFETY: the node lives as long as a side of it does.
        unsafe { &self.node.as_ref().word }
    }

    /// Ready with the record once it has ended; until then the task of this waker is registered.
    /// The waker that it replaces goes to `stale`, and the caller drops that with nothing borrowed:
    /// the last waker of a task may run its destructor.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker, stale: &mut Option<Waker>) -> Poll<&mut V> {
        match self.word().load(Ordering::Acquire) {
            ENDED => {}
            _ if self.wait(waker, stale) != ENDED => return Poll::Pending,
            _ => {}
        }
        Poll::Ready(self.ended_mut())
    }

    /// Awaits the record's acceptance: `Ok` once it is accepted, the record if it has ended before.
    pub(crate) fn poll_accepted(
        &mut self,
        waker: &Waker,
        stale: &mut Option<Waker>,
    ) -> Poll<Result<(), &mut V>> {
        match self.wait(waker, stale) {
            ENDED => Poll::Ready(Err(self.ended_mut())),
            // An accepted record may have ended elsewhere by now.
            ACCEPTED | OWNER_DROPPED => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn ended_mut(&mut self) -> &mut V {
        // SAFETY: ENDED was read: the record is this side's, and initialised.
        unsafe {
            let node = self.node.as_ref();
            node.record.with_mut(|at| (*at).assume_init_mut())
        }
    }

    /// Registers a waker while the record is pending; returns the state.
    fn wait(&mut self, waker: &Waker, stale: &mut Option<Waker>) -> usize {
        // SAFETY: the node lives as long as this side does.
        let node = unsafe { self.node.as_ref() };
        let mut now = node.word.load(Ordering::Acquire);
        loop {
            match now {
                PENDING => {}
                _ if now == PENDING | WAITING => match self.exchange(now, PENDING) {
                    Ok(()) => now = PENDING,
                    Err(other) => {
                        now = other;
                        continue;
                    }
                },
                _ if now == PENDING | CLAIMED => {
                    // The previous waker is being woken, and this task polls again.
                    spin_loop();
                    waker.wake_by_ref();
                    return PENDING;
                }
                _ => return now,
            }
            // SAFETY: PENDING without a bit: the waker is this side's.
            let replaced = node.waker.with_mut(|at| unsafe {
                let held = &mut *at;
                match held {
                    _ if waker.will_wake(NO_TASK) => held.take(),
                    Some(held) if held.will_wake(waker) => None,
                    _ => held.replace(waker.clone()),
                }
            });
            *stale = replaced.or(stale.take());
            if waker.will_wake(NO_TASK) {
                return node.word.load(Ordering::Acquire);
            }
            match self.exchange(now, PENDING | WAITING) {
                Ok(()) => return PENDING,
                Err(other) => now = other,
            }
        }
    }

    fn exchange(&self, from: usize, to: usize) -> Result<(), usize> {
        let word = self.word();
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// Returns true once the record has ended, or was accepted.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(
            self.word().load(Ordering::Acquire),
            ENDED | ACCEPTED | OWNER_DROPPED
        )
    }

    /// Stops awaiting the end. Returns the record if it has ended; otherwise its owner gets
    /// [`Unawaited::Abandoned`] at the end.
    pub(crate) fn abandon(self) -> Option<OwnedRecord<V>> {
        self.go(ABANDONED)
    }

    /// Lets the record go on without its future; returns it if it has ended.
    pub(crate) fn detach(self) -> Option<OwnedRecord<V>> {
        self.go(DETACHED)
    }

    fn go(self, to: usize) -> Option<OwnedRecord<V>> {
        let _waker = self.take_waker();
        let node = self.node;
        mem::forget(self);
        // SAFETY: the node lives until the word says that this side has gone.
        let word = unsafe { &node.as_ref().word };
        // Once the record has ended, nothing else changes the word.
        let was = match word.load(Ordering::Acquire) {
            ENDED => ENDED,
            _ => word.swap(to, Ordering::AcqRel),
        };
        match was {
            ENDED => {
                let held = OwnedRecord {
                    node,
                    owns: PhantomData,
                };
                held.word().store(DETACHED, Ordering::Release);
                Some(held)
            }
            OWNER_DROPPED => {
                // SAFETY: the other side has gone, and has dropped the record.
                unsafe { free(node) };
                None
            }
            _ => None,
        }
    }

    /// Takes the registered waker, if it is still there.
    fn take_waker(&self) -> Option<Waker> {
        let waiting = PENDING | WAITING;
        if self.word().load(Ordering::Acquire) == waiting {
            self.exchange(waiting, PENDING).ok()?;
        } else if self.word().load(Ordering::Acquire) == PENDING | CLAIMED {
            return None;
        }
        // SAFETY: the node lives as long as a side of it does.
        let node = unsafe { self.node.as_ref() };
        // SAFETY: neither WAITING nor CLAIMED: the waker is this side's.
        node.waker.with_mut(|at| unsafe { (*at).take() })
    }
}

impl<V> Drop for AwaitedRecord<V> {
    /// Detaches; a record that has ended is dropped.
    #[inline]
    fn drop(&mut self) {
        let same = AwaitedRecord {
            node: self.node,
            owns: PhantomData,
        };
        drop(same.go(DETACHED));
    }
}

impl<V: fmt::Debug> fmt::Debug for OwnedRecord<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<V> fmt::Debug for AwaitedRecord<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwaitedRecord")
            .field("has_ended", &self.has_ended())
            .finish()
    }
}

/// Memory of nodes freed on this thread, for reuse.
struct FreeRecords(Vec<NonNull<u8>>);

thread_local! {
    static FREE: RefCell<FreeRecords> = const { RefCell::new(FreeRecords(Vec::new())) };
}

/// One layout for all, so that the memory can be reused for any record.
const KEPT: Layout = match Layout::from_size_align(RECORD_SIZE, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

const fn is_kept<N>() -> bool {
    size_of::<N>() <= KEPT.size() && align_of::<N>() <= KEPT.align()
}

const fn layout_of<N>() -> Layout {
    match is_kept::<N>() {
        true => KEPT,
        false => Layout::new::<N>(),
    }
}

/// Takes memory for a node.
#[inline]
fn take_memory<N>() -> NonNull<N> {
    if is_kept::<N>()
        && let Ok(Some(free)) = FREE.try_with(|free| free.borrow_mut().0.pop())
    {
        return free.cast();
    }
    let layout = layout_of::<N>();
    // SAFETY: a node has a size.
    let memory = NonNull::new(unsafe { alloc(layout) });
    memory.unwrap_or_else(|| handle_alloc_error(layout)).cast()
}

/// Frees a node whose record was dropped.
///
/// # Safety
/// The node was made by [`OwnedRecord::with_word`], and neither side exists any more.
#[inline]
unsafe fn free<V>(node: NonNull<RecordNode<V>>) {
    // SAFETY: the caller's promise; this does not drop the contents of the record.
    unsafe { node.drop_in_place() };
    let memory = node.cast::<u8>();
    if is_kept::<RecordNode<V>>() {
        // A thread that is ending keeps no memory.
        let kept = FREE.try_with(|free| {
            let list = &mut free.borrow_mut().0;
            let has_room = list.len() < RECORDS_PER_THREAD_MAX;
            if has_room {
                list.push(memory);
            }
            has_room
        });
        if kept.is_ok_and(|kept| kept) {
            return;
        }
    }
    // SAFETY: the memory was allocated with this layout.
    unsafe { dealloc(memory.as_ptr(), layout_of::<RecordNode<V>>()) };
}

impl Drop for FreeRecords {
    fn drop(&mut self) {
        for memory in self.0.drain(..) {
            // SAFETY: the kept memory was allocated with this layout, and is free.
            unsafe { dealloc(memory.as_ptr(), KEPT) };
        }
    }
}

/// Frees the memory that this thread keeps.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept_records() {
    let _ = FREE.try_with(|free| {
        drop(mem::replace(
            &mut *free.borrow_mut(),
            FreeRecords(Vec::new()),
        ))
    });
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests;
