//! Values in a region's memory, through `zerocopy`: as copies, or as references through the
//! `Quiesced` guard, where references are sound.

use std::ops::RangeBounds;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::core::local_range;
use super::quiesce::Quiesced;
use super::region::MemoryRegion;
use crate::error::{Error, ErrorKind, Result};

impl<B: 'static> MemoryRegion<B> {
    /// Copies a value out of the region, from `offset` on, which need not be aligned. Every byte
    /// pattern is a valid value; a byte that is written meanwhile has either its old or its new
    /// value.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn read_value<T: FromBytes>(&self, offset: usize) -> Result<T> {
        let mut bytes = vec![0; size_of::<T>()];
        self.read_at(offset, &mut bytes)?;
        Ok(T::read_from_bytes(&bytes).expect("there are as many bytes as the value has"))
    }

    /// Copies a value, or a slice of values, to `offset` of the region, which need not be aligned.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn write_value<T: IntoBytes + Immutable + ?Sized>(
        &self,
        offset: usize,
        value: &T,
    ) -> Result<()> {
        self.write_at(offset, value.as_bytes())
    }
}

impl Quiesced {
    /// A range of the region's first buffer as a value, or as a slice of values.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not within the buffer, not as long as the value (or a
    /// whole number of them), or not aligned for it in memory.
    pub fn view<T>(&self, range: impl RangeBounds<usize>) -> Result<&T>
    where
        T: FromBytes + KnownLayout + Immutable + ?Sized,
    {
        let (offset, len) = local_range(range, self.len())?;
        T::ref_from_bytes(&self[offset..offset + len]).map_err(|_| unfit())
    }

    /// As [`view`](Self::view), mutably.
    ///
    /// # Errors
    /// As for [`view`](Self::view).
    pub fn view_mut<T>(&mut self, range: impl RangeBounds<usize>) -> Result<&mut T>
    where
        T: FromBytes + IntoBytes + KnownLayout + ?Sized,
    {
        let (offset, len) = local_range(range, self.len())?;
        T::mut_from_bytes(&mut self[offset..offset + len]).map_err(|_| unfit())
    }
}

fn unfit() -> Error {
    let what = "the range has not the length, or not the alignment, of such values";
    Error::new(ErrorKind::InvalidArgument, what)
}
