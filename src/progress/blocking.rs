//! Blocking work, on threads that run no driver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use crate::log::hold_event;

/// Runs blocking work on a blocking thread of the runtime, or, outside of a runtime, on a thread of
/// its own. Work that gets no thread is dropped, which ends whatever waits for it; returns whether
/// it got one.
pub(crate) fn run_blocking(work: impl FnOnce() + Send + 'static) -> bool {
    match Handle::try_current() {
        Ok(runtime) => run_blocking_on(&runtime, work),
        Err(_) => std::thread::Builder::new().spawn(work).is_ok(),
    }
}

/// Runs blocking work off the driver; with `in_order`, as a task of the current runtime, since a
/// seed does not determine the order in which threads finish.
pub(crate) fn run_blocking_or_task(in_order: bool, work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) if in_order => drop(runtime.spawn(async move { work() })),
        _ => _ = run_blocking(work),
    }
}

/// As [`run_blocking`], on a blocking thread of this runtime.
pub(crate) fn run_blocking_on<W: FnOnce() + Send + 'static>(runtime: &Handle, work: W) -> bool {
    let held = Arc::new(Mutex::new(Some(work)));
    let take = |held: &Mutex<Option<W>>| held.lock().unwrap_or_else(PoisonError::into_inner).take();
    let given = Arc::clone(&held);
    let call = || {
        drop(runtime.spawn_blocking(move || {
            if let Some(work) = take(&given) {
                work();
            }
        }));
    };
    // `spawn_blocking` panics if the runtime gets no thread, and keeps the closure.
    let has_thread = catch_unwind(AssertUnwindSafe(call)).is_ok();
    if !has_thread {
        // The event is held, since the caller may have a port's lock.
        hold_event(|| tracing::warn!("the runtime has no thread for work that blocks"));
        drop(take(&held));
    }
    has_thread
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// "Work that gets no thread is dropped": a machine without a thread to spare takes no driver
    /// down, which asks for this under the lock of a port, and nothing waits indefinitely.
    #[test]
    fn work_that_gets_no_thread_is_dropped() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_stack_size(1 << 46)
            .build()
            .unwrap();
        let (sender, dropped) = mpsc::channel::<()>();
        let has_thread = runtime.block_on(async { run_blocking(move || sender.send(()).unwrap()) });
        assert!(!has_thread);
        let disconnected = Err(mpsc::TryRecvError::Disconnected);
        assert_eq!(dropped.try_recv(), disconnected);
    }
}
