//! Frames of the wire protocol that the transport sends as one batch, and how much of them has gone
//! out.
//!
//! The heads of all frames are in one list of the batch, one after the other: encoded headers, and
//! whole messages that were copied when they were posted. A frame has its part of that list, and
//! the memory of its payload behind it.
//!
//! ```text
//!   heads    ..gone..| header | copied messages | header |
//!                     frames[0]    frames[1]     frames[2]
//!                     │ payload                  │ payload
//! ```

use std::collections::VecDeque;

use super::access_error::AccessError;
use super::copy_ends::CopyTo;
#[cfg(feature = "tls")]
use super::payload::Slices;
use super::payload::{Leases, Payload};
use super::span::{Span, SpanList};
use crate::limits::DEVICE_PIECE_MAX;

/// A frame of a batch.
///
/// Invariant: `sent <= head_len + payload.len()`; a bounce buffer has the payload's byte at `sent`,
/// or ends there.
pub(crate) struct OutFrame {
    /// Length of its part of the batch's heads.
    head_len: usize,
    payload: Payload,
    /// The bytes of a payload in device memory that have been copied; it has no other spans.
    bounce: Option<Box<BounceBuffer>>,
    sent: usize,
    token: u64,
}

/// Bytes of device memory, copied to the host's.
pub(crate) struct BounceBuffer {
    /// Offset in the payload at which it begins.
    at: usize,
    bytes: Vec<u8>,
}

impl BounceBuffer {
    /// Copies the first bytes of a payload of device memory, up to [`DEVICE_PIECE_MAX`]; `None` for
    /// any other payload, which needs no copy.
    #[inline]
    pub(crate) fn first_of(payload: &Payload) -> Result<Option<Box<BounceBuffer>>, AccessError> {
        if !payload.is_of_device() {
            return Ok(None);
        }
        let mut bounce = Box::new(BounceBuffer {
            at: 0,
            bytes: Vec::new(),
        });
        bounce.fill(payload, 0)?;
        Ok(Some(bounce))
    }

    fn fill(&mut self, payload: &Payload, at: usize) -> Result<(), AccessError> {
        let len = (payload.len() - at).min(DEVICE_PIECE_MAX);
        self.at = at;
        self.bytes.resize(len, 0);
        payload.copy_out(at, &mut self.bytes)
    }

    fn end(&self) -> usize {
        self.at + self.bytes.len()
    }
}

impl OutFrame {
    /// The caller's own value, with which the frame was pushed.
    #[inline]
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Sends zeros in place of the payload, whose memory is not to be touched any more.
    pub(crate) fn blank(&mut self) {
        self.payload = Payload::zeros(self.payload.len());
        self.bounce = None;
    }

    /// Sets the first bytes of its payload, which is device memory.
    pub(crate) fn set_bounce(&mut self, bounce: Box<BounceBuffer>) {
        self.bounce = Some(bounce);
    }

    /// Copies the next part of device memory to the host's, once the last has gone out. Other
    /// memory is not copied.
    pub(crate) fn refill_bounce(&mut self) -> Result<(), AccessError> {
        let at = self.payload_sent();
        match &mut self.bounce {
            Some(bounce) if at == bounce.end() && at < self.payload.len() => {
                bounce.fill(&self.payload, at)
            }
            _ => Ok(()),
        }
    }

    /// True if only some of the remaining bytes can go out now, so that no other frame may follow.
    pub(crate) fn is_partly_here(&self) -> bool {
        self.bounce
            .as_ref()
            .is_some_and(|it| it.end() < self.payload.len())
    }

    /// Bytes that have not gone out yet, of head and payload together.
    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.head_len + self.payload.len() - self.sent
    }

    fn payload_sent(&self) -> usize {
        self.sent.saturating_sub(self.head_len)
    }

    /// Returns the part of its head that comes behind the next `skipped` bytes.
    fn head_left<'a>(&self, head: &'a [u8], skipped: usize) -> &'a [u8] {
        head.get(self.sent + skipped..).unwrap_or_default()
    }

    /// Appends the spans of up to `len` bytes that come next, as many as fit into the list.
    fn spans(&self, head: &[u8], len: usize, into: &mut SpanList) {
        let mut left = len.min(self.remaining());
        let head = self.head_left(head, 0);
        if !head.is_empty() {
            let head = &head[..head.len().min(left)];
            if !into.push(Span::of(head)) {
                return;
            }
            left -= head.len();
        }
        if left == 0 {
            return;
        }
        let offset = self.payload_sent();
        match &self.bounce {
            None => self.payload.spans(offset, left, into),
            Some(bounce) => {
                let rest = bounce.bytes.get(offset - bounce.at..).unwrap_or_default();
                into.push(Span::of(&rest[..left.min(rest.len())]));
            }
        }
    }

    /// Appends slices, in place, of the `len` bytes after the next `skipped` ones, which must
    /// exist; see [`Payload::slices`].
    #[cfg(feature = "tls")]
    fn slices<'a>(
        &'a self,
        head: &'a [u8],
        skipped: usize,
        len: usize,
        into: &mut Slices<'a>,
    ) -> bool {
        if self.bounce.is_some() {
            return false;
        }
        let head = self.head_left(head, skipped);
        let head = &head[..head.len().min(len)];
        if !head.is_empty() {
            into.push(head);
        }
        let left = len - head.len();
        left == 0 || {
            let offset = (self.sent + skipped).saturating_sub(self.head_len);
            self.payload.slices(offset, left, into)
        }
    }

    /// Copies the bytes after the next `skipped` ones, as many as exist and fit. Removes the filled
    /// room from `into`, and returns the number of bytes.
    fn copy_out(
        &self,
        head: &[u8],
        skipped: usize,
        into: &mut CopyTo<'_>,
    ) -> Result<usize, AccessError> {
        let begin = self.sent + skipped;
        let here = match &self.bounce {
            None => self.head_len + self.payload.len(),
            Some(bounce) => self.head_len + bounce.end(),
        };
        let count = into.len().min(here.saturating_sub(begin));
        let head = self.head_left(head, skipped);
        let head = &head[..head.len().min(count)];
        if !head.is_empty() {
            into.split_front(head.len()).write(head);
        }
        let len = count - head.len();
        if len > 0 {
            let offset = begin.saturating_sub(self.head_len);
            let mut into = into.split_front(len);
            match &self.bounce {
                None => self.payload.copy_out_to(offset, into)?,
                Some(bounce) => {
                    let from = offset - bounce.at;
                    into.write(&bounce.bytes[from..from + len]);
                }
            }
        }
        Ok(count)
    }
}

debug_fields!(OutFrame, self =>
    head_len: self.head_len, payload_len: self.payload.len(), sent: self.sent, token: self.token
);

/// Progress of a frame.
pub(crate) struct FrameStep {
    /// The frame's token.
    pub(crate) token: u64,
    /// Number of further bytes of it that have gone out.
    pub(crate) bytes: usize,
    /// True if all of it has gone out.
    pub(crate) is_gone: bool,
}

/// Frames to be sent in this order, by as few system calls as possible. The link owns the batch
/// while it is submitted, and so keeps the heads where they are as long as the kernel reads them;
/// then the batch comes back, and its lists are used again.
///
/// Invariant: the heads from `heads_at` on are those of the frames.
#[derive(Default)]
pub(crate) struct SendBatch {
    frames: VecDeque<OutFrame>,
    heads: Vec<u8>,
    heads_at: usize,
    /// Held while the kernel may read region memory of these frames; dropped by the owner of the
    /// batch when it comes back.
    pub(crate) leases: Vec<Leases>,
    /// True if several messages go out together.
    pub(crate) is_burst: bool,
}

impl SendBatch {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of frames.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = &OutFrame> {
        self.frames.iter()
    }

    pub(crate) fn frame_mut(&mut self, at: usize) -> &mut OutFrame {
        &mut self.frames[at]
    }

    /// Bytes that have not gone out yet.
    pub(crate) fn remaining(&self) -> usize {
        self.frames.iter().map(OutFrame::remaining).sum()
    }

    /// Appends a frame with a head of `head_len` bytes, which `write` writes; `token` is the
    /// caller's own, and comes back with each step of the frame.
    #[inline]
    pub(crate) fn push(
        &mut self,
        head_len: usize,
        write: impl FnOnce(&mut [u8]),
        payload: Payload,
        token: u64,
    ) {
        let at = self.heads.len();
        self.heads.resize(at + head_len, 0);
        write(&mut self.heads[at..]);
        self.push_frame(head_len, payload, token);
    }

    /// Appends a frame that consists of these bytes.
    pub(crate) fn push_bytes(&mut self, bytes: Vec<u8>, token: u64) {
        self.push_frame(0, Payload::from_vec(bytes), token);
    }

    /// Returns the list of heads, for the caller to append to; [`SendBatch::push_appended`]
    /// follows.
    #[inline]
    pub(crate) fn heads_mut(&mut self) -> &mut Vec<u8> {
        &mut self.heads
    }

    /// Appends a frame that consists of the last `len` bytes appended to the heads.
    #[inline]
    pub(crate) fn push_appended(&mut self, len: usize, token: u64) {
        self.push_frame(len, Payload::empty(), token);
    }

    #[inline]
    fn push_frame(&mut self, head_len: usize, payload: Payload, token: u64) {
        self.frames.push_back(OutFrame {
            head_len,
            payload,
            bounce: None,
            sent: 0,
            token,
        });
    }

    /// Replaces a frame of which nothing has gone out.
    pub(crate) fn replace(
        &mut self,
        at: usize,
        head_len: usize,
        write: impl FnOnce(&mut [u8]),
        payload: Payload,
        token: u64,
    ) {
        let before = self.frames.range(..at).map(|frame| frame.head_len);
        let begin = self.heads_at + before.sum::<usize>();
        let frame = &mut self.frames[at];
        debug_assert_eq!(frame.sent, 0, "what has gone out stays");
        let old = begin..begin + frame.head_len;
        self.heads.splice(old, std::iter::repeat_n(0, head_len));
        write(&mut self.heads[begin..begin + head_len]);
        *frame = OutFrame {
            head_len,
            payload,
            bounce: None,
            sent: 0,
            token,
        };
    }

    /// Appends all frames of another batch.
    pub(crate) fn append(&mut self, other: &mut SendBatch) {
        self.heads.extend_from_slice(&other.heads[other.heads_at..]);
        self.frames.append(&mut other.frames);
        other.forget_heads();
    }

    /// Accounts for sent bytes of the first frame, at most `left`, and subtracts their number from
    /// `left`. `None`: there is no frame. The caller [takes](Self::pop_sent) a frame that has been
    /// sent.
    #[inline]
    pub(crate) fn advance(&mut self, left: &mut usize) -> Option<FrameStep> {
        let frame = self.frames.front_mut()?;
        let bytes = frame.remaining().min(*left);
        frame.sent += bytes;
        *left -= bytes;
        Some(FrameStep {
            token: frame.token,
            bytes,
            is_gone: frame.remaining() == 0,
        })
    }

    /// Accounts for sent bytes, and drops the frames of which all bytes have gone out.
    pub(crate) fn drop_sent(&mut self, mut count: usize) {
        while let Some(step) = self.advance(&mut count)
            && step.is_gone
        {
            self.pop_sent();
        }
        assert_eq!(count, 0, "no more can be sent than was submitted");
    }

    /// Takes the first frame out, all bytes of which have been sent; returns its payload.
    #[inline]
    pub(crate) fn pop_sent(&mut self) -> Payload {
        debug_assert!(self.frames.front().is_some_and(|it| it.remaining() == 0));
        self.pop().expect("a frame has been sent")
    }

    /// Takes the first frame out; returns its payload.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Payload> {
        let frame = self.frames.pop_front()?;
        self.heads_at += frame.head_len;
        if self.frames.is_empty() {
            self.forget_heads();
        }
        Some(frame.payload)
    }

    #[inline]
    fn forget_heads(&mut self) {
        self.heads.clear();
        self.heads_at = 0;
    }

    /// Takes the tokens and payloads of all frames, which are not sent any more.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, Payload)> {
        self.forget_heads();
        self.frames
            .drain(..)
            .map(|frame| (frame.token, frame.payload))
    }

    /// The frames, each with its head.
    fn with_heads(&self) -> impl Iterator<Item = (&[u8], &OutFrame)> {
        let mut at = self.heads_at;
        self.frames.iter().map(move |frame| {
            let begin = at;
            at += frame.head_len;
            (&self.heads[begin..at], frame)
        })
    }

    /// Appends the spans of up to `len` bytes that come next, as many as fit into the list.
    pub(crate) fn spans(&self, len: usize, into: &mut SpanList) {
        let mut left = len;
        for (head, frame) in self.with_heads() {
            if left == 0 || into.is_full() {
                break;
            }
            frame.spans(head, left, into);
            left -= frame.remaining().min(left);
        }
    }

    /// Appends slices of up to `len` bytes after the next `skipped` ones. Returns the number of
    /// bytes, or `None` if some of them can only be copied.
    #[cfg(feature = "tls")]
    pub(crate) fn slices<'a>(
        &'a self,
        mut skipped: usize,
        len: usize,
        into: &mut Slices<'a>,
    ) -> Option<usize> {
        let mut left = len;
        for (head, frame) in self.with_heads() {
            if left == 0 {
                break;
            }
            let remaining = frame.remaining();
            if skipped >= remaining {
                skipped -= remaining;
                continue;
            }
            let count = left.min(remaining - skipped);
            if !frame.slices(head, skipped, count, into) {
                return None;
            }
            left -= count;
            skipped = 0;
        }
        Some(len - left)
    }

    /// Copies the bytes after the next `skipped` ones, as far as there is room. Returns the number
    /// of bytes, and the reason if a region refused access. The batch does not advance.
    pub(crate) fn copy_out(
        &self,
        mut skipped: usize,
        mut into: CopyTo<'_>,
    ) -> (usize, Option<AccessError>) {
        let mut count = 0;
        for (head, frame) in self.with_heads() {
            let remaining = frame.remaining();
            if skipped >= remaining {
                skipped -= remaining;
                continue;
            }
            match frame.copy_out(head, skipped, &mut into) {
                Ok(copied) => {
                    count += copied;
                    if copied < remaining - skipped {
                        break;
                    }
                }
                Err(error) => return (count, Some(error)),
            }
            skipped = 0;
        }
        (count, None)
    }
}

debug_fields!(SendBatch, self =>
    frames: self.frames, leases: self.leases, is_burst: self.is_burst
);
