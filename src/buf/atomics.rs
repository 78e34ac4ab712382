//! Atomic operations of peers on the regions of a payload (memory-model rule 6).

use super::copy;
use super::memory::Memory;
use super::payload::Payload;
use super::region::RegionMemory;
use crate::error::Refusal;
use crate::sync::GateError;

impl Payload {
    /// Asks whether all of it can be changed number by number, each of `size` bytes: whether these
    /// are aligned, and each within one buffer of a region whose memory has an owner.
    pub(crate) fn judge_atomics(&self, size: usize) -> Result<(), Refusal> {
        self.parts().iter().try_for_each(|part| match part {
            Memory::Region(it) => it.memory().judge_atomics(it.offset(), it.len(), size),
            Memory::Owned(_) => Err(Refusal::Unsupported),
        })
    }

    /// Offers each number of `size` bytes, at the front of an array, with its place in the payload
    /// to `change`, and puts what that makes of it in its place, atomically: perhaps after it has
    /// been offered again, since it had changed meanwhile. All of them, or none where a gate is
    /// shut. What it is of has been [judged](Self::judge_atomics).
    pub(crate) fn update_each(
        &self,
        size: usize,
        mut change: impl FnMut(usize, [u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<(), GateError> {
        let _leases = self.lease()?;
        let mut done = 0;
        for part in self.parts() {
            if let Memory::Region(it) = part {
                let change = |at: usize, seen| change(done + at, seen);
                // SAFETY: an entry of the region's gate is among the leases, which are held to the
                // end of this function, or in the part itself.
                unsafe {
                    it.memory()
                        .update_inside(it.offset(), it.len(), size, change);
                }
            }
            done += part.len();
        }
        Ok(())
    }
}

impl RegionMemory {
    fn judge_atomics(&self, offset: usize, len: usize, size: usize) -> Result<(), Refusal> {
        if self.is_kernel_only() {
            return Err(Refusal::Unsupported);
        }
        self.try_each(offset, len, |segment, at, len| {
            let address = segment.span().as_ptr().addr().wrapping_add(at);
            let fits = address.is_multiple_of(size) && len.is_multiple_of(size);
            fits.then_some(()).ok_or(Refusal::Misaligned)
        })
    }

    /// As [`Payload::update_each`], for a range that has been judged.
    ///
    /// # Safety
    /// An entry of this region's gate is held during the call.
    unsafe fn update_inside(
        &self,
        offset: usize,
        len: usize,
        size: usize,
        mut change: impl FnMut(usize, [u8; 8]) -> Option<[u8; 8]>,
    ) {
        let mut done = 0;
        let Ok(()) = self.try_each(offset, len, |segment, at, len| {
            for at in (at..at + len).step_by(size) {
                let place = done;
                done += size;
                if !self.is_writable() {
                    let mut seen = [0; 8];
                    // SAFETY: read-only memory is allocated while `self` lives and written by
                    // nobody (memory-model rule 3), so that reading it is atomic.
                    unsafe { copy::read_plain(segment.span().part(at, size), &mut seen[..size]) };
                    let changed = change(place, seen);
                    debug_assert!(changed.is_none(), "read-only memory grants no change");
                    continue;
                }
                let (cells, at) = segment.cells(at);
                // SAFETY: a whole segment of writable region memory, allocated by the caller's
                // promise (memory-model rule 4), and touched through the shared functions only, as
                // the exclusion cannot coexist with an entry (rules 2, 3, 6).
                let seen =
                    unsafe { copy::update_shared(cells, at, size, |seen| change(place, seen)) };
                debug_assert!(seen.is_some(), "judged to be aligned and within");
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
}
