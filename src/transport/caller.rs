//! The thread that runs the application's future and, between its polls, the driver of a domain
//! ([`local::block_on`](crate::local::block_on)).
//!
//! ```text
//!   opened ──▶ WaitingDriver ── block_on, once ──▶ the thread begins the reactor
//!                                                       │
//!     ┌── sleeps in the reactor ◀── polls the future ◀──┴── polls the driver ◀─┐
//!     └──────────── a completion, a wake from another thread, a deadline ──────┘
//! ```
//!
//! The reactor is the domain's ring or, without a ring, a Tokio runtime of the domain's own. That
//! runtime also serves the future's other uses of Tokio (timers, `spawn`, other sockets). With a
//! ring, a companion runtime on a thread of its own serves these (`uring/companion.rs`), so its
//! wakes cross threads.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::LocalSet;

use super::run::{CaughtDriver, Reactor};
use crate::error::{Error, ErrorKind, Result};

/// The driver of a domain, and its reactor, until a thread runs them.
#[derive(Default)]
pub(crate) struct WaitingDriver {
    /// `None` once a thread has taken the reactor and the driver.
    parts: Mutex<Option<(Box<dyn Reactor>, CaughtDriver)>>,
}

impl WaitingDriver {
    fn lock(&self) -> MutexGuard<'_, Option<(Box<dyn Reactor>, CaughtDriver)>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, reactor: Box<dyn Reactor>, driver: CaughtDriver) {
        *self.lock() = Some((reactor, driver));
    }

    /// See [`local::block_on`](crate::local::block_on).
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        let _within = Within::enter()?;
        // Tokio panics if this thread must not block. That happens here, before the domain changes.
        if let Ok(current) = Handle::try_current() {
            current.block_on(async {});
        }
        let taken = self.lock().take();
        let Some((mut reactor, driver)) = taken else {
            return Err(bad_state(
                "block_on: a domain can be given to it once, and has been",
            ));
        };
        reactor.begin()?;
        let mut output = None;
        let tasks = LocalSet::new();
        // Lets wakers and destructors that run during a turn of the driver spawn local tasks.
        let _entered = tasks.enter();
        let application = async {
            output = Some(tasks.run_until(future).await);
            // The tasks end here, within the runtime and before the driver.
            drop(tasks);
        };
        // Catches a panic, so that the driver ends before the panic continues.
        let mut panicked = None;
        let caught = async {
            panicked = AssertUnwindSafe(application).catch_unwind().await.err();
        };
        reactor.block_on_both(driver, pin!(caught))?;
        match (panicked, output) {
            (Some(panic), output) => {
                // Discards a second panic, of the output's destructor.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(output)));
                resume_unwind(panic)
            }
            (None, Some(output)) => Ok(output),
            (None, None) => unreachable!("the future has ended"),
        }
    }
}

impl fmt::Debug for WaitingDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingDriver")
            .field("is_waiting", &self.lock().is_some())
            .finish_non_exhaustive()
    }
}

fn bad_state(what: &'static str) -> Error {
    Error::new(ErrorKind::BadState, what)
}

thread_local! { static IS_WITHIN: Cell<bool> = const { Cell::new(false) } }

/// Notes that this thread is within a `block_on`.
struct Within;

impl Within {
    fn enter() -> Result<Self> {
        if IS_WITHIN.replace(true) {
            return Err(bad_state(
                "block_on: within another one, which it would block; use a thread of its own",
            ));
        }
        Ok(Within)
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        IS_WITHIN.set(false);
    }
}

/// Returns true on a thread that is within [`WaitingDriver::block_on`].
#[inline]
pub(crate) fn is_within_block_on() -> bool {
    IS_WITHIN.get()
}
