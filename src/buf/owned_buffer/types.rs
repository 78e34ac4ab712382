//! Taking each type of buffer apart, and putting it together again: the functions `into_*` give the
//! user's type back, or `self` if it was of another type.

use std::mem::ManuallyDrop;
use std::slice;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{OwnedBuffer, Owner};
use crate::buf::device::DeviceBuffer;
use crate::buf::mapped::MappedBuffer;
use crate::buf::range::AddressRange;
use crate::buf::span::Span;

impl OwnedBuffer {
    #[inline]
    pub(in crate::buf) fn into_vec(mut self) -> Result<Vec<u8>, OwnedBuffer> {
        self.cut_spare(0);
        let Owner::Vec { capacity } = self.owner else {
            return Err(self);
        };
        let (span, _) = self.dissolve();
        // SAFETY: the parts of the `Vec` that `From<Vec<u8>>` dissolved, unchanged and used once;
        // or of one that `to_fill` did, with the initialised bytes that `cut_spare` left it.
        Ok(unsafe { Vec::from_raw_parts(span.as_ptr(), span.len(), capacity) })
    }

    pub(in crate::buf) fn into_boxed(self) -> Result<Box<[u8]>, OwnedBuffer> {
        let Owner::Boxed = self.owner else {
            return Err(self);
        };
        let slice = self.raw_slice();
        self.dissolve();
        // SAFETY: the pointer of the `Box` that `From<Box<[u8]>>` dissolved, used once.
        Ok(unsafe { Box::from_raw(slice) })
    }

    pub(in crate::buf) fn into_text(self) -> Result<String, OwnedBuffer> {
        let Owner::Text { capacity } = self.owner else {
            return Err(self);
        };
        let (span, _) = self.dissolve();
        // SAFETY: the parts of the `String` that `From<String>` dissolved, used once; its bytes
        // were never written, since it is not writable, and so are UTF-8 still.
        Ok(unsafe { String::from_raw_parts(span.as_ptr(), span.len(), capacity) })
    }

    pub(in crate::buf) fn into_counted(self) -> Result<Arc<[u8]>, OwnedBuffer> {
        let Owner::Counted = self.owner else {
            return Err(self);
        };
        let slice = self.raw_slice();
        self.dissolve();
        // SAFETY: the pointer of an `Arc` whose count this `OwnedBuffer` owned, used once.
        Ok(unsafe { Arc::from_raw(slice.cast_const()) })
    }

    pub(in crate::buf) fn into_bytes(self) -> Result<Bytes, OwnedBuffer> {
        match self.dissolve() {
            (_, Owner::Bytes(bytes)) => Ok(bytes),
            (span, owner) => Err(OwnedBuffer { span, owner }),
        }
    }

    pub(in crate::buf) fn into_bytes_mut(mut self) -> Result<BytesMut, OwnedBuffer> {
        self.cut_spare(0);
        match self.dissolve() {
            (_, Owner::BytesMut(bytes)) => Ok(bytes),
            (span, owner) => Err(OwnedBuffer { span, owner }),
        }
    }

    #[inline]
    pub(in crate::buf) fn into_mapped(self) -> Result<MappedBuffer, OwnedBuffer> {
        let Owner::Mapped { mapped, pages } = self.owner else {
            return Err(self);
        };
        // Nothing else in it is to be dropped.
        let span = ManuallyDrop::new(self).span;
        // SAFETY: the parts of the buffer that `From<MappedBuffer>` dissolved, used once.
        Ok(unsafe { MappedBuffer::from_parts(span, mapped, pages) })
    }

    pub(in crate::buf) fn into_device(self) -> Result<DeviceBuffer, OwnedBuffer> {
        match self.dissolve() {
            (span, Owner::Device(place)) => Ok(DeviceBuffer::from_parts(span, place)),
            (span, owner) => Err(OwnedBuffer { span, owner }),
        }
    }

    pub(in crate::buf) fn into_range(self) -> Result<AddressRange, OwnedBuffer> {
        match self.owner {
            Owner::Range => Ok(AddressRange::of_span(self.span)),
            _ => Err(self),
        }
    }

    pub(in crate::buf) fn into_static(self) -> Result<&'static [u8], OwnedBuffer> {
        let Owner::Static = self.owner else {
            return Err(self);
        };
        // SAFETY: the parts of a `&'static [u8]`, never written since it is not writable.
        Ok(unsafe { slice::from_raw_parts(self.span.as_ptr().cast_const(), self.span.len()) })
    }

    pub(in crate::buf) fn into_static_text(self) -> Result<&'static str, OwnedBuffer> {
        let Owner::StaticText = self.owner else {
            return Err(self);
        };
        let parts = (self.span.as_ptr().cast_const(), self.span.len());
        // SAFETY: the parts of a `&'static str`, never written since it is not writable.
        Ok(unsafe { std::str::from_utf8_unchecked(slice::from_raw_parts(parts.0, parts.1)) })
    }
}

impl From<Vec<u8>> for OwnedBuffer {
    #[inline]
    fn from(buffer: Vec<u8>) -> Self {
        let mut buffer = ManuallyDrop::new(buffer);
        OwnedBuffer {
            span: Span::new(buffer.as_mut_ptr(), buffer.len()),
            owner: Owner::Vec {
                capacity: buffer.capacity(),
            },
        }
    }
}

impl From<Box<[u8]>> for OwnedBuffer {
    #[inline]
    fn from(buffer: Box<[u8]>) -> Self {
        let len = buffer.len();
        OwnedBuffer {
            span: Span::new(Box::into_raw(buffer).cast(), len),
            owner: Owner::Boxed,
        }
    }
}

impl From<String> for OwnedBuffer {
    #[inline]
    fn from(buffer: String) -> Self {
        let mut buffer = ManuallyDrop::new(buffer.into_bytes());
        OwnedBuffer {
            span: Span::new(buffer.as_mut_ptr(), buffer.len()),
            owner: Owner::Text {
                capacity: buffer.capacity(),
            },
        }
    }
}

impl From<Arc<[u8]>> for OwnedBuffer {
    #[inline]
    fn from(buffer: Arc<[u8]>) -> Self {
        let len = buffer.len();
        OwnedBuffer {
            span: Span::new(Arc::into_raw(buffer).cast::<u8>().cast_mut(), len),
            owner: Owner::Counted,
        }
    }
}

impl From<Bytes> for OwnedBuffer {
    #[inline]
    fn from(buffer: Bytes) -> Self {
        OwnedBuffer {
            span: Span::of(&buffer),
            owner: Owner::Bytes(buffer),
        }
    }
}

impl From<BytesMut> for OwnedBuffer {
    #[inline]
    fn from(mut buffer: BytesMut) -> Self {
        OwnedBuffer {
            span: Span::new(buffer.as_mut_ptr(), buffer.len()),
            owner: Owner::BytesMut(buffer),
        }
    }
}

impl From<MappedBuffer> for OwnedBuffer {
    #[inline]
    fn from(buffer: MappedBuffer) -> Self {
        let (span, mapped, pages) = buffer.into_parts();
        OwnedBuffer {
            span,
            owner: Owner::Mapped { mapped, pages },
        }
    }
}

impl From<&'static [u8]> for OwnedBuffer {
    #[inline]
    fn from(buffer: &'static [u8]) -> Self {
        OwnedBuffer {
            span: Span::of(buffer),
            owner: Owner::Static,
        }
    }
}

impl From<AddressRange> for OwnedBuffer {
    #[inline]
    fn from(range: AddressRange) -> Self {
        OwnedBuffer {
            span: range.span(),
            owner: Owner::Range,
        }
    }
}

impl From<DeviceBuffer> for OwnedBuffer {
    fn from(buffer: DeviceBuffer) -> Self {
        let (span, place) = buffer.into_parts();
        OwnedBuffer {
            span,
            owner: Owner::Device(place),
        }
    }
}

impl From<&'static str> for OwnedBuffer {
    #[inline]
    fn from(buffer: &'static str) -> Self {
        OwnedBuffer {
            span: Span::of(buffer.as_bytes()),
            owner: Owner::StaticText,
        }
    }
}
