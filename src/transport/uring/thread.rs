//! A ring that belongs to one thread: no other thread enters the kernel for it (`SINGLE_ISSUER`),
//! and completions are made only while that thread asks for them (`DEFER_TASKRUN`). One system call
//! submits pushed entries, makes completions, and sleeps until there are any.
//!
//! Any thread pushes entries and takes completions out of the slots, under the ring's lock. Only
//! the [`RingOwner`] enters the kernel and harvests the completion queue. Other threads notify the
//! [`WakeFd`], which wakes the ring's thread if it sleeps. When the thread leaves the ring, every
//! operation that it has submitted has ended or is leaked (memory-model rule 7); entries pushed
//! later are never submitted, so their owners keep the memory.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::{Submitter, opcode, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::task::coop::has_budget_remaining;

use super::companion::CompanionRuntime;
use super::op::WAKE_FD;
use super::ring::Ring;
use super::submit::{BeforeSleep, Retry};
use super::thread_id::ThreadId as ThreadAddress;
use crate::error::{Error, Result};
use crate::limits::RING_RETRY_PAUSE;
use crate::transport::Clock;
use crate::transport::run::{CaughtDriver, Reactor};

/// The thread that may enter the kernel for a ring, and harvest its completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingOwner {
    /// Any thread that has the lock.
    Any,
    /// No thread: the ring's thread has not begun, or has ended.
    None,
    Thread(ThreadId),
}

impl RingOwner {
    pub(super) fn is_mine(self) -> bool {
        match self {
            RingOwner::Any => true,
            RingOwner::None => false,
            RingOwner::Thread(owner) => owner == thread::current().id(),
        }
    }
}

/// Wakes the thread of a ring, and holds the timers for which the thread wakes by itself.
pub(super) struct WakeState {
    wake_fd: Arc<WakeFd>,
    timers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    next_clock: AtomicU64,
    owner: OnceLock<ThreadId>,
}

impl WakeState {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(WakeState {
            wake_fd: Arc::new(WakeFd::new()?),
            timers: Mutex::new(BTreeMap::new()),
            next_clock: AtomicU64::new(0),
            owner: OnceLock::new(),
        }))
    }

    fn timers(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Waker>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_mine(&self) -> bool {
        self.owner.get() == Some(&thread::current().id())
    }

    /// Wakes the timers that are due.
    fn fire_timers(&self) {
        loop {
            let due = {
                let mut timers = self.timers();
                match timers.first_entry() {
                    Some(first) if first.key().0 <= Instant::now() => first.remove(),
                    _ => return,
                }
            };
            due.wake();
        }
    }

    /// Returns how long the thread may sleep.
    fn time_left(&self) -> Option<Duration> {
        let first = self.timers().keys().next().map(|(at, _)| *at);
        first.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn set(&self, at: Instant, clock: u64, waker: &Waker) {
        let is_first = {
            let mut timers = self.timers();
            timers.insert((at, clock), waker.clone());
            timers.keys().next() == Some(&(at, clock))
        };
        // The thread may be sleeping for longer than until `at`.
        if is_first && !self.is_mine() {
            self.wake_fd.notify();
        }
    }
}

/// Wakes the thread; makes a system call only if the thread sleeps.
struct WakeFd {
    state: AtomicU8,
    /// Watched by the ring itself.
    fd: OwnedFd,
}

/// The thread runs, and polls its future once more before it sleeps.
const AWAKE: u8 = 0;
/// The thread sleeps in the kernel, or is about to.
const ASLEEP: u8 = 1;
/// The thread was notified since its last poll.
const NOTIFIED: u8 = 2;

impl WakeFd {
    fn new() -> io::Result<Self> {
        Ok(WakeFd {
            state: AtomicU8::new(AWAKE),
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Makes the poll entry that completes at each write to the eventfd. The eventfd's count is
    /// never read, and its 64 bits do not overflow.
    fn entry(&self) -> Entry {
        opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(WAKE_FD)
    }

    fn notify(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP {
            // Fails only if the count is full, and then the eventfd is readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Clears the notifications: the poll that follows serves all of them.
    fn clear(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Returns false if there was a notification since [`WakeFd::clear`].
    fn try_sleep(&self) -> bool {
        let asleep =
            self.state
                .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        asleep.is_ok()
    }
}

impl WakeFd {
    /// Sleeps until a notification or the end of `time`, when no ring watches the eventfd.
    fn sleep(&self, time: Option<Duration>) {
        if time == Some(Duration::ZERO) || !self.try_sleep() {
            return;
        }
        let time = time.and_then(|time| rustix::time::Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // After an error the thread also polls its future once more.
        let _ = poll(&mut fds, time.as_ref());
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl Wake for WakeFd {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// Wakes the application's future on the ring's thread. On that thread a wake only sets a flag,
/// which the thread reads before it sleeps.
struct FutureWake {
    is_woken: AtomicBool,
    thread: ThreadAddress,
    wake_fd: Arc<WakeFd>,
}

impl FutureWake {
    /// Must be called on the ring's thread. The flag is set, so that the future is polled first.
    fn new(wake_fd: &Arc<WakeFd>) -> Arc<Self> {
        Arc::new(FutureWake {
            is_woken: AtomicBool::new(true),
            thread: ThreadAddress::current(),
            wake_fd: Arc::clone(wake_fd),
        })
    }

    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }

    fn take(&self) -> bool {
        self.is_woken() && self.is_woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for FutureWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag is set first: the thread clears the notification before it reads the flag.
        self.is_woken.store(true, Ordering::Release);
        if self.thread != ThreadAddress::current() {
            self.wake_fd.notify();
        }
    }
}

/// Runs the future that drives a ring, on the ring's thread.
pub(in crate::transport) struct RingThread {
    ring: Arc<Ring>,
    wake_state: Arc<WakeState>,
}

impl RingThread {
    pub(super) fn new(ring: Arc<Ring>, wake_state: Arc<WakeState>) -> Self {
        RingThread { ring, wake_state }
    }

    /// Fires the timers that are due, and polls the driver. Returns true once the driver has ended.
    fn drive(&self, driver: &mut CaughtDriver, cx: &mut Context<'_>) -> bool {
        self.wake_state.fire_timers();
        self.wake_state.wake_fd.clear();
        Pin::new(driver).poll(cx).is_ready()
    }

    /// Submits pushed entries, and sleeps until a completion, a notification or a deadline; does
    /// not sleep if `application` was woken.
    fn park(&self, submitter: &Submitter<'_>, application: Option<&FutureWake>) {
        let is_woken = || application.is_some_and(|it| it.is_woken());
        // 1. Under the lock: move the backlog into the queue.
        let time_left = self.wake_state.time_left();
        let (has_work, may_wait) = match self.ring.with(|state, ring| state.before_sleep(ring)) {
            BeforeSleep::Enter { has_work, may_wait } => (has_work, may_wait),
            BeforeSleep::Drive => return,
            BeforeSleep::Failed if is_woken() => return,
            BeforeSleep::Failed => return self.wake_state.wake_fd.sleep(time_left),
        };
        // 2. From here on a notification writes to the eventfd, which ends the sleep.
        let sleeps = may_wait
            && time_left != Some(Duration::ZERO)
            && !is_woken()
            && self.wake_state.wake_fd.try_sleep();
        // 3. One call submits, makes completions and sleeps. A call that does not sleep is made
        // under the lock.
        let entered = match time_left {
            _ if !sleeps && may_wait && !has_work => return,
            _ if !sleeps => self.ring.with(|state, ring| state.enter(ring)),
            None => submitter.submit_and_wait(1),
            Some(left) => {
                let time = types::Timespec::from(left);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        let retry = match entered {
            Ok(_) => return,
            // The time is up.
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => return,
            Err(error) => self.ring.with(|state, ring| state.refused(ring, &error)),
        };
        if retry == Retry::Later {
            thread::park_timeout(RING_RETRY_PAUSE);
        }
    }
}

impl Reactor for RingThread {
    fn begin(&mut self) -> Result<()> {
        self.ring
            .begin(self.wake_state.wake_fd.entry())
            .map_err(|error| Error::from_io(&error, "starting a ring"))?;
        let _ = self.wake_state.owner.set(thread::current().id());
        Ok(())
    }

    fn block_on(&mut self, mut driver: CaughtDriver) {
        let waker = Waker::from(Arc::clone(&self.wake_state.wake_fd));
        let mut cx = Context::from_waker(&waker);
        let mut submitter = self.ring.ring().submitter();
        // Saves the kernel the lookup of the descriptor; without it everything still works.
        let _ = submitter.register_ring_fd();
        while !self.drive(&mut driver, &mut cx) {
            self.park(&submitter, None);
        }
        let _ = submitter.unregister_ring_fd();
    }

    fn block_on_both(
        &mut self,
        driver: CaughtDriver,
        mut application: Pin<&mut dyn Future<Output = ()>>,
    ) -> Result<()> {
        let wake_fd = &self.wake_state.wake_fd;
        let waker = Waker::from(Arc::clone(wake_fd));
        let mut cx = Context::from_waker(&waker);
        let wake = FutureWake::new(wake_fd);
        let companion = CompanionRuntime::start()?;
        let application_waker = Waker::from(Arc::clone(&wake));
        let mut application_cx = Context::from_waker(&application_waker);
        let mut submitter = self.ring.ring().submitter();
        let _ = submitter.register_ring_fd();
        let mut driver = Some(driver);
        let mut round = || {
            // The driver comes first: the operations that it completes wake the future, and the
            // call in which the thread sleeps then submits the future's posts.
            let has_ended = match &mut driver {
                Some(driver) => self.drive(driver, &mut cx),
                None => {
                    wake_fd.clear();
                    false
                }
            };
            if has_ended {
                let _ = submitter.unregister_ring_fd();
                driver = None;
            }
            if wake.take() && application.as_mut().poll(&mut application_cx).is_ready() {
                let _ = submitter.unregister_ring_fd();
                // Dropped within the runtime, as tasks are.
                driver = None;
                return Poll::Ready(());
            }
            match driver {
                Some(_) => self.park(&submitter, Some(&wake)),
                None if wake.is_woken() => {}
                // The ring has ended with its driver.
                None => wake_fd.sleep(None),
            }
            Poll::Pending
        };
        companion.handle().block_on(poll_fn(|cx| {
            while round().is_pending() {
                if !has_budget_remaining() {
                    // The next round has a new budget.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        }));
        Ok(())
    }
}

/// Real time, kept by the thread of a ring.
pub(super) struct ThreadClock {
    wake_state: Arc<WakeState>,
    id: u64,
    set: Option<Instant>,
}

impl ThreadClock {
    pub(super) fn new(wake_state: Arc<WakeState>) -> Self {
        let id = wake_state.next_clock.fetch_add(1, Ordering::Relaxed);
        ThreadClock {
            wake_state,
            id,
            set: None,
        }
    }

    fn clear(&mut self) {
        if let Some(at) = self.set.take() {
            self.wake_state.timers().remove(&(at, self.id));
        }
    }
}

impl Clock for ThreadClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn poll_deadline(&mut self, at: Instant, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.set != Some(at) {
            self.clear();
        }
        if at <= now {
            self.clear();
            return Poll::Ready(());
        }
        self.set = Some(at);
        self.wake_state.set(at, self.id, cx.waker());
        Poll::Pending
    }
}

impl Drop for ThreadClock {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FutureWake`: "On that thread a wake only sets a flag", also when the thread is taken to be
    /// asleep: it reads the flag before it is. Another thread ends the sleep.
    #[test]
    fn a_wake_on_the_same_thread_makes_no_system_call() {
        let wake_fd = Arc::new(WakeFd::new().unwrap());
        let written = || rustix::io::read(&wake_fd.fd, &mut [0; 8]).is_ok();
        let wake = FutureWake::new(&wake_fd);
        assert!(wake.take(), "it is to be polled at first");
        let waker = Waker::from(Arc::clone(&wake));
        assert!(wake_fd.try_sleep());
        waker.wake_by_ref();
        assert!(!written() && wake.take() && !wake.is_woken());
        thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
        });
        assert!(written() && wake.take());
        // While the thread is awake, no other one makes a call either.
        thread::scope(|scope| {
            wake_fd.clear();
            scope.spawn(|| waker.wake_by_ref());
        });
        assert!(!written() && wake.take() && !wake_fd.try_sleep());
    }
}
