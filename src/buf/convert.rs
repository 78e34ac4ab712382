//! The conversions of each buffer type, and of several buffers at once.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use super::buffer::Buffer;
use super::device::DeviceBuffer;
use super::mapped::MappedBuffer;
use super::memory::Memory;
use super::owned_buffer::{OwnedBuffer, OwnedBuffers};
use super::payload::Payload;
use super::range::AddressRange;
use super::traits::{
    Convert, ConvertMany, IoBuf, IoBufMut, LocalUse, ReadOnlyBuf, Refused, RegionBuf,
};
use crate::error::{Error, ErrorKind};

macro_rules! convert_owned {
    ($($buffer:ty, $back:ident, $fill:path;)*) => {$(
        impl Convert for $buffer {
            #[inline]
            fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>> {
                Ok(Memory::Owned(match usage {
                    LocalUse::Receive | LocalUse::Read => $fill(self),
                    LocalUse::Send | LocalUse::Write => OwnedBuffer::from(self),
                }))
            }

            #[inline]
            fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
                Ok(OwnedBuffer::from(self))
            }

            #[inline]
            fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
                owned.$back()
            }

            fn buffer_len(&self) -> usize {
                self.len()
            }

            #[inline]
            fn buffer_bytes(&self) -> Option<&[u8]> {
                Some(self.as_ref())
            }
        }

        impl IoBuf for $buffer {}
    )*};
}

convert_owned! {
    Vec<u8>, into_vec, OwnedBuffer::to_fill;
    Box<[u8]>, into_boxed, OwnedBuffer::from;
    String, into_text, OwnedBuffer::from;
    Arc<[u8]>, into_counted, OwnedBuffer::from;
    Bytes, into_bytes, OwnedBuffer::from;
    BytesMut, into_bytes_mut, OwnedBuffer::to_fill_bytes;
    MappedBuffer, into_mapped, OwnedBuffer::from;
    &'static [u8], into_static, OwnedBuffer::from;
    &'static str, into_static_text, OwnedBuffer::from;
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
        if self.is_opaque() {
            let what = "an address range, device memory, or a window of shared memory is used as \
                        a slice of a region made of it";
            return Err((Error::new(ErrorKind::InvalidArgument, what), self));
        }
        Ok(Memory::Owned(Buffer::into_owned_buffer(self)))
    }

    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
        let what = "a buffer without its type is no memory of a region: downcast it";
        Err((Error::new(ErrorKind::InvalidArgument, what), self))
    }

    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
        Ok(Buffer::new(owned))
    }

    fn buffer_len(&self) -> usize {
        self.len()
    }
}

impl IoBuf for Buffer {}

macro_rules! convert_for_registration {
    ($($buffer:ty, $back:ident;)*) => {$(
        /// Only for registration: it cannot be the buffer of an operation itself.
        impl Convert for $buffer {
            const IS_OWNED: bool = false;

            fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
                Ok(Memory::Owned(OwnedBuffer::from(self)))
            }

            fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
                Ok(OwnedBuffer::from(self))
            }

            fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
                owned.$back()
            }

            fn buffer_len(&self) -> usize {
                self.len()
            }
        }

        impl RegionBuf for $buffer {}
    )*};
}

convert_for_registration! {
    AddressRange, into_range;
    DeviceBuffer, into_device;
}

impl<B: Convert> ConvertMany for B {
    const IS_OWNED: bool = B::IS_OWNED;

    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        self.into_memory(usage).map(Payload::from_memory)
    }

    fn into_owned_buffers(self) -> Result<OwnedBuffers, Refused<Self>> {
        self.into_owned_buffer().map(|owned| smallvec![owned])
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        B::from_memory(payload.into_single()?).ok()
    }

    fn from_owned_buffers(mut buffers: OwnedBuffers) -> Option<Self> {
        let owned = buffers.pop().filter(|_| buffers.is_empty())?;
        B::from_owned_buffer(owned).ok()
    }

    fn count(&self) -> usize {
        1
    }

    fn total_len(&self) -> usize {
        self.buffer_len()
    }

    fn is_registered(&self) -> bool {
        self.is_buffer_registered()
    }

    #[inline]
    fn single_bytes(&self) -> Option<&[u8]> {
        self.buffer_bytes()
    }
}

impl<B: Convert> ConvertMany for Vec<B> {
    const IS_OWNED: bool = B::IS_OWNED;

    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        let mut parts = Vec::with_capacity(self.len());
        let mut rest = self.into_iter();
        while let Some(buffer) = rest.next() {
            match buffer.into_memory(usage) {
                Ok(memory) => parts.push(memory),
                Err((error, buffer)) => {
                    let mut back = into_buffers(parts).unwrap_or_default();
                    back.push(buffer);
                    back.extend(rest);
                    return Err((error, back));
                }
            }
        }
        Ok(Payload::from_parts(parts))
    }

    fn into_owned_buffers(self) -> Result<OwnedBuffers, Refused<Self>> {
        let mut owned = OwnedBuffers::with_capacity(self.len());
        let mut rest = self.into_iter();
        while let Some(buffer) = rest.next() {
            match buffer.into_owned_buffer() {
                Ok(buffer) => owned.push(buffer),
                Err((error, buffer)) => {
                    let back = owned.into_iter().map(B::from_owned_buffer);
                    let back = back.filter_map(Result::ok).chain([buffer]);
                    return Err((error, back.chain(rest).collect()));
                }
            }
        }
        Ok(owned)
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_parts())
    }

    fn from_owned_buffers(buffers: OwnedBuffers) -> Option<Self> {
        let back = buffers.into_iter();
        back.map(|owned| B::from_owned_buffer(owned).ok()).collect()
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn total_len(&self) -> usize {
        total_len(self)
    }

    fn is_registered(&self) -> bool {
        self.iter().all(B::is_buffer_registered)
    }
}

impl<B: Convert, const N: usize> ConvertMany for [B; N] {
    const IS_OWNED: bool = B::IS_OWNED;

    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>> {
        Vec::from(self).into_payload(usage).map_err(all_back)
    }

    fn into_owned_buffers(self) -> Result<OwnedBuffers, Refused<Self>> {
        Vec::from(self).into_owned_buffers().map_err(all_back)
    }

    fn from_payload(payload: Payload) -> Option<Self> {
        into_buffers(payload.into_parts())?.try_into().ok()
    }

    fn from_owned_buffers(buffers: OwnedBuffers) -> Option<Self> {
        Vec::from_owned_buffers(buffers)?.try_into().ok()
    }

    fn count(&self) -> usize {
        N
    }

    fn total_len(&self) -> usize {
        total_len(self)
    }

    fn is_registered(&self) -> bool {
        self.iter().all(B::is_buffer_registered)
    }
}

fn all_back<B, const N: usize>((error, back): Refused<Vec<B>>) -> Refused<[B; N]> {
    let Ok(back) = back.try_into() else {
        unreachable!("a refusal gives every buffer back");
    };
    (error, back)
}

fn total_len<B: Convert>(buffers: &[B]) -> usize {
    // Saturates only for lists that exceed every limit long before.
    buffers
        .iter()
        .fold(0, |sum, buffer| sum.saturating_add(buffer.buffer_len()))
}

fn into_buffers<B: Convert>(parts: Vec<Memory>) -> Option<Vec<B>> {
    let back = parts.into_iter().map(|part| B::from_memory(part).ok());
    back.collect()
}
