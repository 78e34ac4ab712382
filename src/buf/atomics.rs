//! Atomic operations of peers on the regions of a payload (memory-model rule 6).

use super::access_error::AccessError;
use super::copy;
use super::memory::Memory;
use super::payload::Payload;
use super::region::RegionMemory;
use crate::error::Refusal;

impl Payload {
    /// Checks that the payload consists of aligned numbers of `size` bytes, each within one buffer
    /// of a region of owned memory.
    pub(crate) fn check_atomics(&self, size: usize) -> Result<(), Refusal> {
        self.parts().iter().try_for_each(|part| match part {
            Memory::Region(it) => it.memory().check_atomics(it.offset(), it.len(), size),
            Memory::Owned(_) => Err(Refusal::Unsupported),
        })
    }

    /// Calls `change` with the offset in the payload and the value of each number of `size` bytes
    /// (at the front of an array), and stores the result atomically, if there is one; calls it
    /// again if the number changed in between. If a gate refuses, no number is changed; if the
    /// owner of device memory fails, only the numbers before that are changed. The payload has been
    /// [checked](Self::check_atomics).
    pub(crate) fn update_each(
        &self,
        size: usize,
        mut change: impl FnMut(usize, [u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<(), AccessError> {
        let _leases = self.lease()?;
        let mut done = 0;
        for part in self.parts() {
            if let Memory::Region(it) = part {
                let change = |at: usize, seen| change(done + at, seen);
                // SAFETY: an entry of the region's gate is among the leases, which are held to the
                // end of this function, or in the part itself.
                unsafe {
                    it.memory()
                        .update_inside(it.offset(), it.len(), size, change)?;
                }
            }
            done += part.len();
        }
        Ok(())
    }
}

impl RegionMemory {
    pub(super) fn check_atomics(
        &self,
        offset: usize,
        len: usize,
        size: usize,
    ) -> Result<(), Refusal> {
        if self.is_kernel_only() {
            return Err(Refusal::Unsupported);
        }
        self.try_each(offset, len, |segment, at, len| {
            let address = segment.span().as_ptr().addr().wrapping_add(at);
            let fits = address.is_multiple_of(size) && len.is_multiple_of(size);
            fits.then_some(()).ok_or(Refusal::Misaligned)
        })
    }

    /// Like [`Payload::update_each`], for a range that has been checked.
    ///
    /// # Safety
    /// An entry of this region's gate is held during the call.
    unsafe fn update_inside(
        &self,
        offset: usize,
        len: usize,
        size: usize,
        mut change: impl FnMut(usize, [u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<(), AccessError> {
        if let Some(device) = self.device() {
            return (0..len).step_by(size).try_for_each(|at| {
                (device.update(offset + at, size, |seen| change(at, seen))).map(|_| ())
            });
        }
        let mut done = 0;
        self.try_each(offset, len, |segment, at, len| {
            for at in (at..at + len).step_by(size) {
                let place = done;
                done += size;
                if !self.is_writable() {
                    let mut seen = [0; 8];
                    // SAFETY: read-only memory is allocated while `self` lives and never written
                    // (memory-model rule 3), so a plain read is atomic.
                    unsafe { copy::read_plain(segment.span().part(at, size), &mut seen[..size]) };
                    let changed = change(place, seen);
                    debug_assert!(changed.is_none(), "read-only memory grants no change");
                    continue;
                }
                let (cells, at) = segment.cells(at);
                // SAFETY: the span is a whole segment of writable region memory, which stays
                // allocated by the caller's promise (memory-model rule 4). Only the shared
                // functions touch it, because the exclusion cannot coexist with an entry (rules 2,
                // 3, 6).
                let seen =
                    unsafe { copy::update_shared(cells, at, size, |seen| change(place, seen)) };
                debug_assert!(seen.is_some(), "checked to be aligned and within");
            }
            Ok(())
        })
    }
}
