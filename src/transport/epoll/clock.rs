//! Real time, by a timerfd in the reactor. Tokio's own timers stop when a test pauses time, and a
//! runtime may lack them. Neither affects the peer at the other end of a socket (ruling 12).

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::watched::Watched;
use super::{Clock, IoDirection, poll_ready, register};
use crate::error::{Error, Result};

/// One alarm on the monotonic clock, which is also what [`Instant`] reads on Linux.
pub(in crate::transport) struct TimerClock {
    timer: Watched,
    /// The time at which the timer expires, and the waker to wake then; `None` before the first use
    /// and once it has expired.
    set: Option<(Instant, Waker)>,
}

impl TimerClock {
    /// Must be called within the runtime whose reactor will watch the timer.
    pub(in crate::transport) fn new() -> Result<Self> {
        let doing = "opening a timer";
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| Error::from_io(&error.into(), doing))?;
        Ok(TimerClock {
            timer: register(fd, None, doing)?,
            set: None,
        })
    }

    fn set(&mut self, at: Instant) {
        let left = at.saturating_duration_since(Instant::now());
        let value = Timespec {
            // A deadline that the kernel cannot represent never comes.
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
            self.timer.get_ref(),
            TimerfdTimerFlags::empty(),
            &Itimerspec {
                it_interval: interval,
                it_value: value,
            },
        )
        .expect("the timer is ours and the time a valid one");
    }
}

/// A century, in seconds: the kernel accepts all times below it.
const FAR_SECONDS: i64 = 100 * 365 * 24 * 3600;

impl Clock for TimerClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn poll_deadline(&mut self, at: Instant, mut now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if at <= now {
                self.set = None;
                return Poll::Ready(());
            }
            // The kernel's timers are never early, so a set timer wakes once `at` has passed.
            let is_set =
                |(set, waker): &(Instant, Waker)| *set == at && waker.will_wake(cx.waker());
            if self.set.as_ref().is_some_and(is_set) {
                return Poll::Pending;
            }
            self.set(at);
            match poll_ready(&self.timer, IoDirection::Read, cx.waker()) {
                // The timer need not be read: setting it again clears its count, and the next
                // expiry is a new edge. This may be an alarm set before, hence the loop.
                Poll::Ready(Ok(mut guard)) => {
                    guard.clear_ready();
                    now = Instant::now();
                }
                // An error means that the reactor has ended; the driver is being dropped.
                Poll::Ready(Err(_)) | Poll::Pending => {
                    self.set = Some((at, cx.waker().clone()));
                    return Poll::Pending;
                }
            }
        }
    }
}
