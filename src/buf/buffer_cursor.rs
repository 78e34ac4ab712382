//! A buffer, or a slice of a region, that receives many messages, one after the other.
//!
//! Each message has a part of its own. Parts do not overlap, since each begins where the last one
//! ended; so a part of a buffer, a window ([`OwnedBuffer::window`]), owns its bytes exclusively, as
//! a whole buffer does (memory-model rule 1). A part of a slice has its own entry in the region's
//! gate, as any operation on the region has (rule 4).

use std::sync::Arc;

use super::memory::{Memory, RegionUse};
use super::owned_buffer::OwnedBuffer;
use super::payload::Payload;

#[derive(Debug)]
enum Whole {
    Buffer(Arc<OwnedBuffer>),
    Slice(RegionUse),
}

/// Allocates parts of one buffer or slice from front to back.
#[derive(Debug)]
pub(crate) struct BufferCursor {
    whole: Whole,
    /// Bytes allocated.
    at: usize,
    /// The cursor allocates nothing once fewer bytes than this are left.
    free_min: usize,
}

impl BufferCursor {
    /// Takes one writable buffer that is no window, or one slice of a region; refuses anything
    /// else.
    pub(crate) fn new(payload: Payload, free_min: usize) -> Result<BufferCursor, Payload> {
        if payload.buffer_count() != 1 || !payload.is_writable() {
            return Err(payload);
        }
        let whole = match payload.into_single() {
            Some(Memory::Owned(mut owned)) if !owned.is_opaque() && owned.as_window().is_none() => {
                // A message that breaks off leaves bytes of its window unwritten.
                owned.zero_spare();
                Whole::Buffer(Arc::new(owned))
            }
            Some(Memory::Region(slice)) => Whole::Slice(slice),
            Some(memory) => return Err(Payload::from_memory(memory)),
            None => unreachable!("it has one part"),
        };
        Ok(BufferCursor {
            whole,
            at: 0,
            free_min: free_min.max(1),
        })
    }

    /// The address or offset at which the whole begins; see [`Payload::begin`].
    pub(crate) fn begin(&self) -> usize {
        match &self.whole {
            Whole::Buffer(whole) => whole.span().addresses().start,
            Whole::Slice(slice) => slice.offset(),
        }
    }

    /// Bytes that are left.
    pub(crate) fn free(&self) -> usize {
        let len = match &self.whole {
            Whole::Buffer(whole) => whole.len(),
            Whole::Slice(slice) => slice.len(),
        };
        len - self.at
    }

    /// True once it allocates no more.
    pub(crate) fn is_consumed(&self) -> bool {
        self.free() < self.free_min
    }

    /// Allocates memory for a message of this length, or the free bytes if they are fewer.
    pub(crate) fn allocate(&mut self, len: u64) -> Payload {
        let len = usize::try_from(len).map_or(self.free(), |len| len.min(self.free()));
        let part = match &self.whole {
            Whole::Buffer(whole) => Memory::Owned(OwnedBuffer::window(whole, self.at, len)),
            Whole::Slice(slice) => Memory::Region(slice.part(self.at, len)),
        };
        self.at += len;
        Payload::from_memory(part)
    }

    /// Frees the part that was allocated last. Returns any other part.
    pub(crate) fn take_back(&mut self, part: Payload) -> Option<Payload> {
        let memory = part.into_single()?;
        let start = match (&self.whole, &memory) {
            (Whole::Buffer(whole), Memory::Owned(part)) => part.place_in(whole).map(|it| it.start),
            (Whole::Slice(slice), Memory::Region(part)) => part.place_in(slice),
            _ => None,
        };
        match start {
            Some(start) if start + memory.len() == self.at => {
                drop(memory); // The bytes are free again.
                self.at = start;
                None
            }
            _ => Some(Payload::from_memory(memory)),
        }
    }

    /// Returns the whole, if it is a slice, or a buffer without remaining windows.
    pub(crate) fn into_payload(self) -> Payload {
        match self.whole {
            Whole::Buffer(whole) => {
                Arc::try_unwrap(whole).map_or_else(|_| Payload::empty(), Payload::from)
            }
            Whole::Slice(slice) => Payload::from_memory(Memory::Region(slice)),
        }
    }
}
