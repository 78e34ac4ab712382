//! The capacity of an empty buffer, offered to be received into, and how much of it has been
//! written: only the written part is read or returned.

use std::mem::{self, ManuallyDrop};

use bytes::BytesMut;

use super::{OwnedBuffer, Owner};
use crate::buf::copy;
use crate::buf::span::Span;

impl OwnedBuffer {
    /// Takes a buffer to be received into: one without bytes offers its capacity. The part of it
    /// that was not received is cut off again ([`OwnedBuffer::cut_spare`]).
    #[inline]
    pub(in crate::buf) fn to_fill(buffer: Vec<u8>) -> OwnedBuffer {
        if !buffer.is_empty() || buffer.capacity() == 0 {
            return OwnedBuffer::from(buffer);
        }
        let mut buffer = ManuallyDrop::new(buffer);
        OwnedBuffer {
            span: Span::new(buffer.as_mut_ptr(), buffer.capacity()),
            owner: Owner::SpareVec { written: 0 },
        }
    }

    /// As [`to_fill`](Self::to_fill), for a `BytesMut`.
    #[inline]
    pub(in crate::buf) fn to_fill_bytes(mut buffer: BytesMut) -> OwnedBuffer {
        if !buffer.is_empty() || buffer.capacity() == 0 {
            return OwnedBuffer::from(buffer);
        }
        let spare = buffer.spare_capacity_mut();
        OwnedBuffer {
            span: Span::new(spare.as_mut_ptr().cast(), spare.len()),
            owner: Owner::SpareBytesMut(buffer),
        }
    }

    /// The initialised bytes: all but those of offered capacity that were not written yet.
    pub(super) fn initialized(&self) -> Span {
        match &self.owner {
            Owner::SpareVec { written } => self.span.part(0, *written),
            Owner::SpareBytesMut(buffer) => self.span.part(0, buffer.len()),
            _ => self.span,
        }
    }

    /// Records that a range, which must lie within, was written through the span. In offered
    /// capacity the range counts only if it begins within the bytes written before, or where they
    /// end.
    ///
    /// # Safety
    /// All bytes of the range have been written.
    pub(in crate::buf) unsafe fn assume_written(&mut self, offset: usize, len: usize) {
        let end = offset + self.span.part(offset, len).len();
        match &mut self.owner {
            Owner::SpareVec { written } if offset <= *written => *written = end.max(*written),
            Owner::SpareBytesMut(buffer) if offset <= buffer.len() && buffer.len() < end => {
                // SAFETY: the span is the buffer's whole capacity, so `end` lies within. The bytes
                // up to `offset` are initialised, since that is within the length, and those behind
                // by the caller's promise.
                unsafe { buffer.set_len(end) }
            }
            _ => {}
        }
    }

    /// Zeroes offered capacity that was not written, for a buffer whose parts are given out.
    pub(in crate::buf) fn zero_spare(&mut self) {
        let written = self.initialized().len();
        let len = self.len() - written;
        if len > 0 {
            let rest = self.span.part(written, len);
            // SAFETY: `rest` is capacity that `self` owns alone, in no operation, and borrowed for
            // change (memory-model rule 1).
            unsafe { copy::zero_plain(rest) };
            // SAFETY: just written.
            unsafe { self.assume_written(written, len) };
        }
    }

    /// Called when the operation has ended: reduces offered capacity to its first `received` bytes,
    /// which must lie within. From now on the buffer has this length, which never exceeds the
    /// number of bytes written. Any other buffer keeps its length.
    #[inline]
    pub(in crate::buf) fn cut_spare(&mut self, received: usize) {
        if let Owner::SpareVec { .. } | Owner::SpareBytesMut(_) = self.owner {
            let written = self.initialized().len();
            debug_assert!(received <= written, "what was received was written");
            let received = received.min(written);
            let span = self.span.part(0, received);
            self.owner = match mem::replace(&mut self.owner, Owner::Gone) {
                Owner::SpareBytesMut(mut buffer) => {
                    buffer.truncate(received);
                    Owner::BytesMut(buffer)
                }
                _ => Owner::Vec {
                    capacity: self.span.len(),
                },
            };
            self.span = span;
        }
    }
}
