//! The conversions of each buffer type, and of several buffers at once.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use super::buffer::Buffer;
use super::held::{Held, OwnedBuffers};
use super::mapped::MappedBuffer;
use super::payload::Payload;
use super::piece::Memory;
use super::range::AddressRange;
use super::traits::{
    Convert, ConvertMany, IoBuf, IoBufMut, LocalUse, ReadOnlyBuf, Refused, RegionBuf,
};
use crate::error::{Error, ErrorKind};

macro_rules! convert_held {
    ($($buffer:ty, $back:ident, $fill:path;)*) => {$(
        impl Convert for $buffer {
            #[inline]
            fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>> {
                Ok(Memory::Held(match usage {
                    LocalUse::Receive | LocalUse::Read => $fill(self),
                    LocalUse::Send | LocalUse::Write => Held::from(self),
                }))
            }

            #[inline]
            fn into_held(self) -> Result<Held, Refused<Self>> {
                Ok(Held::from(self))
            }

            #[inline]
            fn from_held(held: Held) -> Result<Self, Held> {
                held.$back()
            }

            fn piece_len(&self) -> usize {
                self.len()
            }
        }

        impl IoBuf for $buffer {}
    )*};
}

convert_held! {
    Vec<u8>, into_vec, Held::to_fill;
    Box<[u8]>, into_boxed, Held::from;
    String, into_text, Held::from;
    Arc<[u8]>, into_counted, Held::from;
    Bytes, into_bytes, Held::from;
    BytesMut, into_bytes_mut, Held::to_fill_bytes;
    MappedBuffer, into_mapped, Held::from;
    &'static [u8], into_static, Held::from;
    &'static str, into_static_text, Held::from;
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
        Ok(Memory::Held(Buffer::into_held(self)))
    }

    fn into_held(self) -> Result<Held, Refused<Self>> {
        let what = "a buffer without its type is no memory of a region: downcast it";
        Err((Error::new(ErrorKind::InvalidArgument, what), self))
    }

    fn from_held(held: Held) -> Result<Self, Held> {
        Ok(Buffer::new(held))
    }

    fn piece_len(&self) -> usize {
        self.len()
    }
}

impl IoBuf for Buffer {}

/// Only for registration: it is no buffer of an operation by itself.
impl Convert for AddressRange {
    const IS_OWNED: bool = false;

    fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
        Ok(Memory::Held(Held::from(self)))
    }

    fn into_held(self) -> Result<Held, Refused<Self>> {
        Ok(Held::from(self))
    }

    fn from_held(held: Held) -> Result<Self, Held> {
        held.into_range()
    }

    fn piece_len(&self) -> usize {
        self.len()
    }
}

impl RegionBuf for AddressRange {}

impl<B: Convert> ConvertMany for B {
    const IS_OWNED: bool = B::IS_OWNED;

    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        self.into_memory(usage).map(Payload::from_memory)
    }

    fn into_owned(self) -> Result<OwnedBuffers, Refused<Self>> {
        self.into_held().map(|held| smallvec![held])
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        B::from_memory(payload.into_single()?).ok()
    }

    fn from_owned(mut buffers: OwnedBuffers) -> Option<Self> {
        let held = buffers.pop().filter(|_| buffers.is_empty())?;
        B::from_held(held).ok()
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
    const IS_OWNED: bool = B::IS_OWNED;

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

    fn into_owned(self) -> Result<OwnedBuffers, Refused<Self>> {
        let mut owned = OwnedBuffers::with_capacity(self.len());
        let mut rest = self.into_iter();
        while let Some(buffer) = rest.next() {
            match buffer.into_held() {
                Ok(held) => owned.push(held),
                Err((error, buffer)) => {
                    let back = owned.into_iter().map(B::from_held);
                    let back = back.filter_map(Result::ok).chain([buffer]);
                    return Err((error, back.chain(rest).collect()));
                }
            }
        }
        Ok(owned)
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_pieces())
    }

    fn from_owned(buffers: OwnedBuffers) -> Option<Self> {
        let back = buffers.into_iter();
        back.map(|held| B::from_held(held).ok()).collect()
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
    const IS_OWNED: bool = B::IS_OWNED;

    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        Vec::from(self).into_payload(usage).map_err(all_back)
    }

    fn into_owned(self) -> Result<OwnedBuffers, Refused<Self>> {
        Vec::from(self).into_owned().map_err(all_back)
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_pieces())?.try_into().ok()
    }

    fn from_owned(buffers: OwnedBuffers) -> Option<Self> {
        Vec::from_owned(buffers)?.try_into().ok()
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

fn all_back<B, const N: usize>((error, back): Refused<Vec<B>>) -> Refused<[B; N]> {
    let Ok(back) = back.try_into() else {
        unreachable!("a refusal gives every buffer back");
    };
    (error, back)
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
