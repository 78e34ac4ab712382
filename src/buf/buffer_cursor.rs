//! A buffer that many messages land in, one behind the other.
//!
//! Each message has a window of its own ([`OwnedBuffer::window`]). Windows do not overlap, since
//! each begins where the last one ended; so the owner of a window has its bytes alone, as the owner
//! of a whole buffer has (memory-model rule 1).

use std::sync::Arc;

use super::memory::Memory;
use super::owned_buffer::OwnedBuffer;
use super::payload::Payload;

/// Gives out one buffer from front to back: a bump allocator of windows.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    whole: Arc<OwnedBuffer>,
    /// Bytes given away.
    at: usize,
    /// With fewer bytes left it gives nothing away any more.
    free_min: usize,
}

impl BufferCursor {
    /// Refuses what is not one buffer of its own that may be received into.
    pub(crate) fn new(payload: Payload, free_min: usize) -> Result<BufferCursor, Payload> {
        if payload.buffer_count() != 1 || !payload.is_writable() {
            return Err(payload);
        }
        match payload.into_single() {
            Some(Memory::Owned(owned)) if !owned.is_range() && owned.as_window().is_none() => {
                Ok(BufferCursor {
                    whole: Arc::new(owned),
                    at: 0,
                    free_min: free_min.max(1),
                })
            }
            Some(memory) => Err(Payload::from_memory(memory)),
            None => unreachable!("it has one part"),
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
        let window = OwnedBuffer::window(&self.whole, self.at, len);
        self.at += len;
        Payload::from(window)
    }

    /// Takes the part back that was given away last. Any other comes back.
    pub(crate) fn take_back(&mut self, part: Payload) -> Option<Payload> {
        let memory = part.into_single()?;
        let Memory::Owned(owned) = &memory else {
            return Some(Payload::from_memory(memory));
        };
        match owned.place_in(&self.whole) {
            Some(place) if place.end == self.at => {
                drop(memory); // Nobody has these bytes now.
                self.at = place.start;
                None
            }
            _ => Some(Payload::from_memory(memory)),
        }
    }

    /// The whole buffer, if nobody has a part of it.
    pub(crate) fn into_payload(self) -> Payload {
        Arc::try_unwrap(self.whole).map_or_else(|_| Payload::empty(), Payload::from)
    }
}
