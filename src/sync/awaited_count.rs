//! A count that one side advances, and the other side can sleep until it reaches a value. The sides
//! may be threads or processes: the count is in memory that they share.
//!
//! ```text
//!   the side that advances             the side that sleeps
//!   1. stores the count                1. exchanges `awaited`
//!   2. exchanges `awaited`, and wakes  2. reads the count again, and sleeps if it is still
//!      the other side if reached          too small
//! ```
//! Only atomic exchanges change `awaited`, and each exchange sees the previous one and everything
//! that happened before it. So either the exchange of the side that advances sees the sleeper, or
//! the sleeper's exchange comes later, and the sleeper then reads the new count.
//!
//! Neither side trusts the other: the other side stores only a number, and a wrong number causes
//! only a missing or a needless wake-up.

use super::primitives::{AtomicU64, Ordering};

/// A count, and the value that the other side sleeps for.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct AwaitedCount {
    count: AtomicU64,
    /// The count at which the sleeping side is to be woken; 0: that side is awake.
    awaited: Apart<AtomicU64>,
}

/// A value on its own cache line, since different sides write the count and `awaited`.
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

    /// Returns the count. Everything that was written before the count was stored is visible.
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

    /// Begins to sleep until the count is at least `count`, which is not 0. Returns false if it is
    /// already, so that the caller must not sleep.
    #[must_use = "the count may have been reached"]
    pub(crate) fn sleep_until(&self, count: u64) -> bool {
        self.exchange(count);
        let sleeps = self.get() < count;
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Stops sleeping. The other side may have seen the sleeper, and may wake it once more.
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
