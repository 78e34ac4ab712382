//! Atomic operations of this process on a region's memory (memory-model rule 6).

use super::core::access_error;
use super::region::MemoryRegion;
use crate::error::{Error, ErrorKind, Result};

/// An integer type for atomic access to regions: `u8` to `u64`, `i8` to `i64`. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let region = domain.register(vec![41u8, 0, 0, 0]).await?;
/// assert_eq!(region.fetch_add(0, 1u8)?, 41);
/// assert_eq!(region.load::<u8>(0)?, 42);
/// # Ok(()) }
/// ```
pub trait AtomicInteger: Integer {}

/// The functions of an integer that atomic operations need. Seals [`AtomicInteger`].
pub trait Integer: Copy + Ord + std::fmt::Debug {
    #[doc(hidden)]
    const SIZE: usize;
    #[doc(hidden)]
    fn to_front(self) -> [u8; 8];
    #[doc(hidden)]
    fn from_front(bytes: [u8; 8]) -> Self;
    #[doc(hidden)]
    fn plus(self, other: Self) -> Self;
    #[doc(hidden)]
    fn and(self, other: Self) -> Self;
    #[doc(hidden)]
    fn or(self, other: Self) -> Self;
    #[doc(hidden)]
    fn xor(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl AtomicInteger for $integer {}

        impl Integer for $integer {
            const SIZE: usize = size_of::<$integer>();

            fn to_front(self) -> [u8; 8] {
                let mut bytes = [0; 8];
                bytes[..Self::SIZE].copy_from_slice(&self.to_ne_bytes());
                bytes
            }

            fn from_front(bytes: [u8; 8]) -> Self {
                let mut own = [0; Self::SIZE];
                own.copy_from_slice(&bytes[..Self::SIZE]);
                Self::from_ne_bytes(own)
            }

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn and(self, other: Self) -> Self {
                self & other
            }

            fn or(self, other: Self) -> Self {
                self | other
            }

            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

/// Atomic access by this process. Each call reads and changes the whole integer at once with
/// respect to every other such call on the memory, also through other regions and domains, and to
/// peers' atomic operations. Loads have acquire ordering, stores release ordering. Writes of peers
/// and [`write_at`](Self::write_at) are not atomic: a load can see a part of one. Integers have
/// this machine's byte order.
///
/// Every call fails with `InvalidArgument` if the address of the integer (not its offset: a buffer
/// of bytes may begin anywhere) is not a multiple of its size, or if the integer is not within one
/// buffer of the region; with `Unsupported` for address ranges; with `BadState` if the region is
/// deregistered; and with `Busy` while it is quiesced or refreshed.
impl<B: 'static> MemoryRegion<B> {
    /// Loads the integer at `offset`.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn load<T: AtomicInteger>(&self, offset: usize) -> Result<T> {
        self.update(offset, |_| None)
    }

    /// Stores an integer at `offset`.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn store<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<()> {
        self.update(offset, |_: T| Some(value)).map(|_| ())
    }

    /// Stores an integer at `offset` and returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn swap<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |_| Some(value))
    }

    /// Stores `new` at `offset` if the current value is `current`. Returns the previous value: `Ok`
    /// if it was replaced, otherwise `Err`.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn compare_exchange<T: AtomicInteger>(
        &self,
        offset: usize,
        current: T,
        new: T,
    ) -> Result<Result<T, T>> {
        let seen = self.update(offset, |seen| (seen == current).then_some(new))?;
        Ok(if seen == current { Ok(seen) } else { Err(seen) })
    }

    /// Adds to the integer at `offset`, with wrapping, and returns the previous value. To subtract,
    /// add `value.wrapping_neg()`.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_add<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.plus(value)))
    }

    /// Bitwise AND of the integer at `offset` and `value`; returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_and<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.and(value)))
    }

    /// Bitwise OR of the integer at `offset` and `value`; returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_or<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.or(value)))
    }

    /// Bitwise XOR of the integer at `offset` and `value`; returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_xor<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.xor(value)))
    }

    /// Stores the smaller of the integer at `offset` and `value`; returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_min<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.min(value)))
    }

    /// Stores the larger of the integer at `offset` and `value`; returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn fetch_max<T: AtomicInteger>(&self, offset: usize, value: T) -> Result<T> {
        self.update(offset, |seen: T| Some(seen.max(value)))
    }

    /// Calls `change` with the integer at `offset` and stores the result, if there is one. If the
    /// integer was changed in between, calls it again. Returns the previous value.
    ///
    /// # Errors
    /// The errors of all atomic methods, described above.
    pub fn update<T: AtomicInteger>(
        &self,
        offset: usize,
        mut change: impl FnMut(T) -> Option<T>,
    ) -> Result<T> {
        let memory = self.memory();
        if memory.is_kernel_only() {
            let what = "there are no atomics on address ranges";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let change = |seen| change(T::from_front(seen)).map(Integer::to_front);
        let seen = memory
            .update(offset, T::SIZE, change)
            .map_err(access_error)?;
        seen.map(T::from_front).ok_or_else(|| {
            let what = "offset does not name an aligned integer within one buffer of the region";
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }
}
