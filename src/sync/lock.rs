//! The one lock of the crate (ruling 21).

use std::sync::PoisonError;

use super::{Mutex, MutexGuard};

/// A value behind a mutex that ignores poisoning.
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    #[inline]
    pub(crate) fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    /// Locks the value. `_purpose` says why, for tools that instrument this one place.
    #[inline]
    pub(crate) fn lock(&self, _purpose: &'static str) -> MutexGuard<'_, T> {
        // A panic while holding the lock is a bug of ours; the state machines behind it check
        // themselves, so continuing is better than failing every other caller.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}
