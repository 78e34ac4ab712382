//! Harvesting: from the completion queue to the completions of links, listeners and datagram
//! sockets.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue};
use rustix::net::sockopt;

use crate::log::hold_event;

use super::completions::CompletionSlot;
use super::op::{CANCELLATION, OpKind, OpMemory, WAKE_FD, cancelled};
use super::ring::State;
use crate::limits::{
    RING_ACCEPTED_MAX, RING_ARRIVED_MAX, RING_COMPLETIONS_PER_ROUND, RING_FOREIGN_HARVESTS_MAX,
    RING_SPARE_MAX,
};
use crate::slab::Key;
use crate::transport::{DirectBuffer, SendBatch};

/// The result of a harvest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Harvest {
    /// True if operations have completed.
    pub(super) any: bool,
    /// True if there may be more completions.
    pub(super) more: bool,
}

impl State {
    /// Processes the completions of one round. Operations that they cause (stopping a receive that
    /// is not read from) are submitted before the next round, so that no flood of completions
    /// delays them.
    pub(super) fn harvest_round(&mut self, ring: &IoUring) -> Harvest {
        // 1. Take entries out of the queue: no system call.
        let mut entries = [const { MaybeUninit::uninit() }; RING_COMPLETIONS_PER_ROUND];
        let entries = {
            // SAFETY: the lock of the state is held, and no other queue object exists under it.
            let mut queue = unsafe { ring.completion_shared() };
            queue.fill(&mut entries)
        };
        let count = entries.len();
        // 2. Give each completion to the operation that it names.
        for entry in entries {
            match entry.user_data() {
                CANCELLATION => {}
                WAKE_FD if cqueue::more(entry.flags()) => {}
                WAKE_FD => self.arm_wake_fd(ring),
                other => match cancelled(other) {
                    Some(target) => self.cancelled(ring, target, entry.result()),
                    None => {
                        let key = Key::from_bits(other);
                        self.complete(ring, key, entry.result(), entry.flags());
                    }
                },
            }
        }
        if count == RING_COMPLETIONS_PER_ROUND {
            return Harvest {
                any: true,
                more: true,
            };
        }
        // 3. The kernel still has completions that found the queue full; it moves them when it is
        // entered. SAFETY: as in `flush_backlog`.
        let more = unsafe { ring.submission_shared() }.cq_overflow();
        self.dirty |= more;
        Harvest {
            any: count > 0,
            more,
        }
    }

    /// Handles the completion of a cancellation. A cancelled operation has a completion of its own.
    /// The kernel does not find an operation that it is about to retry: such an operation is still
    /// in the table, and is cancelled again, or it would never end. If the operation has ended, the
    /// second cancellation does nothing.
    fn cancelled(&mut self, ring: &IoUring, target: Key, result: i32) {
        if result == -libc::ENOENT && self.ops.get(target).is_some() {
            self.push_cancel(ring, target);
        }
    }

    fn complete(&mut self, ring: &IoUring, key: Key, result: i32, flags: u32) {
        // 1. Find the operation. It has ended, unless it is a multishot that continues.
        let buffer = cqueue::buffer_select(flags);
        let Some(op) = self.ops.get(key) else {
            hold_event(move || tracing::error!(?key, result, "a completion of no operation"));
            if let Some(buffer) = buffer {
                let filled = self.buffers.filled(buffer, 0);
                self.buffers.recycle(filled);
            }
            return;
        };
        let (kind, owner) = (op.kind, op.owner);
        let is_foreign = self.driving.is_some() && op.submitter != self.driving;
        let ended = match cqueue::more(flags) {
            true => None,
            false => self.ops.remove(key),
        };
        // 2. Store its result with its owner.
        match kind {
            OpKind::Stage { .. } => {
                self.complete_stage(ring, owner, ended.is_some(), result, buffer);
                if let (None, Some(owner)) = (ended, owner) {
                    self.count_foreign_harvests(ring, owner, is_foreign);
                }
            }
            OpKind::Accept => self.complete_accept(ring, owner, ended.is_some(), result),
            OpKind::Send | OpKind::Direct => {
                if let Some(memory) = ended.and_then(|op| op.memory) {
                    self.unload(owner, kind, memory, result);
                }
            }
            OpKind::Poll(_) => match owner.and_then(|it| self.slots.get_mut(it)) {
                Some(CompletionSlot::Link(link)) => {
                    link.poll.end();
                    link.polled = Some(result);
                }
                // However the poll ended, the next call sees the socket's state.
                Some(CompletionSlot::Readiness(socket)) => {
                    for poll in [&mut socket.read, &mut socket.write] {
                        if poll.key() == Some(key) {
                            poll.end();
                        }
                    }
                }
                _ => {}
            },
        }
        // 3. Wake the owner, once the lock is released.
        match owner.and_then(|owner| self.slots.get_mut(owner)) {
            Some(CompletionSlot::Link(link)) => self.deferred.wakers.push(link.waker.clone()),
            Some(CompletionSlot::Listener(listener)) => {
                self.deferred.wakers.extend(listener.waker.take());
            }
            Some(CompletionSlot::Readiness(socket)) => {
                self.deferred.wakers.push(socket.waker.clone());
            }
            None => {}
        }
    }

    /// Moves the memory of an operation that has ended to its owner, or frees it.
    pub(super) fn unload(
        &mut self,
        owner: Option<Key>,
        kind: OpKind,
        memory: OpMemory,
        result: i32,
    ) {
        let slot = owner.and_then(|owner| self.slots.get_mut(owner));
        match (slot, kind) {
            (Some(CompletionSlot::Link(link)), OpKind::Send) => {
                link.send.end();
                link.sent = Some((memory, result));
            }
            (Some(CompletionSlot::Link(link)), _) => {
                link.read.end();
                link.direct_end = Some((memory, result));
            }
            _ => self.discard(memory),
        }
    }

    /// Drops the contents of a memory once the lock is released.
    pub(super) fn discard(&mut self, mut memory: OpMemory) {
        (self.deferred.sends).extend(memory.unload_batch().map(|batch| *batch));
        self.deferred.receives.extend(memory.unload_direct());
        self.keep(memory);
    }

    /// Takes the batch of a send that has ended, with the result.
    pub(super) fn take_sent(&mut self, owner: Key) -> Option<(Box<SendBatch>, i32)> {
        let (mut memory, result) = self.link(owner).sent.take()?;
        let batch = memory.unload_batch();
        self.keep(memory);
        Some((batch?, result))
    }

    /// Takes the destination of a direct receive that has ended, with the result.
    pub(super) fn take_direct_end(&mut self, owner: Key) -> Option<(DirectBuffer, i32)> {
        let (mut memory, result) = self.link(owner).direct_end.take()?;
        let direct = memory.unload_direct();
        self.keep(memory);
        Some((direct?, result))
    }

    /// Keeps an empty memory for the next operation.
    fn keep(&mut self, memory: OpMemory) {
        if self.spare.len() < RING_SPARE_MAX {
            self.spare.push(memory);
        }
    }

    fn complete_stage(
        &mut self,
        ring: &IoUring,
        owner: Option<Key>,
        ended: bool,
        result: i32,
        buffer: Option<u16>,
    ) {
        let slot = owner.and_then(|owner| self.slots.get_mut(owner));
        let mut stop = None;
        let len = usize::try_from(result).unwrap_or(0);
        if len > 0 {
            self.active.add(owner);
        }
        let mut filled = buffer.map(|buffer| self.buffers.filled(buffer, len));
        if let Some(CompletionSlot::Link(link)) = slot {
            if len > 0 {
                link.filled.extend(filled.take());
            }
            // A receive that is being stopped may also end for lack of buffers.
            if self.buffers.is_low() && (ended || !link.read.is_cancelling()) {
                link.copy_out(&mut self.buffers);
            }
            if ended {
                link.read.end();
                link.stage_end = match result {
                    1.. => None,
                    // Nothing was lost: there was no buffer, the submitting thread is gone, or it
                    // was cancelled. The next receive continues.
                    _ if is_retryable(result) => None,
                    _ => Some(result),
                };
            } else if link.unread_bytes() > RING_ARRIVED_MAX {
                stop = link.read.cancel();
            }
        }
        if let Some(filled) = filled {
            self.buffers.recycle(filled);
        }
        if let Some(op) = stop {
            self.push_cancel(ring, op);
        }
    }

    /// Stops a multishot receive whose completions keep running in another thread than the driving
    /// one. The receive's end wakes the link, which submits a new receive.
    fn count_foreign_harvests(&mut self, ring: &IoUring, owner: Key, is_foreign: bool) {
        let Some(CompletionSlot::Link(link)) = self.slots.get_mut(owner) else {
            return;
        };
        link.foreign_harvests = match is_foreign {
            true => link.foreign_harvests.saturating_add(1),
            false => 0,
        };
        if link.foreign_harvests >= RING_FOREIGN_HARVESTS_MAX
            && let Some(op) = link.read.cancel()
        {
            self.push_cancel(ring, op);
        }
    }

    fn complete_accept(&mut self, ring: &IoUring, owner: Option<Key>, ended: bool, result: i32) {
        // SAFETY: a result that is no error is a new descriptor, which is ours alone.
        let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let slot = owner.and_then(|owner| self.slots.get_mut(owner));
        let Some(CompletionSlot::Listener(listener)) = slot else {
            fd.into_iter().for_each(refuse);
            return;
        };
        listener.accepted.extend(fd);
        if ended {
            listener.accept.end();
            if result < 0 && !is_retryable(result) {
                listener.error = Some(result);
            }
        } else if listener.accepted.len() >= RING_ACCEPTED_MAX
            && let Some(op) = listener.accept.cancel()
        {
            self.push_cancel(ring, op);
        }
    }
}

/// Returns true if this is the result of an operation that did nothing and may be submitted again.
pub(super) fn is_retryable(result: i32) -> bool {
    matches!(
        -result,
        libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ENOBUFS
    )
}

/// Closes a connection that no listener takes, as the system closes the connections in a listener's
/// backlog.
pub(super) fn refuse(fd: OwnedFd) {
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
}
