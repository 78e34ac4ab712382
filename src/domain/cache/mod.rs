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

/// Registrations that are kept while they are idle, and found again by their addresses: it "avoids
/// the overhead of registering and unregistering a data buffer with each transfer" (`fi_mr(3)`). It
/// is also the way to meet [`MrMode::LOCAL`](crate::info::MrMode::LOCAL) in a program whose buffers
/// come and go.
///
/// It is explicit, and memory is given to it that its owners share ([`SharedMemory`]), so that a
/// registration found by its addresses is always of the memory that is there now: no function of
/// the C library is replaced, and any allocator will do. (For an
/// [`AddressRange`](crate::buf::AddressRange), which owns no memory, [`CacheWatch`] says how the
/// cache learns that it was unmapped.) A registration keeps its memory; the cache removes an idle
/// one when
/// - the last handle of its [`SharedBuffer`](crate::buf::SharedBuffer) is dropped, or
/// - no owner but the cache has its `Bytes` or `Arc<[u8]>` any more, which is checked now and then,
///   or
/// - others need its place ([`max_size`](RegistrationCacheBuilder::max_size),
///   [`max_count`](RegistrationCacheBuilder::max_count)): the one that was not used for the longest
///   time goes first, or
/// - the application calls [`forget`](Self::forget) or [`clear`](Self::clear).
///
/// While a registration has no handle, peers and operations are refused. A request is served by a
/// registration of the same rights that covers the range; with rights for peers in them, by one of
/// the very same range only (unless regions are merged), since a peer's key opens all of a
/// registration.
///
/// Clones are handles of the same cache. When the last is dropped, registrations in use go on to
/// the end of their last handle.
#[derive(Clone)]
pub struct RegistrationCache {
    domain: Domain,
    shared: Arc<CacheShared>,
}

impl RegistrationCache {
    /// Asks for a registration of a range of this memory, in bytes from its start. Found, it takes
    /// no wait and no allocation; else it is made, as [`Domain::register`] would.
    pub fn register<'a, M: SharedMemory>(
        &'a self,
        memory: &'a M,
        range: impl RangeBounds<usize>,
    ) -> CacheRegister<'a, M> {
        CacheRegister::new(self, memory, resolve(memory.addresses(), range))
    }

    /// Gives up every registration of this range of memory, or of any part of it: an owner's notice
    /// that it changes or goes away. Those in use end with their last handle. Says how many
    /// registrations there were.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not all within the memory.
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

    /// Its statistics.
    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// Bytes of all regions that it keeps track of at most; `None`: no limit.
    pub fn max_size(&self) -> Option<usize> {
        Some(self.shared.settings().size_max).filter(|max| *max < usize::MAX)
    }

    /// Regions that it keeps track of at most.
    pub fn max_count(&self) -> usize {
        self.shared.settings().count_max
    }

    /// Whether ranges that overlap or lie side by side are registered as one.
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

    /// The domain whose registrations it keeps.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// The addresses of a range of memory; `None` if it is not all within.
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
