//! The one lock (ruling 21). Its kind is chosen when the domain is opened; all code above is the
//! same for every kind.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which lock a domain's objects use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum LockKind {
    /// `FI_THREAD_SAFE`: a mutex; any thread may call.
    Mutex,
    // The thread-bound kind (`FI_THREAD_DOMAIN`, `FI_THREAD_COMPLETION`) becomes a variant here and
    // in `Cell` below. Its guard is another type, and a call from a wrong thread an error, so that
    // public calls will check the thread where they enter, before they lock.
}

enum Cell<T> {
    Mutex(Mutex<T>),
}

/// A value behind the domain's kind of lock.
pub(crate) struct Lock<T> {
    cell: Cell<T>,
}

impl<T> Lock<T> {
    #[inline]
    pub(crate) fn new(kind: LockKind, value: T) -> Self {
        let cell = match kind {
            LockKind::Mutex => Cell::Mutex(Mutex::new(value)),
        };
        Lock { cell }
    }

    /// Takes the lock; `_purpose` says for what, for whoever instruments this one place.
    #[inline]
    pub(crate) fn lock(&self, _purpose: &'static str) -> MutexGuard<'_, T> {
        match &self.cell {
            // A panic while holding the lock is a bug of ours; the state machines behind it check
            // themselves, so going on beats taking every other caller down.
            Cell::Mutex(mutex) => mutex.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}
