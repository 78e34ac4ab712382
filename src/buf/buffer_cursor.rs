//! A buffer that receives many messages, one behind the other.
//!
//! Each message has a window of its own ([`OwnedBuffer::window`]). Windows do not overlap, since
//! each begins where the last one ended; so the owner of a window has its bytes alone, as the owner
//! of a whole buffer has (memory-model rule 1).

use std::sync::Arc;

use super::memory::Memory;
use super::owned_buffer::OwnedBuffer;
use super::payload::Payload;

/// Allocates windows of one buffer from front to back.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    whole: Arc<OwnedBuffer>,
    /// Bytes allocated.
    at: usize,
    /// With fewer bytes left it allocates no more.
    free_min: usize,
}

impl BufferCursor {
    /// Refuses anything but one writable buffer that is no window.
    pub(crate) fn new(payload: Payload, free_min: usize) -> Result<BufferCursor, Payload> {
        if payload.buffer_count() != 1 || !payload.is_writable() {
            return Err(payload);
        }
        match payload.into_single() {
            Some(Memory::Owned(mut owned)) if !owned.is_opaque() && owned.as_window().is_none() => {
                // A message that breaks off leaves bytes of its window unwritten.
                owned.zero_spare();
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

    /// True once it allocates no more.
    pub(crate) fn is_consumed(&self) -> bool {
        self.free() < self.free_min
    }

    /// Allocates memory for a message of this length: less, if less is left.
    pub(crate) fn allocate(&mut self, len: u64) -> Payload {
        let len = usize::try_from(len).map_or(self.free(), |len| len.min(self.free()));
        let window = OwnedBuffer::window(&self.whole, self.at, len);
        self.at += len;
        Payload::from(window)
    }

    /// Frees the window that was allocated last. Any other is returned.
    pub(crate) fn take_back(&mut self, part: Payload) -> Option<Payload> {
        let memory = part.into_single()?;
        let Memory::Owned(owned) = &memory else {
            return Some(Payload::from_memory(memory));
        };
        match owned.place_in(&self.whole) {
            Some(place) if place.end == self.at => {
                drop(memory); // The bytes are free again.
                self.at = place.start;
                None
            }
            _ => Some(Payload::from_memory(memory)),
        }
    }

    /// The whole buffer, if no window of it exists.
    pub(crate) fn into_payload(self) -> Payload {
        Arc::try_unwrap(self.whole).map_or_else(|_| Payload::empty(), Payload::from)
    }
}
