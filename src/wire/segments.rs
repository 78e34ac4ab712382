//! The pieces of remote memory that a read, a write or an atomic operation accesses.

use std::fmt;

use super::WireError;
use crate::limits::{HEADER_SIZE_MAX, RMA_IOV_LIMIT};

/// Largest sum of the segments' lengths of one operation. With any header, the length of the frame
/// stays below 2^64.
const SEGMENTS_LEN_MAX: u64 = u64::MAX - HEADER_SIZE_MAX as u64;

/// A piece of the receiver's memory that a read or write accesses (`struct fi_rma_iov`). The
/// receiver's region table decides whether it exists and may be accessed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemoteSegment {
    /// Start: offset into the region, or virtual address, by the receiver's domain.
    pub(crate) addr: u64,
    /// Bytes; 0 is legal.
    pub(crate) len: u64,
    /// The region's key.
    pub(crate) key: u64,
}

impl fmt::Debug for RemoteSegment {
    /// Leaves the key out: a reader of the key could use the memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSegment")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The one to four segments of a read or write, in payload order.
///
/// Invariants: the lengths add up to at most 2^64 - 121; `Several` has two to four segments.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Segments {
    /// The usual case, without an allocation.
    One(RemoteSegment),
    /// Boxed, so that headers, which are moved often, stay small.
    Several(Box<[RemoteSegment]>),
}

impl Segments {
    /// Creates the list, or fails with [`WireError::SegmentCount`] for none or more than
    /// [`RMA_IOV_LIMIT`] segments, or with [`WireError::SegmentsOverflow`] if no frame could carry
    /// their bytes.
    pub(crate) fn new(segments: &[RemoteSegment]) -> Result<Self, WireError> {
        if !(1..=RMA_IOV_LIMIT).contains(&segments.len()) {
            return Err(WireError::SegmentCount(segments.len()));
        }
        segments
            .iter()
            .try_fold(0_u64, |sum, segment| sum.checked_add(segment.len))
            .filter(|total| *total <= SEGMENTS_LEN_MAX)
            .ok_or(WireError::SegmentsOverflow)?;
        Ok(match segments {
            [one] => Segments::One(*one),
            several => Segments::Several(several.into()),
        })
    }

    /// Returns the segments in order; never empty.
    pub(crate) fn as_slice(&self) -> &[RemoteSegment] {
        match self {
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Several(several) => several,
        }
    }

    /// Bytes of all segments together.
    pub(crate) fn total(&self) -> u64 {
        self.as_slice().iter().map(|segment| segment.len).sum()
    }

    /// Cuts the segments to `len` bytes in total, in order. Returns how many bytes are missing.
    pub(crate) fn cut_to(&mut self, len: u64) -> u64 {
        let segments = match self {
            Segments::One(one) => std::slice::from_mut(one),
            Segments::Several(several) => several,
        };
        segments.iter_mut().fold(len, |left, segment| {
            segment.len = segment.len.min(left);
            left - segment.len
        })
    }

    /// Takes `count` segments from the words of an extension.
    pub(super) fn read(
        count: u8,
        words: &mut impl Iterator<Item = u64>,
    ) -> Result<Self, WireError> {
        let count = usize::from(count);
        let mut list = [RemoteSegment::default(); RMA_IOV_LIMIT];
        let places = list
            .get_mut(..count)
            .ok_or(WireError::SegmentCount(count))?;
        for place in places.iter_mut() {
            let (Some(addr), Some(len), Some(key)) = (words.next(), words.next(), words.next())
            else {
                return Err(WireError::SegmentCount(count));
            };
            *place = RemoteSegment { addr, len, key };
        }
        Segments::new(places)
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}
