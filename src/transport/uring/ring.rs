//! The ring of one transport: operations go in by [`State::push`], their ends come out into the
//! slots of links and listeners.
//!
//! One lock guards both queues, the slots and the slots. Nothing is woken and no memory of an
//! operation is dropped under it, since either may run code of others: both are collected in the
//! [`DeferredActions`] and see to themselves once the lock is released.
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
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use io_uring::IoUring;
use io_uring::squeue::Entry;
use tokio::io::unix::AsyncFd;

use super::active::ActiveCount;
use super::bufs::BufferRing;
use super::completions::{
    CompletionSlot, LinkCompletions, ListenerCompletions, ReadinessCompletions,
};
use super::deferred::DeferredActions;
use super::op::{Op, OpMemory};
use super::thread::RingOwner;
use super::thread_id::ThreadId;
use crate::buf::Stage;
use crate::error::{Error, Result};
use crate::slab::{Key, Slab};

/// Entries of the submission queue: what one turn of a busy driver pushes, mostly.
pub(super) const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue. A multishot receive may bring many per drain; what does not
/// fit is kept by the kernel, and fetched.
pub(super) const COMPLETIONS: u32 = 4096;
/// Rounds of one drive before other tasks have their turn.
const ROUNDS_PER_DRIVE: usize = 4;

pub(super) struct Ring {
    pub(super) driven_by: RingDriver,
    pub(super) state: Mutex<State>,
    /// Many connections are at work.
    batching: AtomicBool,
}

/// Who sleeps until something ends.
pub(super) enum RingDriver {
    /// The reactor that watches the ring's descriptor.
    Reactor(AsyncFd<IoUring>),
    /// A thread, in the ring itself.
    Thread(IoUring),
}

/// What the lock guards.
pub(super) struct State {
    pub(super) ops: Slab<Op>,
    pub(super) slots: Slab<CompletionSlot>,
    pub(super) buffers: ManuallyDrop<BufferRing>,
    /// Entries queued so far, those that found no room yet included.
    pub(super) entries: u64,
    /// Entries for which the queue had no room.
    pub(super) backlog: VecDeque<Entry>,
    /// Staged receives that were pushed since the last submission, on a ring of anyone's.
    pub(super) unattributed: Vec<Key>,
    /// Who drives a ring of anyone's, while it does.
    pub(super) driving: Option<ThreadId>,
    /// Something was pushed since the last submission.
    pub(super) dirty: bool,
    /// Who drives, while it rests; taken when it is woken for a push.
    pub(super) driver: Option<Waker>,
    /// Nobody drives again: whoever gives something up waits for its end.
    pub(super) undriven: bool,
    /// Who may enter the kernel.
    pub(super) ring_owner: RingOwner,
    /// What wakes the thread of a ring that has one.
    pub(super) wake_fd: Option<Entry>,
    /// Since when the kernel has taken nothing, although it was asked again and again.
    pub(super) refused_since: Option<Instant>,
    /// Why the ring is of no use any more: the kernel refuses to be entered.
    pub(super) failure: Option<Error>,
    /// Nothing is submitted any more, ever; what is in `ops` the kernel has not seen.
    pub(super) retired: bool,
    /// The kernel has given the buffers back.
    pub(super) buffers_are_ours: bool,
    pub(super) spare: Vec<OpMemory>,
    pub(super) deferred: DeferredActions,
    /// Who had bytes in this drive.
    pub(super) active: ActiveCount,
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
        Ok(Ring::of(
            RingDriver::Reactor(fd),
            buffers,
            RingOwner::Anyone,
        ))
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
        Ok(Ring::of(
            RingDriver::Thread(ring),
            buffers,
            RingOwner::Nobody,
        ))
    }

    fn of(driven_by: RingDriver, buffers: BufferRing, ring_owner: RingOwner) -> Arc<Self> {
        Arc::new(Ring {
            driven_by,
            state: Mutex::new(State {
                ops: Slab::new(),
                slots: Slab::new(),
                buffers: ManuallyDrop::new(buffers),
                entries: 0,
                backlog: VecDeque::new(),
                unattributed: Vec::new(),
                driving: None,
                dirty: false,
                driver: None,
                undriven: false,
                ring_owner,
                wake_fd: None,
                refused_since: None,
                failure: None,
                retired: false,
                buffers_are_ours: false,
                spare: Vec::new(),
                deferred: DeferredActions::default(),
                active: ActiveCount::default(),
            }),
            batching: AtomicBool::new(false),
        })
    }

    /// Makes the calling thread the one that enters the kernel; `wake_fd` polls its eventfd.
    pub(super) fn begin(&self, wake_fd: Entry) -> io::Result<()> {
        self.with(|state, ring| {
            debug_assert_eq!(state.ring_owner, RingOwner::Nobody, "a ring has one thread");
            ring.submitter().register_enable_rings()?;
            state.ring_owner = RingOwner::Thread(std::thread::current().id());
            state.wake_fd = Some(wake_fd);
            state.arm_wake_fd(ring);
            Ok(())
        })
    }

    pub(super) fn ring(&self) -> &IoUring {
        match &self.driven_by {
            RingDriver::Reactor(fd) => fd.get_ref(),
            RingDriver::Thread(ring) => ring,
        }
    }

    /// Takes the lock for `act`, and sees to what came up under it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State, &IoUring) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state, self.ring());
        let deferred = state.deferred.take();
        drop(state);
        deferred.deliver();
        result
    }

    /// Harvests what has ended, submits what was pushed, and leaves the waker with the reactor.
    /// Ready when there was anything to harvest, and once the ring has failed, with the reason.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let RingDriver::Reactor(fd) = &self.driven_by {
            wait_in_reactor(fd, cx);
        }
        let submits = matches!(self.driven_by, RingDriver::Reactor(_));
        let (harvested, is_more, failure) = self.with(|state, ring| {
            let (mut harvested, mut is_more) = (false, false);
            if let Some(error) = &state.failure {
                state.dirty = false;
                return (false, false, Some(error.clone()));
            }
            // In a ring of a thread nothing ends elsewhere.
            state.driving = submits.then(ThreadId::current);
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
            self.batching.store(state.active.judge(), Ordering::Relaxed);
            (harvested, is_more, state.failure.clone())
        });
        if let Some(error) = failure {
            return Poll::Ready(Err(error));
        }
        if is_more {
            cx.waker().wake_by_ref();
        }
        if harvested {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Fails, with the reason, once the ring has.
    pub(super) fn check(&self) -> Result<()> {
        match self.with(|state, _| state.failure.clone()) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// See [`Transport::rest`](crate::transport::Transport::rest).
    pub(super) fn rest(&self, driver: &Waker) -> bool {
        // A thread submits as it goes to sleep.
        let submits = matches!(self.driven_by, RingDriver::Reactor(_));
        self.with(|state, _| {
            let rests = !(state.dirty && (submits || state.failure.is_some()));
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
            if state.retired {
                return false;
            }
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
    pub(super) fn batches_sends(&self) -> bool {
        self.batching.load(Ordering::Relaxed)
    }

    /// A completion slot for a link.
    pub(super) fn insert_link(&self, slot: LinkCompletions) -> Key {
        self.with(|state, _| state.insert(CompletionSlot::Link(Box::new(slot))))
    }

    /// How many staged receives this thread has submitted.
    #[cfg(test)]
    pub(super) fn armed_here(&self) -> usize {
        let here = Some(ThreadId::current());
        self.with(|state, _| {
            let keys = state.ops.keys().into_iter();
            keys.filter(|key| state.ops.get(*key).is_some_and(|op| op.submitter == here))
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
    pub(super) fn insert(&mut self, slot: CompletionSlot) -> Key {
        self.slots.insert(slot)
    }

    pub(super) fn link(&mut self, key: Key) -> &mut LinkCompletions {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Link(slot)) => slot,
            _ => unreachable!("a link's slot lives as long as the link"),
        }
    }

    pub(super) fn listener(&mut self, key: Key) -> &mut ListenerCompletions {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Listener(slot)) => slot,
            _ => unreachable!("a listener's slot lives as long as the listener"),
        }
    }

    pub(super) fn watch(&mut self, key: Key) -> &mut ReadinessCompletions {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Watch(slot)) => slot,
            _ => unreachable!("a slot lives as long as who watches"),
        }
    }

    /// The next bytes that have arrived for a link, at most `size_max`.
    pub(super) fn take_arrived(&mut self, key: Key, size_max: usize) -> Option<Stage> {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Link(slot)) => slot.take_arrived(&mut self.buffers, size_max),
            _ => None,
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
