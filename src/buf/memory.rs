//! One part of an operation's memory: a buffer of its own, or a range of a region.

use std::sync::Arc;

use super::access_error::AccessError;
use super::copy_ends::{CopyFrom, CopyTo};
use super::owned_buffer::OwnedBuffer;
use super::region::RegionMemory;
use super::span::SpanList;
use crate::sync::{GateError, GateGuard, HasGate, Role};

/// One part of memory an operation holds.
#[derive(Debug)]
pub enum Memory {
    /// A buffer of its own.
    #[doc(hidden)]
    Owned(OwnedBuffer),
    /// A range of a region.
    #[doc(hidden)]
    Region(RegionUse),
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::Owned(owned) => owned.len(),
            Memory::Region(region) => region.len(),
        }
    }

    /// The beginning of this part, to be compared with other parts of the same buffer or region:
    /// the address of a buffer's first byte, or the offset in a region.
    pub(super) fn begin(&self) -> usize {
        match self {
            Memory::Owned(owned) => owned.span().addresses().start,
            Memory::Region(region) => region.offset,
        }
    }

    /// True if a message may be received into this part.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Memory::Owned(owned) => owned.is_writable(),
            Memory::Region(region) => region.memory.is_writable(),
        }
    }
}

/// An operation's use of a range of a region.
///
/// A local operation is inside the gate from its post to its end, so its memory stays allocated. A
/// peer's operation is not: it enters for each copy or kernel operation
/// ([`Payload::lease`](super::Payload::lease)), and is refused once the region is revoked.
pub struct RegionUse {
    memory: Arc<RegionMemory>,
    offset: usize,
    len: usize,
    /// Present exactly if the role is local and the operation has not ended.
    entry: Option<GateGuard>,
}

impl RegionUse {
    /// A use by an operation of this process, which is inside the gate from now until it is
    /// dropped. The range must lie within the region.
    pub(crate) fn local(
        memory: Arc<RegionMemory>,
        offset: usize,
        len: usize,
    ) -> Result<Self, GateError> {
        let entry = memory.enter_operation()?;
        Ok(Self::new(memory, offset, len, Some(entry)))
    }

    /// A use on behalf of a peer. The range must lie within the region.
    pub(crate) fn remote(memory: Arc<RegionMemory>, offset: usize, len: usize) -> Self {
        Self::new(memory, offset, len, None)
    }

    fn new(memory: Arc<RegionMemory>, offset: usize, len: usize, entry: Option<GateGuard>) -> Self {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= memory.len()),
            "a use lies within its region"
        );
        RegionUse {
            memory,
            offset,
            len,
            entry,
        }
    }

    pub(crate) fn memory(&self) -> &Arc<RegionMemory> {
        &self.memory
    }

    /// Offset of the use in the region, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn role(&self) -> Role {
        match self.entry {
            Some(_) => Role::Local,
            None => Role::Remote,
        }
    }

    /// Checks that the pages of an address range are present, so that an access is refused before
    /// it begins. Owned memory always passes.
    pub(crate) fn probe(&self, for_writing: bool) -> Result<(), AccessError> {
        if !self.memory.is_kernel_only() {
            return Ok(());
        }
        let _lease = self.lease()?;
        self.memory.probe(self.offset, self.len, for_writing)
    }

    /// Returns a part of a local use, with its own entry in the gate.
    pub(super) fn part(&self, at: usize, len: usize) -> RegionUse {
        let entry = self.entry.as_ref().map(GateGuard::another);
        debug_assert!(entry.is_some(), "the operation has not ended");
        Self::new(Arc::clone(&self.memory), self.offset + at, len, entry)
    }

    /// Returns the offset of this use in `whole`; `None` if `whole` is of another region, or begins
    /// later.
    pub(super) fn place_in(&self, whole: &RegionUse) -> Option<usize> {
        let is_within = Arc::ptr_eq(&self.memory, &whole.memory);
        let place = self.offset.checked_sub(whole.offset);
        place.filter(|_| is_within)
    }

    /// Splits the first `len` bytes off a peer's use, which has more bytes.
    pub(super) fn split_front(&mut self, len: usize) -> RegionUse {
        debug_assert!(self.entry.is_none(), "a local use is whole");
        let front = Self::remote(Arc::clone(&self.memory), self.offset, len);
        self.offset += len;
        self.len -= len;
        front
    }

    /// Leaves the gate when the operation ends, before its result is fetched.
    pub(super) fn exit_gate(&mut self) {
        self.entry = None;
    }

    /// Enters the gate if this use is not inside already.
    pub(super) fn lease(&self) -> Result<Option<GateGuard>, GateError> {
        match self.entry {
            Some(_) => Ok(None),
            None => self.memory.enter_owned(Role::Remote).map(Some),
        }
    }

    /// Copies `bytes` to `at` of the range, where they must fit.
    pub(super) fn copy_in(&self, at: usize, bytes: CopyFrom<'_>) -> Result<(), AccessError> {
        let _lease = self.lease()?;
        // SAFETY: an entry is held to the end: the use's own, or the one just taken.
        unsafe { self.memory.write_inside(self.offset + at, bytes) }
    }

    /// Copies from `at` of the range; all bytes to copy must lie within.
    pub(super) fn copy_out(&self, at: usize, into: CopyTo<'_>) -> Result<(), AccessError> {
        let _lease = self.lease()?;
        // SAFETY: an entry is held to the end: the use's own, or the one just taken.
        unsafe { self.memory.read_inside(self.offset + at, into) }
    }

    /// Appends the spans of a part of the range; see [`super::Payload::spans`].
    pub(super) fn spans(&self, at: usize, len: usize, into: &mut SpanList) {
        self.memory.spans(self.offset + at, len, into);
    }
}

debug_fields!(RegionUse, self => offset: self.offset, len: self.len, role: self.role());
