//! The end of operations that are no longer needed, and of the ring itself: everything is cancelled
//! and awaited before its memory is freed (memory-model rule 7).
//!
//! # A ring that fails
//!
//! The ring has failed if the kernel refuses `io_uring_enter`, at once, or for longer than
//! `RING_REFUSAL_MAX` if the refusal may be temporary (`EINTR`, `EBUSY`, `EAGAIN`). The ring then
//! submits and ends nothing any more. Operations that the kernel has not taken are freed. The other
//! operations are cancelled by other system calls. Operations that do not end are leaked, with a
//! line in the log. `poll_drive` reports the failure, and the driver ends: every operation ends
//! with `DriverGone`, which names the system call and its error, endpoints shut down, a listener
//! closes with an error event, and later calls get the same error. Objects that are opened again do
//! without a ring, or report why there is none.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring};
use rustix::net::{Shutdown, shutdown};

use crate::log::hold_event;

use super::completions::CompletionSlot;
use super::harvest::refuse;
use super::op::WAKE_FD;
use super::ring::{Ring, RingDriver, RingPhase, State};
use super::thread::RingOwner;
use crate::error::{Error, ErrorKind};
use crate::limits::{RING_REAP_STEP, RING_REAP_TIMEOUT, RING_REAP_TIMEOUT_FAILED};
use crate::slab::Key;

impl Ring {
    /// Drops a completion slot; `first` runs under the same lock. On a ring that is not driven, the
    /// slot's operations have ended when this returns.
    pub(super) fn abandon(&self, owner: Key, first: impl FnOnce(&mut State)) {
        let waits = self.with(|state, ring| {
            first(state);
            state.abandon(ring, owner);
            state.phase() == RingPhase::Undriven
        });
        if waits {
            self.reap();
        }
    }

    /// See [`Transport::shutdown`](crate::transport::Transport::shutdown). A ring of a thread ends
    /// with this call, on that thread.
    pub(super) fn shutdown(&self) {
        self.with(|state, _| {
            if state.phase() == RingPhase::Driven {
                state.set_phase(RingPhase::Undriven);
            }
        });
        self.reap();
        if matches!(self.driven_by, RingDriver::Thread(_)) {
            self.with(|state, ring| state.retire(ring));
        }
    }

    /// Ends everything in flight. The cancellation of an operation that another thread submitted,
    /// even one that has exited, takes effect in that thread, later than the call that requests it.
    fn reap(&self) {
        self.with(|state, ring| state.cancel_all(ring));
        let deadline = Instant::now() + RING_REAP_TIMEOUT;
        while !self.with(|state, ring| state.reap_some(ring)) && Instant::now() < deadline {}
    }
}

impl State {
    fn cancel_all(&mut self, ring: &IoUring) {
        for key in self.ops.keys() {
            self.push_cancel(ring, key);
        }
        self.submit_and_harvest(ring);
    }

    /// Waits a little for operations to end. Returns true once all have, or if this thread must not
    /// wait.
    fn reap_some(&mut self, ring: &IoUring) -> bool {
        if self.ops.len() == 0 || !self.ring_owner.is_mine() || self.is_over() {
            return true;
        }
        let step = Timespec::from(RING_REAP_STEP);
        let args = SubmitArgs::new().timespec(&step);
        // Runs the work that the kernel has deferred to this thread; running out of time is no
        // failure.
        let _ = ring.submitter().submit_with_args(1, &args);
        self.dirty = true;
        self.submit_and_harvest(ring);
        self.ops.len() == 0
    }

    /// Drops a completion slot: its operations in flight are cancelled, and freed when they have
    /// ended.
    fn abandon(&mut self, ring: &IoUring, owner: Key) {
        let Some(slot) = self.slots.remove(owner) else {
            return;
        };
        let ops: Vec<Key> = slot.ops().collect();
        match slot {
            CompletionSlot::Link(link) => {
                for filled in link.filled {
                    self.buffers.recycle(filled);
                }
                for (memory, _) in link.sent.into_iter().chain(link.direct_end) {
                    self.discard(memory);
                }
            }
            CompletionSlot::Listener(listener) => listener.accepted.into_iter().for_each(refuse),
            CompletionSlot::Readiness(_) => {}
        }
        for key in ops {
            if self.is_over() {
                self.remove_unseen(key);
                continue;
            }
            // Detached: the operation's memory is freed when it has ended.
            if let Some(op) = self.ops.get_mut(key) {
                op.owner = None;
            }
            self.push_cancel(ring, key);
        }
        self.submit_and_harvest(ring);
    }

    /// Frees an operation that the kernel has not seen.
    fn remove_unseen(&mut self, key: Key) {
        if let Some(op) = self.ops.remove(key)
            && let Some(memory) = op.memory
        {
            self.unload(None, op.kind, memory, 0);
        }
    }

    /// Cancels everything and waits for a while; then nothing is submitted any more.
    fn retire(&mut self, ring: &IoUring) {
        if self.is_over() {
            return;
        }
        self.cancel_all(ring);
        let deadline = Instant::now() + RING_REAP_TIMEOUT;
        while !self.reap_some(ring) && Instant::now() < deadline {}
        if !self.is_over() {
            self.set_phase(RingPhase::Retired);
            self.free_ended(ring);
        }
        self.ring_owner = RingOwner::None;
    }

    /// Marks the ring as failed: the kernel refuses to be entered, so that no operation is
    /// submitted or ended in the usual way. `poll_drive` reports the failure to the driver, which
    /// ends all its objects.
    pub(super) fn fail(&mut self, ring: &IoUring, error: &io::Error) {
        if self.is_over() {
            return;
        }
        self.set_phase(RingPhase::Failed);
        let failure = failure(error);
        self.failure = Some(failure.clone());
        let in_flight = self.ops.len();
        hold_event(move || tracing::error!(error = %failure, in_flight, "a ring has failed"));
        let taken = self.entries_taken(ring);
        // Shutting a socket down ends the operations that wait for it, and its peer notices.
        for key in self.ops.keys() {
            if let Some(op) = self.ops.get(key)
                && op.entry < taken
            {
                let _ = shutdown(&op.fd, Shutdown::Both);
            }
        }
        let deadline = Instant::now() + RING_REAP_TIMEOUT_FAILED;
        loop {
            // A system call of its own, which may still be permitted.
            let any = CancelBuilder::any().all();
            let step = Timespec::from(RING_REAP_STEP);
            let _ = ring.submitter().register_sync_cancel(Some(step), any);
            // Makes the kernel do its deferred work, if it can be entered for that. Submits no
            // entries: their memory is freed below.
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: no entries, no argument.
            let _ = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
            while self.harvest_round(ring).more && Instant::now() < deadline {}
            let in_flight = |key: &Key| self.ops.get(*key).is_some_and(|op| op.entry < taken);
            if !self.ops.keys().iter().any(in_flight) || Instant::now() >= deadline {
                break;
            }
            // The thread completes ended operations whenever it leaves a system call.
            thread::park_timeout(RING_REAP_STEP);
        }
        self.free_ended(ring);
        self.mark_dirty();
    }

    /// Frees operations that the kernel has not taken, and never will. Operations that it has taken
    /// and not ended are leaked with the buffers, since the kernel may still use them (memory-model
    /// rule 7).
    fn free_ended(&mut self, ring: &IoUring) {
        let taken = self.entries_taken(ring);
        self.backlog.clear();
        let mut leaked = 0;
        for key in self.ops.keys() {
            if self.ops.get(key).is_some_and(|op| op.entry >= taken) {
                self.remove_unseen(key);
            } else if let Some(op) = self.ops.remove(key) {
                leaked += 1;
                mem::forget(op.memory);
            }
        }
        if leaked > 0 {
            hold_event(move || {
                tracing::warn!(
                    leaked,
                    "operations did not end with their ring; memory is leaked"
                );
            });
            return;
        }
        if self.wake_fd.take().is_some() {
            // The kernel must not keep the eventfd longer than the thread.
            let wake_fd = CancelBuilder::user_data(WAKE_FD);
            let _ = ring.submitter().register_sync_cancel(None, wake_fd);
        }
        let unregistered = ring.submitter().unregister_buf_ring(super::bufs::GROUP);
        self.buffers_are_ours = unregistered.is_ok();
    }
}

/// Makes the error with which everything in a failed ring ends.
fn failure(error: &io::Error) -> Error {
    let what = format!(
        "io_uring_enter: {error}; what was open in this ring has ended, open it anew (the backend \
         epoll needs no ring)"
    );
    Error::new(ErrorKind::DriverGone, what).with_os(error.raw_os_error())
}

impl Drop for Ring {
    /// Everything has been cancelled and awaited, here or when the ring's thread ended.
    fn drop(&mut self) {
        let ring = match &self.driven_by {
            RingDriver::Reactor(fd) => fd.get_ref(),
            RingDriver::Thread(ring) => ring,
        };
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.retire(ring);
        drop(state.deferred.take());
        if state.buffers_are_ours {
            // SAFETY: taken once, in drop.
            let buffers = unsafe { ManuallyDrop::take(&mut state.buffers) };
            // SAFETY: no operation is in flight, and the group is unregistered.
            unsafe { buffers.free() };
        }
    }
}
