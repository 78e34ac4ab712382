//! What is submitted to a link and what has ended but is not told yet: the bookkeeping that is the
//! same for every backend. One with real completions lends the memory on to its ring meanwhile.
//!
//! Invariants: at most one batch and one receive are submitted. Each leaves by exactly one outcome.
//! At most three outcomes wait to be told: of the send, of the receive, of the connection.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::task::Waker;

use super::{Direct, IoSizes, Outcome, Receive, Received, SendBatch};
use crate::error::{Error, Result};

/// What the reading side is about.
#[derive(Debug)]
pub(super) enum Reading {
    Idle,
    Watching,
    Armed(Receive),
    /// Armed, its destination lent to the ring.
    #[cfg_attr(
        not(feature = "io-uring"),
        allow(dead_code, reason = "only a ring borrows")
    )]
    Lent,
}

pub(super) struct Submitted {
    pub(super) batch: Option<SendBatch>,
    /// A batch is submitted and lent to the ring.
    pub(super) batch_lent: bool,
    pub(super) reading: Reading,
    pub(super) sizes: IoSizes,
    pub(super) waker: Waker,
    pub(super) peer: SocketAddr,
    ended: VecDeque<Outcome>,
    /// The link is broken: its answer to whatever is submitted from now on.
    broken: Option<Error>,
    /// Whose turn it is when both directions could move.
    send_first: bool,
    /// The last try gave something, so the caller is about to ask again and needs no wake.
    asked_again: bool,
}

#[cfg_attr(
    not(feature = "io-uring"),
    allow(dead_code, reason = "only a ring borrows")
)]
impl Submitted {
    pub(super) fn new(peer: SocketAddr, waker: Waker) -> Self {
        Submitted {
            batch: None,
            batch_lent: false,
            reading: Reading::Idle,
            sizes: IoSizes::default(),
            waker,
            peer,
            ended: VecDeque::new(),
            broken: None,
            send_first: false,
            asked_again: false,
        }
    }

    /// True while memory is submitted, or an end of some is untold.
    pub(super) fn is_anything(&self) -> bool {
        self.batch.is_some()
            || self.batch_lent
            || matches!(self.reading, Reading::Armed(_) | Reading::Lent)
            || !self.ended.is_empty()
    }

    /// False: the link is broken, and the batch has ended already.
    #[must_use]
    pub(super) fn send(&mut self, batch: SendBatch) -> bool {
        assert!(
            self.batch.is_none() && !self.batch_lent,
            "one batch is submitted at a time"
        );
        debug_assert!(
            !batch.leases.is_empty()
                || (batch.frames.iter()).all(|frame| frame.payload().needs_no_lease()),
            "the regions of a batch are leased"
        );
        self.batch = Some(batch);
        !self.refuse()
    }

    /// False: the link is broken, and the receive has ended already.
    #[must_use]
    pub(super) fn receive(&mut self, receive: Receive) -> bool {
        assert!(
            !matches!(self.reading, Reading::Armed(_) | Reading::Lent),
            "one receive is armed at a time"
        );
        if let Receive::Direct(direct) = &receive {
            assert!(direct.len > 0, "a direct receive asks for a byte at least");
            // What the unsafe code of a backend rests on, so checked in every build.
            assert!(
                direct.payload.is_writable(),
                "bytes are received into writable memory"
            );
            assert!(
                direct.payload.needs_no_lease() || !direct.leases.is_empty(),
                "the regions of a receive are leased"
            );
        }
        self.reading = Reading::Armed(receive);
        !self.refuse()
    }

    /// False: the link is broken, and that is told already.
    #[must_use]
    pub(super) fn watch(&mut self) -> bool {
        debug_assert!(
            !matches!(self.reading, Reading::Armed(_) | Reading::Lent),
            "watching is for when no receive is armed"
        );
        self.reading = Reading::Watching;
        !self.refuse()
    }

    pub(super) fn cancel_send(&mut self) {
        if let Some(sent) = self.sent(Ok(0)) {
            self.tell(sent);
        }
    }

    /// Not for one that is lent: it ends when the ring says so.
    pub(super) fn cancel_receive(&mut self) {
        debug_assert!(!matches!(self.reading, Reading::Lent), "lent to the ring");
        match mem::replace(&mut self.reading, Reading::Idle) {
            Reading::Idle | Reading::Watching | Reading::Lent => {}
            Reading::Armed(receive) => {
                let returned = destination(receive);
                self.tell(Outcome::Received(Received::Cancelled { returned }));
            }
        }
    }

    /// Keeps an outcome to be told by the next `poll_outcome`, and announces it.
    pub(super) fn tell(&mut self, outcome: Outcome) {
        self.keep(outcome);
        self.announce();
    }

    /// Keeps an outcome that the caller is expected to fetch.
    pub(super) fn keep(&mut self, outcome: Outcome) {
        if self.ended.capacity() == 0 {
            self.ended.reserve_exact(1); // Mostly there is one at a time, in thousands of links.
        }
        self.ended.push_back(outcome);
    }

    /// Wakes, unless the caller will ask anyway.
    pub(super) fn announce(&self) {
        if !self.asked_again {
            self.waker.wake_by_ref();
        }
    }

    /// True when the caller is about to ask, so that nothing need be registered now.
    pub(super) fn will_be_asked(&self) -> bool {
        self.asked_again
    }

    /// An outcome that waits to be told.
    pub(super) fn shrink(&mut self) {
        self.ended.shrink_to_fit();
    }

    pub(super) fn next_ended(&mut self) -> Option<Outcome> {
        self.ended.pop_front()
    }

    pub(super) fn is_send_first(&self) -> bool {
        self.send_first
    }

    /// Takes note of what a try of everything submitted gave.
    pub(super) fn tried(&mut self, outcome: &Option<Outcome>) {
        match outcome {
            Some(Outcome::Sent { .. }) => self.send_first = false,
            Some(Outcome::Received(_)) => self.send_first = true,
            _ => {}
        }
        self.asked_again = outcome.is_some();
    }

    /// The end of the batch, if there is one.
    pub(super) fn sent(&mut self, result: Result<usize>) -> Option<Outcome> {
        let result = result.map_err(|error| error.with_peer(self.peer));
        self.batch
            .take()
            .map(|batch| Outcome::Sent { batch, result })
    }

    /// Takes the armed receive's destination out, as the receive ends.
    pub(super) fn disarm(&mut self) -> Option<Direct> {
        match mem::replace(&mut self.reading, Reading::Idle) {
            Reading::Armed(receive) => destination(receive),
            Reading::Idle | Reading::Watching | Reading::Lent => None,
        }
    }

    /// The end of the armed receive by an error.
    pub(super) fn receive_failed(&mut self, error: Error) -> Outcome {
        Outcome::Received(Received::Failed {
            error: error.with_peer(self.peer),
            returned: self.disarm(),
        })
    }

    /// The end of a watch.
    pub(super) fn peer_gone(&mut self, error: Error) -> Outcome {
        self.reading = Reading::Idle;
        Outcome::PeerGone(error.with_peer(self.peer))
    }

    /// Why the link is broken, if it is.
    pub(super) fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Lends the batch on.
    pub(super) fn lend_batch(&mut self) -> Option<SendBatch> {
        let batch = self.batch.take()?;
        self.batch_lent = true;
        Some(batch)
    }

    /// Lends the armed destination on.
    pub(super) fn lend_direct(&mut self) -> Option<Direct> {
        let direct = self.disarm()?;
        self.reading = Reading::Lent;
        Some(direct)
    }

    /// From now on everything ends with `error`, beginning with what is submitted. What is lent
    /// ends when it comes back.
    pub(super) fn break_off(&mut self, error: Error) {
        self.broken = Some(error.with_peer(self.peer));
        self.refuse();
        self.announce();
    }

    fn refuse(&mut self) -> bool {
        let Some(error) = self.broken.clone() else {
            return false;
        };
        if let Some(sent) = self.sent(Err(error.clone())) {
            self.keep(sent);
        }
        let ended = match self.reading {
            Reading::Idle | Reading::Lent => return true,
            Reading::Watching => self.peer_gone(error),
            Reading::Armed(_) => self.receive_failed(error),
        };
        self.keep(ended);
        true
    }
}

fn destination(receive: Receive) -> Option<Direct> {
    match receive {
        Receive::Stage => None,
        Receive::Direct(direct) => Some(direct),
    }
}
