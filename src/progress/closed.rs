//! The futures that await the end of a connection or an endpoint.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{WaiterKey, Waiters};

/// A connection or an endpoint, whose end can be awaited.
pub(crate) trait CloseWatch {
    /// Runs `run` under the lock that guards the end, with whether it has ended, and with one waker
    /// per future that awaits the end; each poll replaces the waker.
    #[doc(hidden)]
    fn with_end<R>(&self, run: impl FnOnce(bool, &mut Waiters) -> R) -> R;

    fn is_closed(&self) -> bool {
        self.with_end(|has_ended, _| has_ended)
    }

    /// Ready once the connection or endpoint has ended. The caller keeps `key`, and ends with
    /// [`CloseWatch::forget_waiter`].
    fn poll_closed(&self, key: &mut Option<WaiterKey>, waker: &Waker) -> Poll<()> {
        let (poll, stale) = self.with_end(|has_ended, waiters| match has_ended {
            true => (Poll::Ready(()), None),
            false => (Poll::Pending, waiters.register(key, waker)),
        });
        // Dropped unlocked: the last waker of a task may run its destructor.
        drop(stale);
        poll
    }

    fn forget_waiter(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            drop(self.with_end(|_, waiters| waiters.remove(key)));
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
    use crate::sync::Lock;

    struct Something(Lock<Waiters>);

    impl CloseWatch for Something {
        fn with_end<R>(&self, run: impl FnOnce(bool, &mut Waiters) -> R) -> R {
            run(false, &mut self.0.lock("test"))
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
        let something = Something(Lock::new(Waiters::default()));
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
}
