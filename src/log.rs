//! Log events that arise while a lock is held. They are emitted once the lock is released. A
//! subscriber is the user's code: it may query the object that the event is about, and may panic.
//!
//! Events are held per thread. Each port's lock emits them as it is released, and so does each poll
//! of a driver and of a listener.
//!
//! Events that strangers cause are logged at a bounded rate ([`LogRate`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tracing::Level;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

thread_local! {
    /// True if `HELD` has events to emit. The flag makes this check cost one comparison.
    static HAS_HELD: Cell<bool> = const { Cell::new(false) };
    /// True during an emission. Events that a subscriber's own calls cause wait until the emission
    /// has ended.
    static IS_EMITTING: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<VecDeque<Box<dyn FnOnce()>>> = const { RefCell::new(VecDeque::new()) };
}

/// Returns whether events of this level can be logged. Asks no subscriber.
#[inline]
pub(crate) fn is_logged(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Holds an event until this thread has released its locks. Called for a level that
/// [is logged](is_logged).
#[cold]
pub(crate) fn hold_event(emit: impl FnOnce() + 'static) {
    // A thread that is ending emits no more events.
    let held = HELD.try_with(|held| held.borrow_mut().push_back(Box::new(emit)));
    if held.is_ok() {
        HAS_HELD.set(!IS_EMITTING.get());
    }
}

/// Emits the events that this thread holds. Called with no lock held.
#[inline]
pub(crate) fn emit_held() {
    if HAS_HELD.get() {
        emit_all();
    }
}

#[cold]
fn emit_all() {
    // A second panic, in a subscriber, would end the process: the events are emitted later.
    if std::thread::panicking() {
        return;
    }
    HAS_HELD.set(false);
    IS_EMITTING.set(true);
    let _emitting = Emitting;
    let next = || HELD.try_with(|held| held.borrow_mut().pop_front());
    while let Ok(Some(emit)) = next() {
        emit();
    }
}

/// Ends the emission when dropped, even if a subscriber has panicked: the events that remain are
/// emitted later.
struct Emitting;

impl Drop for Emitting {
    fn drop(&mut self) {
        IS_EMITTING.set(false);
        let left = HELD.try_with(|held| !held.borrow().is_empty());
        HAS_HELD.set(left.unwrap_or(false));
    }
}

/// Counts the events of the current second. Public for `tokio-fabric-rpc` alone, and not a part of
/// the interface.
#[derive(Debug, Default)]
pub struct LogRate {
    begun: Option<Instant>,
    /// Events since `begun` that were logged, and that were left out.
    logged: u32,
    left_out: u64,
}

impl LogRate {
    /// Returns the number of events that were left out before this event. `None`: this event is
    /// left out too, since `most` events have been logged this second.
    pub fn admit(&mut self, now: Instant, most: u32) -> Option<u64> {
        let second = Duration::from_secs(1);
        let is_over = |begun| now.saturating_duration_since(begun) >= second;
        if self.begun.is_none_or(is_over) {
            (self.begun, self.logged) = (Some(now), 0);
        }
        if self.logged >= most {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn events_are_logged_at_a_bounded_rate_and_those_left_out_are_counted() {
        let (mut rate, now) = (LogRate::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(rate.admit(now, 10), Some(0));
        }
        let late = now + Duration::from_millis(999);
        assert_eq!((rate.admit(now, 10), rate.admit(late, 10)), (None, None));
        assert_eq!(rate.admit(now + Duration::from_secs(1), 10), Some(2));
        assert_eq!(rate.admit(now + Duration::from_secs(1), 10), Some(0));
    }

    /// "Holds an event until this thread has released its locks": in order, each once. An event
    /// that another event causes comes after it, and a panic loses no other event.
    #[test]
    fn held_events_are_emitted_in_order_and_once() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let see = |number: u32| {
            let seen = Rc::clone(&seen);
            move || seen.borrow_mut().push(number)
        };
        hold_event(see(1));
        let (begin, within, end) = (see(2), see(5), see(3));
        hold_event(move || {
            begin();
            hold_event(within);
            emit_held();
            end();
        });
        hold_event(see(4));
        assert!(seen.borrow().is_empty());
        emit_held();
        emit_held();
        assert_eq!(*seen.borrow(), [1, 2, 3, 4, 5]);
        hold_event(|| panic!("a subscriber, on purpose"));
        hold_event(see(6));
        assert!(catch_unwind(AssertUnwindSafe(emit_held)).is_err());
        emit_held();
        assert_eq!(*seen.borrow(), [1, 2, 3, 4, 5, 6]);
    }
}
