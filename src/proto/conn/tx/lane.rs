//! User frames of one kind, in the order in which they were posted.

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::proto::op::OpKey;

use super::Queued;

/// User frames of one kind, each with its number in the order of all.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) queue: VecDeque<(u64, Queued)>,
    /// Payload bytes of them.
    pub(super) bytes: usize,
}

impl Lane {
    #[inline]
    pub(super) fn push(&mut self, number: u64, queued: Queued) {
        self.bytes += queued.payload.len();
        self.queue.push_back((number, queued));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let (_, queued) = self.queue.pop_front()?;
        self.bytes -= queued.payload.len();
        Some(queued)
    }

    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<(u64, Payload)> {
        let at = self
            .queue
            .iter()
            .position(|(_, queued)| queued.op == Some(op))?;
        let (number, queued) = self.queue.remove(at)?;
        self.bytes -= queued.payload.len();
        Some((number, queued.payload))
    }

    /// Takes what has this number or a higher one.
    pub(super) fn split_off(&mut self, from: u64) -> VecDeque<(u64, Queued)> {
        let at = self.queue.partition_point(|(number, _)| *number < from);
        let taken = self.queue.split_off(at);
        let bytes = taken.iter().map(|(_, queued)| queued.payload.len());
        self.bytes -= bytes.sum::<usize>();
        taken
    }

    /// Takes out those that are `wanted`.
    pub(super) fn extract(&mut self, wanted: impl Fn(&Queued) -> bool) -> VecDeque<(u64, Queued)> {
        let all = std::mem::take(&mut self.queue).into_iter();
        let (taken, left) = all.partition(|(_, queued)| wanted(queued));
        self.queue = left;
        let bytes = taken
            .iter()
            .map(|(_, queued): &(u64, Queued)| queued.payload.len());
        self.bytes -= bytes.sum::<usize>();
        taken
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.queue.front().map(|(number, _)| *number)
    }
}
