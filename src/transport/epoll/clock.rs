//! Real time, by a timerfd in the reactor. Tokio's own timers stop when a test pauses time, and a
//! runtime may lack them; a peer at the other end of a socket knows of neither (ruling 12).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use futures::task::AtomicWaker;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::{Clock, register};
use crate::error::{Error, Result};

/// One alarm on the monotonic clock, which is also what [`Instant`] reads on Linux.
pub(in crate::transport) struct TimerClock {
    timer: AsyncFd<OwnedFd>,
    /// What the timer is set to; `None` before the first use and once it has rung.
    set: Option<Instant>,
    bell: Arc<Bell>,
    /// What the reactor wakes: the bell.
    ringer: Waker,
    /// Who is woken when it rings.
    driver: Option<Waker>,
}

/// Remembers that it rang: the driver asks at each of its polls, and most of those have nothing to
/// do with the time.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    driver: AtomicWaker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.driver.wake();
    }
}

impl TimerClock {
    /// Must be called within the runtime that shall watch the timer.
    pub(in crate::transport) fn new() -> Result<Self> {
        let doing = "opening a timer";
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| Error::from_io(&error.into(), doing))?;
        let bell = Arc::<Bell>::default();
        Ok(TimerClock {
            timer: register(fd, doing)?,
            set: None,
            ringer: Waker::from(Arc::clone(&bell)),
            bell,
            driver: None,
        })
    }

    fn set(&mut self, at: Instant) {
        let left = at.saturating_duration_since(Instant::now());
        let value = Timespec {
            // A deadline beyond what the kernel can count is as good as none.
            tv_sec: i64::try_from(left.as_secs())
                .unwrap_or(i64::MAX)
                .min(FAR_SECONDS),
            // Zero would disarm the timer; a nanosecond is the shortest alarm.
            tv_nsec: if left.is_zero() {
                1
            } else {
                left.subsec_nanos().into()
            },
        };
        let interval = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec {
                it_interval: interval,
                it_value: value,
            },
        )
        .expect("the timer is ours and the time a valid one");
        self.set = Some(at);
    }
}

/// A century: the kernel refuses nothing below it.
const FAR_SECONDS: i64 = 100 * 365 * 24 * 3600;

impl Clock for TimerClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn poll_deadline(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let is_same = self
            .driver
            .as_ref()
            .is_some_and(|it| it.will_wake(cx.waker()));
        if is_same && self.set == Some(at) && !self.bell.rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if !is_same {
            self.driver = Some(cx.waker().clone());
        }
        // Before the reactor is asked: whoever rings from then on is heard.
        self.bell.rung.store(false, Ordering::Release);
        self.bell.driver.register(cx.waker());
        let ringer = self.ringer.clone();
        let cx = &mut Context::from_waker(&ringer);
        loop {
            if at <= Instant::now() {
                self.set = None;
                return Poll::Ready(());
            }
            if self.set != Some(at) {
                self.set(at);
            }
            match self.timer.poll_read_ready(cx) {
                // The timer need not be read: setting it again clears its count, and the next
                // expiry is a new edge. What woke us may be an alarm set before, hence the loop.
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    // A ring that came early by the rounding of clocks must be armed again.
                    self.set = None;
                }
                // Without its reactor nothing here makes progress; the driver is being dropped.
                Poll::Ready(Err(_)) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}
