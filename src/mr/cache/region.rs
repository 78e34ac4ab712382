//! The handle of a cached registration.

use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Weak};

use super::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::mr::core::{RegionCore, access_error, check_range, local_range};
use crate::mr::{Access, RawKey, RegionSlice, RemoteRegion};
use crate::sync::{AtomicUsize, Ordering};

/// One registration, shared by its handles and, as long as the cache tracks it, by the cache.
///
/// Handles are cloned from handles, or made by the cache under its lock. So a count of zero that
/// the cache reads under its lock means that the registration is idle. The count is not that of the
/// `Arc`: when two handles are dropped at the same time, each may still hold its `Arc` when the
/// other reads the count.
pub(super) struct Cached {
    pub(super) core: RegionCore,
    pub(super) addresses: Range<usize>,
    handles: AtomicUsize,
    /// The cache, which parks the gate when the last handle is dropped; present if peers have
    /// rights.
    pub(super) closed_by: Option<Weak<Shared>>,
}

impl Cached {
    /// A registration that is not in a cache yet.
    pub(super) fn new(core: RegionCore) -> Self {
        Cached {
            core,
            addresses: 0..0,
            handles: AtomicUsize::new(0),
            closed_by: None,
        }
    }

    /// True if the registration has no handle. It gets no new one while the cache is locked.
    pub(super) fn is_idle(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// Removes a handle that is being dropped from the count. True if it was the last.
    pub(super) fn release_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A registered range of memory, shared by all requests to a
/// [`RegistrationCache`](crate::domain::RegistrationCache) for it or for a part of it.
///
/// Dropping the last handle does not deregister the range: the cache keeps the registration for the
/// next request, and refuses peers until then.
///
/// It offers only calls that cannot harm other users of the registration: it has no `deregister`,
/// no `revoke` and no exclusive access. Offsets count from the start of the requested range.
///
/// Clones are handles of the same registration.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::SharedBuffer;
/// use tokio_fabric::testing::Net;
///
/// let cache = Net::loopback().peer()?.domain.cache().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 4096]);
/// let _whole = cache.register(&buffer, ..).await?;
/// let part = cache.register(&buffer, 100..200).await?; // Found: no new registration.
/// assert_eq!((part.len(), part.registered_len()), (100, 4096));
/// # Ok(()) }
/// ```
pub struct CachedRegion {
    cached: Arc<Cached>,
    offset: usize,
    len: usize,
}

impl CachedRegion {
    /// Creates a handle of this range, which must lie within the registration.
    pub(super) fn of(cached: Arc<Cached>, range: &Range<usize>) -> Self {
        debug_assert!(cached.addresses.start <= range.start && range.end <= cached.addresses.end);
        cached.handles.fetch_add(1, Ordering::Relaxed);
        CachedRegion {
            offset: range.start - cached.addresses.start,
            len: range.end - range.start,
            cached,
        }
    }

    #[cfg(loom)]
    pub(super) fn memory(&self) -> &Arc<crate::buf::RegionMemory> {
        self.cached.core.memory()
    }

    /// The key by which peers name the registration (`fi_mr_key(3)`). It is the key of the whole
    /// registration, and stays the same for as long as the cache keeps the registration. In a
    /// domain with [`MrMode::RAW`](crate::info::MrMode::RAW) it is
    /// [`KEY_NOT_AVAILABLE`](crate::mr::KEY_NOT_AVAILABLE).
    pub fn key(&self) -> u64 {
        self.cached.core.key()
    }

    /// Length of the requested range, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length of the registration that contains the range, in bytes: longer than the range if it
    /// was made for another request, or merged.
    pub fn registered_len(&self) -> usize {
        self.cached.core.memory().len()
    }

    /// The rights of the registration.
    pub fn access(&self) -> Access {
        self.cached.core.access()
    }

    /// The description by which a peer addresses the range. Peers are refused while there is no
    /// handle.
    pub fn remote(&self) -> RemoteRegion {
        let (start, end) = (self.offset as u64, (self.offset + self.len) as u64);
        let range = self.cached.core.remote().slice(start..end);
        range.expect("the range lies within the registration")
    }

    /// The address of the range's first byte as peers see it, and the raw key of the registration
    /// (`fi_mr_raw_attr`), in a domain of any mode. Like [`key`](Self::key), the raw key belongs to
    /// the whole registration.
    pub fn raw_key(&self) -> (u64, RawKey) {
        let (base, key) = self.cached.core.raw_key();
        (base + self.offset as u64, key)
    }

    /// A part of the range, in bytes, as the buffer of a local operation. Keep a handle until the
    /// operation is posted, otherwise it may be refused. A posted operation runs to completion.
    ///
    /// # Errors
    /// `InvalidArgument` if the part is not within the range.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        let (offset, len) = local_range(range, self.len)?;
        let start = self.offset + offset;
        self.cached.core.slice(start..start + len)
    }

    /// Copies `into.len()` bytes at `offset` out of the range.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not within the range.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        check_range(offset, into.len(), self.len)?;
        self.cached.core.read_at(self.offset + offset, into)
    }

    /// Copies all of `from` to `offset` of the range.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes do not fit into the range, `AccessDenied` for memory that
    /// never changes.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        check_range(offset, from.len(), self.len)?;
        let memory = self.cached.core.memory();
        if !memory.is_writable() {
            let what = "the memory is shared and read-only: register a SharedBuffer to write";
            return Err(Error::new(ErrorKind::AccessDenied, what));
        }
        let written = memory.write_at(self.offset + offset, from);
        written.map_err(access_error)
    }
}

impl Clone for CachedRegion {
    fn clone(&self) -> Self {
        self.cached.handles.fetch_add(1, Ordering::Relaxed);
        CachedRegion {
            cached: Arc::clone(&self.cached),
            ..*self
        }
    }
}

impl Drop for CachedRegion {
    fn drop(&mut self) {
        let cache = self.cached.closed_by.as_ref().and_then(Weak::upgrade);
        match cache {
            Some(cache) => cache.release_handle(&self.cached),
            None => drop(self.cached.release_handle()),
        }
    }
}

debug_fields!(CachedRegion, self =>
    offset: self.offset, len: self.len, registered: self.cached.core
);
