//! A buffer that many messages land in, one behind the other.
//!
//! Each message has a window of its own ([`Held::window`]). No byte is in two of them, since a
//! window begins where the last one ended; so whoever has one has its bytes alone, as the owner of
//! a whole buffer has (memory-model rule 1).

use std::sync::Arc;

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

    /// Takes the part back that was given away last. Any other comes back.
    pub(crate) fn take_back(&mut self, part: Payload) -> Option<Payload> {
        let memory = part.into_single()?;
        let Memory::Held(held) = &memory else {
            return Some(Payload::from_memory(memory));
        };
        match held.place_in(&self.whole) {
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
