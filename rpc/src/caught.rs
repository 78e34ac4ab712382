//! Runs the code of programs (wakers, codecs, handlers, hooks, subscribers, recorders), so that a
//! panic in it ends only the call or connection that it belongs to.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use futures::FutureExt;
use tokio::time::Instant;
use tokio_fabric::LogRate;

use crate::limits::LOGGED_PER_SECOND;

/// Runs the closure; `None` if it has panicked, which is logged.
pub(crate) fn caught<R>(what: impl fmt::Display, run: impl FnOnce() -> R) -> Option<R> {
    let ran = catch_unwind(AssertUnwindSafe(run));
    ran.map_err(|panic| note(what, panic)).ok()
}

/// Like `caught`, for a future.
pub(crate) async fn caught_async<F: Future>(what: impl fmt::Display, run: F) -> Option<F::Output> {
    let ran = AssertUnwindSafe(run).catch_unwind().await;
    ran.map_err(|panic| note(what, panic)).ok()
}

/// Wakes all wakers, even if some of them panic.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        caught("a waker", || waker.wake());
    }
}

/// Drops the value; returns whether its destructor has panicked.
pub(crate) fn drop_caught<T>(what: T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(what))).is_err()
}

/// Logs a panic. The panic's payload may panic when it is dropped, and a subscriber when it logs.
#[cold]
fn note(what: impl fmt::Display, panic: Box<dyn std::any::Any + Send>) {
    drop_caught(panic);
    log(|| tracing::error!(%what, "code of the program has panicked"));
}

/// Emits an event. Ignores a panic of the subscriber.
pub(crate) fn log(emit: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(emit));
}

/// Limits how often a frequent event is logged.
#[derive(Debug, Default)]
pub(crate) struct BoundedLog(Mutex<LogRate>);

impl BoundedLog {
    /// Returns the number of events that were left out before this one; `None`: this event is left
    /// out too.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.admit(Instant::now().into_std(), LOGGED_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Panics(AtomicUsize);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::panic::panic_any(PanicsWhenDropped);
        }
    }

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("as it was asked to");
        }
    }

    #[test]
    fn a_waker_that_panics_takes_none_of_the_others_along() {
        let woken = Arc::new(Panics(AtomicUsize::new(0)));
        wake_all((0..3).map(|_| Waker::from(Arc::clone(&woken))));
        assert_eq!(woken.0.load(Ordering::Relaxed), 3);
    }
}
