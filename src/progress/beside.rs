//! Work that blocks, on threads where that harms nobody.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

/// Does work that blocks on a thread of the runtime's, or, outside of a runtime, on one of its own.
/// Work that cannot be begun is dropped.
pub(crate) fn beside(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => beside_of(&runtime, work),
        // Without a thread to be had, whoever waits finds out by the drop.
        Err(_) => drop(std::thread::Builder::new().spawn(work)),
    }
}

/// As [`beside`]; as a task of the current runtime where `in_order` asks for it, since the order in
/// which threads finish follows no seed.
pub(crate) fn beside_or_task(in_order: bool, work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) if in_order => drop(runtime.spawn(async move { work() })),
        _ => beside(work),
    }
}

/// The same on a thread of this runtime's.
pub(crate) fn beside_of<W: FnOnce() + Send + 'static>(runtime: &Handle, work: W) {
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
    // It panics where there is no thread and none can be had, and keeps what it was given.
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::warn!("the runtime has no thread for work that blocks");
        drop(take(&held));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// "Work that cannot be begun is dropped": a machine without a thread to spare takes no driver
    /// down, which asks for this under the lock of a port, and nobody waits for ever.
    #[test]
    fn work_that_gets_no_thread_is_dropped() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_stack_size(1 << 46)
            .build()
            .unwrap();
        let (told, dropped) = mpsc::channel::<()>();
        runtime.block_on(async { beside(move || told.send(()).unwrap()) });
        let disconnected = Err(mpsc::TryRecvError::Disconnected);
        assert_eq!(dropped.try_recv(), disconnected);
    }
}
