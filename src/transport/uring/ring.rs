//! The ring of one transport: operations go in by [`State::push`], their ends come out into the
//! mailboxes of links and listeners.
//!
//! One lock guards both queues, the slots and the mailboxes. Nothing is woken and no memory of an
//! operation is dropped under it, since either may run code of others: both are collected in the
//! [`Outbox`] and see to themselves once the lock is released.
//!
//! Submission is batched: a push wakes the driver, once, if it rests, and its next
//! [`Ring::poll_drive`] submits everything there is by one system call. Only cancellations that
//! somebody waits for are submitted within the call. In a ring of a thread all this is that
//! thread's: see [`super::thread`].
//!
//! The ring runs its completions in the thread that submitted, when that enters the kernel for
//! whatever reason (`COOP_TASKRUN`: an interrupt for each packet, from the processor that received
//! it, would cost more than the packet). A thread that computes enters at its next timer tick. If
//! the thread has exited, they end with `ECANCELED`, which nobody asked for; whoever gets that
//! submits again.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::{self, ManuallyDrop};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::{EnterFlags, IoUring};
use tokio::io::unix::AsyncFd;

use super::bufs::BufferRing;
use super::crowd::Crowd;
use super::harvest::refuse;
use super::mail::{LinkMail, ListenerMail, Mailbox, WatchMail};
use super::mark::Mark;
use super::op::{BELL, Cargo, Op, OpKind, cancel_entry};
use super::outbox::Outbox;
use super::thread::Seat;
use super::workers::{Epoch, LINKS_MAX, Workers};
use crate::buf::Stage;
use crate::slab::{Key, Slab};
use crate::transport::epoll::Side;
use crate::transport::{Direct, SendBatch};

/// Entries of the submission queue: what one turn of a busy driver pushes, mostly.
pub(super) const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. A multishot receive may bring many per drain; what does not
/// fit is kept by the kernel, and fetched.
pub(super) const COMPLETIONS: u32 = 4096;
/// Rounds of one drive before other tasks have their turn.
const ROUNDS_PER_DRIVE: usize = 4;
/// How long the drop of a ring waits for its operations to end. Cancelling a socket's operation
/// takes microseconds; what is longer is broken.
const REAP_TIME: Duration = Duration::from_millis(500);

pub(super) struct Ring {
    home: Home,
    state: Mutex<State>,
    /// Many connections are at work.
    crowded: AtomicBool,
    workers: Workers,
    /// Links of this ring.
    links: AtomicUsize,
}

/// Who sleeps until something ends.
enum Home {
    /// The reactor that watches the ring's descriptor.
    Reactor(AsyncFd<IoUring>),
    /// A thread, in the ring itself.
    Thread(IoUring),
}

/// What the lock guards.
pub(super) struct State {
    pub(super) ops: Slab<Op>,
    pub(super) mailboxes: Slab<Mailbox>,
    pub(super) buffers: ManuallyDrop<BufferRing>,
    /// Entries for which the queue had no room.
    backlog: VecDeque<Entry>,
    /// Staged receives that were pushed since the last submission, on a ring of anyone's.
    unmarked: Vec<Key>,
    /// Who drives a ring of anyone's, while it does.
    pub(super) driving: Option<Mark>,
    /// Something was pushed since the last submission.
    pub(super) dirty: bool,
    /// Who drives, while it rests; taken when it is woken for a push.
    driver: Option<Waker>,
    /// Nobody drives again: whoever gives something up waits for its end.
    undriven: bool,
    /// Who may enter the kernel.
    seat: Seat,
    /// What wakes the thread of a ring that has one.
    bell: Option<Entry>,
    /// Nothing is submitted any more, ever; what is in `ops` the kernel has not seen.
    retired: bool,
    /// The kernel has given the buffers back.
    buffers_are_ours: bool,
    pub(super) spare: Vec<Cargo>,
    pub(super) outbox: Outbox,
    /// Who had bytes in this drive.
    pub(super) crowd: Crowd,
    epoch: Epoch,
}

impl Ring {
    /// A ring in the reactor of the current runtime.
    pub(super) fn new(submissions: u32, completions: u32) -> io::Result<Arc<Self>> {
        let ring = IoUring::builder()
            .setup_clamp()
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(completions)
            .dontfork()
            .build(submissions)?;
        super::probe::check(&ring)?;
        let buffers = BufferRing::register(&ring)?;
        // SAFETY: `IoUring` keeps its descriptor open and the same for as long as it lives, and
        // moves into the `AsyncFd`, out of which nothing takes it.
        let registered = unsafe { AsyncFd::register(ring) };
        let fd = registered.map_err(io::Error::from)?;
        Ok(Ring::of(Home::Reactor(fd), buffers, Seat::Anyone))
    }

    /// A ring for the thread that [begins](Ring::begin) with it.
    pub(super) fn for_thread(submissions: u32, completions: u32) -> io::Result<Arc<Self>> {
        let ring = IoUring::builder()
            .setup_clamp()
            .setup_submit_all()
            .setup_cqsize(completions)
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .dontfork()
            .build(submissions)?;
        super::probe::check(&ring)?;
        let buffers = BufferRing::register(&ring)?;
        Ok(Ring::of(Home::Thread(ring), buffers, Seat::Vacant))
    }

    fn of(home: Home, buffers: BufferRing, seat: Seat) -> Arc<Self> {
        Arc::new(Ring {
            home,
            state: Mutex::new(State {
                ops: Slab::new(),
                mailboxes: Slab::new(),
                buffers: ManuallyDrop::new(buffers),
                backlog: VecDeque::new(),
                unmarked: Vec::new(),
                driving: None,
                dirty: false,
                driver: None,
                undriven: false,
                seat,
                bell: None,
                retired: false,
                buffers_are_ours: false,
                spare: Vec::new(),
                outbox: Outbox::default(),
                crowd: Crowd::default(),
                epoch: Epoch::default(),
            }),
            crowded: AtomicBool::new(false),
            workers: Workers::default(),
            links: AtomicUsize::new(0),
        })
    }

    /// Makes the calling thread the one that enters the kernel; the ring tells it of its bell.
    pub(super) fn begin(&self, bell: Entry) -> io::Result<()> {
        self.with(|state, ring| {
            debug_assert_eq!(state.seat, Seat::Vacant, "a ring has one thread");
            ring.submitter().register_enable_rings()?;
            state.seat = Seat::Taken(std::thread::current().id());
            state.bell = Some(bell);
            state.arm_bell(ring);
            Ok(())
        })
    }

    pub(super) fn ring(&self) -> &IoUring {
        match &self.home {
            Home::Reactor(fd) => fd.get_ref(),
            Home::Thread(ring) => ring,
        }
    }

    /// Takes the lock for `act`, and sees to what came up under it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State, &IoUring) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state, self.ring());
        let outbox = state.outbox.take();
        drop(state);
        outbox.deliver();
        result
    }

    /// Harvests what has ended, submits what was pushed, and leaves the waker with the reactor.
    /// Ready when there was anything to harvest.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<()> {
        if let Home::Reactor(fd) = &self.home {
            wait_in_reactor(fd, cx);
        }
        let submits = matches!(self.home, Home::Reactor(_));
        let (harvested, is_more) = self.with(|state, ring| {
            let (mut harvested, mut is_more) = (false, false);
            self.workers.count_drive(&mut state.epoch);
            // In a ring of a thread nothing ends elsewhere.
            state.driving = submits.then(Mark::of_this_thread);
            // Who is awake need not be woken.
            state.driver = None;
            for _ in 0..ROUNDS_PER_DRIVE {
                let (any, more) = state.harvest_some(ring);
                harvested |= any;
                // What can be done at once has ended by then. A thread submits as it goes to sleep.
                is_more = submits && state.submit(ring) || more;
                if !is_more {
                    break;
                }
            }
            state.driving = None;
            self.crowded.store(state.crowd.judge(), Ordering::Relaxed);
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

    /// See [`Transport::rest`](crate::transport::Transport::rest).
    pub(super) fn rest(&self, driver: &Waker) -> bool {
        // A thread submits as it goes to sleep.
        let submits = matches!(self.home, Home::Reactor(_));
        self.with(|state, _| {
            let rests = !(submits && state.dirty);
            if rests {
                state.driver = Some(driver.clone());
            }
            rests
        })
    }

    /// See [`Transport::look`](crate::transport::Transport::look). No system call is made before
    /// the kernel says that this thread has something to complete.
    pub(super) fn look(&self) -> bool {
        self.with(|state, ring| {
            // SAFETY: as in `unload_backlog`.
            if unsafe { ring.submission_shared() }.taskrun() {
                // Whatever goes wrong, the next drive meets again.
                let _ = state.enter(ring);
            }
            // SAFETY: as in `harvest_some`.
            !unsafe { ring.completion_shared() }.is_empty()
        })
    }

    /// True while sends are better gathered than tried one by one.
    pub(super) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Bytes have come of a link that may wait elsewhere than in the ring.
    pub(super) fn is_at_work(&self, epoch: &mut u32) {
        self.workers.is_at_work(epoch);
    }

    /// True while receives are better gathered in the ring.
    pub(super) fn gathers_receives(&self) -> bool {
        self.workers.are_many()
    }

    /// True while one more link fits in.
    pub(super) fn has_room(&self) -> bool {
        self.links.load(Ordering::Relaxed) < LINKS_MAX
    }

    /// Counts a link.
    pub(super) fn insert_link(&self, mail: LinkMail) -> Key {
        self.links.fetch_add(1, Ordering::Relaxed);
        self.with(|state, _| state.insert(Mailbox::Link(Box::new(mail))))
    }

    /// Drops a link's mailbox as [`Ring::abandon`].
    pub(super) fn abandon_link(&self, owner: Key, first: impl FnOnce(&mut State)) {
        self.links.fetch_sub(1, Ordering::Relaxed);
        self.abandon(owner, first);
    }

    /// Drops a link's or listener's mailbox, under the lock that `first` sees it under. When nobody
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
        if matches!(self.home, Home::Thread(_)) {
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

    /// How many staged receives this thread has submitted.
    #[cfg(test)]
    pub(super) fn armed_here(&self) -> usize {
        let here = Some(Mark::of_this_thread());
        self.with(|state, _| {
            let keys = state.ops.keys().into_iter();
            keys.filter(|key| state.ops.get(*key).is_some_and(|op| op.mark == here))
                .count()
        })
    }

    /// How many operations the kernel has.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.with(|state, _| state.ops.len())
    }
}

/// Readiness is cleared, and the waker registered, before the queue is looked at: so no edge is
/// lost. Without its reactor (an error) nothing here makes progress, and the driver is being
/// dropped. All outside of Tokio's cooperative budget, as what the driver does.
fn wait_in_reactor(fd: &AsyncFd<IoUring>, cx: &mut Context<'_>) {
    let mut ready = pin!(tokio::task::unconstrained(poll_fn(|cx| loop {
        match fd.poll_read_ready(cx) {
            Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
            Poll::Ready(Err(_)) | Poll::Pending => return Poll::Ready(()),
        }
    })));
    let _ = ready.as_mut().poll(cx);
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

    pub(super) fn watch(&mut self, key: Key) -> &mut WatchMail {
        match self.mailboxes.get_mut(key) {
            Some(Mailbox::Watch(mail)) => mail,
            _ => unreachable!("a mailbox lives as long as who watches"),
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
        let op = self.push_read(ring, owner, fd, kind, None);
        if self.seat == Seat::Anyone {
            self.unmarked.push(op);
        }
    }

    fn push_read(
        &mut self,
        ring: &IoUring,
        owner: Key,
        fd: &Arc<OwnedFd>,
        kind: OpKind,
        cargo: Option<Cargo>,
    ) -> Key {
        assert!(
            self.link(owner).read_op.is_none(),
            "one receive is armed per socket (memory-model rule 5)"
        );
        let op = self.push(ring, owner, fd, kind, cargo);
        let mail = self.link(owner);
        mail.read_op = Some(op);
        mail.read_cancelled = false;
        mail.strays = 0;
        op
    }

    pub(super) fn push_poll(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>, events: u32) {
        let op = self.push(ring, owner, fd, OpKind::Poll(events), None);
        self.link(owner).poll_op = Some(op);
    }

    /// Polls for one side of a socket, once.
    pub(super) fn push_watch(&mut self, ring: &IoUring, owner: Key, fd: &Arc<OwnedFd>, side: Side) {
        let events = match side {
            Side::Read => libc::POLLIN,
            Side::Write => libc::POLLOUT,
        };
        let op = self.push(ring, owner, fd, OpKind::Poll(events as u32), None);
        *self.watch(owner).side(side) = Some(op);
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
            mark: None,
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
        self.push_entry(ring, cancel_entry(op.to_bits()));
    }

    /// Asks to be told when the bell rings, unless the thread is ending.
    pub(super) fn arm_bell(&mut self, ring: &IoUring) {
        if let (Some(bell), false) = (self.bell.clone(), self.undriven) {
            self.push_entry(ring, bell);
        }
    }

    fn push_entry(&mut self, ring: &IoUring, entry: Entry) {
        if self.retired {
            return;
        }
        self.backlog.push_back(entry);
        self.unload_backlog(ring);
        self.mark_dirty();
    }

    pub(super) fn mark_dirty(&mut self) {
        self.dirty = true;
        // The thread of a ring submits before it sleeps; it need not be woken by itself.
        if matches!(self.seat, Seat::Taken(_)) && self.seat.is_mine() {
            return;
        }
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
            // open as long, by the slot's `fd`; that of a bell, until the thread has submitted it,
            // by the desk. Entries without cargo point to nothing. A thread that submits without
            // the lock reads only what is published, by atomics.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// The thread of the ring is about to sleep: puts what it can into the queue. Tells whether
    /// there is anything to enter the kernel for, and whether some found no room.
    pub(super) fn before_sleep(&mut self, ring: &IoUring) -> (bool, bool) {
        self.unload_backlog(ring);
        self.dirty = false;
        // SAFETY: as in `unload_backlog`.
        let queue = unsafe { ring.submission_shared() };
        let has_work = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        (has_work, !self.backlog.is_empty())
    }

    /// Gives the kernel what is in the queue.
    pub(super) fn enter(&mut self, ring: &IoUring) -> io::Result<usize> {
        if self.seat == Seat::Anyone {
            return ring.submitter().submit();
        }
        // SAFETY: as in `unload_backlog`.
        let count = unsafe { ring.submission_shared() }.len() as u32;
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: as many entries as the queue holds, no argument. Only being asked for events
        // makes the kernel do what it has deferred.
        unsafe { (ring.submitter()).enter::<libc::sigset_t>(count, 0, flags, None) }
    }

    /// Submits everything that was pushed. True if there was anything.
    pub(super) fn submit(&mut self, ring: &IoUring) -> bool {
        if !self.seat.is_mine() || !mem::take(&mut self.dirty) {
            return false;
        }
        for key in self.unmarked.drain(..) {
            if let Some(op) = self.ops.get_mut(key) {
                op.mark = Some(Mark::of_this_thread());
            }
        }
        for _ in 0..SUBMIT_ATTEMPTS {
            match self.enter(ring) {
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
    /// On a ring of another thread that thread does, which has been woken by the push.
    pub(super) fn submit_and_harvest(&mut self, ring: &IoUring) {
        if !self.seat.is_mine() {
            return;
        }
        self.submit(ring);
        if let (_, true) = self.harvest_some(ring) {
            // No edge will tell the driver of the rest.
            self.mark_dirty();
        }
    }

    fn cancel_all(&mut self, ring: &IoUring) {
        for key in self.ops.keys() {
            self.push_cancel(ring, key);
        }
        self.submit_and_harvest(ring);
    }

    /// Waits a little for operations to end. True once all have, or if it is not for us to wait.
    fn reap_some(&mut self, ring: &IoUring) -> bool {
        if self.ops.len() == 0 || !self.seat.is_mine() {
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

    /// Drops a mailbox: what is in flight for it is cancelled, and freed when it has ended.
    fn abandon(&mut self, ring: &IoUring, owner: Key) {
        let Some(mailbox) = self.mailboxes.remove(owner) else {
            return;
        };
        let ops = match mailbox {
            Mailbox::Link(mail) => {
                for arrived in mail.arrived {
                    self.buffers.give_back(arrived);
                }
                for (cargo, _) in mail.sent.into_iter().chain(mail.direct_end) {
                    self.discard(cargo);
                }
                [mail.send_op, mail.read_op, mail.poll_op]
            }
            Mailbox::Listener(mail) => {
                mail.accepted.into_iter().for_each(refuse);
                [mail.op, None, None]
            }
            Mailbox::Watch(mail) => [mail.reading, mail.writing, None],
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
            && let Some(cargo) = op.cargo
        {
            self.unload(None, op.kind, cargo, 0);
        }
    }

    /// Nothing is submitted from now on: everything is cancelled and waited for. What does not end
    /// in time keeps its memory for ever, since the kernel may still use it (memory-model rule 7),
    /// and so does everything that is in the hands of a thread other than this.
    fn retire(&mut self, ring: &IoUring) {
        if self.retired {
            return;
        }
        self.cancel_all(ring);
        let deadline = Instant::now() + REAP_TIME;
        while !self.reap_some(ring) && Instant::now() < deadline {}
        self.retired = true;
        let was_submitted = mem::replace(&mut self.seat, Seat::Vacant) != Seat::Vacant;
        let left = self.ops.keys();
        if !was_submitted {
            left.into_iter().for_each(|key| self.withdraw(key));
        } else if !left.is_empty() {
            tracing::warn!(
                left = left.len(),
                "operations did not end with their ring; memory is leaked"
            );
            for key in left {
                mem::forget(self.ops.remove(key));
            }
            return;
        }
        if self.bell.take().is_some() {
            // The kernel keeps the bell's descriptor no longer than the thread.
            let bell = io_uring::types::CancelBuilder::user_data(BELL);
            let _ = ring.submitter().register_sync_cancel(None, bell);
        }
        let unregistered = ring.submitter().unregister_buf_ring(super::bufs::GROUP);
        self.buffers_are_ours = unregistered.is_ok();
    }
}

/// Attempts to submit in a row: each takes in at least something, unless it is interrupted.
const SUBMIT_ATTEMPTS: usize = 16;

impl Drop for Ring {
    /// Everything is cancelled and waited for, here or when the ring's thread ended.
    fn drop(&mut self) {
        let ring = match &self.home {
            Home::Reactor(fd) => fd.get_ref(),
            Home::Thread(ring) => ring,
        };
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.retire(ring);
        drop(state.outbox.take());
        if state.buffers_are_ours {
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
