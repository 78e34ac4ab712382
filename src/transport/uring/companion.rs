//! Tokio beside a ring: the runtime of a future that sleeps in the ring
//! ([`caller`](crate::transport::caller)).

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// A Tokio runtime on a thread of its own: timers, tasks and sockets for a future whose thread
/// sleeps in a ring.
pub(super) struct CompanionRuntime {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CompanionRuntime {
    pub(super) fn start() -> Result<Self> {
        let failed = |error: io::Error| {
            let what = format!("starting the thread fabric-tokio: {error}");
            Error::new(ErrorKind::LimitReached, what)
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, is_over) = oneshot::channel();
        let body = move || {
            // Fails only if the sender is dropped, which ends the runtime.
            let _ = runtime.block_on(is_over);
        };
        let thread = thread::Builder::new().name("fabric-tokio".to_owned());
        let thread = thread.spawn(body).map_err(failed)?;
        Ok(CompanionRuntime {
            handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for CompanionRuntime {
    /// Waits for the runtime's end, as a runtime's drop does: running blocking tasks finish first.
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic: panics of tasks were caught.
            let _ = thread.join();
        }
    }
}
