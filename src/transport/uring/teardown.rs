//! The end of operations that are not wanted any more, and that of the ring itself: everything is
//! cancelled and waited for before its memory is freed (memory-model rule 7).

use std::io;
use std::mem::{self, ManuallyDrop};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Timespec};
use io_uring::{EnterFlags, IoUring};
use rustix::net::{Shutdown, shutdown};

use super::completions::CompletionSlot;
use super::harvest::refuse;
use super::op::WAKE_FD;
use super::ring::{Ring, RingDriver, State};
use super::thread::RingOwner;
use crate::error::{Error, ErrorKind};
use crate::slab::Key;

/// How long the drop of a ring waits for its operations to end. Cancelling a socket's operation
/// takes microseconds; what is longer is broken.
const REAP_TIME: Duration = Duration::from_millis(500);
/// The same of one that has failed, whose driver waits meanwhile.
const REAP_TIME_OF_FAILED: Duration = Duration::from_millis(100);
/// How long one step of the last wait may take.
const REAP_STEP_NANOS: u32 = 1_000_000;

impl Ring {
    /// Drops a completion slot, under the lock that `first` sees it under. When nobody
    /// drives any more, its operations have ended by the return.
    pub(super) fn abandon(&self, owner: Key, first: impl FnOnce(&mut State)) {
        let undriven = self.with(|state, ring| {
            first(state);
            state.abandon(ring, owner);
            state.undriven
        });
        if undriven {
            self.reap();
        }
    }

    /// See [`Transport::driver_gone`](crate::transport::Transport::driver_gone). A ring of a thread
    /// ends with this, on that thread.
    pub(super) fn driver_gone(&self) {
        self.with(|state, _| state.undriven = true);
        self.reap();
        if matches!(self.driven_by, RingDriver::Thread(_)) {
            self.with(|state, ring| state.retire(ring));
        }
    }

    /// Ends everything in flight. A cancellation that concerns another thread's operation, or that
    /// of a thread that has exited, takes effect there: later than the call that asks for it.
    fn reap(&self) {
        self.with(|state, ring| state.cancel_all(ring));
        let deadline = Instant::now() + REAP_TIME;
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

    /// Waits a little for operations to end. True once all have, or if it is not for us to wait.
    fn reap_some(&mut self, ring: &IoUring) -> bool {
        if self.ops.len() == 0 || !self.ring_owner.is_mine() || self.retired {
            return true;
        }
        let step = io_uring::types::Timespec::new().nsec(REAP_STEP_NANOS);
        let args = io_uring::types::SubmitArgs::new().timespec(&step);
        // Runs what the kernel has left to do in this thread; time that is up is no failure.
        let _ = ring.submitter().submit_with_args(1, &args);
        self.dirty = true;
        self.submit_and_harvest(ring);
        self.ops.len() == 0
    }

    /// Drops a completion slot: what is in flight for it is cancelled, and freed when it has ended.
    fn abandon(&mut self, ring: &IoUring, owner: Key) {
        let Some(slot) = self.slots.remove(owner) else {
            return;
        };
        let ops = match slot {
            CompletionSlot::Link(slot) => {
                for arrived in slot.arrived {
                    self.buffers.give_back(arrived);
                }
                for (memory, _) in slot.sent.into_iter().chain(slot.direct_end) {
                    self.discard(memory);
                }
                [slot.send_op, slot.read_op, slot.poll_op]
            }
            CompletionSlot::Listener(slot) => {
                slot.accepted.into_iter().for_each(refuse);
                [slot.op, None, None]
            }
            CompletionSlot::Watch(slot) => [slot.reading, slot.writing, None],
        };
        for key in ops.into_iter().flatten() {
            if self.retired {
                self.withdraw(key);
                continue;
            }
            if let Some(op) = self.ops.get_mut(key) {
                op.owner = None;
            }
            self.push_cancel(ring, key);
        }
        self.submit_and_harvest(ring);
    }

    /// Frees an operation that the kernel has not seen.
    fn withdraw(&mut self, key: Key) {
        if let Some(op) = self.ops.remove(key)
            && let Some(memory) = op.memory
        {
            self.unload(None, op.kind, memory, 0);
        }
    }

    /// Nothing is submitted from now on: everything is cancelled and waited for, for a while.
    fn retire(&mut self, ring: &IoUring) {
        if self.retired {
            return;
        }
        self.cancel_all(ring);
        let deadline = Instant::now() + REAP_TIME;
        while !self.reap_some(ring) && Instant::now() < deadline {}
        if !mem::replace(&mut self.retired, true) {
            self.free_what_ended(ring);
        }
        self.ring_owner = RingOwner::Nobody;
    }

    /// The kernel refuses to be entered, and so gets and ends nothing any more by the usual way:
    /// the ring is of no use. The driver is told (`poll_drive`), and ends everything.
    pub(super) fn fail(&mut self, ring: &IoUring, error: &io::Error) {
        if mem::replace(&mut self.retired, true) {
            return;
        }
        let failure = failure(error);
        tracing::error!(error = %failure, in_flight = self.ops.len(), "a ring has failed");
        self.failure = Some(failure);
        let taken = self.entries_taken(ring);
        // A socket that is shut down ends what waits for it, and tells its peer.
        for key in self.ops.keys() {
            if let Some(op) = self.ops.get(key)
                && op.entry < taken
            {
                let _ = shutdown(&op.fd, Shutdown::Both);
            }
        }
        let deadline = Instant::now() + REAP_TIME_OF_FAILED;
        loop {
            // A system call of its own, which may be permitted still.
            let any = CancelBuilder::any().all();
            let step = Timespec::new().nsec(REAP_STEP_NANOS);
            let _ = ring.submitter().register_sync_cancel(Some(step), any);
            // Has the kernel do what it has deferred, if it lets itself be entered for that. Not
            // one entry is submitted: their memory is freed below.
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: no entries, no argument.
            let _ = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
            while self.harvest_some(ring).1 && Instant::now() < deadline {}
            let in_flight = |key: &Key| self.ops.get(*key).is_some_and(|op| op.entry < taken);
            if !self.ops.keys().iter().any(in_flight) || Instant::now() >= deadline {
                break;
            }
            // Whatever a thread does next, it completes what has ended first.
            thread::park_timeout(Duration::from_nanos(REAP_STEP_NANOS.into()));
        }
        self.free_what_ended(ring);
        self.mark_dirty();
    }

    /// Frees what the kernel has not taken, which it never will. What it has taken and not ended
    /// keeps its memory for ever, since the kernel may still use it (memory-model rule 7), and so
    /// do the buffers then.
    fn free_what_ended(&mut self, ring: &IoUring) {
        let taken = self.entries_taken(ring);
        self.backlog.clear();
        let mut leaked = 0;
        for key in self.ops.keys() {
            if self.ops.get(key).is_some_and(|op| op.entry >= taken) {
                self.withdraw(key);
            } else if let Some(op) = self.ops.remove(key) {
                leaked += 1;
                mem::forget(op.memory);
            }
        }
        if leaked > 0 {
            tracing::warn!(
                leaked,
                "operations did not end with their ring; memory is leaked"
            );
            return;
        }
        if self.wake_fd.take().is_some() {
            // The kernel keeps the eventfd no longer than the thread.
            let wake_fd = CancelBuilder::user_data(WAKE_FD);
            let _ = ring.submitter().register_sync_cancel(None, wake_fd);
        }
        let unregistered = ring.submitter().unregister_buf_ring(super::bufs::GROUP);
        self.buffers_are_ours = unregistered.is_ok();
    }
}

/// Why everything that was in a ring ends.
fn failure(error: &io::Error) -> Error {
    let what = format!(
        "io_uring_enter: {error}; what was open in this ring has ended, open it anew (the backend \
         epoll needs no ring)"
    );
    Error::new(ErrorKind::DriverGone, what).with_os(error.raw_os_error())
}

impl Drop for Ring {
    /// Everything is cancelled and waited for, here or when the ring's thread ended.
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
