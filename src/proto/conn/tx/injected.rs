//! Messages that were copied when they were posted (`inject`). Nobody has a name for one, and of
//! their ends only the count is told. So each is a header in its lane and bytes in a queue, and
//! those that are handed out together are one frame: a *run*, one message behind the other.
//!
//! Invariant: the bytes are those of the injected messages in the lane, in its order.

use crate::buf::{ConvertMany, Frame, Payload};
use crate::wire::{ByteOrder, FrameHeader};

/// Lists of bytes that are kept to be used again.
const SPARE_MAX: usize = 32;

/// Bytes in front of a queue that are worth moving the others for.
const TAKEN_MAX: usize = 4096;

/// Low half of a run's token; the high half says how many messages it has. No key has it, nor has
/// any token of those that belong to nobody.
const RUN: u32 = u32::MAX - 5;

/// A queue of bytes. Those in front that were taken stay until nothing is behind them, or until
/// they are the most: mostly all are taken at once.
#[derive(Debug, Default)]
struct Bytes {
    list: Vec<u8>,
    taken: usize,
}

impl Bytes {
    fn push(&mut self, bytes: &[u8]) {
        self.list.extend_from_slice(bytes);
    }

    /// Moves the first `len` bytes behind others.
    fn pop(&mut self, len: usize, to: &mut Vec<u8>) {
        let end = self.taken + len;
        to.extend_from_slice(&self.list[self.taken..end]);
        self.taken = end;
        if end == self.list.len() {
            self.list.clear();
            self.taken = 0;
        } else if end > self.list.len() / 2 && end > TAKEN_MAX {
            self.list.drain(..end);
            self.taken = 0;
        }
    }

    fn drop_last(&mut self, len: usize) {
        self.list.truncate(self.list.len() - len);
    }
}

/// How many injected messages have ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedEnds {
    pub(crate) sent: usize,
    pub(crate) failed: usize,
}

/// The injected messages of a connection.
#[derive(Debug, Default)]
pub(in crate::proto::conn) struct Injected {
    bytes: Bytes,
    /// Queued or handed out.
    under_way: usize,
    /// Not told yet.
    ends: InjectedEnds,
    spare: Vec<Vec<u8>>,
}

impl Injected {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.push(bytes);
        self.under_way += 1;
    }

    /// The last one that is queued, of so many bytes, does not go out.
    pub(super) fn drop_last(&mut self, len: usize) {
        self.bytes.drop_last(len);
        self.end(0, 1);
    }

    /// A run of so many messages has gone.
    pub(super) fn sent(&mut self, count: usize, run: Payload) {
        self.end(count, 0);
        if let Some(mut bytes) = Vec::<u8>::from_payload(run)
            && self.spare.len() < SPARE_MAX
        {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// All that have not gone have failed; gives their number.
    pub(in crate::proto::conn) fn fail_all(&mut self) -> usize {
        let count = self.under_way;
        self.end(0, count);
        self.bytes = Bytes::default();
        count
    }

    fn end(&mut self, sent: usize, failed: usize) {
        self.under_way -= sent + failed;
        self.ends.sent += sent;
        self.ends.failed += failed;
    }

    #[cfg(test)]
    pub(in crate::proto::conn) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(in crate::proto::conn) fn take_ends(&mut self) -> InjectedEnds {
        std::mem::take(&mut self.ends)
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.list.shrink_to_fit();
        self.spare = Vec::new();
    }
}

/// A run that is being put together.
#[derive(Default)]
pub(super) struct Run {
    bytes: Vec<u8>,
    count: u32,
}

impl Run {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts the first injected message that is queued behind the others; gives the bytes it takes.
    pub(super) fn push(
        &mut self,
        injected: &mut Injected,
        header: &FrameHeader,
        order: ByteOrder,
        id: u8,
    ) -> usize {
        if self.is_empty() {
            self.bytes = injected.spare.pop().unwrap_or_default();
        }
        let before = self.bytes.len();
        let len = header.payload_len() as usize; // at most INJECT_SIZE_MAX
        self.bytes.extend_from_slice(&header.encode(order, id));
        injected.bytes.pop(len, &mut self.bytes);
        self.count += 1;
        self.bytes.len() - before
    }

    /// The frame of what is in it; the next run begins.
    pub(super) fn end(&mut self) -> Frame {
        debug_assert!(!self.is_empty(), "a frame has bytes");
        let Run { bytes, count } = std::mem::take(self);
        let token = u64::from(count) << 32 | u64::from(RUN);
        Frame::new(&[], Payload::from_vec(bytes), token)
    }
}

/// How many messages the run of this token has, if it is one.
pub(super) fn run_of(token: u64) -> Option<usize> {
    (token as u32 == RUN).then_some((token >> 32) as usize)
}
