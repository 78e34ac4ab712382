//! Makes peers' writes persistent, on a blocking thread, since the device may take long.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use crate::buf::Payload;
use crate::error::Result;

use super::blocking::run_blocking_or_task;
use super::engine::Engine;
use super::port::{Port, PortState};

/// A peer's write that is being made persistent.
pub(super) struct Commit {
    ended: Mutex<Option<(Payload, Result<()>)>>,
    waker: Waker,
}

impl Commit {
    fn end(&self, memory: Payload, result: Result<()>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some((memory, result));
        self.waker.wake_by_ref();
    }

    fn take(&self) -> Option<(Payload, Result<()>)> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// Ends the commit even if the runtime drops the work before it runs.
struct EndGuard(Option<(Arc<Commit>, Payload)>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some((commit, memory)) = self.0.take() {
            commit.end(memory, Err(Engine::gone_error()));
        }
    }
}

impl Port {
    /// Starts the commit that the machine wants, and reports an ended one to it. Called only by the
    /// driver, which runs inside a runtime. Returns true if a commit had ended.
    #[inline]
    pub(super) fn commit(&self, state: &mut PortState) -> bool {
        if state.committing.is_none() && !state.machine.wants_commit() {
            return false;
        }
        self.commit_some(state)
    }

    #[inline(never)]
    fn commit_some(&self, state: &mut PortState) -> bool {
        let ended = state.committing.as_ref().and_then(|commit| commit.take());
        let any = ended.is_some();
        if let Some((memory, result)) = ended {
            state.committing = None;
            state.machine.handle_committed(memory, result);
        }
        if let Some(memory) = state.machine.poll_commit() {
            let commit = Arc::new(Commit {
                ended: Mutex::new(None),
                waker: self.waker.clone(),
            });
            state.committing = Some(Arc::clone(&commit));
            let mut guard = EndGuard(Some((commit, memory)));
            run_blocking_or_task(self.engine.random.is_seeded(), move || {
                if let Some((commit, memory)) = guard.0.take() {
                    let result = memory.flush();
                    commit.end(memory, result);
                }
            });
        }
        any
    }
}
