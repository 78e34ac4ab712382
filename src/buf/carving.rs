//! A buffer that many messages land in, one behind the other.
//!
//! Each message has a window of its own ([`Held::window`]). No byte is in two of them, since a window
//! begins where the last one ended; so whoever has one has its bytes alone, as the owner of a whole
//! buffer has (memory-model rule 1).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::buffer::Buffer;
use super::held::Held;
use super::payload::Payload;
use super::piece::Memory;

/// What has not been given away yet of a buffer.
#[derive(Debug)]
pub(crate) struct Carving {
    whole: Arc<Held>,
    /// Bytes given away.
    at: usize,
    /// With fewer bytes left it gives nothing away any more.
    free_min: usize,
}

impl Carving {
    /// Refuses what is not one buffer of its own that may be received into.
    pub(crate) fn new(payload: Payload, free_min: usize) -> Result<Carving, Payload> {
        if payload.piece_count() != 1 || !payload.is_writable() {
            return Err(payload);
        }
        match payload.into_single() {
            Some(Memory::Held(held)) if !held.is_range() && held.as_window().is_none() => {
                Ok(Carving {
                    whole: Arc::new(held),
                    at: 0,
                    free_min: free_min.max(1),
                })
            }
            Some(memory) => Err(Payload::from_memory(memory)),
            None => unreachable!("it has one piece"),
        }
    }

    /// Bytes that are left.
    pub(crate) fn free(&self) -> usize {
        self.whole.len() - self.at
    }

    /// True once it gives nothing away any more.
    pub(crate) fn is_consumed(&self) -> bool {
        self.free() < self.free_min
    }

    /// Memory for a message of this length: less, if less is left.
    pub(crate) fn carve(&mut self, len: u64) -> Payload {
        let len = usize::try_from(len).map_or(self.free(), |len| len.min(self.free()));
        let window = Held::window(&self.whole, self.at, len);
        self.at += len;
        Payload::from(window)
    }

    /// The whole buffer, if nobody has a part of it.
    pub(crate) fn into_payload(self) -> Payload {
        Arc::try_unwrap(self.whole).map_or_else(|_| Payload::empty(), Payload::from)
    }
}

/// One message of those that landed in a common buffer (`FI_MULTI_RECV`). Owns its bytes, and keeps
/// the buffer allocated.
pub struct ReceivedPiece {
    /// A window that [`Carving::carve`] made.
    window: Held,
    len: usize,
}

impl ReceivedPiece {
    /// The first `len` bytes of a part that a [`Carving`] gave away, once its operation has ended.
    pub(crate) fn of(payload: Payload, len: usize) -> Option<ReceivedPiece> {
        match payload.into_single()? {
            Memory::Held(window) if window.as_window().is_some() => {
                let len = len.min(window.len());
                Some(ReceivedPiece { window, len })
            }
            _ => None,
        }
    }

    /// The buffer that was posted, if this is the last piece of it and no message can come into it
    /// any more: to be posted again.
    pub fn into_buffer(self) -> Option<Buffer> {
        let whole = Arc::clone(self.window.as_window()?);
        drop(self);
        Arc::into_inner(whole).map(Buffer::new)
    }
}

impl Deref for ReceivedPiece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the window is this piece's alone, as said above, and was given back by the
        // operation whose message it is, so that nobody writes to it any more (memory-model rule 1).
        let bytes = unsafe { self.window.bytes() };
        &bytes[..self.len]
    }
}

impl AsRef<[u8]> for ReceivedPiece {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Tells how much, never what: the bytes are the user's.
impl fmt::Debug for ReceivedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceivedPiece({} bytes)", self.len)
    }
}
