//! A one-shot verdict. One side holds the ticket and decides once; the other side holds the
//! [`TicketHolder`] and learns of it. Dropping the ticket is a verdict too, so a forgotten
//! connection request ends as a rejected one instead of keeping its peer waiting.

use std::fmt;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// The right to decide once. Deciding, and dropping it, wake the other side: hold no lock then.
pub(crate) struct Ticket<T> {
    sender: oneshot::Sender<T>,
}

/// Where the verdict arrives.
pub(crate) struct TicketHolder<T> {
    /// `None` once the verdict has been told.
    receiver: Option<oneshot::Receiver<T>>,
}

impl<T> Ticket<T> {
    /// A ticket and the place where its verdict arrives.
    pub(crate) fn pair() -> (Ticket<T>, TicketHolder<T>) {
        let (sender, receiver) = oneshot::channel();
        let holder = TicketHolder {
            receiver: Some(receiver),
        };
        (Ticket { sender }, holder)
    }

    /// Gives the verdict. It comes back when nobody is left to hear it: what was to be decided is
    /// over, as when a peer went away before its request was answered.
    pub(crate) fn decide(self, verdict: T) -> Result<(), T> {
        self.sender.send(verdict)
    }

    /// True once the other side is gone, so that a verdict would change nothing.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }
}

impl<T> TicketHolder<T> {
    /// The verdict: `Some` when decided, `None` when the ticket was dropped undecided. Polled again
    /// after that, it says `None`.
    pub(crate) fn poll_verdict(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(receiver) = &mut self.receiver else {
            return Poll::Ready(None);
        };
        match std::pin::Pin::new(receiver).poll(cx) {
            Poll::Ready(verdict) => {
                self.receiver = None;
                Poll::Ready(verdict.ok())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("abandoned", &self.is_abandoned())
            .finish()
    }
}

impl<T> fmt::Debug for TicketHolder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketHolder")
            .field("told", &self.receiver.is_none())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// A verdict is heard once, also by a holder that waited for it before it was given.
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

    /// "Dropping it is a verdict too": the holder sees `None` and does not wait for ever.
    #[tokio::test]
    async fn dropping_the_ticket_is_a_verdict() {
        let (ticket, mut holder) = Ticket::<u8>::pair();
        drop(ticket);
        assert_eq!(poll_fn(|cx| holder.poll_verdict(cx)).await, None);
    }

    /// A verdict nobody can hear comes back to whom decided, with what it owns.
    #[test]
    fn verdict_for_a_gone_holder_comes_back() {
        let (ticket, holder) = Ticket::pair();
        assert!(!ticket.is_abandoned());
        drop(holder);
        assert!(ticket.is_abandoned());
        assert_eq!(ticket.decide("parts"), Err("parts"));
    }
}
