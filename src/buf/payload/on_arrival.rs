//! Memory of a receive that does not know how long its message will be: allocated when the message
//! arrives, with the message's length, up to a limit that the application chose.

use bytes::Bytes;

use super::{Parts, Payload};
use crate::buf::access_error::AccessError;
use crate::buf::memory::Memory;
use crate::buf::traits::Convert;
use crate::limits::UNEXPECTED_ALLOCATION_UNCHECKED_MAX;

/// The memory for a message that will arrive.
#[derive(Debug)]
pub(super) struct OnArrival {
    pub(super) memory: Option<Memory>,
    /// Length of the longest message, in bytes.
    max: usize,
}

impl Payload {
    /// Memory for a message of at most `max` bytes, to be allocated when its length is known. When
    /// the operation ends, it becomes `Bytes` with the received bytes.
    pub(crate) fn on_arrival(max: usize) -> Self {
        Payload {
            parts: Parts::OnArrival(Box::new(OnArrival { memory: None, max })),
            len: 0,
        }
    }

    /// True if the memory is allocated on arrival.
    pub(crate) fn is_on_arrival(&self) -> bool {
        matches!(self.parts, Parts::OnArrival(_))
    }

    /// Returns how many bytes fit of a message whose length is `len`, as stated by the peer. Memory
    /// that is allocated on arrival is allocated here.
    #[inline]
    pub(crate) fn room_for(&mut self, len: u64) -> usize {
        match usize::try_from(len) {
            Ok(len) if len <= self.len => len,
            _ => self.make_room(len),
        }
    }

    /// Allocates memory for the message, if it is allocated on arrival; returns how many bytes
    /// there is room for.
    #[cold]
    fn make_room(&mut self, len: u64) -> usize {
        if let Parts::OnArrival(arrival) = &mut self.parts {
            let max = arrival.max as u64;
            // The memory of an earlier message that broke off may be smaller.
            arrival.memory = zeroed(len.min(max)).map(|bytes| Memory::Owned(bytes.into()));
            self.len = arrival.memory.as_ref().map_or(0, Memory::len);
        }
        self.len
    }

    /// Receives the first `len` bytes of a message that arrived before: takes over the message's
    /// memory, if it has exactly these bytes, or copies them. Returns how many fit.
    pub(crate) fn take_message(
        &mut self,
        message: Payload,
        len: usize,
    ) -> Result<usize, AccessError> {
        let mut message = message;
        if let Parts::OnArrival(arrival) = &mut self.parts
            && message.len == len
            && len <= arrival.max
        {
            match message.into_single().map(Vec::from_memory) {
                Some(Ok(bytes)) => {
                    arrival.memory = Some(Memory::Owned(bytes.into()));
                    self.len = len;
                    return Ok(len);
                }
                Some(Err(memory)) => message = Payload::from_memory(memory),
                None => message = Payload::empty(),
            }
        }
        let fits = self.room_for(len as u64);
        self.copy_from(&message, fits)?;
        Ok(fits)
    }

    /// Ends the operation after `received` bytes, which become `Bytes`.
    #[cold]
    pub(super) fn end_arrival(&mut self, received: usize) {
        let memory = self.take().into_single();
        let bytes = memory.and_then(|it| Vec::from_memory(it).ok());
        let mut bytes = bytes.unwrap_or_default();
        bytes.truncate(received);
        *self = Payload::from_memory(Memory::Owned(Bytes::from(bytes).into()));
    }
}

/// Copies bytes to new memory; `None` if the system has none.
pub(crate) fn try_copied(bytes: &[u8]) -> Option<Payload> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(Payload::from_vec(copy))
}

/// Allocates zeroed bytes; `None` if there is no memory. The length comes from the peer, within a
/// budget that the application chose, which may exceed the machine's memory.
pub(crate) fn zeroed(len: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok()?;
    if len > UNEXPECTED_ALLOCATION_UNCHECKED_MAX {
        // Zeroed allocation has no fallible form, so this tries an uninitialized one first.
        Vec::<u8>::new().try_reserve_exact(len).ok()?;
    }
    Some(vec![0; len])
}
