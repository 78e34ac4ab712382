//! The pages behind a region: making them present, and asking whether they are there.

use std::io;
use std::ops::Range;
use std::ptr;

use super::access_error::AccessError;
use super::copy;
use super::intervals::Intervals;
use super::range;
use super::region::{RegionMemory, Segment};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::READ_DATA_MAX;
use crate::sync::{GateError, Role};

/// The rights under which somebody writes to a region: `FI_READ`, `FI_RECV`, `FI_REMOTE_WRITE`.
const WRITING_RIGHTS: u64 = 1 << 8 | 1 << 10 | 1 << 13;
/// Bytes of one look at an address range before it is accessed; what is larger is looked at in its
/// first part, since finding pages takes time: about 0.1 us each, which is 0.1 ms for this many.
const PROBE_MAX: usize = READ_DATA_MAX;

impl RegionMemory {
    /// Makes the pages of a range present, as `FI_MR_ALLOCATED` promises; the bytes keep their
    /// values. Blocks for as long as the kernel needs to find and clear the pages: call it off the
    /// runtime's workers, by chunks, and look in between whether anyone still wants it.
    ///
    /// A closed or quiesced region is `Err` of kind `BadState`; so is, with the system's own kind,
    /// memory that cannot be had (a page that faults, poisoned memory).
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

    /// As [`RegionMemory::fault_in`], and takes note of the pages for `FI_MR_MMU_NOTIFY`. Also
    /// while the region is being refreshed.
    pub(crate) fn find_pages(&self, from: usize, len: usize) -> Result<()> {
        match self.gate().enter(Role::Local) {
            Ok(_entry) => self.fault_in(from, len)?,
            // Whoever refreshes holds the region, so owned memory is there; and of the rest only
            // the kernel looks.
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

    /// Makes the bytes of a range persistent, as far as its file does. Blocks for as long as the
    /// device takes. To be called while a lease is held.
    pub(super) fn flush(&self, from: usize, len: usize) -> io::Result<()> {
        self.try_each(from, len, |segment, at, len| {
            range::synchronize(segment.span().part(at, len))
        })
    }

    /// The pages of a range are not known any more.
    pub(crate) fn forget_pages(&self, part: Range<usize>) {
        self.change_backed(|backed| backed.remove(part));
    }

    /// Takes note of those pages of a range that are there now, and makes none.
    pub(crate) fn note_pages(&self, from: usize, len: usize) -> Result<()> {
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

    /// True if anything may write to it: then its pages must be there for writing.
    fn is_written(&self) -> bool {
        self.is_writable() && (!self.is_kernel_only() || self.rights() & WRITING_RIGHTS != 0)
    }

    /// Asks whether an address range can be accessed so, before anything of the access happens.
    /// Owned memory can. No more than [`PROBE_MAX`] bytes are looked at.
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
            len.min(PROBE_MAX),
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
            // happens although nobody wants its result (memory-model rule 3).
            let _ =
                unsafe { ptr::read_volatile(segment.span().part(offset, 1).as_ptr().cast_const()) };
        }
    }
}
