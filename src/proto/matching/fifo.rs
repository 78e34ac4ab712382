//! The matcher of a connected endpoint: posted receives and unexpected messages, both FIFO.
//!
//! Invariants: a complete unexpected message and a posted receive never wait at the same time;
//! bytes held ≤ budget, except for messages that were requeued because their receive was dropped.

use std::collections::VecDeque;

use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::op::OpKey;

use super::ReceivedMessage;

/// The matcher of one connection.
#[derive(Debug)]
pub(crate) struct FifoMatcher {
    posted: VecDeque<OpKey>,
    unexpected: VecDeque<ReceivedMessage>,
    /// The sequence number of the last message that began.
    arrivals: u64,
    held_bytes: usize,
    budget_bytes: usize,
}

impl FifoMatcher {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        FifoMatcher {
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            arrivals: 0,
            held_bytes: 0,
            budget_bytes,
        }
    }

    /// Matches a new receive with the oldest complete unexpected message; `None`: it was posted.
    #[inline]
    pub(crate) fn post(&mut self, op: OpKey) -> Option<ReceivedMessage> {
        debug_assert!(self.posted.is_empty() || self.unexpected.is_empty());
        if self.unexpected.is_empty() {
            self.posted.push_back(op);
            return None;
        }
        self.take_unexpected()
    }

    /// Frees spare capacity of the queues.
    pub(crate) fn shrink(&mut self) {
        self.posted.shrink_to_fit();
        self.unexpected.shrink_to_fit();
    }

    /// Returns the sequence number for the message that begins now.
    pub(crate) fn next_order(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Takes the oldest posted receive, for the message that begins now.
    pub(crate) fn take_posted(&mut self) -> Option<OpKey> {
        self.posted.pop_front()
    }

    /// Cancels a receive that has not been matched. Linear in the number of posted receives.
    pub(crate) fn cancel(&mut self, op: OpKey) -> bool {
        let at = self.posted.iter().position(|posted| *posted == op);
        at.and_then(|at| self.posted.remove(at)).is_some()
    }

    /// True if a message of this size may be stored. A message that would not fit an empty store
    /// waits in the socket.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        let free = self.budget_bytes.saturating_sub(self.held_bytes) as u64;
        len.checked_add(UNEXPECTED_OVERHEAD as u64)
            .is_some_and(|cost| cost <= free)
    }

    /// Accounts for a message whose payload is received into the store.
    pub(crate) fn begin_unexpected(&mut self, len: u64) {
        self.held_bytes = self.held_bytes.saturating_add(bytes_of(len));
    }

    /// Releases a message whose payload will not be complete.
    pub(crate) fn abort_unexpected(&mut self, len: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes_of(len));
    }

    /// Stores a complete message. If a receive was posted meanwhile, returns it with the message.
    pub(crate) fn complete_unexpected(
        &mut self,
        message: ReceivedMessage,
    ) -> Option<(OpKey, ReceivedMessage)> {
        match self.posted.pop_front() {
            Some(op) => {
                self.held_bytes = self.held_bytes.saturating_sub(cost_of(&message));
                Some((op, message))
            }
            None => {
                self.unexpected.push_back(message);
                None
            }
        }
    }

    /// Requeues a message whose receive was dropped, in its order (ruling 4), or matches it with
    /// the next posted receive.
    pub(crate) fn requeue(&mut self, message: ReceivedMessage) -> Option<(OpKey, ReceivedMessage)> {
        if let Some(op) = self.posted.pop_front() {
            return Some((op, message));
        }
        self.held_bytes += cost_of(&message);
        let at = self
            .unexpected
            .partition_point(|queued| queued.arrival.order < message.arrival.order);
        self.unexpected.insert(at, message);
        None
    }

    /// Drops the posted receives, since the connection has ended. Unexpected messages stay: a
    /// receive that is posted later may still take one.
    pub(crate) fn clear_posted(&mut self) {
        self.posted.clear();
    }

    /// Drops the unexpected messages, since this side has closed and no receive will be posted.
    pub(crate) fn clear(&mut self) {
        self.unexpected.clear();
        self.held_bytes = 0;
    }

    /// Returns the number of complete unexpected messages.
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// Bytes of unexpected messages that may be held, each with its overhead.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// True if a complete unexpected message waits.
    pub(crate) fn has_unexpected(&self) -> bool {
        !self.unexpected.is_empty()
    }

    /// Takes the oldest unexpected message.
    pub(crate) fn take_unexpected(&mut self) -> Option<ReceivedMessage> {
        let message = self.unexpected.pop_front()?;
        self.held_bytes = self.held_bytes.saturating_sub(cost_of(&message));
        Some(message)
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(
            self.posted.is_empty() || self.unexpected.is_empty(),
            "what fits is matched"
        );
        let held: usize = self.unexpected.iter().map(cost_of).sum();
        assert!(held <= self.held_bytes, "all that is held is counted");
        assert!(
            self.unexpected
                .iter()
                .is_sorted_by_key(|message| message.arrival.order),
            "what came first is first"
        );
    }

    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }
}

/// Returns the bytes that a message of this length counts for.
fn bytes_of(len: u64) -> usize {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    len.saturating_add(UNEXPECTED_OVERHEAD)
}

/// Returns the bytes that a stored message counts for.
fn cost_of(message: &ReceivedMessage) -> usize {
    message.len + UNEXPECTED_OVERHEAD
}
