//! A count that one side advances, and that the other side can sleep for. The two may be threads or
//! processes: the count lies in memory that they share.
//!
//! ```text
//!   the side that advances             the side that sleeps
//!   1. stores the count                1. exchanges what is awaited
//!   2. exchanges what is awaited,      2. looks at the count again, and sleeps if that is
//!      and rings if that is reached       still too small
//! ```
//! What is awaited is changed by atomic exchanges alone, of which each sees the one before it, and
//! all that happened before that. So the exchange of the side that advances sees the sleeper, or
//! the sleeper's exchange comes later, and its look sees the new count.
//!
//! Nothing here trusts the other side: what it stores is a number, and a wrong one causes a missing
//! or a needless wake-up, and nothing else.

use super::primitives::{AtomicU64, Ordering};

/// A count, and the value that the other side sleeps for.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct AwaitedCount {
    count: AtomicU64,
    /// The count at which the sleeping side is to be woken; 0: it is awake.
    awaited: Apart<AtomicU64>,
}

/// On a cache line of its own: the two are written by different sides.
#[repr(C, align(128))]
#[derive(Debug)]
struct Apart<T>(T);

impl AwaitedCount {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        AwaitedCount {
            count: AtomicU64::new(0),
            awaited: Apart(AtomicU64::new(0)),
        }
    }

    /// Returns the count. What was written before it was stored can be read.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Stores a higher count. Returns true if the other side sleeps for it, and must be woken.
    #[inline]
    #[must_use = "the other side may sleep"]
    pub(crate) fn advance(&self, to: u64) -> bool {
        self.count.store(to, Ordering::Release);
        let awaited = self.awaited.0.fetch_add(0, Ordering::AcqRel);
        awaited != 0 && awaited <= to && self.exchange(0) != 0
    }

    /// Begins to sleep until the count is at least `count`, which is not 0. Returns false if it is,
    /// and there is nothing to sleep for.
    #[must_use = "the count may have been reached"]
    pub(crate) fn sleep_until(&self, count: u64) -> bool {
        self.exchange(count);
        let sleeps = self.get() < count;
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Sleeps no more. The other side may have seen the sleeper, and wake once more.
    pub(crate) fn awake(&self) {
        self.exchange(0);
    }

    fn exchange(&self, awaited: u64) -> u64 {
        self.awaited.0.swap(awaited, Ordering::AcqRel)
    }
}

#[cfg(loom)]
pub(super) mod models;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_sleep_is_not_woken() {
        let count = AwaitedCount::new();
        assert!(!count.advance(1));
        assert!(!count.sleep_until(1), "it is there already");
        assert!(!count.advance(2));
        assert!(count.sleep_until(3));
        count.awake();
        assert!(!count.advance(3));
    }

    #[test]
    fn who_sleeps_is_woken_once_and_not_too_early() {
        let count = AwaitedCount::new();
        assert!(count.sleep_until(10));
        assert!(!count.advance(9));
        assert!(count.advance(11));
        assert!(!count.advance(12));
    }
}
