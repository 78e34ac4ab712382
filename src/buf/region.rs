//! The memory of a region: one or more buffers under one gate, addressed as one range of bytes.
//!
//! The addresses (`segments`) never change and may be read at any time. The bytes may be touched
//! inside the gate only: they stay allocated while a guard of the gate is held, since
//! [`RegionMemory::take`] gives the buffers away only once the gate is closed and drained. So a
//! peer's transfer that stalls in the middle (it holds this memory by `Arc` but no guard) does not
//! keep the buffers from their owner (memory-model rule 4).
//!
//! Read-only memory is never given away, only shared: its bytes live as long as the `RegionMemory`.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::access_error::AccessError;
use super::attached::{Attached, RegionTraits};
use super::copy;
use super::copy_ends::{CopyFrom, CopyTo};
use super::device::DeviceMemory;
use super::owned_buffer::{OwnedBuffer, OwnedBuffers};
use super::pin::Pins;
use super::range;
use super::span::{Span, SpanList};
use crate::error::Result;
use crate::sync::{Gate, HasGate, Lock, Role};

/// One buffer's place in the region.
pub(super) struct Segment {
    /// Offset of its first byte within the region.
    start: usize,
    span: Span,
    /// Accesses are cut into cells by a span that begins `skip` bytes before this one and is
    /// `whole_len` bytes long.
    skip: usize,
    whole_len: usize,
}

impl Segment {
    #[inline]
    fn of(owned: &OwnedBuffer, start: usize) -> Segment {
        let (span, whole) = (owned.span(), owned.whole());
        Segment {
            start,
            span,
            skip: span.address().abs_diff(whole.address()) as usize,
            whole_len: whole.len(),
        }
    }

    /// Returns the segment's span. Using the span requires an entry of the gate, or the exclusion.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// Returns the span by which accesses are cut into cells, and the offset in it of this byte of
    /// the segment.
    pub(super) fn cells(&self, at: usize) -> (Span, usize) {
        let start = self.span.as_ptr().wrapping_sub(self.skip);
        (Span::new(start, self.whole_len), self.skip + at)
    }
}

/// The shared memory of a region. The module's page says when it may be touched.
pub(crate) struct RegionMemory {
    segments: SmallVec<[Segment; 1]>,
    len: usize,
    /// All buffers are writable, or none is.
    writable: bool,
    /// All buffers are address ranges, whose bytes only the kernel touches, or none is.
    kernel_only: bool,
    /// Present if all buffers are of a device, whose bytes only its owner copies; otherwise none
    /// is.
    device: Option<Box<DeviceMemory>>,
    /// All buffers are windows of shared memory, whose bytes others may have too, or none is.
    shared: bool,
    attached: Attached,
    gate: Gate,
    /// The region's pinned pages, if it has any. Declared, and so dropped, before the buffers.
    pins: OnceLock<Lock<Option<Pins>>>,
    /// The buffers themselves; none once they are taken. Read inside the gate; changed by the one
    /// caller that claimed the closed and drained gate. Buffers of read-only memory are never
    /// changed, and are read after that too.
    owners: Owners,
}

struct Owners(UnsafeCell<OwnedBuffers>);

// SAFETY: the one field of this type is used as its comment says: by one caller at a time, or only
// to read. An `OwnedBuffer` may be sent and shared.
unsafe impl Sync for Owners {}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<OwnedBuffers>();
};

impl HasGate for RegionMemory {
    fn gate(&self) -> &Gate {
        &self.gate
    }
}

impl RegionMemory {
    /// Joins buffers, in order. Returns them if there is none, if buffers of different kinds are
    /// mixed (writable or read-only ones, ranges, windows, those of a device), if a range wraps
    /// around, if their lengths do not add up within an address space, or if there are no functions
    /// that copy their device's memory.
    pub(crate) fn new(
        buffers: impl Into<OwnedBuffers>,
        traits: RegionTraits,
    ) -> Result<Arc<Self>, OwnedBuffers> {
        let buffers = buffers.into();
        let Some(first) = buffers.first() else {
            return Err(buffers);
        };
        let (writable, kernel_only) = (first.is_writable(), first.is_range());
        let is_device = first.is_of_device();
        let shared = first.is_shared_window();
        let mut segments = SmallVec::with_capacity(buffers.len());
        let mut len = 0usize;
        for owned in &buffers {
            let kind = (
                owned.is_writable(),
                owned.is_range(),
                owned.is_shared_window(),
            );
            let is_alike = kind == (writable, kernel_only, shared)
                && owned.is_of_device() == is_device
                && !owned.wraps_around();
            let Some(end) = len.checked_add(owned.len()).filter(|_| is_alike) else {
                return Err(buffers);
            };
            segments.push(Segment::of(owned, len));
            len = end;
        }
        let device = match is_device {
            false => None,
            true => match DeviceMemory::of(&buffers, traits.hmem.as_ref()) {
                None => return Err(buffers),
                device => device.map(Box::new),
            },
        };
        Ok(Arc::new(RegionMemory {
            device,
            segments,
            len,
            writable,
            kernel_only,
            shared,
            gate: if traits.disabled {
                Gate::new_disabled()
            } else {
                Gate::new()
            },
            // Device memory is always present: its pages are not tracked.
            attached: Attached::new(RegionTraits {
                notified_pages: traits.notified_pages && !is_device,
                ..traits
            }),
            pins: OnceLock::new(),
            owners: Owners(UnsafeCell::new(buffers)),
        }))
    }

    /// Length in bytes of the whole region.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// True for address ranges: there may be no memory behind them, and only the kernel accesses
    /// it.
    pub(crate) fn is_kernel_only(&self) -> bool {
        self.kernel_only
    }

    /// Returns the device that its bytes belong to, if any: only the device's owner copies them.
    #[inline]
    pub(super) fn device(&self) -> Option<&DeviceMemory> {
        self.device.as_deref()
    }

    /// True if this process can touch its bytes: they are neither an address range's nor a
    /// device's.
    pub(crate) fn is_touchable(&self) -> bool {
        !self.kernel_only && self.device.is_none()
    }

    /// True if the region is a part of shared memory, whose other owners may have the same bytes.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn rights(&self) -> u64 {
        self.traits().rights
    }

    /// The properties that it was registered with.
    pub(crate) fn traits(&self) -> &RegionTraits {
        self.attached.traits()
    }

    /// The objects that are bound to it.
    pub(crate) fn attached(&self) -> &Attached {
        &self.attached
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The address of the first segment's first byte: where a region addressed by virtual address
    /// begins, `fi_mr_regv(3)` ones included.
    pub(crate) fn base_addr(&self) -> u64 {
        self.segments[0].span.address()
    }

    /// The segment's span. Using the span requires an entry of the gate, or the exclusion.
    pub(super) fn segment(&self, index: usize) -> Span {
        self.segments[index].span
    }

    /// Appends the spans of a range, as many as fit. Only to be used while a lease is held. Memory
    /// of a device has none.
    pub(crate) fn spans(&self, offset: usize, len: usize, into: &mut SpanList) {
        assert!(
            self.device.is_none(),
            "the kernel gets no address of a device"
        );
        let _ = self.try_each(offset, len, |segment, at, len| {
            into.push(segment.span.part(at, len))
                .then_some(())
                .ok_or(())
        });
    }

    /// Copies out, as a local user.
    pub(crate) fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        let _entry = self.gate.enter(Role::Local)?;
        // SAFETY: the entry is held to the end of this function.
        unsafe { self.read_inside(offset, CopyTo::Slice(into)) }
    }

    /// Copies in, as a local user. The region must be writable.
    pub(crate) fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        let _entry = self.gate.enter(Role::Local)?;
        // SAFETY: the entry is held to the end of this function.
        unsafe { self.write_inside(offset, CopyFrom::Slice(from)) }
    }

    /// Copies out, inside the gate. After a fault, earlier bytes may have been copied.
    ///
    /// # Safety
    /// An entry of this region's gate is held during the call.
    pub(super) unsafe fn read_inside(
        &self,
        offset: usize,
        mut into: CopyTo<'_>,
    ) -> Result<(), AccessError> {
        if let Some(device) = self.device() {
            return into.try_slices(|at, part| device.read(offset + at, part));
        }
        self.try_each(offset, into.len(), |segment, at, len| {
            let mut part = into.split_front(len);
            if self.kernel_only {
                let from = segment.span.part(at, len);
                let read = |at, part: &mut [u8]| range::read(from.part(at, part.len()), part);
                let read = part.try_slices(read);
                return read.map_err(|error| AccessError::fault(&error));
            }
            if self.writable {
                let (cells, at) = segment.cells(at);
                // SAFETY: a whole segment of writable region memory; allocated, since an entry of
                // the gate is held by the caller's promise (memory-model rule 4 and this module's
                // page); touched through the shared functions only, as the exclusion cannot coexist
                // with an entry (rules 2, 3).
                unsafe { part.write_shared(cells, at) }
            } else {
                // SAFETY: read-only memory is allocated while `self` lives and never written
                // (memory-model rule 3).
                unsafe { part.write_plain(segment.span.part(at, len)) }
            }
            Ok(())
        })
    }

    /// Copies in, inside the gate. After a fault, earlier bytes may have been copied.
    ///
    /// # Safety
    /// An entry of this region's gate is held during the call.
    pub(super) unsafe fn write_inside(
        &self,
        offset: usize,
        mut from: CopyFrom<'_>,
    ) -> Result<(), AccessError> {
        assert!(self.writable, "only writable regions are written to");
        if let Some(device) = self.device() {
            return from.try_slices(|at, part| device.write(offset + at, part));
        }
        self.try_each(offset, from.len(), |segment, at, len| {
            let mut part = from.split_front(len);
            if self.kernel_only {
                let into = segment.span.part(at, len);
                let write = |at, part: &[u8]| range::write(into.part(at, part.len()), part);
                let written = part.try_slices(write);
                return written.map_err(|error| AccessError::fault(&error));
            }
            let (cells, at) = segment.cells(at);
            // SAFETY: as in `read_inside`; the region is writable, as just checked.
            unsafe { part.read_shared(cells, at) }
            Ok(())
        })
    }

    /// Loads `size` bytes at `offset` atomically, and stores what `change` makes of them, if
    /// anything: [`copy::update_shared`]. `None` if they are not aligned, not within one buffer, or
    /// not in memory that atomics are for: owned and writable.
    pub(crate) fn update(
        &self,
        offset: usize,
        size: usize,
        change: impl FnMut([u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<Option<[u8; 8]>, AccessError> {
        let _entry = self.gate.enter(Role::Local)?;
        if let Some(device) = self.device() {
            let is_within = self.check_atomics(offset, size, size).is_ok();
            return match is_within {
                true => device.update(offset, size, change).map(Some),
                false => Ok(None),
            };
        }
        let may_have_atomics = self.writable && !self.kernel_only;
        let Some((segment, at)) = self.locate(offset).filter(|_| may_have_atomics) else {
            return Ok(None);
        };
        if segment.span.len() - at < size {
            return Ok(None);
        }
        let (cells, at) = segment.cells(at);
        // SAFETY: as in `write_inside`, for this one access (memory-model rules 2, 4, 6).
        Ok(unsafe { copy::update_shared(cells, at, size, change) })
    }

    /// Returns all bytes, if the region is read-only and of one segment, so that they never change.
    pub(crate) fn as_read_only(&self) -> Option<&[u8]> {
        let [segment] = &*self.segments else {
            return None;
        };
        if self.writable {
            return None;
        }
        let (start, len) = (segment.span.as_ptr().cast_const(), segment.span.len());
        // SAFETY: read-only buffers are initialised, never written, and never taken out of `self`
        // (see `take`), so they live at least as long as the borrow (memory-model rule 3).
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Gives the buffers away, once the gate is closed and drained; `None` before that, or if they
    /// have been taken already. Read-only buffers are shared, and stay here too.
    #[inline]
    pub(crate) fn take(&self) -> Option<OwnedBuffers> {
        if !self.writable {
            return self.share();
        }
        let owners = mem::take(self.claim()?);
        (!owners.is_empty()).then_some(owners)
    }

    /// Claims the buffers of writable memory, for the first caller once the gate is closed and
    /// drained.
    #[allow(clippy::mut_from_ref, reason = "there is one, as the proof says")]
    fn claim(&self) -> Option<&mut OwnedBuffers> {
        if !self.writable || !self.gate.try_claim() {
            return None;
        }
        self.unpin();
        // SAFETY: one caller claims the gate, which is closed and drained, whatever else still
        // holds the `Arc`; so no reference to the owners exists, or is ever made.
        Some(unsafe { &mut *self.owners.0.get() })
    }

    #[cold]
    fn share(&self) -> Option<OwnedBuffers> {
        if self.writable || !self.gate.is_closed_and_drained() {
            return None;
        }
        self.unpin();
        // SAFETY: the buffers of read-only memory are not changed while it is shared.
        let owners = unsafe { &*self.owners.0.get() };
        let shared = owners.iter().map(OwnedBuffer::share);
        let shared = shared.collect::<Option<OwnedBuffers>>()?;
        (!shared.is_empty()).then_some(shared)
    }

    #[inline]
    fn unpin(&self) {
        if let Some(pins) = self.pins.get() {
            let pins = pins.lock("unpin a region").take();
            drop(pins);
        }
    }

    /// Brings the pages of a range into memory and keeps them there until the buffers are given
    /// back or freed. Blocks; call it off the runtime's workers, part by part. `LimitReached` where
    /// `RLIMIT_MEMLOCK` does not allow it.
    pub(crate) fn pin(&self, from: usize, len: usize) -> Result<()> {
        let segments = self.segments.iter();
        let ranges = segments.map(|segment| segment.span.addresses());
        let pins = || Lock::new(Some(Pins::new(ranges)));
        let pins = self.pins.get_or_init(pins).lock("pin a region");
        // Without pins the region has been unpinned already.
        let Some(pins) = &*pins else { return Ok(()) };
        self.try_each(from, len, |segment, at, len| {
            pins.pin(segment.span.part(at, len))
        })
    }

    /// Returns windows like those that the region was made of; `None` if it was made of other
    /// buffers, or is closed.
    pub(crate) fn windows(&self) -> Option<Vec<OwnedBuffer>> {
        let _inside = self.gate.enter_unless_closed().ok()?;
        // SAFETY: inside the gate to the end of this function.
        let owners = unsafe { &*self.owners.0.get() };
        let windows = owners.iter();
        let windows = windows.map(|owned| owned.as_window().map(|_| owned.share())?);
        let windows: Option<Vec<_>> = windows.collect();
        windows.filter(|all| !all.is_empty())
    }

    /// True if all its bytes are of a kind that can have many owners, and no owner is left but this
    /// region, or other regions of the same cache.
    pub(crate) fn is_ours_alone(&self) -> bool {
        let Ok(_inside) = self.gate.enter_unless_closed() else {
            return false;
        };
        // SAFETY: inside the gate to the end of this function.
        let owners = unsafe { &*self.owners.0.get() };
        !owners.is_empty() && owners.iter().all(OwnedBuffer::is_ours_alone)
    }

    /// The segment of a byte, and its offset there.
    fn locate(&self, offset: usize) -> Option<(&Segment, usize)> {
        if offset >= self.len {
            return None;
        }
        let after = self.segments.partition_point(|it| it.start <= offset);
        let segment = &self.segments[after - 1];
        Some((segment, offset - segment.start))
    }

    /// Visits the non-empty parts of a range in order: segment, offset there, length.
    pub(super) fn try_each<E>(
        &self,
        offset: usize,
        len: usize,
        mut visit: impl FnMut(&Segment, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let end = end.expect("ranges are checked against the region before they get here");
        let mut next = self.segments.partition_point(|it| it.start <= offset) - 1;
        let mut at = offset;
        while at < end {
            let segment = &self.segments[next];
            let within = at - segment.start;
            let len = (segment.span.len() - within).min(end - at);
            if len > 0 {
                visit(segment, within, len)?;
            }
            at += len;
            next += 1;
        }
        Ok(())
    }
}

debug_fields!(RegionMemory, self =>
    len: self.len, segments: self.segments.len(), writable: self.writable, gate: self.gate
);
