//! Several frames in one message, which share the cost of the message.

use bytes::{Buf, Bytes, BytesMut};

use super::Violation;
use crate::limits::{BATCH_BYTES_MAX, BATCH_FRAMES_MAX, FIRST_BATCH_FRAMES, HEADER_LEN};

/// The first bytes of a message of several frames. No frame begins with these bytes.
const HEAD: [u8; 4] = [9, 0, 0, 0];
/// Bytes of the length in front of each frame.
const LEN: usize = size_of::<u16>();

/// Calls `handle` with each frame of a message, in order.
///
/// # Errors
/// An error of `handle`, or a malformed batch.
pub fn each_frame<'m>(
    message: &'m [u8],
    mut handle: impl FnMut(&'m [u8]) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let Some((&HEAD, mut rest)) = message.split_first_chunk() else {
        return handle(message);
    };
    let cut_off = Violation("a batch that is cut off");
    for _ in 0..BATCH_FRAMES_MAX {
        let (len, after) = rest.split_first_chunk::<LEN>().ok_or(cut_off)?;
        let len = u16::from_le_bytes(*len).into();
        let (frame, after) = after.split_at_checked(len).ok_or(cut_off)?;
        handle(frame)?;
        if after.is_empty() {
            return Ok(());
        }
        rest = after;
    }
    Err(Violation("a batch of too many frames"))
}

/// A message that gathers frames. A turn may gather several messages, one after the other.
#[derive(Debug, Default)]
pub struct BatchBuf {
    /// Whether an earlier message was taken in this turn.
    is_followed: bool,
    /// The message, behind the taken ones, in memory that is reused once the taken ones are
    /// dropped.
    message: BytesMut,
    frames: usize,
    /// Bytes of the last message.
    last_len: usize,
}

impl BatchBuf {
    /// Returns whether a frame of `len` bytes fits into the message.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        let all = self.message.len().max(HEAD.len()) + LEN + len;
        all <= BATCH_BYTES_MAX && self.frames < BATCH_FRAMES_MAX
    }

    /// Appends a frame that has [room](Self::has_room).
    #[inline]
    pub fn push(&mut self, frame: &[u8]) {
        self.begin_frame();
        let len = (frame.len() as u16).to_le_bytes();
        self.message.extend_from_slice(&len);
        self.message.extend_from_slice(frame);
    }

    /// Appends a frame that consists of two parts.
    #[inline]
    pub fn push_body(&mut self, head: &[u8; HEADER_LEN], body: &[u8]) {
        self.begin_frame();
        let mut start = [0; LEN + HEADER_LEN];
        let len = (HEADER_LEN + body.len()) as u16;
        start[..LEN].copy_from_slice(&len.to_le_bytes());
        start[LEN..].copy_from_slice(head);
        self.message.extend_from_slice(&start);
        self.message.extend_from_slice(body);
    }

    #[inline]
    fn begin_frame(&mut self) {
        if self.frames == 0 {
            // Room for several messages. A message in flight keeps the whole allocation.
            if self.message.capacity() < self.last_len.max(1) {
                self.message.reserve(BATCH_BYTES_MAX);
            }
            self.message.extend_from_slice(&HEAD);
        }
        self.frames += 1;
    }

    /// Returns whether this is the first message of a turn and has enough frames to be sent before
    /// the turn ends.
    pub fn is_due(&self) -> bool {
        !self.is_followed && self.frames == FIRST_BATCH_FRAMES
    }

    pub fn begin_turn(&mut self) {
        self.is_followed = false;
    }

    /// Returns the message. A single frame is sent without the batch's head. Empty if nothing was
    /// gathered.
    pub fn message(&self) -> &[u8] {
        match self.frames {
            0 => &[],
            1 => &self.message[HEAD.len() + LEN..],
            _ => &self.message,
        }
    }

    /// Takes the message, and leaves the buffer empty.
    pub fn take(&mut self) -> Bytes {
        self.is_followed = true;
        self.last_len = self.message.len();
        let mut message = self.message.split().freeze();
        if std::mem::take(&mut self.frames) == 1 {
            message.advance(HEAD.len() + LEN);
        }
        message
    }

    /// Empties the buffer after the message was copied.
    pub fn clear(&mut self) {
        self.is_followed = true;
        self.message.clear();
        self.frames = 0;
    }
}
