//! From the completion queue to the mailboxes.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, cqueue};
use rustix::net::sockopt;

use super::mail::{ACCEPTED_MAX, ARRIVED_MAX, Mailbox};
use super::mark::STRAYS_MAX;
use super::op::{BELL, CANCELLATION, Cargo, OpKind, cancelled};
use super::ring::State;
use crate::slab::Key;
use crate::transport::{Direct, SendBatch};

/// Completions of one round. What they give rise to (the stop of a receive that nobody reads from)
/// is submitted before more are taken in, so that a flood is not taken in for ever.
const COMPLETIONS_PER_ROUND: usize = 64;
/// Spare cargoes kept for reuse.
const SPARE_MAX: usize = 64;

impl State {
    /// Takes some completions into the mailboxes. Tells if there were any, and if more may be.
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
                BELL if cqueue::more(entry.flags()) => {}
                BELL => self.arm_bell(ring),
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
        let strayed = self.driving.is_some() && op.mark != self.driving;
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
                if let Some(cargo) = ended.and_then(|op| op.cargo) {
                    self.unload(owner, kind, cargo, result);
                }
            }
            OpKind::Poll(_) => match owner.and_then(|it| self.mailboxes.get_mut(it)) {
                Some(Mailbox::Link(mail)) => {
                    mail.poll_op = None;
                    mail.polled = Some(result);
                }
                // However it ended, the next call tells what there is.
                Some(Mailbox::Watch(mail)) => {
                    for side in [&mut mail.reading, &mut mail.writing] {
                        side.take_if(|op| *op == key);
                    }
                }
                _ => {}
            },
        }
        match owner.and_then(|owner| self.mailboxes.get_mut(owner)) {
            Some(Mailbox::Link(mail)) => self.outbox.wakers.push(mail.waker.clone()),
            Some(Mailbox::Listener(mail)) => self.outbox.wakers.extend(mail.waker.take()),
            Some(Mailbox::Watch(mail)) => self.outbox.wakers.push(mail.waker.clone()),
            None => {}
        }
    }

    /// Memory of an operation that has ended goes to its owner, or is freed.
    pub(super) fn unload(&mut self, owner: Option<Key>, kind: OpKind, cargo: Cargo, result: i32) {
        let mailbox = owner.and_then(|owner| self.mailboxes.get_mut(owner));
        match (mailbox, kind) {
            (Some(Mailbox::Link(mail)), OpKind::Send) => {
                mail.send_op = None;
                mail.sent = Some((cargo, result));
            }
            (Some(Mailbox::Link(mail)), _) => {
                mail.read_op = None;
                mail.direct_end = Some((cargo, result));
            }
            _ => self.discard(cargo),
        }
    }

    /// What a cargo has is dropped once the lock is released.
    pub(super) fn discard(&mut self, mut cargo: Cargo) {
        self.outbox.sends.extend(cargo.unload_batch());
        self.outbox.receives.extend(cargo.unload_direct());
        self.keep(cargo);
    }

    /// How a batch ended, once it has.
    pub(super) fn take_sent(&mut self, owner: Key) -> Option<(SendBatch, i32)> {
        let (mut cargo, result) = self.link(owner).sent.take()?;
        let batch = cargo.unload_batch();
        self.keep(cargo);
        Some((batch?, result))
    }

    /// How a direct receive ended, once it has.
    pub(super) fn take_direct_end(&mut self, owner: Key) -> Option<(Direct, i32)> {
        let (mut cargo, result) = self.link(owner).direct_end.take()?;
        let direct = cargo.unload_direct();
        self.keep(cargo);
        Some((direct?, result))
    }

    /// An empty cargo, to be used again.
    fn keep(&mut self, cargo: Cargo) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(cargo);
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
        let mailbox = owner.and_then(|owner| self.mailboxes.get_mut(owner));
        let mut stop = None;
        let len = usize::try_from(result).unwrap_or(0);
        if len > 0 {
            self.crowd.add(owner);
        }
        let mut arrived = buffer.map(|buffer| self.buffers.arrived(buffer, len));
        if let Some(Mailbox::Link(mail)) = mailbox {
            if len > 0 {
                mail.arrived.extend(arrived.take());
            }
            // While it is being stopped, running out of buffers may stop it sooner.
            if self.buffers.is_scarce() && (ended || !mail.read_cancelled) {
                mail.copy_out(&mut self.buffers);
            }
            if ended {
                mail.read_op = None;
                mail.stage_end = match result {
                    1.. => None,
                    // Nothing was lost: out of buffers, or the submitting thread is gone, or we
                    // cancelled. Whoever wants to read goes on.
                    _ if is_passing(result) => None,
                    _ => Some(result),
                };
            } else if !mail.read_cancelled && mail.arrived_bytes() > ARRIVED_MAX {
                mail.read_cancelled = true;
                stop = mail.read_op;
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
        let Some(Mailbox::Link(mail)) = self.mailboxes.get_mut(owner) else {
            return;
        };
        mail.strays = if strayed { mail.strays + 1 } else { 0 };
        if mail.strays < STRAYS_MAX || mail.read_cancelled {
            mail.strays = mail.strays.min(STRAYS_MAX);
            return;
        }
        mail.read_cancelled = true;
        if let Some(op) = mail.read_op {
            self.push_cancel(ring, op);
        }
    }

    fn accepted(&mut self, ring: &IoUring, owner: Option<Key>, ended: bool, result: i32) {
        // SAFETY: a result that is no error is a new descriptor, which is ours alone.
        let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(Mailbox::Listener(mail)) = owner.and_then(|it| self.mailboxes.get_mut(it)) else {
            fd.into_iter().for_each(refuse);
            return;
        };
        mail.accepted.extend(fd);
        if ended {
            mail.op = None;
            if result < 0 && !is_passing(result) {
                mail.error = Some(result);
            }
        } else if mail.accepted.len() >= ACCEPTED_MAX && !mail.stopping {
            mail.stopping = true;
            if let Some(op) = mail.op {
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
