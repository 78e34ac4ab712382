//! A one-shot verdict. One side holds the ticket and decides once; the other side holds the
//! [`TicketHolder`] and awaits it. A ticket that is dropped is a verdict too, so a forgotten
//! connection request ends as a rejected one instead of keeping its peer waiting.
//!
//! This is not Tokio's oneshot channel, because loom cannot explore that.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Lock, WakeList};

/// ```text
///   Open ──decide, or drop of the ticket──> Decided ──poll──> Decided(None)
///     └──drop of the holder──> Abandoned <──drop of the holder──┘
/// ```
enum TicketState<T> {
    /// Undecided, with the waker of a holder that waits.
    Open(Option<Waker>),
    /// The verdict; `None` if the ticket was dropped, or once the holder has taken it.
    Decided(Option<T>),
    /// There is no holder any more.
    Abandoned,
}

/// The right to decide once. Deciding or dropping the ticket wakes the other side, so the caller
/// must hold no lock.
pub(crate) struct Ticket<T> {
    state: Arc<Lock<TicketState<T>>>,
}

/// The receiver of the verdict.
pub(crate) struct TicketHolder<T> {
    state: Arc<Lock<TicketState<T>>>,
}

impl<T> Ticket<T> {
    /// Makes a ticket, and the holder that receives its verdict.
    pub(crate) fn pair() -> (Ticket<T>, TicketHolder<T>) {
        let state = Arc::new(Lock::new(TicketState::Open(None)));
        let holder = TicketHolder {
            state: Arc::clone(&state),
        };
        (Ticket { state }, holder)
    }

    /// Gives the verdict. Returns it if there is no holder any more, as when a peer disconnected
    /// before its request was answered.
    pub(crate) fn decide(self, verdict: T) -> Result<(), T> {
        self.decide_once(Some(verdict)).map_or(Ok(()), Err)
    }

    /// Decides, unless that has been done. Returns a verdict that has no holder.
    fn decide_once(&self, verdict: Option<T>) -> Option<T> {
        let mut wakes = WakeList::new(); // Declared before the guard, so it wakes after it.
        let mut state = self.state.lock("decide");
        match &mut *state {
            TicketState::Open(waker) => {
                wakes.extend(waker.take());
                *state = TicketState::Decided(verdict);
                None
            }
            TicketState::Decided(_) => None,
            TicketState::Abandoned => verdict,
        }
    }

    /// Returns true once the holder is gone, so that a verdict would change nothing.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(
            *self.state.lock("ask for the holder"),
            TicketState::Abandoned
        )
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.decide_once(None);
    }
}

impl<T> TicketHolder<T> {
    /// Ready with `Some` verdict when decided, and with `None` when the ticket was dropped
    /// undecided. If polled again after that, it returns `None`.
    pub(crate) fn poll_verdict(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let _stale; // Declared before the guard, so a replaced waker is dropped after it.
        let mut state = self.state.lock("await a verdict");
        match &mut *state {
            TicketState::Open(waker) => {
                _stale = waker.replace(cx.waker().clone());
                Poll::Pending
            }
            TicketState::Decided(verdict) => Poll::Ready(verdict.take()),
            TicketState::Abandoned => unreachable!("only the drop of this holder abandons"),
        }
    }
}

impl<T> Drop for TicketHolder<T> {
    fn drop(&mut self) {
        let mut state = self.state.lock("abandon a verdict");
        let before = std::mem::replace(&mut *state, TicketState::Abandoned);
        drop(state);
        // A waker, or a verdict that owns a connection: dropped with nothing locked.
        drop(before);
    }
}

debug_fields!([T] Ticket<T>, self => abandoned: self.is_abandoned());

impl<T> fmt::Debug for TicketHolder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketHolder").finish_non_exhaustive()
    }
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// A verdict is received once, also by a holder that waited for it before it was given.
    #[tokio::test]
    async fn verdict_reaches_a_waiting_holder_once() {
        let (ticket, mut holder) = Ticket::pair();
        let waiting = tokio::spawn(async move {
            let first = poll_fn(|cx| holder.poll_verdict(cx)).await;
            let second = poll_fn(|cx| holder.poll_verdict(cx)).await;
            (first, second)
        });
        tokio::task::yield_now().await;
        ticket.decide(7).unwrap();
        assert_eq!(waiting.await.unwrap(), (Some(7), None));
    }

    /// "Dropping it is a verdict too": the holder sees `None` and does not wait indefinitely.
    #[tokio::test]
    async fn dropping_the_ticket_is_a_verdict() {
        let (ticket, mut holder) = Ticket::<u8>::pair();
        drop(ticket);
        assert_eq!(poll_fn(|cx| holder.poll_verdict(cx)).await, None);
    }

    /// A verdict whose holder is gone is returned to the caller, with what it owns.
    #[test]
    fn verdict_for_a_gone_holder_comes_back() {
        let (ticket, holder) = Ticket::pair();
        assert!(!ticket.is_abandoned());
        drop(holder);
        assert!(ticket.is_abandoned());
        assert_eq!(ticket.decide("parts"), Err("parts"));
    }
}
