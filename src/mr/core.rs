//! The state that all handles of one region share, and the calls that both kinds of region have.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::access::Access;
use super::auth::AuthSecret;
use super::key::KEY_NOT_AVAILABLE;
use super::raw::RawKey;
use super::remote::{RemoteRegion, resolve_range};
use super::slice::RegionSlice;
use super::table::MrTable;
use crate::buf::{AccessError, OwnedBuffer, OwnedBuffers, RegionMemory, RegionTraits};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::stats::RegionStats;
use crate::sync::{
    DomainScope, DrainScope, GateError, HasGate, Lock, ManualProgress, await_driving,
};

/// The interface of the domain to its regions. A region keeps its domain alive through it.
pub(crate) trait Parent: Send + Sync {
    fn table(&self) -> &Lock<MrTable>;

    /// The scope of the counters that can be bound to the domain's regions; it contains the
    /// domain's progress.
    fn scope(&self) -> &DomainScope;

    /// Wakes the progress driver, which cancels kernel operations on regions that refuse them.
    fn nudge(&self);
}

/// Memory that is to become a region, with its key and context.
pub(crate) struct PreparedRegion {
    /// Memory from [`prepare`], faulted in already if the domain promises that.
    pub(crate) memory: Arc<RegionMemory>,
    pub(crate) requested_key: Option<u64>,
    /// Only peers that have proven this key may access the region; `None`: all peers.
    pub(crate) auth_key: Option<AuthSecret>,
    pub(crate) context: Option<UserContext>,
    pub(crate) parent: Arc<dyn Parent>,
}

/// The error of a registration that failed, and its buffers.
#[derive(Debug)]
pub(crate) struct RegisterError {
    pub(crate) error: Error,
    pub(crate) buffers: OwnedBuffers,
}

impl RegisterError {
    /// Boxed, since it is large.
    #[cold]
    pub(crate) fn new(error: Error, buffers: OwnedBuffers) -> Box<Self> {
        Box::new(RegisterError { error, buffers })
    }

    /// Takes the buffers out of memory that never became a region.
    #[cold]
    pub(crate) fn of_memory(error: Error, memory: &RegionMemory) -> Box<Self> {
        // Closing and taking cannot fail: this caller is the only owner of the memory.
        let _ = memory.gate().close();
        Self::new(error, memory.take().unwrap_or_default())
    }
}

/// Joins the buffers of a registration, and checks that they can grant the requested rights. The
/// memory has no other owner yet, so its pages can be faulted in.
pub(crate) fn prepare(
    buffers: OwnedBuffers,
    traits: RegionTraits,
) -> Result<Arc<RegionMemory>, Box<RegisterError>> {
    let access = Access::from_bits_truncate(traits.rights);
    let message = if buffers.is_empty() {
        "a region has at least one buffer"
    } else if !buffers.iter().all(OwnedBuffer::is_writable) && !Access::READ_ONLY.contains(access) {
        "access of a read-only region is among SEND, WRITE and REMOTE_READ"
    } else if buffers.iter().any(OwnedBuffer::wraps_around) {
        "len: the range goes beyond the last address"
    } else {
        match RegionMemory::new(buffers, traits) {
            Ok(memory) => return Ok(memory),
            Err(back) => {
                let message = "the buffers of a region are of one kind and add up within the \
                               address space";
                let error = Error::new(ErrorKind::InvalidArgument, message);
                return Err(RegisterError::new(error, back));
            }
        }
    };
    let error = Error::new(ErrorKind::InvalidArgument, message);
    Err(RegisterError::new(error, buffers))
}

/// One registered region. Its handles share it; dropping the last one deregisters the region.
///
/// Invariant: the table has `memory` under `key` until the gate is closed, and removes it
/// immediately afterwards.
pub(super) struct RegionCore {
    memory: Arc<RegionMemory>,
    key: u64,
    /// Peers need the region's raw key (`FI_MR_RAW`).
    raw_only: bool,
    addr: u64,
    context: Option<UserContext>,
    parent: Arc<dyn Parent>,
    /// The region has been deregistered: the table no longer has its key.
    ended: AtomicBool,
}

impl RegionCore {
    /// Enters prepared memory into the domain's table.
    pub(super) fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        let PreparedRegion {
            memory,
            requested_key,
            auth_key,
            context,
            parent,
        } = parts;
        let mut table = parent.table().lock("register a region");
        let addr = table.addressing().base_of(&memory);
        let raw_only = table.demands_tags();
        let inserted = table.insert(requested_key, &memory, auth_key);
        drop(table);
        match inserted {
            Ok(key) => Ok(RegionCore {
                memory,
                key,
                raw_only,
                addr,
                context,
                parent,
                ended: AtomicBool::new(false),
            }),
            Err(error) => Err(RegisterError::of_memory(error, &memory)),
        }
    }

    pub(super) fn memory(&self) -> &Arc<RegionMemory> {
        &self.memory
    }

    pub(super) fn access(&self) -> Access {
        Access::from_bits_truncate(self.memory.rights())
    }

    /// The key for headers; [`KEY_NOT_AVAILABLE`] in a domain with raw keys.
    pub(super) fn key(&self) -> u64 {
        if self.raw_only {
            KEY_NOT_AVAILABLE
        } else {
            self.key
        }
    }

    /// Base address and raw key.
    pub(super) fn raw_key(&self) -> (u64, RawKey) {
        let table = self.parent.table().lock("make a raw key");
        (self.addr, table.raw_key(self.key, &self.memory))
    }

    /// Returns the region's statistics: all zero once it is deregistered.
    pub(super) fn stats(&self) -> RegionStats {
        let is_ended = self.ended.load(Ordering::Acquire);
        let table = self.parent.table().lock("region stats");
        let stats = (!is_ended).then(|| table.region_stats(self.key));
        stats.flatten().unwrap_or_default()
    }

    pub(super) fn context(&self) -> Option<UserContext> {
        self.context
    }

    pub(super) fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            addr: self.addr,
            len: self.memory.len() as u64,
            key: self.key(),
            access: self.access() & Access::REMOTE,
        }
    }

    pub(super) fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        let (offset, len) = local_range(range, self.memory.len())?;
        Ok(RegionSlice::new(Arc::clone(&self.memory), offset, len))
    }

    pub(super) fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        read_at(&self.memory, offset, into)
    }

    /// Parks the gate while the registration is idle, or opens it again. Users inside the gate
    /// continue, but kernel operations for peers are cancelled.
    pub(super) fn park(&self, parked: bool) {
        self.memory.gate().park(parked);
        if parked {
            self.nudge();
        }
    }

    /// Called after the gate was shut. If a kernel operation or a copy for a peer is in flight,
    /// wakes the driver, which cancels it.
    pub(super) fn nudge(&self) {
        if !self.memory.gate().is_drained(DrainScope::Remote) {
            self.parent.nudge();
        }
    }

    /// The domain's progress, if it is manual.
    pub(super) fn progress(&self) -> Option<&Arc<ManualProgress>> {
        self.scope().progress()
    }

    /// The scope of the counters that can be bound to the region.
    pub(super) fn scope(&self) -> &DomainScope {
        self.parent.scope()
    }

    /// See [`MrTable::is_seeded`].
    pub(super) fn is_seeded(&self) -> bool {
        self.parent.table().lock("refresh").is_seeded()
    }

    pub(super) async fn revoke(self: Arc<Self>) {
        if !self.revoke_now() {
            let drained = self.memory.drained(DrainScope::Remote);
            await_driving(self.progress(), drained).await;
        }
    }

    /// Revokes the region. Returns true if no peer's access is in flight any more.
    pub(super) fn revoke_now(&self) -> bool {
        self.memory.gate().revoke();
        let is_drained = self.memory.gate().is_drained(DrainScope::Remote);
        if !is_drained {
            self.parent.nudge();
        }
        is_drained
    }

    /// Removes the region from the domain. Returns true if no user is inside the gate any more;
    /// until then the region keeps its buffers.
    #[inline]
    pub(super) fn deregister(&self) -> Result<bool> {
        if let Some(names) = self.memory.attached().open_names() {
            let message = format!("still bound to the region: {names}");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.end().map_err(gate_error)
    }

    /// Closes the gate and removes the key. Returns true if no user is inside the gate.
    #[inline]
    fn end(&self) -> Result<bool, GateError> {
        let is_drained = self.memory.gate().close()?;
        if !self.ended.load(Ordering::Acquire) {
            let mut table = self.parent.table().lock("deregister a region");
            table.remove(self.key, &self.memory);
            let emptied = table.emptied();
            drop(table);
            if let Some(emptied) = emptied {
                emptied.notify_waiters();
            }
            self.ended.store(true, Ordering::Release);
        }
        self.nudge();
        Ok(is_drained)
    }
}

impl Drop for RegionCore {
    fn drop(&mut self) {
        if *self.ended.get_mut() {
            return;
        }
        // A `Quiesced` guard holds a handle, so no guard exists here, and closing cannot be
        // refused. The memory is freed when the last operation that holds it ends.
        let ended = self.end();
        debug_assert!(ended.is_ok(), "a guard keeps its region's handle");
    }
}

impl fmt::Debug for RegionCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.memory.len())
            .field("access", &self.access())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Returns the application's error for a local use that the gate refused.
pub(crate) fn gate_error(why: GateError) -> Error {
    match why {
        GateError::Quiesced => Error::new(
            ErrorKind::Busy,
            "the region is quiesced: drop the Quiesced guard first",
        ),
        GateError::Parked => Error::new(
            ErrorKind::BadState,
            "the cached registration has no handle any more: keep one until the operation is posted",
        ),
        GateError::Refreshing => Error::new(ErrorKind::Busy, "the region is being refreshed"),
        GateError::Disabled => Error::new(
            ErrorKind::BadState,
            "the region is disabled: call enable first",
        ),
        GateError::Closed => Error::new(ErrorKind::BadState, "the region is deregistered"),
        GateError::Revoked => Error::new(ErrorKind::AccessDenied, "the region is revoked"),
    }
}

/// Returns the application's error for a copy that failed.
pub(super) fn access_error(why: AccessError) -> Error {
    match why {
        AccessError::Closed(why) => gate_error(why),
        fault @ AccessError::Fault(_) => fault.error("copying from or to an address range"),
        failed @ AccessError::Owner(_) => failed.error("it was copied"),
    }
}

/// Copies bytes out of a region, after a check of the range.
pub(super) fn read_at(memory: &RegionMemory, offset: usize, into: &mut [u8]) -> Result<()> {
    check_range(offset, into.len(), memory.len())?;
    memory.read_at(offset, into).map_err(access_error)
}

/// Checks that `len` bytes at `offset` lie within `whole` bytes.
pub(super) fn check_range(offset: usize, len: usize, whole: usize) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= whole => Ok(()),
        _ => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("{len} bytes at {offset} are not all within the {whole} bytes"),
        )),
    }
}

/// Returns the offset and length of a range within `len` bytes.
pub(super) fn local_range(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let wide = |bound: &usize| *bound as u64;
    let bounds = (range.start_bound().map(wide), range.end_bound().map(wide));
    let (start, end) = resolve_range(bounds, len as u64)?;
    // Start and end are at most `len`, which is a usize.
    Ok((start as usize, (end - start) as usize))
}

/// Returns the error of a call after another handle has taken the buffers.
#[cold]
pub(super) fn buffers_taken() -> Error {
    Error::new(
        ErrorKind::BadState,
        "another handle has deregistered the region and got its buffers",
    )
}
