//! What the transport sends as one: header bytes, the payload behind them, and how much of both has
//! gone out. A frame of the wire protocol, or a run of those that lie in one buffer.

use std::collections::VecDeque;

use super::access_error::AccessError;
#[cfg(feature = "tls")]
use super::payload::Slices;
use super::payload::{Leases, Payload};
use super::span::{Span, SpanList};
use crate::limits::{DEVICE_PIECE_MAX, FRAME_HEADER_INLINE, HEADER_SIZE_MAX};

/// A frame on its way out. Owned by the transport while the kernel reads it; its address must not
/// change meanwhile, since the header is inside.
///
/// Invariant: `sent <= header_len + payload.len()`; a bounce buffer has the payload's byte at
/// `sent`, or ends there.
pub(crate) struct OutFrame {
    header: [u8; FRAME_HEADER_INLINE],
    /// A header that is longer than the room inside.
    long_header: Option<Box<[u8]>>,
    header_len: u8,
    payload: Payload,
    /// What of a payload in device memory is here; it has no other spans.
    bounce: Option<Box<BounceBuffer>>,
    sent: usize,
    token: u64,
}

/// Bytes of device memory, copied to the host's.
pub(crate) struct BounceBuffer {
    /// Where in the payload it begins.
    at: usize,
    bytes: Vec<u8>,
}

impl BounceBuffer {
    /// The first bytes of a payload of device memory, up to [`DEVICE_PIECE_MAX`]; `None` of any
    /// other, which needs no copy.
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
    /// A frame of `header` (at most [`HEADER_SIZE_MAX`] bytes) and `payload`; `token` is the
    /// caller's own and comes back by [`OutFrame::token`].
    pub(crate) fn new(header: &[u8], payload: Payload, token: u64) -> Self {
        let write = |room: &mut [u8]| room.copy_from_slice(header);
        OutFrame::with_header(header.len(), write, payload, token)
    }

    /// The same, of a header of so many bytes, which `write` puts into the frame.
    #[inline]
    pub(crate) fn with_header(
        header_len: usize,
        write: impl FnOnce(&mut [u8]),
        payload: Payload,
        token: u64,
    ) -> Self {
        debug_assert!(header_len <= HEADER_SIZE_MAX);
        let mut frame = OutFrame {
            header: [0; FRAME_HEADER_INLINE],
            long_header: None,
            header_len: header_len as u8, // at most HEADER_SIZE_MAX
            payload,
            bounce: None,
            sent: 0,
            token,
        };
        match frame.header.get_mut(..header_len) {
            Some(room) => write(room),
            None => write(frame.long_header.insert(vec![0; header_len].into())),
        }
        frame
    }

    fn header(&self) -> &[u8] {
        match &self.long_header {
            Some(header) => header,
            None => &self.header[..usize::from(self.header_len)],
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn payload(&self) -> &Payload {
        &self.payload
    }

    #[inline]
    pub(crate) fn into_payload(self) -> Payload {
        self.payload
    }

    /// The payload's memory is not to be touched any more: zeros go out in its place.
    pub(crate) fn blank(&mut self) {
        self.payload = Payload::zeros(self.payload.len());
        self.bounce = None;
    }

    /// The first bytes of its payload, which is device memory.
    pub(crate) fn set_bounce(&mut self, bounce: Box<BounceBuffer>) {
        self.bounce = Some(bounce);
    }

    /// Copies the next part of device memory to the host's, once the last has gone out. Other
    /// memory is not copied.
    pub(crate) fn refill_bounce(&mut self) -> Result<(), AccessError> {
        let at = self.sent.saturating_sub(usize::from(self.header_len));
        match &mut self.bounce {
            Some(bounce) if at == bounce.end() && at < self.payload.len() => {
                bounce.fill(&self.payload, at)
            }
            _ => Ok(()),
        }
    }

    /// True if only some of the remaining bytes can go out now, so that nothing goes out behind it.
    pub(crate) fn is_partly_here(&self) -> bool {
        self.bounce
            .as_ref()
            .is_some_and(|it| it.end() < self.payload.len())
    }

    /// Bytes of header and payload together.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.header_len) + self.payload.len()
    }

    /// Bytes that have not gone out yet.
    pub(crate) fn remaining(&self) -> usize {
        self.len() - self.sent
    }

    /// True if all bytes have gone out.
    #[cfg(test)]
    pub(crate) fn is_done(&self) -> bool {
        self.remaining() == 0
    }

    /// `count` more bytes have gone out; at most [`OutFrame::remaining`].
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(
            count <= self.remaining(),
            "the kernel sends no more than it was given"
        );
        self.sent += count;
    }

    /// Appends the spans of up to `len` bytes that come next, as many as fit into the list.
    pub(crate) fn spans(&self, len: usize, into: &mut SpanList) {
        let header_len = usize::from(self.header_len);
        let mut left = len.min(self.remaining());
        if self.sent < header_len {
            let count = left.min(header_len - self.sent);
            if !into.push(Span::of(&self.header()[self.sent..self.sent + count])) {
                return;
            }
            left -= count;
        }
        let offset = self.sent.saturating_sub(header_len);
        match &self.bounce {
            None => self.payload.spans(offset, left, into),
            Some(bounce) => {
                let rest = bounce.bytes.get(offset - bounce.at..).unwrap_or_default();
                into.push(Span::of(&rest[..left.min(rest.len())]));
            }
        }
    }

    /// Adds `len` bytes behind the next `skipped` ones, which must be there, as they lie in memory;
    /// see [`Payload::slices`].
    #[cfg(feature = "tls")]
    pub(crate) fn slices<'a>(&'a self, skipped: usize, len: usize, into: &mut Slices<'a>) -> bool {
        if self.bounce.is_some() {
            return false;
        }
        let begin = self.sent + skipped;
        let header = self.header().get(begin..).unwrap_or_default();
        let header = &header[..header.len().min(len)];
        if !header.is_empty() {
            into.push(header);
        }
        let left = len - header.len();
        left == 0 || {
            let offset = begin.saturating_sub(usize::from(self.header_len));
            self.payload.slices(offset, left, into)
        }
    }

    /// Copies the bytes that come next, as many as there are or fit; the count says how many. For
    /// transports without a kernel. The cursor does not move.
    pub(crate) fn copy_out(&self, into: &mut [u8]) -> Result<usize, AccessError> {
        self.copy_out_behind(0, into)
    }

    /// The same, of what comes behind the next `skipped` bytes; at most [`OutFrame::remaining`].
    pub(crate) fn copy_out_behind(
        &self,
        skipped: usize,
        into: &mut [u8],
    ) -> Result<usize, AccessError> {
        let begin = self.sent + skipped;
        let header = self.header();
        let here = match &self.bounce {
            None => self.len(),
            Some(bounce) => header.len() + bounce.end(),
        };
        let count = into.len().min(here.saturating_sub(begin));
        let into = &mut into[..count];
        let header_left = header.get(begin..).unwrap_or_default();
        let from_header = header_left.len().min(count);
        into[..from_header].copy_from_slice(&header_left[..from_header]);
        if from_header < count {
            let offset = begin.saturating_sub(header.len());
            let into = &mut into[from_header..];
            match &self.bounce {
                None => self.payload.copy_out(offset, into)?,
                Some(bounce) => {
                    let from = offset - bounce.at;
                    into.copy_from_slice(&bounce.bytes[from..from + into.len()]);
                }
            }
        }
        Ok(count)
    }
}

debug_fields!(OutFrame, self =>
    header_len: self.header_len, payload_len: self.payload.len(), sent: self.sent,
    token: self.token
);

/// Frames to be sent in this order, by as few system calls as possible. Owned by the link while
/// submitted; then it comes back.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    pub(crate) frames: VecDeque<OutFrame>,
    /// Held while the kernel may read region memory of these frames; dropped by the owner of the
    /// batch when it comes back.
    pub(crate) leases: Vec<Leases>,
    /// Several messages go out together.
    pub(crate) is_burst: bool,
}

impl SendBatch {
    /// Appends the spans of up to `len` bytes that come next, as many as fit into the list.
    pub(crate) fn spans(&self, len: usize, into: &mut SpanList) {
        let mut left = len;
        for frame in &self.frames {
            if left == 0 || into.is_full() {
                break;
            }
            frame.spans(left, into);
            left -= frame.remaining().min(left);
        }
    }

    /// Bytes not sent yet, over all frames.
    #[cfg(test)]
    pub(crate) fn remaining(&self) -> usize {
        self.frames.iter().map(OutFrame::remaining).sum()
    }

    /// Accounts for `count` sent bytes: frames that are sent in full leave the batch, in order,
    /// through `sent`; the cursor of the first one left moves on.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, mut count: usize, mut sent: impl FnMut(OutFrame)) {
        while let Some(frame) = self.frames.front_mut() {
            let moved = frame.remaining().min(count);
            frame.advance(moved);
            count -= moved;
            if frame.remaining() > 0 {
                break;
            }
            sent(self.frames.pop_front().expect("the front was just seen"));
        }
        debug_assert_eq!(count, 0, "no more can be sent than was submitted");
    }
}
