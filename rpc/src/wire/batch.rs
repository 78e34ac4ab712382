//! Several frames in one message: what a message costs is paid once for all of them.

use bytes::{Buf, Bytes, BytesMut};

use super::Violation;
use crate::limits::{BATCH_BYTES_MAX, BATCH_FRAMES_MAX, FIRST_BATCH_FRAMES, HEADER_LEN};

/// How such a message begins; no frame does.
const HEAD: [u8; 4] = [9, 0, 0, 0];
/// Bytes of a frame's length.
const LEN: usize = size_of::<u16>();

/// Calls this with each frame of a message, in their order.
///
/// # Errors
/// What the call says, or of a batch that is none.
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

/// A message that is gathered, one after the other in each turn.
#[derive(Debug, Default)]
pub struct BatchBuf {
    /// A message was taken in this turn.
    is_followed: bool,
    /// Behind those that were taken, in memory that is used again once they are dropped.
    message: BytesMut,
    frames: usize,
    /// Bytes that the last one had.
    last_len: usize,
}

impl BatchBuf {
    /// True if a frame of so many bytes can go along.
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

    /// The same of a frame in two pieces.
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
            // For several messages: one that is on its way keeps all of it.
            if self.message.capacity() < self.last_len.max(1) {
                self.message.reserve(BATCH_BYTES_MAX);
            }
            self.message.extend_from_slice(&HEAD);
        }
        self.frames += 1;
    }

    /// True if this is the first message of a turn and now has enough frames to leave before the
    /// turn ends.
    pub fn is_due(&self) -> bool {
        !self.is_followed && self.frames == FIRST_BATCH_FRAMES
    }

    /// Another turn begins.
    pub fn begin_turn(&mut self) {
        self.is_followed = false;
    }

    /// The message; a single frame is one. Nothing, if nothing was gathered.
    pub fn message(&self) -> &[u8] {
        match self.frames {
            0 => &[],
            1 => &self.message[HEAD.len() + LEN..],
            _ => &self.message,
        }
    }

    /// The message, and this is empty.
    pub fn take(&mut self) -> Bytes {
        self.is_followed = true;
        self.last_len = self.message.len();
        let mut message = self.message.split().freeze();
        if std::mem::take(&mut self.frames) == 1 {
            message.advance(HEAD.len() + LEN);
        }
        message
    }

    /// The message was copied out.
    pub fn clear(&mut self) {
        self.is_followed = true;
        self.message.clear();
        self.frames = 0;
    }
}
