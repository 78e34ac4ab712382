//! Sources and destinations of copies: a slice, or memory that is shared with others.
//!
//! For each direction, one function copies between the memory of a payload and either of these. So
//! bytes that go through memory that two processes share are copied only once.

use std::marker::PhantomData;
use std::mem;

use super::copy;
use super::span::Span;
use super::stage::Stage;

/// A range of shared memory.
///
/// Invariant: the segment fulfils the contract of [`copy::read_shared`] for all of `'a`, and the
/// range lies within it.
pub(crate) struct SharedBytes<'a> {
    segment: Span,
    at: usize,
    len: usize,
    lives: PhantomData<&'a ()>,
}

impl SharedBytes<'_> {
    /// # Safety
    /// As for [`copy::read_shared`], for as long as the value exists.
    unsafe fn new(segment: Span, at: usize, len: usize) -> Self {
        let end = at.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= segment.len()),
            "a range lies within its segment"
        );
        SharedBytes {
            segment,
            at,
            len,
            lives: PhantomData,
        }
    }

    #[inline]
    fn split_front(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "a part lies within its range");
        let front = SharedBytes { len, ..*self };
        (self.at, self.len) = (self.at + len, self.len - len);
        front
    }

    #[inline]
    fn read(&self, into: &mut [u8]) {
        assert!(into.len() <= self.len, "only bytes of the range are read");
        // SAFETY: the type's invariant.
        unsafe { copy::read_shared(self.segment, self.at, into) }
    }

    #[inline]
    fn write(&self, from: &[u8]) {
        assert!(from.len() <= self.len, "bytes are written within the range");
        // SAFETY: the type's invariant.
        unsafe { copy::write_shared(self.segment, self.at, from) }
    }

    /// Calls `pass` with each part in order, its offset, and room for its bytes.
    fn try_blocks<E>(
        &mut self,
        mut pass: impl FnMut(&Self, usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut stage, mut at) = (Stage::take(), 0);
        while self.len > 0 {
            let block = stage.spare();
            let len = block.len().min(self.len);
            let part = self.split_front(len);
            pass(&part, at, &mut block[..len])?;
            at += len;
        }
        Ok(())
    }
}

/// Bytes to copy.
pub(crate) enum CopyFrom<'a> {
    Slice(&'a [u8]),
    Shared(SharedBytes<'a>),
}

impl<'a> CopyFrom<'a> {
    /// Bytes of a segment of shared memory.
    ///
    /// # Safety
    /// As for [`copy::read_shared`], for as long as the value exists.
    #[inline]
    pub(crate) unsafe fn shared(segment: Span, at: usize, len: usize) -> Self {
        // SAFETY: the caller's promise.
        CopyFrom::Shared(unsafe { SharedBytes::new(segment, at, len) })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            CopyFrom::Slice(bytes) => bytes.len(),
            CopyFrom::Shared(range) => range.len,
        }
    }

    /// Takes the first `len` bytes, which must exist.
    #[inline]
    pub(super) fn split_front(&mut self, len: usize) -> CopyFrom<'a> {
        match self {
            CopyFrom::Slice(bytes) => {
                let (front, rest) = bytes.split_at(len);
                *bytes = rest;
                CopyFrom::Slice(front)
            }
            CopyFrom::Shared(range) => CopyFrom::Shared(range.split_front(len)),
        }
    }

    /// Copies all bytes to a slice of the same length.
    #[inline]
    pub(crate) fn read(&self, into: &mut [u8]) {
        debug_assert_eq!(self.len(), into.len());
        match self {
            CopyFrom::Slice(bytes) => into.copy_from_slice(bytes),
            CopyFrom::Shared(range) => range.read(into),
        }
    }

    /// Copies all bytes to exclusive memory of the same length.
    ///
    /// # Safety
    /// As for [`copy::write_plain`].
    #[inline]
    pub(super) unsafe fn read_plain(&self, into: Span) {
        debug_assert_eq!(self.len(), into.len());
        // SAFETY: the caller's promise, and the invariant of shared bytes.
        unsafe {
            match self {
                CopyFrom::Slice(bytes) => copy::write_plain(into, bytes),
                CopyFrom::Shared(from) => copy::load_shared(from.segment, from.at, into),
            }
        }
    }

    /// Copies all bytes to a segment of shared memory, from offset `at` on.
    ///
    /// # Safety
    /// As for [`copy::write_shared`].
    #[inline]
    pub(super) unsafe fn read_shared(&self, segment: Span, at: usize) {
        // SAFETY: the caller's promise, and the invariant of shared bytes.
        unsafe {
            match self {
                CopyFrom::Slice(bytes) => copy::write_shared(segment, at, bytes),
                CopyFrom::Shared(from) => {
                    copy::copy_shared(from.segment, from.at, segment, at, from.len);
                }
            }
        }
    }

    /// Calls `write` with the bytes as slices, and the offset of each.
    pub(super) fn try_slices<E>(
        &mut self,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            CopyFrom::Slice(bytes) => write(0, bytes),
            CopyFrom::Shared(range) => range.try_blocks(|part, at, block| {
                part.read(block);
                write(at, block)
            }),
        }
    }
}

/// Room for bytes that are copied.
pub(crate) enum CopyTo<'a> {
    Slice(&'a mut [u8]),
    Shared(SharedBytes<'a>),
}

impl<'a> CopyTo<'a> {
    /// Room in a segment of shared memory.
    ///
    /// # Safety
    /// As for [`copy::write_shared`], for as long as the value exists.
    #[inline]
    pub(crate) unsafe fn shared(segment: Span, at: usize, len: usize) -> Self {
        // SAFETY: the caller's promise.
        CopyTo::Shared(unsafe { SharedBytes::new(segment, at, len) })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            CopyTo::Slice(bytes) => bytes.len(),
            CopyTo::Shared(range) => range.len,
        }
    }

    /// Takes the room of the first `len` bytes, which must exist.
    #[inline]
    pub(super) fn split_front(&mut self, len: usize) -> CopyTo<'a> {
        match self {
            CopyTo::Slice(bytes) => {
                let (front, rest) = mem::take(bytes).split_at_mut(len);
                *bytes = rest;
                CopyTo::Slice(front)
            }
            CopyTo::Shared(range) => CopyTo::Shared(range.split_front(len)),
        }
    }

    /// Fills the room from a slice of the same length.
    #[inline]
    pub(crate) fn write(&mut self, from: &[u8]) {
        debug_assert_eq!(self.len(), from.len());
        match self {
            CopyTo::Slice(bytes) => bytes.copy_from_slice(from),
            CopyTo::Shared(range) => range.write(from),
        }
    }

    /// Fills the room from exclusive memory of the same length.
    ///
    /// # Safety
    /// As for [`copy::read_plain`].
    #[inline]
    pub(super) unsafe fn write_plain(&mut self, from: Span) {
        debug_assert_eq!(self.len(), from.len());
        // SAFETY: the caller's promise, and the invariant of shared bytes.
        unsafe {
            match self {
                CopyTo::Slice(bytes) => copy::read_plain(from, bytes),
                CopyTo::Shared(into) => copy::store_shared(into.segment, into.at, from),
            }
        }
    }

    /// Fills the room with bytes of a segment of shared memory, from offset `at` on.
    ///
    /// # Safety
    /// As for [`copy::read_shared`].
    #[inline]
    pub(super) unsafe fn write_shared(&mut self, segment: Span, at: usize) {
        // SAFETY: the caller's promise, and the invariant of shared bytes.
        unsafe {
            match self {
                CopyTo::Slice(bytes) => copy::read_shared(segment, at, bytes),
                CopyTo::Shared(into) => {
                    copy::copy_shared(segment, at, into.segment, into.at, into.len);
                }
            }
        }
    }

    /// Calls `read` to fill the room slice by slice, with the offset of each.
    pub(super) fn try_slices<E>(
        &mut self,
        mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            CopyTo::Slice(bytes) => read(0, bytes),
            CopyTo::Shared(range) => range.try_blocks(|part, at, block| {
                read(at, block)?;
                part.write(block);
                Ok(())
            }),
        }
    }
}
