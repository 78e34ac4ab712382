//! Submission: operations get an entry of the table, their submission entries are queued, and one
//! system call submits them.

use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use io_uring::squeue::Entry;
use io_uring::{EnterFlags, IoUring};

use super::op::{Op, OpKind, OpMemory, cancel_entry};
use super::ring::{RingPhase, State};
use super::thread::RingOwner;
use super::thread_id::ThreadId;
use crate::limits::{RING_REFUSAL_MAX, RING_REFUSALS_MIN, RING_SUBMIT_ATTEMPTS};
use crate::slab::Key;
use crate::transport::epoll::IoDirection;
use crate::transport::{DirectBuffer, SendBatch};

impl State {
    pub(super) fn push_send(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        batch: Box<SendBatch>,
        size_max: usize,
    ) {
        let mut memory = self.spare.pop().unwrap_or_else(OpMemory::empty);
        memory.load_batch(batch, size_max);
        let op = self.push(ring, owner, fd, OpKind::Send, Some(memory));
        self.link(owner).send.start(op);
    }

    pub(super) fn push_direct(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        direct: DirectBuffer,
        size_max: usize,
    ) {
        let mut memory = self.spare.pop().unwrap_or_else(OpMemory::empty);
        memory.load_direct(direct, size_max);
        self.push_read(ring, owner, fd, OpKind::Direct, Some(memory));
    }

    pub(super) fn push_stage(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        multishot: bool,
        size_max: usize,
    ) {
        let kind = OpKind::Stage {
            multishot,
            size_max,
        };
        let op = self.push_read(ring, owner, fd, kind, None);
        if self.ring_owner == RingOwner::Any {
            self.unattributed.push(op);
        }
    }

    fn push_read(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        kind: OpKind,
        memory: Option<OpMemory>,
    ) -> Key {
        assert!(
            self.link(owner).read.is_idle(),
            "one receive is armed per socket (memory-model rule 5)"
        );
        let op = self.push(ring, owner, fd, kind, memory);
        let link = self.link(owner);
        link.read.start(op);
        link.foreign_harvests = 0;
        op
    }

    pub(super) fn push_poll(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>, events: u32) {
        let op = self.push(ring, owner, fd, OpKind::Poll(events), None);
        self.link(owner).poll.start(op);
    }

    /// Polls once for the readiness of a socket in one direction.
    pub(super) fn push_readiness(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        direction: IoDirection,
    ) {
        let events = match direction {
            IoDirection::Read => libc::POLLIN,
            IoDirection::Write => libc::POLLOUT,
        };
        let op = self.push(ring, owner, fd, OpKind::Poll(events as u32), None);
        self.readiness(owner).poll(direction).start(op);
    }

    pub(super) fn push_accept(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>) {
        let op = self.push(ring, owner, fd, OpKind::Accept, None);
        self.listener(owner).accept.start(op);
    }

    fn push(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        kind: OpKind,
        memory: Option<OpMemory>,
    ) -> Key {
        let key = self.ops.insert(Op {
            owner: Some(owner),
            fd: Arc::clone(fd),
            kind,
            entry: self.entries,
            submitter: None,
            memory,
        });
        if let Some(op) = self.ops.get(key) {
            let entry = op.to_entry(key);
            self.push_entry(ring, entry);
        }
        key
    }

    /// Asks the kernel to end an operation. The operation's own completion follows.
    pub(super) fn push_cancel(&mut self, ring: &IoUring, op: Key) {
        self.push_entry(ring, cancel_entry(op.to_bits()));
    }

    /// Polls the eventfd, unless the thread is ending.
    pub(super) fn arm_wake_fd(&mut self, ring: &IoUring) {
        if let (Some(wake_fd), false) = (self.wake_fd.clone(), self.phase() != RingPhase::Driven) {
            self.push_entry(ring, wake_fd);
        }
    }

    fn push_entry(&mut self, ring: &IoUring, entry: Entry) {
        if self.is_over() {
            return;
        }
        self.entries += 1;
        self.backlog.push_back(entry);
        self.flush_backlog(ring);
        self.mark_dirty();
    }

    pub(super) fn mark_dirty(&mut self) {
        self.dirty = true;
        // The thread of a ring submits before it sleeps: it need not wake itself.
        if matches!(self.ring_owner, RingOwner::Thread(_)) && self.ring_owner.is_mine() {
            return;
        }
        if let Some(driver) = self.driver.take() {
            self.deferred.wakers.push(driver);
        }
    }

    fn flush_backlog(&mut self, ring: &IoUring) {
        if self.backlog.is_empty() {
            return;
        }
        // SAFETY: the lock of the state is held, and no other queue object exists under it.
        let mut queue = unsafe { ring.submission_shared() };
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what an entry points to is in the memory of its slot, at an address that does
            // not change until the operation's completion (memory-model rule 1). The slot's `fd`
            // keeps its descriptor open for as long. The `WakeState` keeps the eventfd open until
            // the thread has submitted its entry. Entries without memory point to nothing. A thread
            // that submits without the lock reads only published entries, through atomics.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Returns how many entries the kernel has taken.
    pub(super) fn entries_taken(&self, ring: &IoUring) -> u64 {
        // SAFETY: as in `flush_backlog`.
        let waiting = unsafe { ring.submission_shared() }.len() + self.backlog.len();
        self.entries - waiting as u64
    }

    /// Called when the thread of the ring is about to sleep: moves the backlog to the queue, and
    /// returns how to go on.
    pub(super) fn before_sleep(&mut self, ring: &IoUring) -> BeforeSleep {
        if self.failure.is_some() {
            return match self.dirty {
                true => BeforeSleep::Drive,
                false => BeforeSleep::Failed,
            };
        }
        self.flush_backlog(ring);
        self.dirty = false;
        // SAFETY: as in `flush_backlog`.
        let queue = unsafe { ring.submission_shared() };
        let has_work = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        BeforeSleep::Enter {
            has_work,
            // Entering without waiting shows whether an interruption or a refusal has passed.
            may_wait: self.backlog.is_empty() && self.refusals.is_none(),
        }
    }

    /// Submits the queue to the kernel.
    pub(super) fn enter(&mut self, ring: &IoUring) -> io::Result<usize> {
        let entered = if self.ring_owner == RingOwner::Any {
            ring.submitter().submit()
        } else {
            // SAFETY: as in `flush_backlog`.
            let count = unsafe { ring.submission_shared() }.len() as u32;
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: as many entries as the queue holds, no argument. The kernel runs its deferred
            // work only if the call asks for events.
            unsafe { (ring.submitter()).enter::<libc::sigset_t>(count, 0, flags, None) }
        };
        if entered.is_ok() {
            self.refusals = None;
        }
        entered
    }

    /// Submits everything that was pushed. Returns true if there was anything.
    pub(super) fn submit(&mut self, ring: &IoUring) -> bool {
        if !self.ring_owner.is_mine() || !mem::take(&mut self.dirty) || self.is_over() {
            return false;
        }
        // 1. Note this thread, which will complete the operations that it submits.
        for key in self.unattributed.drain(..) {
            if let Some(op) = self.ops.get_mut(key) {
                op.submitter = Some(ThreadId::current());
            }
        }
        // 2. Enter until the kernel has taken everything, or takes nothing.
        for _ in 0..RING_SUBMIT_ATTEMPTS {
            match self.enter(ring) {
                Ok(_) => {
                    self.flush_backlog(ring);
                    // SAFETY: as in `flush_backlog`.
                    if unsafe { ring.submission_shared() }.is_empty() {
                        return true;
                    }
                }
                Err(error) => match self.refused(ring, &error) {
                    Retry::Now => {}
                    Retry::Later => break,
                    Retry::Never => return true,
                },
            }
        }
        // 3. The next drive submits the rest.
        self.mark_dirty();
        true
    }

    /// Handles the kernel's refusal to be entered. Returns when to try again. A permanent refusal,
    /// or one of an unknown kind, ends the ring.
    pub(super) fn refused(&mut self, ring: &IoUring, error: &io::Error) -> Retry {
        let retry = match error.raw_os_error() {
            // A signal came first.
            Some(libc::EINTR) => Retry::Now,
            // The kernel keeps completions that found the queue full, and takes entries again once
            // there is room.
            Some(libc::EBUSY) => {
                self.harvest_round(ring);
                Retry::Now
            }
            // Memory is short.
            Some(libc::EAGAIN) => Retry::Later,
            _ => Retry::Never,
        };
        let refusals = self.refusals.get_or_insert_default();
        if retry == Retry::Never || refusals.is_permanent(Instant::now()) {
            self.fail(ring, error);
            return Retry::Never;
        }
        retry
    }

    /// Submits now and harvests completions, so that awaited cancellations end. If the ring belongs
    /// to another thread, that thread does both: the push has woken it.
    pub(super) fn submit_and_harvest(&mut self, ring: &IoUring) {
        if !self.ring_owner.is_mine() || self.is_over() {
            return;
        }
        self.submit(ring);
        if !self.is_over() && self.harvest_round(ring).more {
            // No edge reports the rest to the driver.
            self.mark_dirty();
        }
    }
}

/// The next step of a ring's thread before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeforeSleep {
    /// Enter the kernel, and sleep there if `may_wait`. If not `has_work`, enter only to sleep.
    Enter { has_work: bool, may_wait: bool },
    /// Drive once more: the ring has failed, and the driver has not noticed yet.
    Drive,
    /// Sleep outside of the ring, which has failed.
    Failed,
}

/// Refusals since the kernel was last entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct EnterRefusals {
    since: Instant,
    count: usize,
}

impl Default for EnterRefusals {
    fn default() -> Self {
        EnterRefusals {
            since: Instant::now(),
            count: 0,
        }
    }
}

impl EnterRefusals {
    /// Counts another refusal. Returns true if the refusals are probably permanent.
    fn is_permanent(&mut self, now: Instant) -> bool {
        self.count += 1;
        let lasted = now.saturating_duration_since(self.since);
        self.count >= RING_REFUSALS_MIN && lasted > RING_REFUSAL_MAX
    }
}

/// The time at which to enter the kernel again after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Now,
    /// After a pause.
    Later,
    /// The ring has failed.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Liveness;

    /// `RING_REFUSAL_MAX`: "shorter than the time after which a peer that waits for this side
    /// declares it dead"; and "a process that did not run for a second has tried only twice".
    #[test]
    fn refusals_are_permanent_after_some_time_and_some_attempts() {
        let found = Liveness::default().found_within();
        assert!(found.is_some_and(|found| RING_REFUSAL_MAX < found));
        let mut refusals = EnterRefusals::default();
        let now = refusals.since;
        assert!((0..2 * RING_REFUSALS_MIN).all(|_| !refusals.is_permanent(now)));
        let mut refusals = EnterRefusals::default();
        let later = now + 2 * RING_REFUSAL_MAX;
        let until_permanent = (1..).find(|_| refusals.is_permanent(later));
        assert_eq!(until_permanent, Some(RING_REFUSALS_MIN));
    }
}
