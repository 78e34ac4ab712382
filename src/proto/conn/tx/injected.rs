//! Messages that were copied when they were posted (`inject`). They have no keys, and their ends
//! are only counted. So they are written as they go out when they are posted, one frame behind the
//! other, and lack nothing but the numbers of their frames; those that are handed out together are
//! one piece of memory: a *run*.
//!
//! Invariant: the bytes are those of the frames whose sizes are known, and those are as many as the
//! ranges have numbers, in the same order.

use std::collections::VecDeque;

use crate::buf::{ConvertMany, OutFrame, Payload};
use crate::limits::{HEADER_SIZE_MAX, INJECT_SIZE_MAX, INJECTED_COMPACT_MIN};
use crate::wire::{ByteOrder, FrameHeader, set_id};

use super::handed_out::FrameOwner;

/// A queue of bytes. Those in front that were taken stay until nothing is behind them, or until
/// they are the most: mostly all are taken at once.
#[derive(Debug, Default)]
struct Bytes {
    list: Vec<u8>,
    taken: usize,
}

impl Bytes {
    fn len(&self) -> usize {
        self.list.len() - self.taken
    }

    /// Room for so many bytes behind the others.
    fn push(&mut self, len: usize) -> &mut [u8] {
        let at = self.list.len();
        self.list.resize(at + len, 0);
        &mut self.list[at..]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.list[self.taken..]
    }

    /// Moves the first `len` bytes behind others.
    fn pop(&mut self, len: usize, to: &mut Vec<u8>) {
        let end = self.taken + len;
        to.extend_from_slice(&self.list[self.taken..end]);
        self.taken = end;
        if end == self.list.len() {
            self.list.clear();
            self.taken = 0;
        } else if end > self.list.len() / 2 && end > INJECTED_COMPACT_MIN {
            self.list.drain(..end);
            self.taken = 0;
        }
    }

    fn drop_last(&mut self, len: usize) {
        self.list.truncate(self.list.len() - len);
    }
}

/// Messages whose places among all that was posted follow each other.
#[derive(Debug)]
struct SeqRange {
    first: u64,
    count: u64,
}

// Sizes are of a byte each.
const _: () = assert!(HEADER_SIZE_MAX <= u8::MAX as usize);
const _: () = assert!(INJECT_SIZE_MAX <= u8::MAX as usize);

/// Bytes of a frame.
#[derive(Clone, Copy, Debug)]
struct Size {
    header: u8,
    /// At most `INJECT_SIZE_MAX`.
    payload: u8,
}

impl Size {
    fn all(self) -> usize {
        usize::from(self.header) + usize::from(self.payload)
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
    ranges: VecDeque<SeqRange>,
    sizes: VecDeque<Size>,
    frames: Bytes,
    /// The bytes of the last run, empty: for the next.
    spare: Vec<u8>,
    /// Queued or handed out.
    under_way: usize,
    /// Not counted by the owner yet.
    ends: InjectedEnds,
}

impl Injected {
    /// A message of this number.
    pub(super) fn push(
        &mut self,
        number: u64,
        header: &FrameHeader,
        bytes: &[u8],
        order: ByteOrder,
    ) {
        let header_len = header.encoded_len();
        let frame = self.frames.push(header_len + bytes.len());
        let (room, rest) = frame.split_at_mut(header_len);
        header.encode_into(order, 0, room);
        rest.copy_from_slice(bytes);
        self.sizes.push_back(Size {
            header: header_len as u8,   // at most HEADER_SIZE_MAX
            payload: bytes.len() as u8, // at most INJECT_SIZE_MAX
        });
        match self.ranges.back_mut() {
            Some(last) if last.first + last.count == number => last.count += 1,
            _ => self.ranges.push_back(SeqRange {
                first: number,
                count: 1,
            }),
        }
        self.under_way += 1;
    }

    /// The number of the first one that is queued.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.ranges.front().map(|range| range.first)
    }

    /// How many are queued.
    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Bytes of their frames.
    pub(super) fn bytes(&self) -> usize {
        self.frames.len()
    }

    /// Puts what is queued first, and nothing stands between, into a run, for about `room` bytes;
    /// `each` allows a payload of so many bytes to go out, and gives the number of its frame. Says
    /// how many messages and bytes it was.
    pub(super) fn gather(
        &mut self,
        run: &mut Run,
        room: usize,
        mut each: impl FnMut(u64) -> Option<u8>,
    ) -> (usize, usize) {
        let Some(range) = self.ranges.front_mut() else {
            return (0, 0);
        };
        let frames = self.frames.as_mut_slice();
        if run.is_empty() {
            run.bytes = std::mem::take(&mut self.spare);
        }
        let (mut count, mut bytes) = (0, 0);
        while range.count > 0
            && bytes < room
            && let Some(&size) = self.sizes.front()
            && let Some(id) = each(size.payload.into())
        {
            self.sizes.pop_front();
            set_id(&mut frames[bytes..], id);
            bytes += size.all();
            count += 1;
            range.first += 1;
            range.count -= 1;
        }
        if range.count == 0 {
            self.ranges.pop_front();
        }
        if count > 0 {
            self.frames.pop(bytes, &mut run.bytes);
            run.count += count as u32; // of at most GATHER_BYTES_MAX bytes
        } else if run.is_empty() {
            self.spare = std::mem::take(&mut run.bytes);
        }
        (count, bytes)
    }

    /// The number of each that is queued, and the bytes of its payload.
    pub(super) fn queued(&self) -> impl Iterator<Item = (u64, u64)> {
        let ranges = self.ranges.iter();
        let numbers = ranges.flat_map(|it| it.first..it.first + it.count);
        numbers.zip(self.sizes.iter().map(|size| size.payload.into()))
    }

    /// Those of this number and behind it do not go out: they have failed. Gives their numbers.
    pub(super) fn drop_from(&mut self, number: u64) -> Vec<u64> {
        let numbers = self.queued().map(|(number, _)| number);
        let dropped: Vec<u64> = numbers.filter(|it| *it >= number).collect();
        for size in self.sizes.split_off(self.sizes.len() - dropped.len()) {
            self.frames.drop_last(size.all());
        }
        self.ranges.retain_mut(|it| {
            it.count = it.count.min(number.saturating_sub(it.first));
            it.count > 0
        });
        self.end(0, dropped.len());
        dropped
    }

    /// A run of so many messages has gone.
    pub(super) fn sent(&mut self, count: usize, run: Payload) {
        if let Some(mut bytes) = Vec::<u8>::from_payload(run) {
            bytes.clear();
            self.spare = bytes;
        }
        self.end(count, 0);
    }

    /// All that have not gone have failed; gives their number.
    pub(in crate::proto::conn) fn fail_all(&mut self) -> usize {
        let count = self.under_way;
        self.end(0, count);
        self.ranges.clear();
        self.sizes.clear();
        self.frames = Bytes::default();
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

    #[inline]
    pub(in crate::proto::conn) fn has_ends(&self) -> bool {
        self.ends.sent + self.ends.failed > 0
    }

    pub(in crate::proto::conn) fn take_ends(&mut self) -> InjectedEnds {
        std::mem::take(&mut self.ends)
    }

    pub(super) fn shrink(&mut self) {
        self.ranges.shrink_to_fit();
        self.sizes.shrink_to_fit();
        self.frames.list.shrink_to_fit();
        self.spare = Vec::new();
    }
}

/// A run that is being put together.
#[derive(Debug, Default)]
pub(super) struct Run {
    bytes: Vec<u8>,
    count: u32,
}

impl Run {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The frame of what is in it; the next run begins.
    pub(super) fn end(&mut self) -> OutFrame {
        debug_assert!(!self.is_empty(), "a frame has bytes");
        let Run { bytes, count } = std::mem::take(self);
        let owner = FrameOwner::Injected(count);
        OutFrame::new(&[], Payload::from_vec(bytes), owner.to_token())
    }
}
