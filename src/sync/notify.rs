//! Waking all tasks that wait for a recurring event.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Lock, WaiterKey, Waiters, WakeList};

/// Wakes all waiters, like Tokio's `Notify`, but wakes the others even if one waker panics.
#[derive(Debug)]
pub(crate) struct Notify(Lock<NotifyState>);

#[derive(Debug, Default)]
struct NotifyState {
    /// How often all waiters have been woken.
    rounds: u64,
    waiters: Waiters,
}

impl Default for Notify {
    fn default() -> Self {
        Notify(Lock::new(NotifyState::default()))
    }
}

impl Notify {
    /// Wakes all present waiters. Called with no lock held.
    pub(crate) fn notify_waiters(&self) {
        let mut wakes = WakeList::new();
        let mut state = self.0.lock("notify");
        state.rounds += 1;
        state.waiters.take_all(&mut wakes);
        // The list wakes when it is dropped, which is after the guard.
        drop(state);
    }

    /// Waits for the next notification after this call, no matter when the future is first polled.
    pub(crate) fn notified(&self) -> Notified<'_> {
        Notified {
            of: self,
            seen: self.0.lock("wait to be notified").rounds,
            key: None,
        }
    }
}

/// The future of [`Notify::notified`].
#[derive(Debug)]
pub(crate) struct Notified<'a> {
    of: &'a Notify,
    seen: u64,
    key: Option<WaiterKey>,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let _stale; // Declared before the guard, so the waker is dropped after it.
        let mut state = this.of.0.lock("wait to be notified");
        if state.rounds != this.seen {
            return Poll::Ready(());
        }
        _stale = state.waiters.register(&mut this.key, cx.waker());
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let gone = self
                .of
                .0
                .lock("wait no longer")
                .waiters
                .remove(&mut self.key);
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "from this call on, whenever it is polled first"; one that is dropped leaves no waker.
    #[tokio::test]
    async fn who_waits_is_woken_by_the_next_time() {
        let notify = Notify::default();
        let before = notify.notified();
        notify.notify_waiters();
        before.await;
        let mut after = Box::pin(notify.notified());
        assert!(futures::poll!(&mut after).is_pending());
        let mut dropped = Box::pin(notify.notified());
        assert!(futures::poll!(&mut dropped).is_pending());
        drop(dropped);
        assert!(!notify.0.lock("test").waiters.is_empty());
        notify.notify_waiters();
        assert!(notify.0.lock("test").waiters.is_empty());
        after.await;
    }
}
