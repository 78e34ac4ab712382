//! Awaiting the end of a connection, or of an endpoint.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{WaiterKey, Waiters, WakeList};

/// Whether something has ended, and who waits for that: one waker per waiting future, which each of
/// its polls replaces.
#[derive(Debug, Default)]
pub(crate) struct EndState {
    has_ended: bool,
    waiters: Waiters,
}

impl EndState {
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn set_ended(&mut self, wakes: &mut WakeList) {
        self.has_ended = true;
        self.waiters.take_all(wakes);
    }
}

/// What ends, and can be awaited to.
pub(crate) trait Ends {
    /// Runs this under the lock that guards the state.
    #[doc(hidden)]
    fn with_end<R>(&self, run: impl FnOnce(&mut EndState) -> R) -> R;

    fn has_ended(&self) -> bool {
        self.with_end(|end| end.has_ended)
    }

    /// Ready once it has ended. `key` is the caller's, who gives it back by
    /// [`Ends::forget_waiter`].
    fn poll_ended(&self, key: &mut Option<WaiterKey>, waker: &Waker) -> Poll<()> {
        let (poll, stale) = self.with_end(|end| match end.has_ended {
            true => (Poll::Ready(()), None),
            false => (Poll::Pending, end.waiters.register(key, waker)),
        });
        // With the lock released: the last waker of a task may run its destructor.
        drop(stale);
        poll
    }

    fn forget_waiter(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            drop(self.with_end(|end| end.waiters.remove(key)));
        }
    }

    /// Waits for the end.
    fn ended(&self) -> Ended<'_, Self>
    where
        Self: Sized,
    {
        Ended {
            of: self,
            key: None,
        }
    }
}

/// The future of [`Ends::ended`].
pub(crate) struct Ended<'a, E: Ends> {
    of: &'a E,
    key: Option<WaiterKey>,
}

impl<E: Ends> Future for Ended<'_, E> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.of.poll_ended(&mut this.key, cx.waker())
    }
}

impl<E: Ends> Drop for Ended<'_, E> {
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

    struct Something(Lock<EndState>);

    impl Ends for Something {
        fn with_end<R>(&self, run: impl FnOnce(&mut EndState) -> R) -> R {
            run(&mut self.0.lock("test"))
        }
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// One waker per awaiting future: another task that polls it replaces the one before, and a
    /// future that is dropped leaves none.
    #[test]
    fn wakers_of_those_who_await_an_end_do_not_pile_up() {
        let something = Something(Lock::new(EndState::default()));
        let tasks: Vec<Arc<Task>> = (0..1000).map(|_| Arc::new(Task)).collect();
        {
            let mut ended = pin!(something.ended());
            for task in &tasks {
                let waker = Waker::from(Arc::clone(task));
                let polled = ended.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
            }
            let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
            assert_eq!(held.count(), 1, "the last one");
        }
        let held = tasks.iter().filter(|task| Arc::strong_count(task) > 1);
        assert_eq!(held.count(), 0, "the future was dropped");
        something.with_end(|end| end.set_ended(&mut WakeList::new()));
        assert!(something.has_ended());
    }
}
