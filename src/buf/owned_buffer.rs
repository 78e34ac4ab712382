//! A buffer taken apart: raw parts while an operation or a region has it, the user's own type
//! before and after (memory-model rule 1).
//!
//! A `Vec` or `Box` claims sole access to its bytes whenever it is moved or touched, which would be
//! untrue while the kernel has their address. So it is dissolved into pointer, length and capacity
//! before the address leaves this module, and put together again from exactly those, once. Types
//! that own through raw pointers by themselves (`Bytes`, `BytesMut`) make no such claim and are
//! kept as they are; a `MappedBuffer` makes none either, but its start and length need not be kept
//! twice.
//!
//! The set of buffer types is closed ([`super::IoBuf`] is sealed), so the tag that says how to put
//! the parts together is an enum: no allocation, and no function pointers to get wrong.
//!
//! Invariants: `span` covers initialised bytes that `owner` keeps allocated at that address,
//! however often the `OwnedBuffer` is moved. There are three exceptions: the span of a range may be
//! unmapped, and only the kernel touches its bytes; the span of a device is never dereferenced; of
//! offered capacity only the first `written` bytes are initialised, and no others are ever read or
//! given back. Only the owner of an `OwnedBuffer` gives others its span. No writer ever gets the
//! span of a buffer that is not [writable](OwnedBuffer::is_writable).

mod spare;
mod types;

use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::copy_ends::{CopyFrom, CopyTo};
use super::device::DevicePlace;
use super::mapped::{MappedBuffer, PageKind};
use super::range;
use super::span::Span;
use crate::log::hold_event;

/// How the bytes of a span are owned, and which type they become again.
enum Owner {
    Vec {
        capacity: usize,
    },
    /// A `Vec` without bytes, whose capacity is offered: the span is all of it, and its first
    /// `written` bytes have been written.
    SpareVec {
        written: usize,
    },
    /// A `BytesMut` whose capacity is offered: its length is the number of bytes written.
    SpareBytesMut(BytesMut),
    Boxed,
    Text {
        capacity: usize,
    },
    Counted,
    Bytes(Bytes),
    BytesMut(BytesMut),
    Mapped {
        mapped: usize,
        pages: PageKind,
    },
    /// Part of a buffer that others own too.
    Window(Arc<OwnedBuffer>),
    /// Part of a buffer whose other owners may write to these very bytes.
    SharedWindow(Arc<OwnedBuffer>),
    Static,
    StaticText,
    /// A range of addresses that is not owned, and touched by the kernel only.
    Range,
    /// Addresses of a device, which mean nothing to this process.
    Device(DevicePlace),
    /// The owner was taken out; only the drop that follows sees this.
    Gone,
}

/// The buffers of a region, in order. One, the usual case, takes no allocation.
pub type OwnedBuffers = SmallVec<[OwnedBuffer; 1]>;

/// A buffer that the user passed in, taken apart. Dropping it frees the buffer as its own type
/// would.
pub struct OwnedBuffer {
    span: Span,
    owner: Owner,
}

impl OwnedBuffer {
    /// True if the bytes may be changed: they have no other owner, and may take any value.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        match &self.owner {
            Owner::Vec { .. }
            | Owner::SpareVec { .. }
            | Owner::SpareBytesMut(_)
            | Owner::Boxed
            | Owner::BytesMut(_)
            | Owner::Mapped { .. }
            | Owner::Range
            | Owner::Device(_) => true,
            Owner::Window(whole) | Owner::SharedWindow(whole) => whole.is_writable(),
            _ => false,
        }
    }

    /// Creates a window of shared memory, which its region returns as a window.
    pub(super) fn shared_window(
        whole: &Arc<OwnedBuffer>,
        offset: usize,
        len: usize,
    ) -> OwnedBuffer {
        OwnedBuffer {
            span: whole.span.part(offset, len),
            owner: Owner::SharedWindow(Arc::clone(whole)),
        }
    }

    /// True if others may write to its bytes through the buffer that it is a part of.
    #[inline]
    pub(super) fn is_shared_window(&self) -> bool {
        matches!(self.owner, Owner::SharedWindow(_))
    }

    /// True if no slice may be made of the bytes: they may not be mapped, belong to a device, or
    /// are written by others.
    pub(super) fn is_opaque(&self) -> bool {
        self.is_range() || self.is_shared_window() || self.is_of_device()
    }

    /// True if its addresses are those of a device, which are never dereferenced.
    #[inline]
    pub(crate) fn is_of_device(&self) -> bool {
        self.device_place().is_some()
    }

    /// Returns the device that its addresses belong to, if they are a device's.
    #[inline]
    pub(super) fn device_place(&self) -> Option<&DevicePlace> {
        match &self.owner {
            Owner::Device(place) => Some(place),
            _ => None,
        }
    }

    /// Creates a window: a part of a buffer with many owners, and one more owner of that buffer. It
    /// is used for the memory of a region that never returns it, since others share the bytes; and
    /// for messages that are received into one buffer, each in a window of its own that overlaps no
    /// other (`buffer_cursor`).
    #[inline]
    pub(crate) fn window(whole: &Arc<OwnedBuffer>, offset: usize, len: usize) -> OwnedBuffer {
        OwnedBuffer {
            span: whole.span.part(offset, len),
            owner: Owner::Window(Arc::clone(whole)),
        }
    }

    /// Returns the whole buffer, if this is a window.
    pub(crate) fn as_window(&self) -> Option<&Arc<OwnedBuffer>> {
        match &self.owner {
            Owner::Window(whole) => Some(whole),
            _ => None,
        }
    }

    /// Returns the range of `whole` that this is a window of; `None` if it is no window of `whole`.
    pub(super) fn place_in(&self, whole: &Arc<OwnedBuffer>) -> Option<Range<usize>> {
        if !Arc::ptr_eq(self.as_window()?, whole) {
            return None;
        }
        let (own, all) = (self.span.addresses(), whole.span.addresses());
        Some(own.start - all.start..own.end - all.start)
    }

    /// Returns a window of the same buffer at these addresses of it; `None` if this is no window.
    pub(crate) fn narrowed(&self, addresses: &Range<usize>) -> Option<OwnedBuffer> {
        let whole = self.as_window()?;
        let all = whole.span.addresses();
        let start = addresses.start.max(all.start);
        let end = addresses.end.min(all.end).max(start);
        Some(OwnedBuffer::window(whole, start - all.start, end - start))
    }

    /// True if it has a byte of this range.
    pub(crate) fn overlaps(&self, addresses: &Range<usize>) -> bool {
        let own = self.span.addresses();
        own.start < addresses.end && addresses.start < own.end
    }

    /// Returns the span by which accesses to shared bytes are cut into cells (see `copy`). For a
    /// window this is the span of the whole buffer, so that all windows and the buffer itself have
    /// the same cells.
    #[inline]
    pub(super) fn whole(&self) -> Span {
        match &self.owner {
            Owner::Window(whole) | Owner::SharedWindow(whole) => whole.span,
            _ => self.span,
        }
    }

    /// True if the bytes are of a kind that can have many owners, and this is the last owner.
    pub(crate) fn is_ours_alone(&self) -> bool {
        match &self.owner {
            Owner::Bytes(bytes) => bytes.is_unique(),
            Owner::Counted => {
                // SAFETY: the pointer of the `Arc` whose count `self` owns; it is not dropped.
                let counted = unsafe { Arc::from_raw(self.raw_slice().cast_const()) };
                Arc::strong_count(&ManuallyDrop::new(counted)) == 1
            }
            Owner::Window(whole) => whole.is_ours_alone(),
            _ => false,
        }
    }

    /// True for a range of addresses, which need not be mapped, and whose bytes only the kernel
    /// touches.
    #[inline]
    pub(crate) fn is_range(&self) -> bool {
        match &self.owner {
            Owner::Range => true,
            Owner::Window(whole) => whole.is_range(),
            _ => false,
        }
    }

    /// True if it is a range of addresses that is a shared mapping of files.
    pub(crate) fn is_shared_file(&self) -> io::Result<bool> {
        Ok(self.is_range() && range::is_shared_file(self.span)?)
    }

    /// True if the span goes beyond the last address, which is possible only for a span that the
    /// user named.
    #[inline]
    pub(crate) fn wraps_around(&self) -> bool {
        let start = self.span.as_ptr().addr();
        start.checked_add(self.len()).is_none()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.span.len()
    }

    /// The span of the bytes. A caller that gives it to the kernel keeps `self` until the kernel is
    /// done.
    #[inline]
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Returns the bytes; none if the buffer is [opaque](OwnedBuffer::is_opaque).
    ///
    /// # Safety
    /// Nothing writes to them through the span for as long as the slice lives.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        if self.is_opaque() {
            return &[];
        }
        let span = self.initialized();
        // SAFETY: invariant of the type: initialised and allocated while `self` is borrowed;
        // unwritten by the caller's promise (memory-model rule 1).
        unsafe { slice::from_raw_parts(span.as_ptr().cast_const(), span.len()) }
    }

    /// The bytes, for change; `None` if they are not writable.
    ///
    /// # Safety
    /// Nothing touches them through the span for as long as the slice lives.
    pub(super) unsafe fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_writable() || self.is_opaque() {
            return None;
        }
        let span = self.initialized();
        // SAFETY: invariant of the type: initialised, allocated and writable while `self` is
        // borrowed; untouched by others by the caller's promise (memory-model rule 1).
        Some(unsafe { slice::from_raw_parts_mut(span.as_ptr(), span.len()) })
    }

    /// Copies `bytes` to `offset`; all of them must lie within the buffer.
    ///
    /// # Safety
    /// Nothing touches that range through the span meanwhile.
    #[inline]
    pub(super) unsafe fn write(&mut self, offset: usize, bytes: &CopyFrom<'_>) {
        // Checked in every build, since the memory might be read-only.
        assert!(
            self.is_writable() && !self.is_opaque(),
            "only writable buffers are received into"
        );
        let into = self.span.part(offset, bytes.len());
        // SAFETY: within the span and writable, as just checked; allocated by the type's invariant;
        // ours alone by the caller's promise and `&mut self` (memory-model rule 1).
        unsafe { bytes.read_plain(into) };
        // SAFETY: just written.
        unsafe { self.assume_written(offset, bytes.len()) };
    }

    /// Copies from `offset`; all bytes to copy must lie within the buffer.
    ///
    /// # Safety
    /// Nothing writes to that range through the span meanwhile.
    #[inline]
    pub(super) unsafe fn read(&self, offset: usize, into: &mut CopyTo<'_>) {
        assert!(!self.is_opaque(), "such memory is only part of a region");
        let from = self.initialized().part(offset, into.len());
        // SAFETY: within the initialised bytes, allocated by the type's invariant; unwritten by the
        // caller's promise (memory-model rule 1).
        unsafe { into.write_plain(from) }
    }

    /// Returns another owner of the same bytes, if they are of a kind that can have many.
    pub(super) fn share(&self) -> Option<OwnedBuffer> {
        let owner = match &self.owner {
            Owner::Bytes(bytes) => Owner::Bytes(bytes.clone()),
            Owner::Static => Owner::Static,
            Owner::StaticText => Owner::StaticText,
            Owner::Window(whole) => Owner::Window(Arc::clone(whole)),
            Owner::SharedWindow(whole) => Owner::SharedWindow(Arc::clone(whole)),
            Owner::Counted => {
                let parts = self.raw_slice();
                // SAFETY: these are the parts of the `Arc` that `self` owns and keeps alive during
                // the call; the added count is the new `OwnedBuffer`'s.
                unsafe { Arc::increment_strong_count(parts.cast_const()) };
                Owner::Counted
            }
            _ => return None,
        };
        Some(OwnedBuffer {
            span: self.span,
            owner,
        })
    }

    fn raw_slice(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.span.as_ptr(), self.span.len())
    }

    /// Takes the owner out, so that nothing is left to drop.
    #[inline]
    fn dissolve(self) -> (Span, Owner) {
        let mut this = ManuallyDrop::new(self);
        (this.span, mem::replace(&mut this.owner, Owner::Gone))
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        self.cut_spare(0);
        let span = self.span;
        match mem::replace(&mut self.owner, Owner::Gone) {
            // A `Vec<u8>` frees what a `String` of the same parts would.
            Owner::Vec { capacity } | Owner::Text { capacity } => {
                // SAFETY: the parts that `From<Vec<u8>>` or `From<String>` dissolved; `Gone` makes
                // this their only use.
                let vec = unsafe { Vec::from_raw_parts(span.as_ptr(), span.len(), capacity) };
                drop(vec);
            }
            Owner::Boxed => {
                // SAFETY: the pointer `From<Box<[u8]>>` dissolved; only use, as above.
                let boxed = unsafe { Box::from_raw(self.raw_slice()) };
                drop(boxed);
            }
            Owner::Counted => {
                // SAFETY: the pointer of an `Arc` whose count is ours; only use, as above.
                let counted = unsafe { Arc::from_raw(self.raw_slice().cast_const()) };
                drop(counted);
            }
            Owner::Bytes(bytes) => drop_users(bytes),
            Owner::BytesMut(bytes) | Owner::SpareBytesMut(bytes) => drop(bytes),
            Owner::Mapped { mapped, pages } => {
                // SAFETY: the parts `From<MappedBuffer>` dissolved; only use, as above.
                let buffer = unsafe { MappedBuffer::from_parts(span, mapped, pages) };
                drop(buffer);
            }
            Owner::Window(whole) | Owner::SharedWindow(whole) => drop(whole),
            Owner::Device(place) => drop_users(place),
            Owner::SpareVec { .. } => unreachable!("just cut"),
            Owner::Static | Owner::StaticText | Owner::Range | Owner::Gone => {}
        }
    }
}

/// Drops a value that may own objects of the user, on any thread: a panic of that drop must not
/// unwind the thread.
fn drop_users<T>(owner: T) {
    if catch_unwind(AssertUnwindSafe(|| drop(owner))).is_err() {
        hold_event(|| tracing::error!("the drop of a buffer panicked"));
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedBuffer({} bytes)", self.len())
    }
}
