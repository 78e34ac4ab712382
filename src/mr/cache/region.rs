//! The handle of a cached registration.

use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Weak};

use super::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::mr::core::{RegionCore, access_error, check_range, local_range};
use crate::mr::{Access, RawKey, RegionSlice, RemoteRegion};
use crate::sync::{AtomicUsize, Ordering};

/// One registration, shared by its handles and by the cache, as long as that keeps track of it.
///
/// Handles are cloned from handles, or made by the cache under its lock. So a count of zero that
/// the cache reads under its lock means that the registration is idle. The count is not that of the
/// `Arc`: of two handles that are dropped at the same time, each may still hold its `Arc` when the
/// other reads the count.
pub(super) struct Cached {
    pub(super) core: RegionCore,
    pub(super) addresses: Range<usize>,
    handles: AtomicUsize,
    /// The cache, which parks the gate with the last handle; present if peers have rights.
    pub(super) closed_by: Option<Weak<Shared>>,
}

impl Cached {
    /// Not in a cache yet.
    pub(super) fn new(core: RegionCore) -> Self {
        Cached {
            core,
            addresses: 0..0,
            handles: AtomicUsize::new(0),
            closed_by: None,
        }
    }

    /// True if it has no handle; it gets none while the cache is locked.
    pub(super) fn is_idle(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// Uncounts a handle that is being dropped. True if it was the last.
    pub(super) fn release_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// A range of memory that is registered, shared by all requests to a
/// [`RegistrationCache`](crate::domain::RegistrationCache) for it or for part of it. Dropping it
/// does not deregister: the cache keeps the registration for the next request, closed to peers
/// until then.
///
/// It offers what does not harm those it is shared with: there is no `deregister`, no `revoke` and
/// no exclusive access. Offsets count from the start of the range that was asked for.
///
/// Clones are handles of the same registration.
pub struct CachedRegion {
    cached: Arc<Cached>,
    offset: usize,
    len: usize,
}

impl CachedRegion {
    /// The range must lie within the registration.
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

    /// The key peers name it by (`fi_mr_key(3)`). It is that of the whole registration, and stays
    /// the same for as long as the cache keeps that. In a domain with
    /// [`MrMode::RAW`](crate::info::MrMode::RAW) it is
    /// [`KEY_NOT_AVAILABLE`](crate::mr::KEY_NOT_AVAILABLE).
    pub fn key(&self) -> u64 {
        self.cached.core.key()
    }

    /// Length in bytes of the range that was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in bytes of the registration that the range lies in: more than was asked for if it
    /// was made for others, or merged.
    pub fn registered_len(&self) -> usize {
        self.cached.core.memory().len()
    }

    /// The rights it is registered with.
    pub fn access(&self) -> Access {
        self.cached.core.access()
    }

    /// What a peer needs to address the range. Peers are refused while no handle exists.
    pub fn remote(&self) -> RemoteRegion {
        let (start, end) = (self.offset as u64, (self.offset + self.len) as u64);
        let range = self.cached.core.remote().slice(start..end);
        range.expect("the range lies within the registration")
    }

    /// Where peers find the range's first byte, and the raw key of the registration
    /// (`fi_mr_raw_attr`), in a domain of any mode. As with [`key`](Self::key), the key is that of
    /// the whole registration.
    pub fn raw_key(&self) -> (u64, RawKey) {
        let (base, key) = self.cached.core.raw_key();
        (base + self.offset as u64, key)
    }

    /// A part of the range, in bytes, as the buffer of a local operation. Keep a handle until that
    /// is posted: one posted after the last handle has gone may be refused. One posted before goes
    /// on to its end.
    ///
    /// # Errors
    /// `InvalidArgument` if the part is not all within the range.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        let (offset, len) = local_range(range, self.len)?;
        let start = self.offset + offset;
        self.cached.core.slice(start..start + len)
    }

    /// Copies `into.len()` bytes at `offset` of the range out of it.
    ///
    /// # Errors
    /// `InvalidArgument` if they are not all within the range.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        check_range(offset, into.len(), self.len)?;
        self.cached.core.read_at(self.offset + offset, into)
    }

    /// Copies all of `from` to `offset` of the range.
    ///
    /// # Errors
    /// `InvalidArgument` if they do not all fit into the range, `AccessDenied` if it is of bytes
    /// that never change.
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
