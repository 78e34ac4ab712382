//! The memory of an operation: owned buffers and ranges of regions, in order.

mod on_arrival;

use smallvec::SmallVec;

use super::access_error::AccessError;
use super::buffer::Buffer;
use super::copy_ends::{CopyFrom, CopyTo};
use super::memory::{Memory, RegionUse};
use super::owned_buffer::OwnedBuffer;
use super::span::{Span, SpanList};
use crate::limits::DEVICE_PIECE_MAX;
use crate::sync::{GateError, GateGuard, Role};
use on_arrival::OnArrival;
pub(crate) use on_arrival::{try_copied, zeroed};

/// The memory of one operation, part after part, addressed as one range of bytes. A payload is
/// moved by value: its owner may touch the bytes, and the kernel may do so only while the transport
/// owns the payload. Moving a payload moves no byte.
///
/// Invariant: `len` is the sum of the parts' lengths.
#[derive(Debug)]
pub struct Payload {
    parts: Parts,
    len: usize,
}

/// One part is the usual case and takes no allocation.
#[derive(Debug)]
enum Parts {
    None,
    One(Memory),
    Many(Vec<Memory>),
    /// No memory: as many zeros as the payload is long.
    Zeros,
    /// Memory that is allocated once its size is known.
    OnArrival(Box<OnArrival>),
}

/// Slices of bytes in place, in order. Up to 16 slices, the frames of a few messages, need no
/// allocation.
#[cfg(feature = "tls")]
pub(crate) type Slices<'a> = SmallVec<[&'a [u8]; 16]>;

/// Zeros to be sent.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

impl Parts {
    fn as_slice(&self) -> &[Memory] {
        match self {
            Parts::None | Parts::Zeros => &[],
            Parts::One(memory) => std::slice::from_ref(memory),
            Parts::Many(parts) => parts,
            Parts::OnArrival(arrival) => arrival.memory.as_slice(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Memory] {
        match self {
            Parts::None | Parts::Zeros => &mut [],
            Parts::One(memory) => std::slice::from_mut(memory),
            Parts::Many(parts) => parts,
            Parts::OnArrival(arrival) => arrival.memory.as_mut_slice(),
        }
    }
}

impl Payload {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Payload {
            parts: Parts::None,
            len: 0,
        }
    }

    /// Takes the memory, and leaves none in its place.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Payload::empty())
    }

    #[inline]
    pub(crate) fn from_memory(memory: Memory) -> Self {
        Payload {
            len: memory.len(),
            parts: Parts::One(memory),
        }
    }

    pub(crate) fn from_parts(mut parts: Vec<Memory>) -> Self {
        let len = parts
            .iter()
            .try_fold(0usize, |sum, part| sum.checked_add(part.len()));
        Payload {
            len: len.expect("a few parts of one address space add up within a usize"),
            parts: match parts.len() {
                0 => Parts::None,
                1 => parts.pop().map_or(Parts::None, Parts::One),
                _ => Parts::Many(parts),
            },
        }
    }

    /// Makes the memory that a peer's RMA names: the source of a read response, the target of a
    /// write.
    pub(crate) fn from_region_uses(uses: Vec<RegionUse>) -> Self {
        Self::from_parts(uses.into_iter().map(Memory::Region).collect())
    }

    /// Appends a region's range. One alone takes no allocation.
    pub(crate) fn push_region(&mut self, region: RegionUse) {
        let len = self.len.checked_add(region.len());
        self.len = len.expect("a few parts of one address space add up within a usize");
        let region = Memory::Region(region);
        self.parts = match std::mem::replace(&mut self.parts, Parts::None) {
            Parts::None => Parts::One(region),
            Parts::One(first) => Parts::Many(vec![first, region]),
            Parts::Many(mut parts) => {
                parts.push(region);
                Parts::Many(parts)
            }
            Parts::Zeros | Parts::OnArrival(_) => {
                unreachable!("only regions are put together")
            }
        };
    }

    /// Zeros to be sent, `len` of them, which take no memory.
    pub(crate) fn zeros(len: usize) -> Self {
        Payload {
            parts: Parts::Zeros,
            len,
        }
    }

    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        Self::from_memory(Memory::Owned(bytes.into()))
    }

    /// Copies these bytes to the heap, so that their address does not move with the payload.
    pub(crate) fn copied(bytes: &[u8]) -> Self {
        match bytes {
            [] => Self::empty(),
            bytes => Self::from_vec(bytes.to_vec()),
        }
    }

    pub(super) fn parts(&self) -> &[Memory] {
        self.parts.as_slice()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns where its first part begins. Compared with the beginning of a buffer for several
    /// messages this gives the offset of the message in it.
    pub(crate) fn begin(&self) -> Option<usize> {
        self.parts.as_slice().first().map(Memory::begin)
    }

    /// How many buffers and ranges of regions it consists of, empty ones included.
    pub(crate) fn buffer_count(&self) -> usize {
        self.parts.as_slice().len()
    }

    /// True if every part may be received into.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.parts, Parts::Zeros) && self.parts.as_slice().iter().all(Memory::is_writable)
    }

    /// Ends the operation after `moved` bytes were moved: cuts offered capacity to what was
    /// received, and leaves the gates of regions, so that a drain does not wait until the
    /// application fetches the result.
    pub(crate) fn end(&mut self, moved: usize) {
        let (mut left, mut len) = (moved, 0);
        for part in self.parts.as_mut_slice() {
            let here = left.min(part.len());
            left -= here;
            match part {
                Memory::Region(region) => region.exit_gate(),
                Memory::Owned(owned) => owned.cut_spare(here),
            }
            len += part.len();
        }
        match self.parts {
            Parts::Zeros => {}
            Parts::OnArrival(_) => self.end_arrival(moved),
            _ => self.len = len,
        }
    }

    /// Copies the first `len` bytes to newly allocated memory. Fails if a gate refuses.
    pub(crate) fn copy_front(&self, len: usize) -> Result<Self, AccessError> {
        let mut bytes = vec![0; len];
        self.copy_out(0, &mut bytes)?;
        Ok(Self::from_vec(bytes))
    }

    /// Copies `bytes` to `offset`; all of them must lie within. Enters the gate for each part that
    /// a peer's operation uses; if a gate refuses, the bytes before its part have been copied, and
    /// no others.
    #[inline]
    pub(crate) fn copy_in(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.copy_in_from(offset, CopyFrom::Slice(bytes))
    }

    /// As [`copy_in`](Self::copy_in), from any source.
    #[inline(always)]
    pub(crate) fn copy_in_from(
        &mut self,
        offset: usize,
        mut from: CopyFrom<'_>,
    ) -> Result<(), AccessError> {
        self.assert_within(offset, from.len());
        debug_assert!(!matches!(self.parts, Parts::Zeros), "zeros are only sent");
        let mut skip = offset;
        for part in self.parts.as_mut_slice() {
            if from.len() == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let now = from.split_front(from.len().min(part.len() - skip));
            match part {
                // SAFETY: the part is borrowed for change, so the payload is not in the transport
                // and nothing else has its span (memory-model rule 1).
                Memory::Owned(owned) => unsafe { owned.write(skip, &now) },
                Memory::Region(region) => region.copy_in(skip, now)?,
            }
            skip = 0;
        }
        Ok(())
    }

    /// Records that the kernel has written a range, which must lie within.
    ///
    /// # Safety
    /// All bytes of the range have been written through the spans of this payload.
    pub(crate) unsafe fn assume_written(&mut self, offset: usize, len: usize) {
        self.assert_within(offset, len);
        let (mut skip, mut left) = (offset, len);
        for part in self.parts.as_mut_slice() {
            let count = left.min(part.len().saturating_sub(skip));
            if let (Memory::Owned(owned), 1..) = (&mut *part, count) {
                // SAFETY: the caller's promise, of the bytes of the range in this part.
                unsafe { owned.assume_written(skip, count) };
            }
            skip = skip.saturating_sub(part.len());
            left -= count;
        }
    }

    /// Copies from `offset`; all of the range must lie within. Enters gates as [`Payload::copy_in`]
    /// does.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.copy_out_to(offset, CopyTo::Slice(into))
    }

    /// As [`copy_out`](Self::copy_out), to any destination.
    #[inline]
    pub(crate) fn copy_out_to(
        &self,
        offset: usize,
        mut into: CopyTo<'_>,
    ) -> Result<(), AccessError> {
        self.assert_within(offset, into.len());
        if matches!(self.parts, Parts::Zeros) {
            return into.try_slices(|_, part| {
                part.fill(0);
                Ok(())
            });
        }
        let mut skip = offset;
        for part in self.parts.as_slice() {
            if into.len() == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let count = into.len().min(part.len() - skip);
            let mut now = into.split_front(count);
            match part {
                // SAFETY: the kernel only reads a payload that is shared with it, since receiving
                // takes the payload by value; so nothing writes meanwhile (memory-model rule 1).
                Memory::Owned(owned) => unsafe { owned.read(skip, &mut now) },
                Memory::Region(region) => region.copy_out(skip, now)?,
            }
            skip = 0;
        }
        Ok(())
    }

    /// Appends slices of the bytes of a range, which must lie within the payload. Returns false if
    /// no slice may be made of a part of the range (memory-model rule 2): the caller then copies
    /// the range, and ignores the slices that were appended.
    #[cfg(feature = "tls")]
    pub(crate) fn slices<'a>(&'a self, offset: usize, len: usize, into: &mut Slices<'a>) -> bool {
        self.assert_within(offset, len);
        let (mut skip, mut left) = (offset, len);
        for part in self.parts.as_slice() {
            if left == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let count = left.min(part.len() - skip);
            match part {
                // SAFETY: as in `copy_out`: nothing writes to a payload that is shared, and it is
                // shared for as long as the slice lives (memory-model rule 1).
                Memory::Owned(owned) => match unsafe { owned.bytes() }.get(skip..skip + count) {
                    Some(bytes) => into.push(bytes),
                    None => return false,
                },
                Memory::Region(_) => return false,
            }
            skip = 0;
            left -= count;
        }
        left == 0
    }

    /// Copies the first `len` bytes of another payload to the start of this one; both are as long.
    pub(crate) fn copy_from(&mut self, from: &Payload, len: usize) -> Result<(), AccessError> {
        // Unexpected messages lie in buffers of their own, so one part is the usual case; the
        // detour over a small block keeps shared and exclusive memory apart in the other cases.
        let mut block = [0; 4096];
        let mut large = Vec::new();
        let block = match self.is_of_device() {
            true => {
                large.resize(len.min(DEVICE_PIECE_MAX), 0);
                &mut large[..]
            }
            false => &mut block[..],
        };
        let mut at = 0;
        while at < len {
            let step = block.len().min(len - at);
            from.copy_out(at, &mut block[..step])?;
            self.copy_in(at, &block[..step])?;
            at += step;
        }
        Ok(())
    }

    /// Enters the gates of all parts that a peer's operation uses. The leases are held while the
    /// kernel has any span of this payload, and not longer (memory-model rule 4). Refused if any
    /// gate refuses.
    pub(crate) fn lease(&self) -> Result<Leases, GateError> {
        let mut leases = Leases::none();
        for part in self.parts.as_slice() {
            if let Memory::Region(region) = part
                && region.len() > 0
                && let Some(entry) = region.lease()?
            {
                leases.0.push(entry);
            }
        }
        Ok(leases)
    }

    /// True if no peer's operation uses any part, so that a lease would be empty.
    pub(crate) fn needs_no_lease(&self) -> bool {
        self.parts.as_slice().iter().all(|part| match part {
            Memory::Region(it) => it.role() == Role::Local || it.len() == 0,
            Memory::Owned(_) => true,
        })
    }

    /// True if all parts are owned memory, to which no access fails.
    pub(crate) fn is_owned(&self) -> bool {
        self.parts.as_slice().iter().all(|part| match part {
            Memory::Region(region) => region.memory().is_touchable(),
            Memory::Owned(_) => true,
        })
    }

    /// True if any of it is device memory: it has no [spans](Self::spans), and is copied.
    #[inline]
    pub(crate) fn is_of_device(&self) -> bool {
        let is_of_device = |part: &Memory| match part {
            Memory::Region(region) => region.memory().device().is_some(),
            Memory::Owned(_) => false,
        };
        match &self.parts {
            Parts::One(part) => is_of_device(part),
            Parts::Many(parts) => parts.iter().any(is_of_device),
            Parts::None | Parts::Zeros | Parts::OnArrival(_) => false,
        }
    }

    /// Appends the spans of a range, which must lie within, as many as fit into the list; device
    /// memory has none. To be used while this payload is kept, unmoved or moved, and its leases are
    /// held.
    pub(crate) fn spans(&self, offset: usize, len: usize, into: &mut SpanList) {
        self.assert_within(offset, len);
        let mut skip = offset;
        let mut left = len;
        while matches!(self.parts, Parts::Zeros) && left > 0 {
            let part = &ZEROS[..left.min(ZEROS.len())];
            if !into.push(Span::of(part)) {
                return;
            }
            left -= part.len();
        }
        for part in self.parts.as_slice() {
            if left == 0 || into.is_full() {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let count = left.min(part.len() - skip);
            match part {
                Memory::Owned(owned) => {
                    into.push(owned.span().part(skip, count));
                }
                Memory::Region(region) => region.spans(skip, count, into),
            }
            skip = 0;
            left -= count;
        }
    }

    /// Splits the first `len` bytes off; all of them must lie within. Only for memory that a peer
    /// names, ranges of regions: buffers are not cut.
    pub(crate) fn split_front(&mut self, len: usize) -> Payload {
        self.assert_within(0, len);
        let whole = self.take();
        if len == whole.len {
            return whole;
        }
        let (mut front, mut rest) = (Vec::new(), Vec::new());
        let mut left = len;
        for mut part in whole.into_parts() {
            if left < part.len() {
                if let Memory::Region(region) = &mut part
                    && left > 0
                {
                    front.push(Memory::Region(region.split_front(left)));
                }
                left = 0;
                rest.push(part);
            } else {
                left -= part.len();
                front.push(part);
            }
        }
        *self = Payload::from_parts(rest);
        Payload::from_parts(front)
    }

    /// The parts, in order.
    pub(crate) fn into_parts(self) -> Vec<Memory> {
        match self.parts {
            Parts::None | Parts::Zeros => Vec::new(),
            Parts::One(memory) => vec![memory],
            Parts::Many(parts) => parts,
            Parts::OnArrival(arrival) => arrival.memory.into_iter().collect(),
        }
    }

    /// The part, if there is exactly one.
    #[inline]
    pub(crate) fn into_single(self) -> Option<Memory> {
        match self.parts {
            Parts::One(memory) => Some(memory),
            Parts::OnArrival(arrival) => arrival.memory,
            Parts::None | Parts::Zeros | Parts::Many(_) => None,
        }
    }

    /// The user's buffers, in order, for a completion. Ranges of regions are left out: nothing was
    /// taken from the user there, the bytes are in the region.
    pub(crate) fn into_buffers(self) -> SmallVec<[Buffer; 1]> {
        let buffer = |memory| into_owned_buffer(memory).map(Buffer::new);
        match self.parts {
            Parts::None | Parts::Zeros => SmallVec::new(),
            Parts::OnArrival(arrival) => arrival.memory.into_iter().filter_map(buffer).collect(),
            Parts::One(memory) => {
                buffer(memory).map_or_else(SmallVec::new, |one| SmallVec::from_buf([one]))
            }
            Parts::Many(parts) => parts.into_iter().filter_map(buffer).collect(),
        }
    }

    fn assert_within(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "a range lies within its payload"
        );
    }
}

#[inline]
fn into_owned_buffer(memory: Memory) -> Option<OwnedBuffer> {
    match memory {
        Memory::Owned(owned) => Some(owned),
        Memory::Region(_) => None,
    }
}

impl From<OwnedBuffer> for Payload {
    fn from(owned: OwnedBuffer) -> Self {
        Self::from_memory(Memory::Owned(owned))
    }
}

/// Entries of the gates of one payload's regions, for one kernel operation. One region takes no
/// allocation.
#[derive(Debug, Default)]
pub(crate) struct Leases(SmallVec<[GateGuard; 1]>);

impl Leases {
    /// No lease.
    pub(crate) fn none() -> Self {
        Leases::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
