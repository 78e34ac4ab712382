//! The ring of one transport: operations go in by [`State::push`], their ends come out into the
//! mailboxes of links and listeners.
//!
//! One lock guards both queues, the slots and the mailboxes. Nothing is woken and no memory of an
//! operation is dropped under it, since either may run code of others: both are collected in the
//! [`Outbox`] and see to themselves once the lock is released.
//!
//! Submission is batched: a push wakes the driver, once, and its next [`Ring::poll_drive`] submits
//! everything there is by one system call. Only cancellations that somebody waits for are submitted
//! within the call.
//!
//! The ring runs its completions in the thread that submitted (no `COOP_TASKRUN`: it would leave
//! the completions of a thread that computes for long undone). If that thread has exited, they end
//! with `ECANCELED`, which nobody asked for; whoever gets that submits again.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue};
use rustix::net::sockopt;
use tokio::io::unix::AsyncFd;

use super::bufs::{Arrived, BufferRing};
use super::op::{CANCELLATION, Cargo, Op, OpKind, cancel_entry};
use crate::buf::{Stage, StagePool};
use crate::limits::STAGE_SIZE;
use crate::slab::{Key, Slab};
use crate::transport::{Direct, SendBatch};

/// Entries of the submission queue: what one turn of a busy driver pushes, mostly.
pub(super) const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. A multishot receive may bring many per drain; what does not
/// fit is kept by the kernel, and fetched.
pub(super) const COMPLETIONS: u32 = 4096;
/// Rounds of one drive before other tasks have their turn.
const ROUNDS_PER_DRIVE: usize = 4;
/// Completions of one round. What they give rise to (the stop of a receive that nobody reads from)
/// is submitted before more are taken in, so that a flood is not taken in for ever.
const COMPLETIONS_PER_ROUND: usize = 64;
/// How many bytes may lie in a mailbox before its receive is stopped: a connection that nobody
/// reads from holds so many, and what the kernel adds until the stop.
const ARRIVED_MAX: usize = 2 * STAGE_SIZE;
/// Connections that wait in a listener's mailbox before accepting is stopped.
const ACCEPTED_MAX: usize = 64;
/// How long the drop of a ring waits for its operations to end. Cancelling a socket's operation
/// takes microseconds; what is longer is broken.
const REAP_TIME: Duration = Duration::from_millis(500);
/// Spare cargoes kept for reuse.
const SPARE_MAX: usize = 64;

pub(super) struct Ring {
    fd: AsyncFd<IoUring>,
    state: Mutex<State>,
}

/// What the lock guards.
pub(super) struct State {
    ops: Slab<Op>,
    mailboxes: Slab<Mailbox>,
    buffers: ManuallyDrop<BufferRing>,
    /// Entries for which the queue had no room.
    backlog: VecDeque<Entry>,
    /// Something was pushed since the last submission.
    dirty: bool,
    /// Who drives; taken when it is woken for a push.
    driver: Option<Waker>,
    spare: Vec<Cargo>,
    outbox: Outbox,
}

/// What to do after the lock is released.
#[derive(Default)]
struct Outbox {
    wakers: Vec<Waker>,
    sends: Vec<SendBatch>,
    receives: Vec<Direct>,
}

/// Where the ends of somebody's operations go.
pub(super) enum Mailbox {
    Link(Box<LinkMail>),
    Listener(ListenerMail),
}

pub(super) struct LinkMail {
    waker: Waker,
    stages: Arc<StagePool>,
    /// The operations in flight, and the ends of those that are not, until the link takes them.
    pub(super) send_op: Option<Key>,
    pub(super) sent: Option<(SendBatch, i32)>,
    /// A receive, whether direct or staged: one at most per socket (memory-model rule 5).
    pub(super) read_op: Option<Key>,
    pub(super) direct_end: Option<(Direct, i32)>,
    /// How a staged receive ended, other than by bytes: zero for the end of the stream.
    pub(super) stage_end: Option<i32>,
    /// A cancellation of the receive is on its way.
    pub(super) read_cancelled: bool,
    pub(super) poll_op: Option<Key>,
    pub(super) polled: Option<i32>,
    /// Bytes that came and are not told yet, in order, before `stage_end`: first those copied out of
    /// their buffers, then those still there.
    copied: VecDeque<Stage>,
    arrived: VecDeque<Arrived>,
}

#[derive(Default)]
pub(super) struct ListenerMail {
    pub(super) waker: Option<Waker>,
    pub(super) accepted: VecDeque<OwnedFd>,
    pub(super) op: Option<Key>,
    stopping: bool,
    pub(super) error: Option<i32>,
}

impl LinkMail {
    pub(super) fn new(waker: Waker, stages: Arc<StagePool>) -> Self {
        LinkMail {
            waker,
            stages,
            send_op: None,
            sent: None,
            read_op: None,
            direct_end: None,
            stage_end: None,
            read_cancelled: false,
            poll_op: None,
            polled: None,
            copied: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }

    pub(super) fn arrived_bytes(&self) -> usize {
        let copied = self.copied.iter().map(|stage| stage.len());
        copied.chain(self.arrived.iter().map(Arrived::len)).sum()
    }

    /// True if bytes or an end wait to be told.
    pub(super) fn has_news(&self) -> bool {
        !self.copied.is_empty() || !self.arrived.is_empty() || self.stage_end.is_some()
    }

    /// The next bytes, at most `size_max`.
    fn take_arrived(&mut self, buffers: &mut BufferRing, size_max: usize) -> Option<Stage> {
        if let Some(mut stage) = self.copied.pop_front() {
            if stage.len() <= size_max {
                return Some(stage);
            }
            let mut part = self.stages.take();
            part.spare()[..size_max].copy_from_slice(&stage[..size_max]);
            part.fill(size_max);
            stage.advance(size_max);
            self.copied.push_front(stage);
            return Some(part);
        }
        self.arrived.front()?;
        let mut stage = self.stages.take();
        while let Some(mut front) = self.arrived.pop_front() {
            let left = size_max - stage.len();
            if buffers.move_to(&mut front, &mut stage, left) {
                buffers.give_back(front);
                continue;
            }
            self.arrived.push_front(front);
            break;
        }
        Some(stage)
    }

    /// Puts bytes back that the receive they were taken for did not want.
    pub(super) fn put_back(&mut self, stage: Stage) {
        self.copied.push_front(stage);
    }

    /// Copies what has arrived out of its buffers.
    fn copy_out(&mut self, buffers: &mut BufferRing) {
        while let Some(mut front) = self.arrived.pop_front() {
            loop {
                let is_room = |stage: &mut Stage| !stage.spare().is_empty();
                if !self.copied.back_mut().is_some_and(is_room) {
                    self.copied.push_back(self.stages.take());
                }
                let Some(stage) = self.copied.back_mut() else {
                    return;
                };
                if buffers.move_to(&mut front, stage, usize::MAX) {
                    break;
                }
            }
            buffers.give_back(front);
        }
    }
}

impl Ring {
    /// A ring in the reactor of the current runtime.
    pub(super) fn new(submissions: u32, completions: u32) -> io::Result<Arc<Self>> {
        let ring = IoUring::builder()
            .setup_clamp()
            .setup_submit_all()
            .setup_cqsize(completions)
            .dontfork()
            .build(submissions)?;
        super::probe::check(&ring)?;
        let buffers = BufferRing::register(&ring)?;
        // SAFETY: `IoUring` keeps its descriptor open and the same for as long as it lives, and
        // moves into the `AsyncFd`, out of which nothing takes it.
        let registered = unsafe { AsyncFd::register(ring) };
        let fd = registered.map_err(io::Error::from)?;
        Ok(Arc::new(Ring {
            fd,
            state: Mutex::new(State {
                ops: Slab::new(),
                mailboxes: Slab::new(),
                buffers: ManuallyDrop::new(buffers),
                backlog: VecDeque::new(),
                dirty: false,
                driver: None,
                spare: Vec::new(),
                outbox: Outbox::default(),
            }),
        }))
    }

    /// Takes the lock for `act`, and sees to what came up under it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State, &IoUring) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state, self.fd.get_ref());
        let outbox = state.take_outbox();
        drop(state);
        outbox.deliver();
        result
    }

    /// Harvests what has ended, submits what was pushed, and leaves the waker with the reactor.
    /// Ready when there was anything to harvest.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Readiness is cleared, and the waker registered, before the queue is looked at: so no edge
        // is lost. Without its reactor (an error) nothing here makes progress, and the driver is
        // being dropped. All outside of Tokio's cooperative budget, as what the driver does.
        let mut ready = pin!(tokio::task::unconstrained(poll_fn(|cx| loop {
            match self.fd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(()),
            }
        })));
        let _ = ready.as_mut().poll(cx);
        let (harvested, is_more) = self.with(|state, ring| {
            let (mut harvested, mut is_more) = (false, false);
            for _ in 0..ROUNDS_PER_DRIVE {
                let (any, more) = state.harvest_some(ring);
                harvested |= any;
                is_more = more;
                // What can be done at once has ended by then.
                if !state.submit(ring) && !more {
                    break;
                }
                is_more = true;
            }
            match &mut state.driver {
                Some(driver) => driver.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            (harvested, is_more)
        });
        if is_more {
            cx.waker().wake_by_ref();
        }
        if harvested {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// How many operations the kernel has.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.with(|state, _| state.ops.len())
    }
}

impl State {
    pub(super) fn insert(&mut self, mailbox: Mailbox) -> Key {
        self.mailboxes.insert(mailbox)
    }

    pub(super) fn link(&mut self, key: Key) -> &mut LinkMail {
        match self.mailboxes.get_mut(key) {
            Some(Mailbox::Link(mail)) => mail,
            _ => unreachable!("a link's mailbox lives as long as the link"),
        }
    }

    pub(super) fn listener(&mut self, key: Key) -> &mut ListenerMail {
        match self.mailboxes.get_mut(key) {
            Some(Mailbox::Listener(mail)) => mail,
            _ => unreachable!("a listener's mailbox lives as long as the listener"),
        }
    }

    /// The next bytes that have arrived for a link, at most `size_max`.
    pub(super) fn take_arrived(&mut self, key: Key, size_max: usize) -> Option<Stage> {
        match self.mailboxes.get_mut(key) {
            Some(Mailbox::Link(mail)) => mail.take_arrived(&mut self.buffers, size_max),
            _ => None,
        }
    }

    // Operations.

    pub(super) fn push_send(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        batch: SendBatch,
        size_max: usize,
    ) {
        let mut cargo = self.spare.pop().unwrap_or_else(Cargo::empty);
        cargo.load_batch(batch, size_max);
        let op = self.push(ring, owner, fd, OpKind::Send, Some(cargo));
        self.link(owner).send_op = Some(op);
    }

    pub(super) fn push_direct(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        direct: Direct,
        size_max: usize,
    ) {
        let mut cargo = self.spare.pop().unwrap_or_else(Cargo::empty);
        cargo.load_direct(direct, size_max);
        self.push_read(ring, owner, fd, OpKind::Direct, Some(cargo));
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
        self.push_read(ring, owner, fd, kind, None);
    }

    fn push_read(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        kind: OpKind,
        cargo: Option<Cargo>,
    ) {
        assert!(
            self.link(owner).read_op.is_none(),
            "one receive is armed per socket (memory-model rule 5)"
        );
        let op = self.push(ring, owner, fd, kind, cargo);
        let mail = self.link(owner);
        mail.read_op = Some(op);
        mail.read_cancelled = false;
    }

    pub(super) fn push_poll(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>, events: u32) {
        let op = self.push(ring, owner, fd, OpKind::Poll(events), None);
        self.link(owner).poll_op = Some(op);
    }

    pub(super) fn push_accept(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>) {
        let op = self.push(ring, owner, fd, OpKind::Accept, None);
        let mail = self.listener(owner);
        mail.op = Some(op);
        mail.stopping = false;
    }

    fn push(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        kind: OpKind,
        cargo: Option<Cargo>,
    ) -> Key {
        let key = self.ops.insert(Op {
            owner: Some(owner),
            fd: Arc::clone(fd),
            kind,
            cargo,
        });
        if let Some(op) = self.ops.get(key) {
            let entry = op.entry(key);
            self.push_entry(ring, entry);
        }
        key
    }

    /// Asks the kernel to end an operation; its own completion tells when it has.
    pub(super) fn push_cancel(&mut self, ring: &IoUring, op: Key) {
        self.push_entry(ring, cancel_entry(op));
    }

    fn push_entry(&mut self, ring: &IoUring, entry: Entry) {
        self.backlog.push_back(entry);
        self.unload_backlog(ring);
        self.mark_dirty();
    }

    fn mark_dirty(&mut self) {
        self.dirty = true;
        if let Some(driver) = self.driver.take() {
            self.outbox.wakers.push(driver);
        }
    }

    fn unload_backlog(&mut self, ring: &IoUring) {
        if self.backlog.is_empty() {
            return;
        }
        // SAFETY: the lock of the state is held, and no other queue object exists under it.
        let mut queue = unsafe { ring.submission_shared() };
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what an entry points to is in the cargo of its slot, at an address that does
            // not change until the operation's completion (memory-model rule 1); its descriptor is
            // open as long, by the slot's `fd`. Entries without cargo point to nothing.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits everything that was pushed. True if there was anything.
    pub(super) fn submit(&mut self, ring: &IoUring) -> bool {
        if !mem::take(&mut self.dirty) {
            return false;
        }
        for _ in 0..SUBMIT_ATTEMPTS {
            match ring.submitter().submit() {
                Ok(_) => {
                    self.unload_backlog(ring);
                    // SAFETY: as in `unload_backlog`.
                    if unsafe { ring.submission_shared() }.is_empty() {
                        return true;
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel keeps completions for which the queue had no room.
                    Some(libc::EBUSY) => {
                        self.harvest_some(ring);
                    }
                    // Memory is short: the next drive tries again.
                    Some(libc::EAGAIN) => break,
                    _ => {
                        tracing::error!(%error, "the ring takes no operations");
                        return true;
                    }
                },
            }
        }
        self.mark_dirty();
        true
    }

    /// Submits now, and takes in what has ended by it: for cancellations that somebody waits for.
    pub(super) fn submit_and_harvest(&mut self, ring: &IoUring) {
        self.submit(ring);
        if let (_, true) = self.harvest_some(ring) {
            // No edge will tell the driver of the rest.
            self.mark_dirty();
        }
    }

    // Completions.

    /// Takes some completions into the mailboxes. Tells if there were any, and if there may be more.
    fn harvest_some(&mut self, ring: &IoUring) -> (bool, bool) {
        let mut entries = [const { MaybeUninit::uninit() }; COMPLETIONS_PER_ROUND];
        let entries = {
            // SAFETY: the lock of the state is held, and no other queue object exists under it.
            let mut queue = unsafe { ring.completion_shared() };
            queue.fill(&mut entries)
        };
        let count = entries.len();
        for entry in entries {
            if entry.user_data() != CANCELLATION {
                let key = Key::from_bits(entry.user_data());
                self.complete(ring, key, entry.result(), entry.flags());
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
        let ended = if cqueue::more(flags) {
            None
        } else {
            self.ops.remove(key)
        };
        match kind {
            OpKind::Stage { .. } => self.staged(ring, owner, ended.is_some(), result, buffer),
            OpKind::Accept => self.accepted(ring, owner, ended.is_some(), result),
            OpKind::Send | OpKind::Direct => {
                if let Some(cargo) = ended.and_then(|op| op.cargo) {
                    self.unload(owner, kind, cargo, result);
                }
            }
            OpKind::Poll(_) => {
                if let Some(Mailbox::Link(mail)) = owner.and_then(|it| self.mailboxes.get_mut(it)) {
                    mail.poll_op = None;
                    mail.polled = Some(result);
                }
            }
        }
        match owner.and_then(|owner| self.mailboxes.get_mut(owner)) {
            Some(Mailbox::Link(mail)) => self.outbox.wakers.push(mail.waker.clone()),
            Some(Mailbox::Listener(mail)) => self.outbox.wakers.extend(mail.waker.take()),
            None => {}
        }
    }

    /// Memory of an operation that has ended goes to its owner, or is freed.
    fn unload(&mut self, owner: Option<Key>, kind: OpKind, mut cargo: Cargo, result: i32) {
        let mailbox = owner.and_then(|owner| self.mailboxes.get_mut(owner));
        match (mailbox, kind) {
            (Some(Mailbox::Link(mail)), OpKind::Send) => {
                mail.send_op = None;
                mail.sent = cargo.unload_batch().map(|batch| (batch, result));
            }
            (Some(Mailbox::Link(mail)), _) => {
                mail.read_op = None;
                mail.direct_end = cargo.unload_direct().map(|direct| (direct, result));
            }
            _ => {
                self.outbox.sends.extend(cargo.unload_batch());
                self.outbox.receives.extend(cargo.unload_direct());
            }
        }
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

    /// Drops a mailbox: what is in flight for it is cancelled, and freed when it has ended.
    pub(super) fn abandon(&mut self, ring: &IoUring, owner: Key) {
        let Some(mailbox) = self.mailboxes.remove(owner) else {
            return;
        };
        let ops = match mailbox {
            Mailbox::Link(mail) => {
                self.outbox.sends.extend(mail.sent.map(|(batch, _)| batch));
                let direct = mail.direct_end.map(|(direct, _)| direct);
                for arrived in mail.arrived {
                    self.buffers.give_back(arrived);
                }
                self.outbox.receives.extend(direct);
                [mail.send_op, mail.read_op, mail.poll_op]
            }
            Mailbox::Listener(mail) => {
                mail.accepted.into_iter().for_each(refuse);
                [mail.op, None, None]
            }
        };
        for key in ops.into_iter().flatten() {
            if let Some(op) = self.ops.get_mut(key) {
                op.owner = None;
            }
            self.push_cancel(ring, key);
        }
        self.submit_and_harvest(ring);
    }

    fn take_outbox(&mut self) -> Outbox {
        mem::take(&mut self.outbox)
    }
}

/// Attempts to submit in a row: each takes in at least something, unless it is interrupted.
const SUBMIT_ATTEMPTS: usize = 16;

/// True for the end of an operation that did nothing, and may be submitted again.
pub(super) fn is_passing(result: i32) -> bool {
    matches!(
        -result,
        libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ENOBUFS
    )
}

/// Closes a connection that nobody will take, as the system closes those of a listener's backlog.
fn refuse(fd: OwnedFd) {
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
}

impl Outbox {
    fn deliver(self) {
        for waker in self.wakers {
            waker.wake();
        }
    }
}

impl Drop for Ring {
    /// Everything is cancelled and waited for; what does not end in time keeps its memory for ever,
    /// since the kernel may still use it (memory-model rule 7).
    fn drop(&mut self) {
        let ring = self.fd.get_ref();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<Key> = state.ops.keys();
        for key in keys {
            state.push_cancel(ring, key);
        }
        let deadline = Instant::now() + REAP_TIME;
        state.submit_and_harvest(ring);
        while state.ops.len() > 0 && Instant::now() < deadline {
            let step = io_uring::types::Timespec::new().nsec(REAP_STEP_NANOS);
            let args = io_uring::types::SubmitArgs::new().timespec(&step);
            // Runs what the kernel has left to do in this thread; time that is up is no failure.
            let _ = ring.submitter().submit_with_args(1, &args);
            state.dirty = true;
            state.submit_and_harvest(ring);
        }
        drop(state.take_outbox());
        let left = state.ops.len();
        if left > 0 {
            tracing::warn!(
                left,
                "operations did not end with their ring; memory is leaked"
            );
            mem::forget(mem::replace(&mut state.ops, Slab::new()));
            return;
        }
        if ring
            .submitter()
            .unregister_buf_ring(super::bufs::GROUP)
            .is_ok()
        {
            // SAFETY: taken once, in drop.
            let buffers = unsafe { ManuallyDrop::take(&mut state.buffers) };
            // SAFETY: no operation is in flight, and the group is unregistered.
            unsafe { buffers.free() };
        }
    }
}

/// How long one step of the last wait may take.
const REAP_STEP_NANOS: u32 = 1_000_000;

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
