//! The gate of a memory region: it admits users to the region's bytes, counts them, and can be shut
//! and drained (`fi_mr(3)`: an access while the region is disabled or refreshed fails; it never
//! waits).
//!
//! A user enters, holds a [`GateGuard`] while it may touch the bytes, and leaves by dropping it.
//! Six marks shut the gate: *disabled* refuses peers and operations until the region is enabled,
//! *revoked* refuses peers for good, *quiesced*, *refreshing* and *parked* refuse everyone until
//! they are cleared, *closed* refuses everyone for good. A mark refuses new users only; the caller
//! that set it then waits until the users inside have left ([`Gate::poll_drained`]).
//!
//! ```text
//!   role     open   disabled   revoked   quiesced, refreshing, parked   closed
//!   Local    yes    copies     yes       no                             no
//!   Remote   yes    no         no        no                             no
//! ```
//!
//! A refresh waits for peers only: a posted receive may stay inside indefinitely.
//!
//! Marks and counts are one atomic word (`word.rs`): entering and leaving are one atomic step each,
//! and no mark can be set between the check of the marks and the count. A step that enters
//! synchronizes with the step that cleared a mark, and a drain with each step that left (`AcqRel`
//! on all of them), so what one user did with the bytes happens before what the next one does.
//!
//! Invariants: a count rises only while no mark refuses its role, so a gate that is drained of a
//! refused role stays drained of it until the mark is cleared. The exceptions are users that touch
//! no byte ([`Gate::enter_unless_closed`]): they only delay [`Gate::try_claim`] while they read the
//! owners behind the gate. There is one quiesce at a time. Closing fails while quiesced, so that a
//! leaked guard causes `Busy` and never a hang. There are waiters only while `AWAITED` is set, so
//! that leaving need not take the lock. Wakers are woken with the lock released.
//!
//! `models.rs` explores the interleavings.

mod guard;
#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests;
mod word;

use std::fmt;
use std::task::{Poll, Waker};

use super::{AtomicU64, Lock, Ordering, WaiterKey, Waiters, WakeList};

pub(crate) use guard::{BorrowedGateGuard, Drain, GateGuard, HasGate};
use word::{
    AWAITED, CLAIMED, CLOSED, DISABLED, PARKED, QUIESCED, REFRESHING, REVOKED, check, counts,
};
pub(crate) use word::{DrainScope, GateError, Role};

/// Admits users to a region's bytes, and reports when they have left.
pub(crate) struct Gate {
    word: AtomicU64,
    waiters: Lock<Waiters>,
}

impl Gate {
    /// Makes an open gate without users.
    pub(crate) fn new() -> Self {
        Self::with_marks(0)
    }

    /// Makes a gate that refuses peers and operations until [`Gate::enable`].
    pub(crate) fn new_disabled() -> Self {
        Self::with_marks(DISABLED)
    }

    fn with_marks(marks: u64) -> Self {
        Gate {
            word: AtomicU64::new(marks),
            waiters: Lock::new(Waiters::default()),
        }
    }

    /// Admits one user, which is inside until the guard is dropped, or refuses it at once; never
    /// waits.
    pub(crate) fn enter(&self, role: Role) -> Result<BorrowedGateGuard<'_>, GateError> {
        self.admit(role, role.refused_by())?;
        Ok(BorrowedGateGuard { gate: self, role })
    }

    /// As [`Gate::enter`], for a user that touches no byte and only delays the gate's retirement.
    pub(crate) fn enter_unless_closed(&self) -> Result<BorrowedGateGuard<'_>, GateError> {
        self.admit(Role::Local, CLOSED)?;
        Ok(BorrowedGateGuard {
            gate: self,
            role: Role::Local,
        })
    }

    fn admit(&self, role: Role, refused_by: u64) -> Result<(), GateError> {
        self.update(|word| role.enter(word, refused_by))?;
        Ok(())
    }

    /// Leaves; the last user of its role wakes the waiters.
    fn exit(&self, role: Role) {
        let (one, count) = role.one_and_count();
        let before = self.word.fetch_sub(one, Ordering::AcqRel);
        debug_assert!(
            before & count != 0,
            "each entry was counted once and leaves once"
        );
        if before & count == one && before & AWAITED != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let mut wakes = WakeList::new();
        let mut waiters = self.waiters.lock("leave a gate");
        // Cleared under the lock: a waiter that registers later sets it again.
        self.clear(AWAITED);
        waiters.take_all(&mut wakes);
        drop(waiters);
        drop(wakes);
    }

    /// Returns Ok if this role would be admitted now; does not enter.
    pub(crate) fn is_open(&self, role: Role) -> Result<(), GateError> {
        check(self.load(), role.refused_by())
    }

    /// Admits peers and operations after [`Gate::new_disabled`].
    pub(crate) fn enable(&self) {
        self.clear(DISABLED);
    }

    /// Refuses peers from now on, for good. Users inside stay until they leave.
    pub(crate) fn revoke(&self) {
        self.set(REVOKED);
    }

    /// Refuses everyone while the region is parked. Users inside stay until they leave.
    pub(crate) fn park(&self, parked: bool) {
        if parked {
            self.set(PARKED);
        } else {
            self.clear(PARKED);
        }
    }

    /// Refuses everyone from now on, until [`Gate::end_quiesce`]. Users inside stay until they
    /// leave.
    pub(crate) fn begin_quiesce(&self) -> Result<(), GateError> {
        self.set_exclusive(QUIESCED)
    }

    /// Ends the exclusion. To be called once after each successful `begin_quiesce`.
    pub(crate) fn end_quiesce(&self) {
        let before = self.clear(QUIESCED);
        debug_assert!(
            before & QUIESCED != 0,
            "only the holder of the exclusion ends it"
        );
    }

    fn shut_for_refresh(&self) -> Result<(), GateError> {
        self.set_exclusive(REFRESHING)
    }

    /// Sets a mark that only one caller at a time may set.
    fn set_exclusive(&self, mark: u64) -> Result<(), GateError> {
        self.update(|word| check(word, CLOSED | QUIESCED | REFRESHING).map(|()| word | mark))?;
        Ok(())
    }

    /// Refuses everyone from now on, for good, and returns whether everyone has left. Fails with
    /// `Quiesced` while a guard holds the exclusion, and then nothing has changed. Closing a closed
    /// gate is no error.
    pub(crate) fn close(&self) -> Result<bool, GateError> {
        let before = self.update(|word| check(word, QUIESCED).map(|()| word | CLOSED))?;
        Ok(DrainScope::All.is_drained(before))
    }

    /// Returns true if no user of these roles is inside. This stays true for a caller that has shut
    /// the gate to them.
    pub(crate) fn is_drained(&self, scope: DrainScope) -> bool {
        scope.is_drained(self.load())
    }

    /// Returns true once the gate is closed and drained: no user is ever inside again.
    pub(crate) fn is_closed_and_drained(&self) -> bool {
        let word = self.load();
        word & CLOSED != 0 && DrainScope::All.is_drained(word)
    }

    /// Returns true to the first caller once the gate [is closed and
    /// drained](Gate::is_closed_and_drained); that caller then owns the memory behind it.
    pub(crate) fn try_claim(&self) -> bool {
        self.is_closed_and_drained() && self.word.fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED == 0
    }

    /// Ready once the users in this scope have left. `key` identifies the waiter from poll to poll;
    /// a caller that stops polling before `Ready` passes it to [`Gate::cancel_wait`].
    pub(crate) fn poll_drained(
        &self,
        scope: DrainScope,
        key: &mut Option<WaiterKey>,
        waker: &Waker,
    ) -> Poll<()> {
        let _stale; // Declared before the guard, so a replaced waker is dropped after it.
        let mut waiters = self.waiters.lock("wait for a gate to drain");
        // Step 1, one operation sets the mark and reads the counts: a user that leaves later sees
        // the mark, and then waits for the lock to take the wakers; one that left earlier is not in
        // the count.
        let word = self.word.fetch_or(AWAITED, Ordering::AcqRel);
        if scope.is_drained(word) {
            _stale = waiters.remove(key);
            return Poll::Ready(());
        }
        // Step 2, under the same lock: so no departure is missed.
        _stale = waiters.register(key, waker);
        Poll::Pending
    }

    /// Withdraws a waiter of [`Gate::poll_drained`].
    pub(crate) fn cancel_wait(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            let mut waiters = self.waiters.lock("stop waiting for a gate");
            let stale = waiters.remove(key);
            drop(waiters);
            drop(stale);
        }
    }

    fn load(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Replaces the word with the result of `to`, unless `to` refuses. Returns the previous word.
    fn update(&self, to: impl Fn(u64) -> Result<u64, GateError>) -> Result<u64, GateError> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = to(word)?;
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self
                .word
                .compare_exchange_weak(word, next, order.0, order.1)
            {
                Ok(before) => return Ok(before),
                Err(now) => word = now,
            }
        }
    }

    fn set(&self, mark: u64) {
        self.word.fetch_or(mark, Ordering::AcqRel);
    }

    fn clear(&self, mark: u64) -> u64 {
        self.word.fetch_and(!mark, Ordering::AcqRel)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.load();
        let is_set = |mark| word & mark != 0;
        let (local, remote) = counts(word);
        f.debug_struct("Gate")
            .field("local", &local)
            .field("remote", &remote)
            .field("disabled", &is_set(DISABLED))
            .field("revoked", &is_set(REVOKED))
            .field("refreshing", &is_set(REFRESHING))
            .field("quiesced", &is_set(QUIESCED))
            .field("parked", &is_set(PARKED))
            .field("closed", &is_set(CLOSED))
            .finish()
    }
}
