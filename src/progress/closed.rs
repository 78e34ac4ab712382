//! The end of a connection or an endpoint: its kind, and the futures that await it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::edges::{check_edge, state_machine};
use crate::sync::{WaiterKey, Waiters, WakeList};

/// Whether a connection or an endpoint has ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClosedState {
    #[default]
    Open,
    /// It ended because this side or the peer closed it.
    InOrder,
    /// It was lost, or never came up.
    Lost,
}

state_machine! { ClosedState {
    Open => [InOrder, Lost],
    InOrder => [],
    Lost => [],
}}

/// The state, and one waker per future that waits for it to leave Open; each poll replaces the
/// waker.
#[derive(Debug, Default)]
pub(crate) struct CloseNotify {
    state: ClosedState,
    waiters: Waiters,
}

impl CloseNotify {
    #[cfg(debug_assertions)]
    pub(super) fn state(&self) -> ClosedState {
        self.state
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state != ClosedState::Open
    }

    /// Records the end; only the first call counts.
    pub(super) fn close(&mut self, to: ClosedState, wakes: &mut WakeList) {
        if !self.is_closed() {
            check_edge(&self.state, &to);
            self.state = to;
            self.waiters.take_all(wakes);
        }
    }
}

/// A connection or an endpoint, whose end can be awaited.
pub(crate) trait CloseWatch {
    /// Runs `run` under the lock that guards the state.
    #[doc(hidden)]
    fn with_close_notify<R>(&self, run: impl FnOnce(&mut CloseNotify) -> R) -> R;

    fn is_closed(&self) -> bool {
        self.with_close_notify(|notify| notify.is_closed())
    }

    fn is_closed_in_order(&self) -> bool {
        self.with_close_notify(|notify| notify.state == ClosedState::InOrder)
    }

    /// Ready once the connection or endpoint has ended. The caller keeps `key`, and ends with
    /// [`CloseWatch::forget_waiter`].
    fn poll_closed(&self, key: &mut Option<WaiterKey>, waker: &Waker) -> Poll<()> {
        let (poll, stale) = self.with_close_notify(|notify| match notify.is_closed() {
            true => (Poll::Ready(()), None),
            false => (Poll::Pending, notify.waiters.register(key, waker)),
        });
        // Dropped unlocked: the last waker of a task may run its destructor.
        drop(stale);
        poll
    }

    fn forget_waiter(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            drop(self.with_close_notify(|notify| notify.waiters.remove(key)));
        }
    }

    fn closed(&self) -> WaitClosed<'_, Self>
    where
        Self: Sized,
    {
        WaitClosed {
            of: self,
            key: None,
        }
    }
}

/// The future of [`CloseWatch::closed`].
pub(crate) struct WaitClosed<'a, W: CloseWatch> {
    of: &'a W,
    key: Option<WaiterKey>,
}

impl<W: CloseWatch> Future for WaitClosed<'_, W> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.of.poll_closed(&mut this.key, cx.waker())
    }
}

impl<W: CloseWatch> Drop for WaitClosed<'_, W> {
    fn drop(&mut self) {
        self.of.forget_waiter(&mut self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;
    use crate::edges::EdgeCoverage;
    use crate::sync::Lock;

    struct Something(Lock<CloseNotify>);

    impl CloseWatch for Something {
        fn with_close_notify<R>(&self, run: impl FnOnce(&mut CloseNotify) -> R) -> R {
            run(&mut self.0.lock("test"))
        }
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// Each awaiting future has one waker: a poll by another task replaces it, and dropping the
    /// future removes it.
    #[test]
    fn wakers_of_those_who_await_an_end_do_not_pile_up() {
        let something = Something(Lock::new(CloseNotify::default()));
        let tasks: Vec<Arc<Task>> = (0..1000).map(|_| Arc::new(Task)).collect();
        {
            let mut closed = pin!(something.closed());
            for task in &tasks {
                let waker = Waker::from(Arc::clone(task));
                let polled = closed.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
            }
            let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
            assert_eq!(held.count(), 1, "the last one");
        }
        let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
        assert_eq!(held.count(), 0, "the future was dropped");
    }

    /// There is one end: nothing after the first reason changes it.
    #[test]
    fn the_first_end_counts() {
        let coverage = EdgeCoverage::begin("ClosedState");
        for (first, second) in [
            (ClosedState::InOrder, ClosedState::Lost),
            (ClosedState::Lost, ClosedState::InOrder),
        ] {
            let something = Something(Lock::new(CloseNotify::default()));
            assert!(!something.is_closed());
            for to in [first, second] {
                something.with_close_notify(|notify| notify.close(to, &mut WakeList::new()));
                assert_eq!(something.with_close_notify(|notify| notify.state()), first);
            }
            assert!(something.is_closed());
            assert_eq!(
                something.is_closed_in_order(),
                first == ClosedState::InOrder
            );
        }
        coverage.expect_all();
    }
}
