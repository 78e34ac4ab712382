//! The conversions of each buffer type, and of several buffers at once.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::buffer::Buffer;
use super::held::Held;
use super::mapped::MappedBuffer;
use super::payload::Payload;
use super::piece::Memory;
use super::range::AddressRange;
use super::traits::{
    Convert, ConvertMany, IoBuf, IoBufMut, LocalUse, ReadOnlyBuf, Refused, RegionBuf,
};
use crate::error::{Error, ErrorKind};

macro_rules! convert_held {
    ($($buffer:ty, $back:ident;)*) => {$(
        impl Convert for $buffer {
            #[inline]
            fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
                Ok(Memory::Held(Held::from(self)))
            }

            #[inline]
            fn from_memory(memory: Memory) -> Result<Self, Memory> {
                match memory {
                    Memory::Held(held) => held.$back().map_err(Memory::Held),
                    region => Err(region),
                }
            }

            fn piece_len(&self) -> usize {
                self.len()
            }
        }

        impl IoBuf for $buffer {}
    )*};
}

convert_held! {
    Vec<u8>, into_vec;
    Box<[u8]>, into_boxed;
    String, into_text;
    Arc<[u8]>, into_counted;
    Bytes, into_bytes;
    BytesMut, into_bytes_mut;
    MappedBuffer, into_mapped;
    &'static [u8], into_static;
    &'static str, into_static_text;
}

impl IoBufMut for Vec<u8> {}
impl IoBufMut for Box<[u8]> {}
impl IoBufMut for BytesMut {}
impl IoBufMut for MappedBuffer {}

impl RegionBuf for Vec<u8> {}
impl RegionBuf for Box<[u8]> {}
impl RegionBuf for BytesMut {}
impl RegionBuf for MappedBuffer {}

impl ReadOnlyBuf for Bytes {}
impl ReadOnlyBuf for Arc<[u8]> {}
impl ReadOnlyBuf for &'static [u8] {}
impl ReadOnlyBuf for &'static str {}

impl Convert for Buffer {
    fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
        if self.is_range() {
            let what = "an address range is used as a slice of a region made of it";
            return Err((Error::new(ErrorKind::InvalidArgument, what), self));
        }
        Ok(Memory::Held(self.into_held()))
    }

    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory::Held(held) => Ok(Buffer::new(held)),
            region => Err(region),
        }
    }

    fn piece_len(&self) -> usize {
        self.len()
    }
}

impl IoBuf for Buffer {}

/// Only for registration: it is no buffer of an operation by itself.
impl Convert for AddressRange {
    fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
        Ok(Memory::Held(Held::from(self)))
    }

    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory::Held(held) => held.into_range().map_err(Memory::Held),
            region => Err(region),
        }
    }

    fn piece_len(&self) -> usize {
        self.len()
    }
}

impl RegionBuf for AddressRange {}

impl<B: Convert> ConvertMany for B {
    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        self.into_memory(usage).map(Payload::from_memory)
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        B::from_memory(payload.into_single()?).ok()
    }

    fn count(&self) -> usize {
        1
    }

    fn total_len(&self) -> usize {
        self.piece_len()
    }

    fn is_registered(&self) -> bool {
        self.is_piece_registered()
    }
}

impl<B: Convert> ConvertMany for Vec<B> {
    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        let mut pieces = Vec::with_capacity(self.len());
        let mut rest = self.into_iter();
        while let Some(buffer) = rest.next() {
            match buffer.into_memory(usage) {
                Ok(memory) => pieces.push(memory),
                Err((error, buffer)) => {
                    let mut back = into_buffers(pieces).unwrap_or_default();
                    back.push(buffer);
                    back.extend(rest);
                    return Err((error, back));
                }
            }
        }
        Ok(Payload::from_pieces(pieces))
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_pieces())
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn total_len(&self) -> usize {
        total_len(self)
    }

    fn is_registered(&self) -> bool {
        self.iter().all(B::is_piece_registered)
    }
}

impl<B: Convert, const N: usize> ConvertMany for [B; N] {
    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        Vec::from(self)
            .into_payload(usage)
            .map_err(|(error, back)| {
                let back = <[B; N]>::try_from(back);
                let Ok(back) = back else {
                    unreachable!("a refusal gives every buffer back");
                };
                (error, back)
            })
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_pieces())?.try_into().ok()
    }

    fn count(&self) -> usize {
        N
    }

    fn total_len(&self) -> usize {
        total_len(self)
    }

    fn is_registered(&self) -> bool {
        self.iter().all(B::is_piece_registered)
    }
}

fn total_len<B: Convert>(buffers: &[B]) -> usize {
    // Saturates only for lists whose every limit is exceeded long before.
    buffers
        .iter()
        .fold(0, |sum, buffer| sum.saturating_add(buffer.piece_len()))
}

fn into_buffers<B: Convert>(pieces: Vec<Memory>) -> Option<Vec<B>> {
    let back = pieces.into_iter().map(|piece| B::from_memory(piece).ok());
    back.collect()
}
