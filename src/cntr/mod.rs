//! Counters (`fi_cntr(3)`): how many operations succeeded, and how many failed.

#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;
mod wait;

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::error::{Error, ErrorKind, Result};
use crate::id::DomainId;
use crate::sync::{
    Attachable, Dependence, Dependents, DomainScope, Keep, Lock, ProgressList, WakeList,
};

pub use wait::{CounterError, CounterWait};

/// A future that waits for the value to reach its threshold.
struct Waiting {
    key: u64,
    threshold: u64,
    waker: Waker,
}

struct State {
    value: u64,
    errors: u64,
    /// Number of changes of `errors`, so that a change is noticed even if it was changed back.
    error_changes: u64,
    closed: bool,
    next_key: u64,
    waiting: Vec<Waiting>,
    keep: Option<Keep>,
}

impl State {
    /// Sets the value and removes the waiters that it satisfies. Each waiter has its own condition,
    /// so the other waiters need not be woken, and dropping a woken waiter does not affect the
    /// others.
    fn set_value(&mut self, value: u64, wakes: &mut WakeList) {
        self.value = value;
        for satisfied in self
            .waiting
            .extract_if(.., |waiting| waiting.threshold <= value)
        {
            wakes.push(satisfied.waker);
        }
    }

    /// Sets the error value; a change wakes all waiters.
    fn set_errors(&mut self, errors: u64, wakes: &mut WakeList) {
        if self.errors != errors {
            self.errors = errors;
            self.error_changes += 1;
            self.wake_all(wakes);
        }
    }

    /// Registers a waiter, or refreshes its waker. Returns the waker that this replaces.
    fn register(&mut self, key: &mut Option<u64>, threshold: u64, waker: &Waker) -> Option<Waker> {
        let place = self.waiting.iter_mut().find(|it| Some(it.key) == *key);
        match place {
            Some(waiting) if waiting.waker.will_wake(waker) => None,
            Some(waiting) => Some(std::mem::replace(&mut waiting.waker, waker.clone())),
            None => {
                let new = self.next_key;
                self.next_key += 1;
                self.waiting.push(Waiting {
                    key: new,
                    threshold,
                    waker: waker.clone(),
                });
                *key = Some(new);
                None
            }
        }
    }

    fn wake_all(&mut self, wakes: &mut WakeList) {
        for waiting in self.waiting.drain(..) {
            wakes.push(waiting.waker);
        }
    }
}

struct Shared {
    domain: DomainId,
    state: Lock<State>,
    dependents: Dependents,
    driven: ProgressList,
}

impl Shared {
    /// From now on reads and waits drive the domain of this scope, including waits that have begun.
    fn drive(&self, scope: &DomainScope) {
        self.driven.add(scope.progress(), || {
            let mut wakes = WakeList::new();
            let mut state = self.state.lock("wake those who wait");
            state.wake_all(&mut wakes);
        });
    }

    fn add_into(&self, count: u64, wakes: &mut WakeList) {
        let mut state = self.state.lock("add to a counter");
        let value = state.value.saturating_add(count);
        state.set_value(value, wakes);
    }
}

impl Attachable for Shared {
    fn is_open(&self) -> bool {
        !self.dependents.is_closed()
    }

    fn count(&self, wakes: &mut WakeList) {
        self.add_into(1, wakes);
    }
}

/// Counts operations that succeeded and, separately, operations that failed (`fi_cntr(3)`).
///
/// A counter that is bound to an endpoint counts the kinds of operations it was bound for, whether
/// or not they also report to a completion queue or a future. The application may add to both
/// values and set them, to count its own events. Clones are handles of the same counter; every
/// method may be called from several tasks at a time.
///
/// Values are exact: every read that begins after an addition includes it. Both values stop at
/// `u64::MAX` instead of wrapping.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let net = Net::loopback();
/// let peer = net.peer()?;
/// let counter = peer.domain.counter()?;
/// counter.add(2);
/// counter.wait_for(2).await?; // Operations of endpoints it is bound to count as well.
/// assert_eq!((counter.read(), counter.read_error()), (2, 0));
/// # Ok(()) }
/// ```
#[doc(alias = "fi_cntr_open")]
#[derive(Clone)]
pub struct Counter {
    shared: Arc<Shared>,
}

impl Counter {
    /// Opens a counter of this domain at 0. `keep` stays alive until the counter is closed.
    pub(crate) fn open(domain: &DomainScope, keep: Option<Keep>) -> Counter {
        let state = State {
            value: 0,
            errors: 0,
            error_changes: 0,
            closed: false,
            next_key: 0,
            waiting: Vec::new(),
            keep,
        };
        let shared = Shared {
            domain: domain.own(),
            state: Lock::new(state),
            dependents: Dependents::new(),
            driven: ProgressList::new(),
        };
        shared.drive(domain);
        Counter {
            shared: Arc::new(shared),
        }
    }

    /// How many operations have succeeded (`fi_cntr_read`).
    #[doc(alias = "fi_cntr_read")]
    pub fn read(&self) -> u64 {
        self.shared.driven.turn();
        self.shared.state.lock("read a counter").value
    }

    /// How many operations have failed; they are not counted in [`read`](Self::read)
    /// (`fi_cntr_readerr`).
    #[doc(alias = "fi_cntr_readerr")]
    pub fn read_error(&self) -> u64 {
        self.shared.driven.turn();
        self.shared.state.lock("read a counter's errors").errors
    }

    /// Adds to the value (`fi_cntr_add`).
    #[doc(alias = "fi_cntr_add")]
    pub fn add(&self, count: u64) {
        self.add_into(count, &mut WakeList::new());
    }

    /// Adds to the error value (`fi_cntr_adderr`). Wakes waiting futures, unless `count` is 0.
    #[doc(alias = "fi_cntr_adderr")]
    pub fn add_error(&self, count: u64) {
        self.add_error_into(count, &mut WakeList::new());
    }

    /// Sets the value (`fi_cntr_set`). An operation that completes at the same time is counted
    /// before or after it; `fi_cntr(3)` requires a stable counter to avoid this ambiguity.
    #[doc(alias = "fi_cntr_set")]
    pub fn set(&self, value: u64) {
        let mut wakes = WakeList::new();
        let mut state = self.shared.state.lock("set a counter");
        state.set_value(value, &mut wakes);
    }

    /// Sets the error value (`fi_cntr_seterr`). Wakes waiting futures, unless the value stays the
    /// same.
    #[doc(alias = "fi_cntr_seterr")]
    pub fn set_error(&self, value: u64) {
        let mut wakes = WakeList::new();
        let mut state = self.shared.state.lock("set a counter's errors");
        state.set_errors(value, &mut wakes);
    }

    /// Waits until the value is at least `threshold`, or until the error value changes
    /// (`fi_cntr_wait`).
    ///
    /// The future returns the value, which is at least `threshold`. Changes of the error value
    /// count from this call on, not from the first poll; see [`CounterWait::errors_seen`] for an
    /// earlier moment. If both conditions are true when the future is polled, the threshold takes
    /// precedence. For a deadline wrap the future in `tokio::time::timeout`, which leaves the error
    /// value unchanged. Any number of tasks may wait, each for its own threshold; each is woken
    /// only when its own condition is true.
    ///
    /// # Errors
    ///
    /// [`CounterError::Failed`] if the error value has changed: "any change in a counter's error
    /// value will unblock any thread inside fi_cntr_wait". [`CounterError::Closed`] if the counter
    /// is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: waiting changes nothing, so the future may be dropped and created again. With
    /// [`CounterWait::errors_seen`] a change of the error value in between is not missed.
    #[doc(alias = "fi_cntr_wait")]
    pub fn wait_for(&self, threshold: u64) -> CounterWait {
        CounterWait::new(Arc::clone(&self.shared), threshold)
    }

    /// Closes the counter for all its handles (`fi_close`): waits that have not reached their
    /// threshold end with [`CounterError::Closed`]. Its values can still be read. Closing twice is
    /// not an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] while endpoints are bound to the counter; the message names them.
    /// Regions that the counter is bound to do not keep it open: they cannot be closed before it
    /// (`fi_mr(3)`).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it does its work at the first poll and never waits.
    pub async fn close(&self) -> Result<()> {
        let mut wakes = WakeList::new();
        let keep;
        {
            let mut state = self.shared.state.lock("close a counter");
            self.shared
                .dependents
                .close()
                .map_err(|users| Error::new(ErrorKind::Busy, format!("counter {users}")))?;
            state.closed = true;
            state.wake_all(&mut wakes);
            keep = state.keep.take();
        }
        drop(keep);
        Ok(())
    }

    /// True once the counter is closed.
    pub fn is_closed(&self) -> bool {
        self.shared.dependents.is_closed()
    }

    /// As [`Counter::add`]; the caller drops `wakes` with no lock held.
    pub(crate) fn add_into(&self, count: u64, wakes: &mut WakeList) {
        self.shared.add_into(count, wakes);
    }

    /// As [`Counter::add_error`]; the caller drops `wakes` with no lock held.
    pub(crate) fn add_error_into(&self, count: u64, wakes: &mut WakeList) {
        let mut state = self.shared.state.lock("add to a counter's errors");
        let errors = state.errors.saturating_add(count);
        state.set_errors(errors, wakes);
    }

    /// Returns the counter in the form in which it is bound to a region.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the counter belongs to no domain of `scope`,
    /// [`ErrorKind::BadState`] if it is closed.
    pub(crate) fn attachable(&self, scope: &DomainScope) -> Result<Weak<dyn Attachable>> {
        scope.check("counter", self.shared.domain)?;
        if self.is_closed() {
            return Err(closed());
        }
        self.shared.drive(scope);
        let shared: Weak<Shared> = Arc::downgrade(&self.shared);
        Ok(shared)
    }

    /// Binds the object of this name, so that `close` returns Busy until the result is dropped.
    ///
    /// # Errors
    /// As for [`attachable`](Self::attachable).
    pub(crate) fn depend(&self, scope: &DomainScope, name: Arc<str>) -> Result<Dependence> {
        scope.check("counter", self.shared.domain)?;
        let dependence = self.shared.dependents.depend(name).ok_or_else(closed)?;
        self.shared.drive(scope);
        Ok(dependence)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::BadState, "the counter is closed")
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock("show a counter");
        f.debug_struct("Counter")
            .field("value", &state.value)
            .field("errors", &state.errors)
            .field("closed", &state.closed)
            .finish()
    }
}
