//! Posted receives and early messages of one endpoint, both first come, first matched.
//!
//! Invariant: never a complete early message beside a posted receive; bytes held ≤ budget, but for
//! messages that a dropped receive gave back.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::op::OpKey;

/// A message that came before its receive.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) payload: Payload,
    /// Bytes of the message that are in `payload`.
    pub(crate) len: usize,
    /// Bytes of it that a too small, since dropped, receive lost.
    pub(crate) overflow: usize,
    pub(crate) data: Option<u64>,
    /// Its place among all that have come, kept when it is given back.
    pub(crate) order: u64,
}

impl Early {
    fn cost(&self) -> usize {
        self.len + UNEXPECTED_OVERHEAD
    }
}

/// What a fresh receive finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// This complete message.
    Early(Early),
    /// Nothing yet; it is posted.
    Nothing,
}

/// The matcher.
#[derive(Debug)]
pub(crate) struct Matcher {
    posted: VecDeque<OpKey>,
    early: VecDeque<Early>,
    /// Messages that have begun.
    arrivals: u64,
    held_bytes: usize,
    budget_bytes: usize,
}

impl Matcher {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        Matcher {
            posted: VecDeque::new(),
            early: VecDeque::new(),
            arrivals: 0,
            held_bytes: 0,
            budget_bytes,
        }
    }

    /// Matches a new receive with the oldest complete early message, or posts it.
    pub(crate) fn post(&mut self, op: OpKey) -> Found {
        debug_assert!(self.posted.is_empty() || self.early.is_empty());
        match self.early.pop_front() {
            Some(early) => {
                self.held_bytes = self.held_bytes.saturating_sub(early.cost());
                Found::Early(early)
            }
            None => {
                self.posted.push_back(op);
                Found::Nothing
            }
        }
    }

    /// Gives the memory back that the queues keep for what may be queued.
    pub(crate) fn shrink(&mut self) {
        self.posted.shrink_to_fit();
        self.early.shrink_to_fit();
    }

    /// The place of the message that begins now.
    pub(crate) fn next_order(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// The receive that takes the message arriving now.
    pub(crate) fn take_posted(&mut self) -> Option<OpKey> {
        self.posted.pop_front()
    }

    /// Withdraws a receive that no message has been matched to.
    pub(crate) fn withdraw(&mut self, op: OpKey) -> bool {
        let at = self.posted.iter().position(|posted| *posted == op);
        at.and_then(|at| self.posted.remove(at)).is_some()
    }

    /// True if a message of this size may be kept. A message that could never fit an empty store is
    /// not kept either: it waits in the socket.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        let free = self.budget_bytes.saturating_sub(self.held_bytes) as u64;
        len.checked_add(UNEXPECTED_OVERHEAD as u64)
            .is_some_and(|cost| cost <= free)
    }

    /// Counts a message that is about to land in the store.
    pub(crate) fn begin_early(&mut self, len: usize) {
        self.held_bytes += len + UNEXPECTED_OVERHEAD;
    }

    /// A message that was to land in the store never will in full.
    pub(crate) fn abandon_early(&mut self, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.held_bytes = self
            .held_bytes
            .saturating_sub(len.saturating_add(UNEXPECTED_OVERHEAD));
    }

    /// A landed message. If a receive was posted meanwhile the two are returned together.
    pub(crate) fn finish_early(&mut self, early: Early) -> Option<(OpKey, Early)> {
        match self.posted.pop_front() {
            Some(op) => {
                self.held_bytes = self.held_bytes.saturating_sub(early.cost());
                Some((op, early))
            }
            None => {
                self.early.push_back(early);
                None
            }
        }
    }

    /// A message whose receive was dropped goes back to the head (ruling 4), behind those that came
    /// before it and were given back too, or straight to the next posted receive.
    pub(crate) fn give_back(&mut self, early: Early) -> Option<(OpKey, Early)> {
        if let Some(op) = self.posted.pop_front() {
            return Some((op, early));
        }
        self.held_bytes += early.cost();
        let at = self.early.partition_point(|kept| kept.order < early.order);
        self.early.insert(at, early);
        None
    }

    /// The connection ended: no receive is posted any more. Early messages stay, since a receive
    /// posted later may still take what came in full.
    pub(crate) fn forget_posted(&mut self) {
        self.posted.clear();
    }

    /// This side closed: nobody will ask for early messages any more.
    pub(crate) fn clear(&mut self) {
        self.early.clear();
        self.held_bytes = 0;
    }

    /// Complete messages that wait.
    pub(crate) fn early_len(&self) -> usize {
        self.early.len()
    }

    /// Bytes of early messages that may be held, each with its overhead.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// True if a complete early message waits.
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The oldest early message, for a receive posted after the end.
    pub(crate) fn take_early(&mut self) -> Option<Early> {
        let early = self.early.pop_front()?;
        self.held_bytes = self.held_bytes.saturating_sub(early.cost());
        Some(early)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(
            self.posted.is_empty() || self.early.is_empty(),
            "what fits is matched"
        );
        let held: usize = self.early.iter().map(Early::cost).sum();
        assert!(held <= self.held_bytes, "all that is held is counted");
        assert!(
            self.early.iter().is_sorted_by_key(|early| early.order),
            "what came first is first"
        );
    }

    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }
}
