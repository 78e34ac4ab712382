//! Wakers collected under a lock and woken after it, and the list of a queue's waiters.

use std::any::Any;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Wakers to wake once no lock is held; waking happens on drop, so none can be forgotten. If a
/// waker panics, the others are woken nevertheless.
#[derive(Debug, Default)]
pub(crate) struct WakeList {
    /// The first waker, usually the only one: it needs no allocation.
    first: Option<Waker>,
    /// The other wakers. Dropped, and so woken, after the first, even if that panics.
    more: MoreWakers,
}

#[derive(Debug, Default)]
struct MoreWakers(Vec<Waker>);

impl WakeList {
    pub(crate) fn new() -> Self {
        WakeList::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push(&mut self, waker: Waker) {
        match &self.first {
            None => self.first = Some(waker),
            Some(first) if first.will_wake(&waker) => {}
            Some(_) => self.more.0.push(waker),
        }
    }
}

impl Extend<Waker> for WakeList {
    fn extend<I: IntoIterator<Item = Waker>>(&mut self, wakers: I) {
        wakers.into_iter().for_each(|waker| self.push(waker));
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        let Some(first) = self.first.take() else {
            return;
        };
        match std::thread::panicking() {
            false => first.wake(),
            true => _ = wake_caught(first),
        }
    }
}

impl Drop for MoreWakers {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            wake_all(std::mem::take(&mut self.0));
        }
    }
}

/// Wakes all wakers, and then resumes the first panic, unless this thread is panicking already.
#[inline(never)]
fn wake_all(wakers: Vec<Waker>) {
    let panics = wakers.into_iter().filter_map(wake_caught);
    let first = panics.reduce(|first, _| first);
    if let Some(panic) = first
        && !std::thread::panicking()
    {
        resume_unwind(panic);
    }
}

/// Wakes a task; returns the panic, if the waker panicked.
pub(super) fn wake_caught(waker: Waker) -> Option<Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(|| waker.wake())).err()
}

/// Identifier of a waiter in a [`Waiters`] list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterKey(NonZeroU64);

/// The waiters of a queue. An event wakes all of them, and each checks again: dropping a woken
/// waiter loses no wake-up.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Number of waiters that have registered so far.
    count: u64,
    /// Waiters in the order in which they came, which is that of their keys; binary search, since
    /// thousands may wait.
    list: Vec<(WaiterKey, Waker)>,
    /// Keys of the waiters that [`register_once`](Self::register_once) has registered, by the
    /// identities of their wakers: thousands may wait.
    once: BTreeMap<WakerIdentity, WaiterKey>,
}

/// The parts of a waker that `Waker::will_wake` compares: the data and the vtable.
type WakerIdentity = (usize, usize);

fn identity(waker: &Waker) -> WakerIdentity {
    let vtable = std::ptr::from_ref(waker.vtable());
    (waker.data().addr(), vtable.addr())
}

impl Waiters {
    /// Registers or refreshes the waker of the waiter that `key` names. Returns the waker that this
    /// replaces, to be dropped after unlocking: the last waker of a task may run its destructor.
    pub(crate) fn register(&mut self, key: &mut Option<WaiterKey>, waker: &Waker) -> Option<Waker> {
        if let Some(key) = key
            && let Some(index) = self.find(*key)
        {
            let held = &mut self.list[index].1;
            if held.will_wake(waker) {
                return None;
            }
            return Some(std::mem::replace(held, waker.clone()));
        }
        self.count += 1;
        let new = WaiterKey(NonZeroU64::new(self.count).expect("2^64 waiters never register"));
        self.list.push((new, waker.clone()));
        *key = Some(new);
        None
    }

    /// Registers a waker, which is its own key, unless an equal one is registered already.
    pub(crate) fn register_once(&mut self, waker: &Waker) {
        let identity = identity(waker);
        if self.once.contains_key(&identity) {
            return;
        }
        let mut key = None;
        self.register(&mut key, waker);
        self.once.extend(key.map(|key| (identity, key)));
    }

    /// Removes a waker that [`register_once`](Self::register_once) has registered and that was not
    /// woken. Returns it, to be dropped after unlocking.
    pub(crate) fn remove_once(&mut self, waker: &Waker) -> Option<Waker> {
        let mut key = self.once.remove(&identity(waker));
        self.remove(&mut key)
    }

    /// Removes a waiter, whose future is dropped or done. Returns its waker, to be dropped after
    /// unlocking.
    pub(crate) fn remove(&mut self, key: &mut Option<WaiterKey>) -> Option<Waker> {
        let key = key.take()?;
        let index = self.find(key)?;
        Some(self.list.remove(index).1)
    }

    fn find(&self, key: WaiterKey) -> Option<usize> {
        self.list.binary_search_by_key(&key, |(at, _)| *at).ok()
    }

    /// Moves all wakers to `wakes`.
    pub(crate) fn take_all(&mut self, wakes: &mut WakeList) {
        if self.list.is_empty() {
            debug_assert!(self.once.is_empty(), "each of these waits");
            return; // Mostly no one waits.
        }
        self.once.clear();
        for (_, waker) in self.list.drain(..) {
            wakes.push(waker);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Panicking(Arc<Counting>);

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            Arc::clone(&self.0).wake();
            panic!("a waker, on purpose");
        }
    }

    /// "A waker that panics takes none of the others along": at each place of the list, several in
    /// one list, and a list that is dropped by a panic.
    #[test]
    fn a_waker_that_panics_takes_no_other_along() {
        for panicking in [vec![0], vec![1], vec![4], vec![0, 2], vec![1, 2, 4]] {
            for unwinds in [false, true] {
                let counts: Vec<Arc<Counting>> = (0..5).map(|_| Arc::default()).collect();
                let mut wakes = WakeList::new();
                for (place, count) in counts.iter().enumerate() {
                    wakes.push(match panicking.contains(&place) {
                        true => Waker::from(Arc::new(Panicking(Arc::clone(count)))),
                        false => Waker::from(Arc::clone(count)),
                    });
                }
                let woken = catch_unwind(AssertUnwindSafe(|| {
                    let _wakes = wakes;
                    assert!(!unwinds, "on purpose");
                }));
                // The second panic of an unwinding thread is caught, unless both occur in one drop.
                assert!(woken.is_err());
                let woken = counts.iter().map(|it| it.0.load(Ordering::Relaxed));
                assert_eq!(woken.sum::<usize>(), 5, "{panicking:?}, {unwinds}");
            }
        }
    }

    /// `remove_once`: of many that wait for what never comes, each leaves nothing, and takes out no
    /// other; one that was woken, or has never come, takes out nothing.
    #[test]
    fn who_goes_away_unwoken_leaves_no_waker() {
        let counts: Vec<Arc<Counting>> = (0..100).map(|_| Arc::default()).collect();
        let wakers: Vec<Waker> = counts.iter().cloned().map(Waker::from).collect();
        let mut waiters = Waiters::default();
        let mut key = None;
        waiters.register(&mut key, &wakers[0]);
        for waker in &wakers {
            waiters.register_once(waker);
        }
        for waker in wakers.iter().step_by(2) {
            assert!(waiters.remove_once(&waker.clone()).is_some());
            assert!(waiters.remove_once(waker).is_none());
        }
        waiters.take_all(&mut WakeList::new());
        assert!(waiters.remove_once(&wakers[1]).is_none());
        let woken = counts.iter().map(|it| it.0.load(Ordering::Relaxed));
        // The first one waited with a key too.
        let expected = (0..100).map(|place| usize::from(place % 2 == 1 || place == 0));
        assert!(woken.eq(expected));
        let left = wakers.iter().zip(&counts);
        drop(wakers.clone());
        assert!(
            left.map(|(_, count)| Arc::strong_count(count))
                .all(|it| it == 2)
        );
    }

    /// `register_once`: "unless an equal one is registered already"; once woken it registers anew,
    /// and registrations with a key are apart from it.
    #[test]
    fn equal_wakers_are_registered_once_each_time() {
        let counts: Vec<Arc<Counting>> = (0..100).map(|_| Arc::default()).collect();
        let wakers: Vec<Waker> = counts.iter().cloned().map(Waker::from).collect();
        let mut waiters = Waiters::default();
        for round in 1..=3 {
            for waker in wakers.iter().chain(&wakers) {
                // A separate handle, which is equal.
                waiters.register_once(&waker.clone());
            }
            let mut key = None;
            waiters.register(&mut key, &wakers[0]);
            assert_eq!(waiters.list.len(), 101);
            assert!(waiters.remove(&mut key).is_some());
            waiters.take_all(&mut WakeList::new());
            let woken = counts.iter().map(|it| it.0.load(Ordering::Relaxed));
            assert!(woken.into_iter().all(|count| count == round));
        }
    }
}
