//! The pages behind a region: faulting them in, and finding which are present.

use std::io;
use std::ops::Range;
use std::ptr;

use super::access_error::AccessError;
use super::copy;
use super::intervals::Intervals;
use super::range;
use super::region::{RegionMemory, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::PROBE_BYTES_MAX;
use crate::sync::{GateError, Role};

/// The rights under which a region is written to: `FI_READ`, `FI_RECV`, `FI_REMOTE_WRITE`.
const WRITING_RIGHTS: u64 = 1 << 8 | 1 << 10 | 1 << 13;

impl RegionMemory {
    /// Makes the pages of a range present, as `FI_MR_ALLOCATED` promises; the bytes keep their
    /// values. Blocks for as long as the kernel needs to find and clear the pages: call it off the
    /// runtime's workers, by chunks, and check in between whether the registration was dropped.
    ///
    /// Fails with `BadState` if the region is closed or quiesced, and with the kind of the system's
    /// error if memory is not available (a page that faults, poisoned memory).
    pub(crate) fn fault_in(&self, from: usize, len: usize) -> Result<()> {
        let _entry = self
            .gate()
            .enter(Role::Local)
            .map_err(|_| Error::new(ErrorKind::BadState, "the region is closed or quiesced"))?;
        self.try_each(from, len, |segment, at, len| {
            // SAFETY: the entry is held to the end of this function.
            unsafe { self.fault_in_part(segment, at, len) }
        })
        .map_err(|error| Error::from_io(&error, "fault in the pages of a region"))
    }

    /// Like [`RegionMemory::fault_in`], and records the pages for `FI_MR_MMU_NOTIFY`. Works also
    /// while the region is being refreshed.
    pub(crate) fn fault_in_and_record(&self, from: usize, len: usize) -> Result<()> {
        match self.gate().enter(Role::Local) {
            Ok(_entry) => self.fault_in(from, len)?,
            // The refresh excludes closing, so owned memory stays allocated; only the kernel
            // dereferences address ranges.
            Err(GateError::Refreshing) => self
                .try_each(from, len, |segment, at, len| {
                    let part = segment.span().part(at, len);
                    range::populate(part, self.is_written()).map(|_| ())
                })
                .map_err(|error| Error::from_io(&error, "looking at the pages of a region"))?,
            Err(_) => return Err(Error::new(ErrorKind::BadState, "the region is closed")),
        }
        self.change_backed(|backed| backed.insert(from..from + len));
        Ok(())
    }

    /// False for device memory, which is always present: its pages are neither looked up nor
    /// recorded.
    pub(crate) fn has_pages(&self) -> bool {
        self.device().is_none()
    }

    /// Makes the bytes of a range as persistent as its file is. Blocks for as long as the device
    /// takes. To be called while a lease is held.
    pub(super) fn flush(&self, from: usize, len: usize) -> io::Result<()> {
        self.try_each(from, len, |segment, at, len| {
            range::synchronize(segment.span().part(at, len))
        })
    }

    /// Forgets which pages of a range are present.
    pub(crate) fn forget_pages(&self, part: Range<usize>) {
        self.change_backed(|backed| backed.remove(part));
    }

    /// Records which pages of a range are present, without faulting any in.
    pub(crate) fn record_pages(&self, from: usize, len: usize) -> Result<()> {
        let mut at_region = from;
        self.try_each(from, len, |segment, at, len| {
            let found = range::resident(segment.span().part(at, len))?;
            self.change_backed(|backed| {
                for part in found {
                    backed.insert(at_region + part.start..at_region + part.end);
                }
            });
            at_region += len;
            Ok(())
        })
        .map_err(|error: io::Error| Error::from_io(&error, "looking at the pages of a region"))
    }

    fn change_backed(&self, change: impl FnOnce(&mut Intervals)) {
        if let Some(backed) = self.attached().backed() {
            change(&mut backed.lock("take note of pages"));
        }
    }

    /// # Safety
    /// An entry of this region's gate is held during the call; `segment` is one of its segments.
    unsafe fn fault_in_part(&self, segment: &Segment, at: usize, len: usize) -> io::Result<()> {
        let span = segment.span();
        if let Some(()) = range::populate(span.part(at, len), self.is_written())? {
            return Ok(());
        }
        let page = rustix::param::page_size();
        let first_boundary = page - span.as_ptr().addr().wrapping_add(at) % page;
        for offset in std::iter::once(at).chain((at + first_boundary..at + len).step_by(page)) {
            if self.is_kernel_only() {
                range::read(span.part(offset, 1), &mut [0])?;
            } else {
                // SAFETY: the caller's promise.
                unsafe { self.touch(segment, offset) };
            }
        }
        Ok(())
    }

    /// True if anything may write to the region: then its pages must be present for writing.
    fn is_written(&self) -> bool {
        self.is_writable() && (!self.is_kernel_only() || self.rights() & WRITING_RIGHTS != 0)
    }

    /// Checks that the pages of an address range are present, before an access to it begins. Owned
    /// memory always passes. Checks at most [`PROBE_BYTES_MAX`] bytes.
    pub(super) fn probe(
        &self,
        offset: usize,
        len: usize,
        for_writing: bool,
    ) -> Result<(), AccessError> {
        if !self.is_kernel_only() {
            return Ok(());
        }
        self.try_each(
            offset,
            len.min(PROBE_BYTES_MAX),
            |segment, at, len| match range::populate(segment.span().part(at, len), for_writing) {
                Ok(_) => Ok(()),
                Err(error) => Err(AccessError::fault(&error)),
            },
        )
    }

    /// Makes the page of one byte present.
    ///
    /// # Safety
    /// As for `fault_in_part`.
    unsafe fn touch(&self, segment: &Segment, offset: usize) {
        if self.is_writable() {
            let (cells, at) = segment.cells(offset);
            // SAFETY: as in `read_inside`: an entry is held (memory-model rules 2, 4).
            unsafe { copy::touch_shared(cells, at) }
        } else {
            // SAFETY: read-only memory is allocated while `self` lives; volatile, so that the read
            // happens although its result is unused (memory-model rule 3).
            let _ =
                unsafe { ptr::read_volatile(segment.span().part(offset, 1).as_ptr().cast_const()) };
        }
    }
}
