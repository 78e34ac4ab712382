//! A domain's registration cache (`fi_mr(3)`, "memory registration cache").

mod builder;
mod register;

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use crate::buf::{SharedMemory, range_within};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::mr::{CacheShared, CacheWatch};
use crate::stats::CacheStats;

use super::Domain;

pub use builder::RegistrationCacheBuilder;
pub use register::{CacheRegister, CacheRegistration};

/// A cache of memory registrations.
///
/// It keeps idle registrations and finds them again by address, and so "avoids the overhead of
/// registering and unregistering a data buffer with each transfer" (`fi_mr(3)`). It is also a way
/// to satisfy [`MrMode::LOCAL`](crate::info::MrMode::LOCAL) in a program that allocates and frees
/// many buffers.
///
/// The cache is explicit: you pass it memory that all its owners share ([`SharedMemory`]), so a
/// registration that is found by its address always covers the memory that is now at that address.
/// It does not intercept functions of the C library, and works with any allocator. (An
/// [`AddressRange`](crate::buf::AddressRange) owns no memory; [`CacheWatch`] determines how the
/// cache learns that it was unmapped.) A registration keeps its memory alive. The cache removes an
/// idle registration when
/// - the last handle of its [`SharedBuffer`](crate::buf::SharedBuffer) is dropped, or
/// - the cache is the only remaining owner of its `Bytes` or `Arc<[u8]>`, which is checked from
///   time to time, or
/// - other registrations need its place ([`max_size`](RegistrationCacheBuilder::max_size),
///   [`max_count`](RegistrationCacheBuilder::max_count)); the least recently used one is removed
///   first, or
/// - the application calls [`forget`](Self::forget) or [`clear`](Self::clear).
///
/// While a registration has no handle, peers and operations are refused. A registration serves
/// requests for ranges that it covers and for the same rights. If these include rights for peers,
/// it serves only requests for exactly its range (unless regions are merged), because its key gives
/// a peer access to all of it.
///
/// Clones are handles of the same cache. When the last one is dropped, registrations in use
/// continue until their last handle is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::SharedBuffer;
/// use tokio_fabric::{Fabric, Hints};
///
/// let cache = Fabric::open(Hints::new())?.domain().open()?.cache().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 4096]);
/// for _ in 0..10 {
///     let region = cache.register(&buffer, 0..1024).await?;
///     region.write_at(0, b"used by one request")?;
/// }
/// assert_eq!((cache.stats().misses, cache.stats().hits), (1, 9));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RegistrationCache {
    domain: Domain,
    shared: Arc<CacheShared>,
}

impl RegistrationCache {
    /// Requests a registration of a range of this memory, in bytes from its start. If it is in the
    /// cache, the request completes immediately and without an allocation; otherwise the memory is
    /// registered, as [`Domain::register`] would do it.
    pub fn register<'a, M: SharedMemory>(
        &'a self,
        memory: &'a M,
        range: impl RangeBounds<usize>,
    ) -> CacheRegister<'a, M> {
        CacheRegister::new(self, memory, resolve(memory.addresses(), range))
    }

    /// Removes every registration of any part of this range of memory. The owner of the memory
    /// calls this before the memory changes or is freed. Registrations in use end with their last
    /// handle. Returns the number of removed registrations.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not entirely within the memory.
    pub fn forget<M: SharedMemory>(
        &self,
        memory: &M,
        range: impl RangeBounds<usize>,
    ) -> Result<usize> {
        let range = resolve(memory.addresses(), range).ok_or_else(outside)?;
        Ok(self.shared.forget(&range))
    }

    /// Removes all idle registrations and returns how many there were.
    pub fn clear(&self) -> usize {
        self.shared.clear()
    }

    /// Statistics of the cache.
    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// The largest total size in bytes of the regions that the cache tracks; `None`: no limit.
    pub fn max_size(&self) -> Option<usize> {
        Some(self.shared.settings().size_max).filter(|max| *max < usize::MAX)
    }

    /// The largest number of regions that the cache tracks.
    pub fn max_count(&self) -> usize {
        self.shared.settings().count_max
    }

    /// Whether ranges that overlap or are adjacent are registered as one region.
    pub fn merges_regions(&self) -> bool {
        self.shared.settings().merges
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.shared.capacity()
    }

    /// How the cache learns that address ranges are unmapped.
    pub fn watch(&self) -> CacheWatch {
        self.shared.settings().watch
    }

    /// The domain whose registrations the cache holds.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// Returns the addresses of a range of the memory; `None` if it is not entirely within.
fn resolve(memory: Range<usize>, range: impl RangeBounds<usize>) -> Option<Range<usize>> {
    let part = range_within(memory.len(), range)?;
    Some(memory.start + part.start..memory.start + part.end)
}

pub(super) fn outside() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "range is not all within the memory",
    )
    .with_operation(OperationKind::Register)
}
