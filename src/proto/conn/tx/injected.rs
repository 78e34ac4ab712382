//! Messages that were copied when they were posted: those of `inject`, and small ones whose futures
//! are awaited. They have no records. Their frames are written at the post, one after the other,
//! without frame numbers. Frames that are handed out together are one piece of memory: a *run*.
//! Messages end in the order of their numbers, so that a future compares its number with
//! [`Injected::ended_before`].
//!
//! ```text
//!   entries   | 3  4 | 6  7  9 |      in the order of their numbers
//!              `out'   queued         the transport has the frames of the first `out` entries,
//!                                     `frames` has the others'
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::{Error, OperationKind, Phase};
use crate::limits::{INJECT_SIZE_MAX, INJECTED_COMPACT_MIN, INJECTED_HEADER_MAX};
use crate::wire::{ByteOrder, FrameHeader, set_id};

/// A queue of bytes. Taken bytes stay in front until no others are left, or until they are the
/// greater part: usually all are taken at once.
#[derive(Debug, Default)]
struct Bytes {
    list: Vec<u8>,
    taken: usize,
}

impl Bytes {
    fn len(&self) -> usize {
        self.list.len() - self.taken
    }

    fn push(&mut self, bytes: &[u8]) {
        self.list.extend_from_slice(bytes);
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.list[self.taken..]
    }

    /// Moves the first `len` bytes to the end of `to`. If `to` is empty and all bytes move, the two
    /// lists are swapped.
    fn pop(&mut self, len: usize, to: &mut Vec<u8>) {
        if to.is_empty() && self.taken == 0 && len == self.list.len() {
            return std::mem::swap(&mut self.list, to);
        }
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

    /// Removes `len` bytes after the first `at`.
    fn remove(&mut self, at: usize, len: usize) {
        let begin = self.taken + at;
        self.list.drain(begin..begin + len);
    }
}

// Both lengths fit a byte.
const _: () = assert!(INJECTED_HEADER_MAX <= u8::MAX as usize);
const _: () = assert!(INJECT_SIZE_MAX <= u8::MAX as usize);

/// A message that has not ended.
#[derive(Clone, Copy, Debug)]
struct InjectedMessage {
    /// The message's sequence number among all posted operations.
    number: u64,
    /// Length of the frame's header, in bytes.
    header: u8,
    /// Length of the payload, at most `INJECT_SIZE_MAX` bytes.
    payload: u8,
    /// A future awaits the message, so it may be withdrawn.
    is_awaited: bool,
}

impl InjectedMessage {
    fn frame_len(&self) -> usize {
        usize::from(self.header) + usize::from(self.payload)
    }
}

/// How many injected messages have ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InjectedEnds {
    pub(crate) sent: usize,
    pub(crate) failed: usize,
    /// Bytes of the messages that were sent.
    pub(crate) bytes: u64,
    /// True if there are awaited messages among them.
    pub(crate) awaited: bool,
}

/// Awaited messages that were not sent, and why.
#[derive(Debug)]
pub(crate) struct UnsentMessages {
    pub(crate) numbers: Range<u64>,
    pub(crate) error: Error,
}

/// The injected messages of a connection.
///
/// Invariant: the numbers of `entries` ascend; `frames` has the bytes of the queued entries.
#[derive(Debug, Default)]
pub(in crate::proto::conn) struct Injected {
    entries: VecDeque<InjectedMessage>,
    /// Number of entries whose frames the transport has.
    out: usize,
    /// Bytes of the first entry's frame that have been sent.
    gone: usize,
    frames: Bytes,
    /// One more than the number of the last message.
    next_number: u64,
    /// Ends that the owner has not counted yet.
    ends: InjectedEnds,
    /// Unsent messages that the owner has not taken yet.
    unsent: Vec<UnsentMessages>,
}

impl Injected {
    /// Queues a message with this number.
    pub(super) fn push(
        &mut self,
        number: u64,
        header: &FrameHeader,
        bytes: &[u8],
        order: ByteOrder,
        is_awaited: bool,
    ) {
        let header_len = header.encoded_len();
        let mut head = [0; INJECTED_HEADER_MAX];
        header.encode_into(order, 0, &mut head[..header_len]);
        self.frames.push(&head[..header_len]);
        self.frames.push(bytes);
        self.next_number = number + 1;
        self.entries.push_back(InjectedMessage {
            number,
            header: header_len as u8,   // at most INJECTED_HEADER_MAX
            payload: bytes.len() as u8, // at most INJECT_SIZE_MAX
            is_awaited,
        });
    }

    /// Returns the number of the first queued message.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.entries.get(self.out).map(|entry| entry.number)
    }

    /// Returns the number of queued messages.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.out
    }

    /// Returns the length of all queued frames in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.frames.len()
    }

    /// Moves the frames of the first queued messages, as long as their numbers are consecutive, to
    /// the end of `heads`, about `room` bytes. `each` gets the length of a payload; if the message
    /// may go out, it returns the number of its frame. Returns the number of messages and of bytes.
    pub(super) fn gather(
        &mut self,
        heads: &mut Vec<u8>,
        room: usize,
        mut each: impl FnMut(u64) -> Option<u8>,
    ) -> (usize, usize) {
        let frames = self.frames.as_mut_slice();
        let (mut count, mut bytes) = (0, 0);
        let mut number = self.entries.get(self.out).map_or(0, |first| first.number);
        while bytes < room
            && let Some(entry) = self.entries.get(self.out)
            && entry.number == number
            && let Some(id) = each(entry.payload.into())
        {
            set_id(&mut frames[bytes..], id);
            bytes += entry.frame_len();
            count += 1;
            number += 1;
            self.out += 1;
        }
        if count > 0 {
            self.frames.pop(bytes, heads);
        }
        (count, bytes)
    }

    /// Returns the number of each queued message, and the length of its payload in bytes.
    pub(super) fn queued(&self) -> impl Iterator<Item = (u64, u64)> {
        let queued = self.entries.range(self.out..);
        queued.map(|entry| (entry.number, entry.payload.into()))
    }

    /// Returns the phase of a message; `None`: it has ended.
    pub(in crate::proto::conn) fn phase(&self, number: u64) -> Option<Phase> {
        let at = (self.entries).binary_search_by_key(&number, |entry| entry.number);
        Some(match at.ok()? < self.out {
            true => Phase::Moving,
            false => Phase::Queued,
        })
    }

    /// Removes a queued message, which then does not go out. False: the message is not queued.
    /// O(n): few messages are withdrawn.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        let at = (self.entries).binary_search_by_key(&number, |entry| entry.number);
        let Ok(at) = at else { return false };
        if at < self.out {
            return false;
        }
        let before = self
            .entries
            .range(self.out..at)
            .map(InjectedMessage::frame_len)
            .sum();
        let Some(entry) = self.entries.remove(at) else {
            return false;
        };
        self.frames.remove(before, entry.frame_len());
        self.ends.failed += 1;
        true
    }

    /// Returns the numbers of the messages that are queued and awaited.
    pub(super) fn awaited(&self) -> Vec<u64> {
        let queued = self.entries.range(self.out..);
        let awaited = queued.filter(|entry| entry.is_awaited);
        awaited.map(|entry| entry.number).collect()
    }

    /// Removes the queued messages from this number on, since they have failed; returns their
    /// numbers.
    pub(super) fn drop_from(&mut self, number: u64, error: Error) -> Vec<u64> {
        let at = (self.entries).partition_point(|entry| entry.number < number);
        let dropped = self.entries.split_off(at.max(self.out));
        for entry in &dropped {
            self.frames.drop_last(entry.frame_len());
        }
        self.ends.failed += dropped.len();
        self.note_unsent(number..self.next_number, error, Phase::Queued);
        dropped.iter().map(|entry| entry.number).collect()
    }

    /// Accounts for more sent bytes of runs; returns how many messages have ended.
    pub(super) fn advance(&mut self, bytes: usize) -> usize {
        self.gone += bytes;
        let mut count = 0;
        while let Some(first) = self.entries.front()
            && self.out > 0
            && self.gone >= first.frame_len()
        {
            self.gone -= first.frame_len();
            self.ends.bytes += u64::from(first.payload);
            self.ends.awaited |= first.is_awaited;
            self.entries.pop_front();
            self.out -= 1;
            count += 1;
        }
        self.ends.sent += count;
        count
    }

    /// Fails all messages that have not been sent in full; returns how many.
    pub(in crate::proto::conn) fn fail_all(&mut self, error: &Error) -> usize {
        let count = self.entries.len();
        let queued = self.next().unwrap_or(self.next_number);
        if count > 0 {
            self.note_unsent(self.ended_before()..queued, error.clone(), Phase::Moving);
            self.note_unsent(queued..self.next_number, error.clone(), Phase::Queued);
        }
        self.ends.failed += count;
        self.entries.clear();
        (self.out, self.gone) = (0, 0);
        self.frames = Bytes::default();
        count
    }

    /// Records the error for the futures of these messages.
    pub(super) fn note_unsent(&mut self, numbers: Range<u64>, error: Error, phase: Phase) {
        if numbers.is_empty() {
            return;
        }
        let error = error.with_operation(OperationKind::Send).with_phase(phase);
        self.unsent.push(UnsentMessages { numbers, error });
        self.ends.awaited = true;
    }

    /// Returns the number below which all messages have ended.
    #[inline]
    pub(in crate::proto::conn) fn ended_before(&self) -> u64 {
        (self.entries.front()).map_or(self.next_number, |first| first.number)
    }

    /// Takes the messages that have failed since the last call.
    pub(in crate::proto::conn) fn take_unsent(&mut self) -> Vec<UnsentMessages> {
        std::mem::take(&mut self.unsent)
    }

    #[cfg(test)]
    pub(in crate::proto::conn) fn under_way(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(in crate::proto::conn) fn has_ends(&self) -> bool {
        self.ends.sent + self.ends.failed > 0
    }

    pub(in crate::proto::conn) fn take_ends(&mut self) -> InjectedEnds {
        std::mem::take(&mut self.ends)
    }

    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.frames.list.shrink_to_fit();
    }
}
