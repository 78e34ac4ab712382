//! From the completion queue to the slots.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue};
use rustix::net::sockopt;

use super::completions::{ACCEPTED_MAX, ARRIVED_MAX, CompletionSlot};
use super::op::{CANCELLATION, OpKind, OpMemory, WAKE_FD, cancelled};
use super::ring::State;
use super::thread_id::STRAYS_MAX;
use crate::slab::Key;
use crate::transport::{Direct, SendBatch};

/// Completions of one round. What they give rise to (the stop of a receive that nobody reads from)
/// is submitted before more are taken in, so that a flood is not taken in for ever.
const COMPLETIONS_PER_ROUND: usize = 64;
/// Spare memories kept for reuse.
const SPARE_MAX: usize = 64;

impl State {
    /// Takes some completions into the slots. Tells if there were any, and if more may be.
    pub(super) fn harvest_some(&mut self, ring: &IoUring) -> (bool, bool) {
        let mut entries = [const { MaybeUninit::uninit() }; COMPLETIONS_PER_ROUND];
        let entries = {
            // SAFETY: the lock of the state is held, and no other queue object exists under it.
            let mut queue = unsafe { ring.completion_shared() };
            queue.fill(&mut entries)
        };
        let count = entries.len();
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
        if count == COMPLETIONS_PER_ROUND {
            return (true, true);
        }
        // SAFETY: as in `unload_backlog`.
        let is_more = unsafe { ring.submission_shared() }.cq_overflow();
        if is_more {
            // Entering makes the kernel move what it has kept into the queue.
            self.dirty = true;
        }
        (count > 0, is_more)
    }

    /// The end of a cancellation; that of its target tells the rest. An operation that the kernel
    /// is about to try again is not found just then, and would wait for ever if it were not
    /// cancelled again. One that has ended is not in the table any more, or its completion is on
    /// its way.
    fn cancelled(&mut self, ring: &IoUring, target: Key, result: i32) {
        if result == -libc::ENOENT && self.ops.get(target).is_some() {
            self.push_cancel(ring, target);
        }
    }

    fn complete(&mut self, ring: &IoUring, key: Key, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags);
        let Some(op) = self.ops.get(key) else {
            tracing::error!(?key, result, "a completion of no operation");
            if let Some(buffer) = buffer {
                let arrived = self.buffers.arrived(buffer, 0);
                self.buffers.give_back(arrived);
            }
            return;
        };
        let (kind, owner) = (op.kind, op.owner);
        let strayed = self.driving.is_some() && op.submitter != self.driving;
        let ended = if cqueue::more(flags) {
            None
        } else {
            self.ops.remove(key)
        };
        match kind {
            OpKind::Stage { .. } => {
                self.staged(ring, owner, ended.is_some(), result, buffer);
                if let (None, Some(owner)) = (ended, owner) {
                    self.count_strays(ring, owner, strayed);
                }
            }
            OpKind::Accept => self.accepted(ring, owner, ended.is_some(), result),
            OpKind::Send | OpKind::Direct => {
                if let Some(memory) = ended.and_then(|op| op.memory) {
                    self.unload(owner, kind, memory, result);
                }
            }
            OpKind::Poll(_) => match owner.and_then(|it| self.slots.get_mut(it)) {
                Some(CompletionSlot::Link(slot)) => {
                    slot.poll_op = None;
                    slot.polled = Some(result);
                }
                // However it ended, the next call tells what there is.
                Some(CompletionSlot::Watch(slot)) => {
                    for side in [&mut slot.reading, &mut slot.writing] {
                        side.take_if(|op| *op == key);
                    }
                }
                _ => {}
            },
        }
        match owner.and_then(|owner| self.slots.get_mut(owner)) {
            Some(CompletionSlot::Link(slot)) => self.deferred.wakers.push(slot.waker.clone()),
            Some(CompletionSlot::Listener(slot)) => self.deferred.wakers.extend(slot.waker.take()),
            Some(CompletionSlot::Watch(slot)) => self.deferred.wakers.push(slot.waker.clone()),
            None => {}
        }
    }

    /// Memory of an operation that has ended goes to its owner, or is freed.
    pub(super) fn unload(
        &mut self,
        owner: Option<Key>,
        kind: OpKind,
        memory: OpMemory,
        result: i32,
    ) {
        let slot = owner.and_then(|owner| self.slots.get_mut(owner));
        match (slot, kind) {
            (Some(CompletionSlot::Link(slot)), OpKind::Send) => {
                slot.send_op = None;
                slot.sent = Some((memory, result));
            }
            (Some(CompletionSlot::Link(slot)), _) => {
                slot.read_op = None;
                slot.direct_end = Some((memory, result));
            }
            _ => self.discard(memory),
        }
    }

    /// What a memory has is dropped once the lock is released.
    pub(super) fn discard(&mut self, mut memory: OpMemory) {
        self.deferred.sends.extend(memory.unload_batch());
        self.deferred.receives.extend(memory.unload_direct());
        self.keep(memory);
    }

    /// How a batch ended, once it has.
    pub(super) fn take_sent(&mut self, owner: Key) -> Option<(SendBatch, i32)> {
        let (mut memory, result) = self.link(owner).sent.take()?;
        let batch = memory.unload_batch();
        self.keep(memory);
        Some((batch?, result))
    }

    /// How a direct receive ended, once it has.
    pub(super) fn take_direct_end(&mut self, owner: Key) -> Option<(Direct, i32)> {
        let (mut memory, result) = self.link(owner).direct_end.take()?;
        let direct = memory.unload_direct();
        self.keep(memory);
        Some((direct?, result))
    }

    /// An empty memory, to be used again.
    fn keep(&mut self, memory: OpMemory) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(memory);
        }
    }

    fn staged(
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
        let mut arrived = buffer.map(|buffer| self.buffers.arrived(buffer, len));
        if let Some(CompletionSlot::Link(slot)) = slot {
            if len > 0 {
                slot.arrived.extend(arrived.take());
            }
            // While it is being stopped, running out of buffers may stop it sooner.
            if self.buffers.is_scarce() && (ended || !slot.read_cancelled) {
                slot.copy_out(&mut self.buffers);
            }
            if ended {
                slot.read_op = None;
                slot.stage_end = match result {
                    1.. => None,
                    // Nothing was lost: out of buffers, or the submitting thread is gone, or we
                    // cancelled. Whoever wants to read goes on.
                    _ if is_passing(result) => None,
                    _ => Some(result),
                };
            } else if !slot.read_cancelled && slot.arrived_bytes() > ARRIVED_MAX {
                slot.read_cancelled = true;
                stop = slot.read_op;
            }
        }
        if let Some(arrived) = arrived {
            self.buffers.give_back(arrived);
        }
        if let Some(op) = stop {
            self.push_cancel(ring, op);
        }
    }

    /// Stops a multishot receive of another thread than the one that drives; whoever is woken by
    /// its end submits it anew.
    fn count_strays(&mut self, ring: &IoUring, owner: Key, strayed: bool) {
        let Some(CompletionSlot::Link(slot)) = self.slots.get_mut(owner) else {
            return;
        };
        slot.strays = if strayed { slot.strays + 1 } else { 0 };
        if slot.strays < STRAYS_MAX || slot.read_cancelled {
            slot.strays = slot.strays.min(STRAYS_MAX);
            return;
        }
        slot.read_cancelled = true;
        if let Some(op) = slot.read_op {
            self.push_cancel(ring, op);
        }
    }

    fn accepted(&mut self, ring: &IoUring, owner: Option<Key>, ended: bool, result: i32) {
        // SAFETY: a result that is no error is a new descriptor, which is ours alone.
        let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(CompletionSlot::Listener(slot)) = owner.and_then(|it| self.slots.get_mut(it))
        else {
            fd.into_iter().for_each(refuse);
            return;
        };
        slot.accepted.extend(fd);
        if ended {
            slot.op = None;
            if result < 0 && !is_passing(result) {
                slot.error = Some(result);
            }
        } else if slot.accepted.len() >= ACCEPTED_MAX && !slot.stopping {
            slot.stopping = true;
            if let Some(op) = slot.op {
                self.push_cancel(ring, op);
            }
        }
    }
}

/// True for the end of an operation that did nothing, and may be submitted again.
pub(super) fn is_passing(result: i32) -> bool {
    matches!(
        -result,
        libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ENOBUFS
    )
}

/// Closes a connection that nobody will take, as the system closes those of a listener's backlog.
pub(super) fn refuse(fd: OwnedFd) {
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
}
