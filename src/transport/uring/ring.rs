//! The ring of one transport: operations go in by [`State::push`], their completions come out into
//! the slots of links, listeners and datagram sockets.
//!
//! ```text
//!   Driven ──▶ Undriven ──▶ Retired
//!     │ └──────────────────────▲
//!     └──▶ Failed ◀── Undriven
//! ```
//!
//! One lock guards both queues, the operations and the slots. While it is held, no task is woken
//! and no memory of an operation is dropped, since both may run foreign code: [`DeferredActions`]
//! collects these actions, and they are done once the lock is released.
//!
//! Submission is batched: a push wakes the driver, once, if the driver is parked; the next
//! [`Ring::poll_drive`] submits all entries by one system call. Only cancellations that are awaited
//! are submitted at once. In a ring of a thread, that thread does all of this: see
//! [`super::thread`].
//!
//! The ring runs its completions in the thread that submitted, when that thread enters the kernel
//! for any reason (`COOP_TASKRUN`: an interrupt for each packet, from the processor that received
//! it, would cost more than the packet). A thread that computes enters at its next timer tick. If
//! the thread has exited, its operations end with `ECANCELED` without having been cancelled; they
//! are then submitted again.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use io_uring::IoUring;
use io_uring::squeue::Entry;
use tokio::io::unix::AsyncFd;

use super::active::ActiveCount;
use super::bufs::BufferRing;
use super::completions::{
    CompletionSlot, LinkCompletions, ListenerCompletions, ReadinessCompletions,
};
use super::deferred::DeferredActions;
use super::harvest::Harvest;
use super::op::{Op, OpMemory};
use super::submit::EnterRefusals;
use super::thread::RingOwner;
use super::thread_id::ThreadId;
use crate::buf::Stage;
use crate::edges::{check_edge, state_machine};
use crate::error::{Error, Result};
use crate::limits::RING_ROUNDS_PER_DRIVE;
use crate::slab::{Key, Slab};

pub(super) struct Ring {
    pub(super) driven_by: RingDriver,
    pub(super) state: Mutex<State>,
    /// True while many connections are active: their sends go to the ring.
    batching: AtomicBool,
}

/// The place where the driver sleeps until operations complete.
pub(super) enum RingDriver {
    /// The reactor, which watches the ring's descriptor.
    Reactor(AsyncFd<IoUring>),
    /// A thread, in the ring itself.
    Thread(IoUring),
}

/// The state of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum RingPhase {
    /// A driver polls the ring.
    Driven,
    /// No driver polls the ring again: dropping an object waits for its operations' end.
    Undriven,
    /// The kernel refuses to be entered: nothing is submitted, and operations that could not be
    /// ended are leaked.
    Failed,
    /// All operations have ended or are leaked: nothing is submitted.
    Retired,
}

state_machine! { RingPhase {
    Driven => [Undriven, Failed, Retired],
    Undriven => [Failed, Retired],
    Failed => [],
    Retired => [],
}}

/// The state guarded by the lock.
pub(super) struct State {
    pub(super) ops: Slab<Op>,
    pub(super) slots: Slab<CompletionSlot>,
    pub(super) buffers: ManuallyDrop<BufferRing>,
    /// Number of entries queued so far, including entries that found no room yet.
    pub(super) entries: u64,
    /// Entries for which the queue had no room.
    pub(super) backlog: VecDeque<Entry>,
    /// Staged receives pushed since the last submission, on a ring in the reactor.
    pub(super) unattributed: Vec<Key>,
    /// The thread that polls the driver now, on a ring in the reactor.
    pub(super) driving: Option<ThreadId>,
    /// True if anything was pushed since the last submission.
    pub(super) dirty: bool,
    /// The waker of a parked driver; a push takes and wakes it.
    pub(super) driver: Option<Waker>,
    phase: RingPhase,
    /// The thread that may enter the kernel.
    pub(super) ring_owner: RingOwner,
    /// The entry that wakes the ring's thread, if the ring has one.
    pub(super) wake_fd: Option<Entry>,
    /// Set while the kernel refuses to be entered.
    pub(super) refusals: Option<EnterRefusals>,
    /// The reason why the ring has failed.
    pub(super) failure: Option<Error>,
    /// True once the kernel has returned the buffers.
    pub(super) buffers_are_ours: bool,
    pub(super) spare: Vec<OpMemory>,
    pub(super) deferred: DeferredActions,
    /// Counts the connections that receive in this drive.
    pub(super) active: ActiveCount,
}

impl Ring {
    /// Makes a ring in the reactor of the current runtime.
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
        Ok(Ring::of(RingDriver::Reactor(fd), buffers, RingOwner::Any))
    }

    /// Makes a ring for the thread that [begins](Ring::begin) with it.
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
        Ok(Ring::of(RingDriver::Thread(ring), buffers, RingOwner::None))
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
                phase: RingPhase::Driven,
                ring_owner,
                wake_fd: None,
                refusals: None,
                failure: None,
                buffers_are_ours: false,
                spare: Vec::new(),
                deferred: DeferredActions::default(),
                active: ActiveCount::default(),
            }),
            batching: AtomicBool::new(false),
        })
    }

    /// Makes the calling thread the only one that enters the kernel. `wake_fd` is the entry that
    /// polls the thread's eventfd.
    pub(super) fn begin(&self, wake_fd: Entry) -> io::Result<()> {
        self.with(|state, ring| {
            debug_assert_eq!(state.ring_owner, RingOwner::None, "a ring has one thread");
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

    /// Takes the lock for `act`, then does the work that `act` deferred.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State, &IoUring) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state, self.ring());
        let deferred = state.deferred.take();
        drop(state);
        drop(deferred);
        result
    }

    /// Harvests completions, submits pushed entries, and registers the waker with the reactor.
    /// Ready if there was anything to harvest; ready with the reason once the ring has failed.
    pub(super) fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // 1. Register with the reactor, before the queue is read: no edge is lost.
        if let RingDriver::Reactor(fd) = &self.driven_by {
            wait_in_reactor(fd, cx);
        }
        let (harvest, failure) = self.with(|state, ring| {
            let mut all = Harvest::default();
            if let Some(error) = &state.failure {
                state.dirty = false;
                return (all, Some(error.clone()));
            }
            // In a ring of a thread all operations complete on that thread.
            let submits = self.submits_in_drive();
            state.driving = submits.then(ThreadId::current);
            state.driver = None; // The driver is awake.
            for _ in 0..RING_ROUNDS_PER_DRIVE {
                // 2. Harvest completions.
                let round = state.harvest_round(ring);
                all.any |= round.any;
                // 3. Submit: operations that need not wait have completed by then. A thread submits
                // as it goes to sleep.
                all.more = submits && state.submit(ring) || round.more;
                if !all.more {
                    break;
                }
            }
            state.driving = None;
            self.batching
                .store(state.active.end_drive(), Ordering::Relaxed);
            (all, state.failure.clone())
        });
        if let Some(error) = failure {
            return Poll::Ready(Err(error));
        }
        // 4. The next poll handles the rest.
        if harvest.more {
            cx.waker().wake_by_ref();
        }
        match harvest.any {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Returns true if [`Ring::poll_drive`] submits. A ring's own thread submits as it goes to
    /// sleep.
    fn submits_in_drive(&self) -> bool {
        matches!(self.driven_by, RingDriver::Reactor(_))
    }

    /// Fails with the reason once the ring has failed.
    pub(super) fn check(&self) -> Result<()> {
        match self.with(|state, _| state.failure.clone()) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// See [`Transport::try_park`](crate::transport::Transport::try_park).
    pub(super) fn try_park(&self, driver: &Waker) -> bool {
        let submits = self.submits_in_drive();
        self.with(|state, _| {
            let parks = !(state.dirty && (submits || state.failure.is_some()));
            if parks {
                state.driver = Some(driver.clone());
            }
            parks
        })
    }

    /// See [`Transport::has_completions`](crate::transport::Transport::has_completions). Makes a
    /// system call only if the kernel has set the flag that this thread has completions to run.
    pub(super) fn has_completions(&self) -> bool {
        self.with(|state, ring| {
            if state.is_over() {
                return false;
            }
            // SAFETY: as in `flush_backlog`.
            if unsafe { ring.submission_shared() }.taskrun() {
                // The next drive meets an error again.
                let _ = state.enter(ring);
            }
            // SAFETY: as in `harvest_round`.
            !unsafe { ring.completion_shared() }.is_empty()
        })
    }

    /// Returns true while sends should be gathered rather than tried one by one.
    pub(super) fn batches_sends(&self) -> bool {
        self.batching.load(Ordering::Relaxed)
    }

    /// Adds the completion slot of a link.
    pub(super) fn insert_link(&self, slot: LinkCompletions) -> Key {
        self.with(|state, _| state.insert(CompletionSlot::Link(Box::new(slot))))
    }

    /// Returns how many staged receives this thread has submitted.
    #[cfg(test)]
    pub(super) fn armed_here(&self) -> usize {
        let here = Some(ThreadId::current());
        self.with(|state, _| {
            let keys = state.ops.keys().into_iter();
            keys.filter(|key| state.ops.get(*key).is_some_and(|op| op.submitter == here))
                .count()
        })
    }

    /// Returns how many operations the kernel has.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.with(|state, _| state.ops.len())
    }
}

/// Clears the readiness and registers the waker. An error means that the reactor has ended, and the
/// driver is being dropped. Ignores Tokio's cooperative budget, like all work of the driver.
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

    /// Moves along a legal edge.
    pub(super) fn set_phase(&mut self, to: RingPhase) {
        check_edge(&self.phase, &to);
        self.phase = to;
    }

    pub(super) fn phase(&self) -> RingPhase {
        self.phase
    }

    /// Returns true once nothing is submitted any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, RingPhase::Failed | RingPhase::Retired)
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

    pub(super) fn readiness(&mut self, key: Key) -> &mut ReadinessCompletions {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Readiness(slot)) => slot,
            _ => unreachable!("a socket's slot lives as long as the socket"),
        }
    }

    /// Takes the next bytes received for a link, at most `size_max`.
    pub(super) fn take_received(&mut self, key: Key, size_max: usize) -> Option<Stage> {
        match self.slots.get_mut(key) {
            Some(CompletionSlot::Link(slot)) => slot.take_received(&mut self.buffers, size_max),
            _ => None,
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}
