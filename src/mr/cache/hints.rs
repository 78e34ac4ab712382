//! Where a range was found the last time it was asked for.
//!
//! Only a guess: whoever takes it looks whether what is there now serves the range. So nothing has
//! to be taken out when a registration goes, and two ranges with one slot only slow each other.

use std::ops::Range;

/// As many as libfabric's default of registrations, so that a cache of that size has few
/// collisions.
const SLOTS: usize = 2048;
const NONE: u32 = u32::MAX;

pub(super) struct Hints {
    places: Box<[u32; SLOTS]>,
}

impl Hints {
    pub(super) fn new() -> Self {
        Hints {
            places: Box::new([NONE; SLOTS]),
        }
    }

    pub(super) fn get(&self, range: &Range<usize>) -> Option<usize> {
        let place = self.places[slot(range)];
        (place != NONE).then_some(place as usize)
    }

    pub(super) fn set(&mut self, range: &Range<usize>, place: usize) {
        self.places[slot(range)] = u32::try_from(place).unwrap_or(NONE);
    }
}

/// The high bits of a product with an odd number of no pattern: starts differ in few bits, and
/// those often are a page's.
fn slot(range: &Range<usize>) -> usize {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    const SHIFT: u32 = u64::BITS - SLOTS.trailing_zeros();
    ((range.start as u64).wrapping_mul(ODD) >> SHIFT) as usize
}
