//! Operations of one kind that wait to go out, in the order in which they were posted.

use std::collections::VecDeque;

use crate::proto::op::{OpKey, OpKind, Operation};

/// The kind of an operation's frame, as far as the order of sending depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto::conn) enum QueuedKind {
    /// A message without a tag: it may have to wait for credit, or to be announced.
    Message,
    /// A message with a tag: it, too, may have to wait or to be announced.
    Tagged,
    /// RMA and atomic operations.
    Rma,
}

impl QueuedKind {
    #[inline]
    pub(in crate::proto::conn) fn of(kind: &OpKind) -> Self {
        match kind {
            OpKind::Send { tag, .. } | OpKind::Inject { tag, .. } => match tag {
                None => QueuedKind::Message,
                Some(_) => QueuedKind::Tagged,
            },
            _ => QueuedKind::Rma,
        }
    }
}

/// An operation whose frame has not been handed out.
#[derive(Clone, Copy, Debug)]
pub(in crate::proto::conn) struct Queued {
    /// The operation's sequence number.
    pub(in crate::proto::conn) number: u64,
    pub(in crate::proto::conn) op: OpKey,
    /// Length of the frame's payload.
    pub(in crate::proto::conn) len: usize,
    pub(in crate::proto::conn) kind: QueuedKind,
    /// The message ends only when it is matched, so it is announced whatever its length.
    pub(in crate::proto::conn) matched: bool,
}

impl Queued {
    #[inline]
    pub(in crate::proto::conn) fn new<T>(op: OpKey, operation: &Operation<T>) -> Self {
        Queued {
            number: operation.number,
            op,
            len: operation.frame_len(),
            kind: QueuedKind::of(&operation.kind),
            matched: operation.options.matched,
        }
    }
}

/// Operations of one kind, by their numbers.
///
/// Invariant: `bytes` is the sum of the payloads of the frames.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) queue: VecDeque<Queued>,
    pub(super) bytes: usize,
}

impl Lane {
    #[inline]
    pub(super) fn push(&mut self, queued: Queued) {
        self.bytes += queued.len;
        self.queue.push_back(queued);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.bytes -= queued.len;
        Some(queued)
    }

    /// Takes an operation out. O(n): few operations are withdrawn.
    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<Queued> {
        let at = self.queue.iter().position(|queued| queued.op == op)?;
        let queued = self.queue.remove(at)?;
        self.bytes -= queued.len;
        Some(queued)
    }

    /// Takes the operations with this number or a higher one.
    pub(super) fn split_off(&mut self, from: u64) -> VecDeque<Queued> {
        let at = self.queue.partition_point(|queued| queued.number < from);
        let taken = self.queue.split_off(at);
        self.bytes -= taken.iter().map(|queued| queued.len).sum::<usize>();
        taken
    }

    /// Takes the operations that are `wanted`.
    pub(super) fn extract(&mut self, wanted: impl Fn(&Queued) -> bool) -> VecDeque<Queued> {
        let all = std::mem::take(&mut self.queue).into_iter();
        let (taken, left): (VecDeque<Queued>, _) = all.partition(wanted);
        self.queue = left;
        self.bytes -= taken.iter().map(|queued| queued.len).sum::<usize>();
        taken
    }

    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.number)
    }
}
