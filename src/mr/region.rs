//! The handle of a region of writable memory.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::access::Access;
use super::core::{
    PreparedRegion, RegionCore, RegisterError, access_error, check_range, gate_error,
};
use super::deregistration::Deregistration;
use super::flags::MrFlags;
use super::quiesce::Quiesced;
use super::raw::{RawKey, RawKeyTooSmall};
use super::remote::RemoteRegion;
use super::slice::RegionSlice;
use crate::buf::{Buffer, RegionContents, RegionMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::stats::RegionStats;
use crate::sync::{DomainScope, ManualProgress, await_driving};

/// Writable memory that is registered with a domain (`fi_mr(3)`).
///
/// The region owns its buffers. Local operations use them as [`RegionSlice`]s, peers by the
/// region's key, both within the rights granted.
///
/// Since a peer may write at any time, a region gives no `&[u8]` to its bytes. Copy them with
/// [`read_at`](Self::read_at) and [`write_at`](Self::write_at), get exclusive access with
/// [`quiesce`](Self::quiesce), or take the buffers back with [`deregister`](Self::deregister). A
/// byte that is written while it is read has either its old or its new value.
///
/// `B` is the type of the registered buffers, which [`deregister`](Self::deregister) returns. The
/// region in an event has no such type, nor has one returned by [`erase`](Self::erase): it is a
/// plain `MemoryRegion`, which returns [`Buffer`]s.
///
/// Clones are handles of the same region. When the last one is dropped, the key becomes invalid at
/// once, and the memory is freed as soon as no operation uses it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints, MemoryRegion};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let region: MemoryRegion<Vec<u8>> = domain.register(vec![0u8; 4096]).await?;
/// region.write_at(4090, b"end")?;
/// let bytes: Vec<u8> = region.deregister().await?;
/// assert_eq!(bytes[4090..4093], *b"end");
/// # Ok(()) }
/// ```
#[doc(alias = "fid_mr")]
pub struct MemoryRegion<B = Vec<Buffer>> {
    core: Arc<RegionCore>,
    /// Its memory was taken from a `B`, or `B` is the erased type.
    contents: PhantomData<fn() -> B>,
}

impl<B: 'static> Clone for MemoryRegion<B> {
    fn clone(&self) -> Self {
        MemoryRegion::of(Arc::clone(&self.core))
    }
}

impl<B: RegionContents> MemoryRegion<B> {
    /// Registers prepared memory. Returns the buffers with the error if the memory is read-only, or
    /// if the key is not available.
    #[inline]
    pub(crate) fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        if !parts.memory.is_writable() {
            let error = Error::new(
                ErrorKind::InvalidArgument,
                "the buffers are read-only: use register_read_only",
            );
            return Err(RegisterError::of_memory(error, &parts.memory));
        }
        RegionCore::create(parts).map(|core| MemoryRegion::of(Arc::new(core)))
    }

    /// Removes the region from the domain and returns its buffers (`fi_close` of `fi_mr(3)`): the
    /// buffers that it was made from. The key becomes invalid immediately and new accesses are
    /// refused; accesses of peers are cut short, local operations run to completion. A receive
    /// posted into the region ends when it gets a message or is cancelled.
    ///
    /// Other handles remain without memory: their calls fail with `BadState`.
    ///
    /// # Errors
    /// - `Busy` while a [`Quiesced`] guard exists, even a leaked one, or while a counter or an
    ///   endpoint that is bound to the region is open; nothing has changed then.
    /// - `BadState` if another handle has got the buffers.
    ///
    /// # Cancel safety
    /// Cannot be undone: from the first poll on the region is closed. If the future is dropped, the
    /// buffers stay with the region: call it again to get them, or they are freed with the last
    /// handle.
    #[doc(alias = "fi_close")]
    pub fn deregister(&self) -> impl Future<Output = Result<B>> + Send + 'static + use<B> {
        Deregistration::new(&self.core)
    }
}

impl<B: 'static> MemoryRegion<B> {
    /// Creates a handle. `B` is the type that the region was made of, or the erased type.
    #[inline]
    fn of(core: Arc<RegionCore>) -> Self {
        MemoryRegion {
            core,
            contents: PhantomData,
        }
    }

    /// A handle of the same region without the type of its buffers, so that regions of all kinds
    /// have one type.
    pub fn erase(&self) -> MemoryRegion {
        MemoryRegion::of(Arc::clone(&self.core))
    }

    /// The key by which peers name the region (`fi_mr_key`). In a domain with
    /// [`MrMode::RAW`](crate::info::MrMode::RAW) it is
    /// [`KEY_NOT_AVAILABLE`](crate::mr::KEY_NOT_AVAILABLE): peers need the [raw
    /// key](Self::raw_key).
    #[doc(alias("fi_mr_key", "FI_KEY_NOTAVAIL"))]
    pub fn key(&self) -> u64 {
        self.core.key()
    }

    /// The region's base address, as peers see it, and its raw key (`fi_mr_raw_attr`), in a domain
    /// of any mode.
    pub fn raw_key(&self) -> (u64, RawKey) {
        self.core.raw_key()
    }

    /// As [`raw_key`](Self::raw_key), but writes the raw key to the start of the caller's buffer,
    /// and returns the base address and the size of the key in bytes.
    ///
    /// # Errors
    /// [`RawKeyTooSmall`], with the necessary size, if the key does not fit; nothing is written
    /// then.
    #[doc(alias = "fi_mr_raw_attr")]
    pub fn raw_attr(&self, raw_key: &mut [u8]) -> Result<(u64, usize), RawKeyTooSmall> {
        let key_size = RawKey::LEN;
        let Some(into) = raw_key.get_mut(..key_size) else {
            return Err(RawKeyTooSmall { key_size });
        };
        let (base_addr, raw) = self.core.raw_key();
        into.copy_from_slice(&raw.to_bytes());
        Ok((base_addr, key_size))
    }

    /// The flags of its registration.
    pub fn flags(&self) -> MrFlags {
        MrFlags::from_bits_truncate(self.core.memory().traits().flags)
    }

    pub(crate) fn memory(&self) -> &Arc<RegionMemory> {
        self.core.memory()
    }

    /// Wakes the driver after the gate was shut.
    pub(crate) fn nudge(&self) {
        self.core.nudge();
    }

    /// The domain's progress, if it is manual.
    pub(crate) fn progress(&self) -> Option<&Arc<ManualProgress>> {
        self.core.progress()
    }

    /// The scope of the counters that can be bound to the region.
    pub(crate) fn scope(&self) -> &DomainScope {
        self.core.scope()
    }

    /// True if a seed determines the order of events; see [`RandomSource::is_seeded`].
    ///
    /// [`RandomSource::is_seeded`]: crate::random::RandomSource::is_seeded
    pub(crate) fn is_seeded(&self) -> bool {
        self.core.is_seeded()
    }

    /// Length in bytes, of all its buffers together.
    pub fn len(&self) -> usize {
        self.core.memory().len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.core.memory().is_empty()
    }

    /// The number of buffers that it was registered from (`fi_mr_regv(3)`). They are addressed as
    /// one range of bytes, in order.
    pub fn segment_count(&self) -> usize {
        self.core.memory().segment_count()
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.core.access()
    }

    /// The context that was given to its registration, if any.
    pub fn context(&self) -> Option<UserContext> {
        self.core.context()
    }

    /// Statistics: peers' accesses to the region. All zero once it is deregistered.
    pub fn stats(&self) -> RegionStats {
        self.core.stats()
    }

    /// The description by which a peer addresses the whole region.
    pub fn remote(&self) -> RemoteRegion {
        self.core.remote()
    }

    /// A range of the region, in bytes, as the buffer of a local operation. No right is needed
    /// before the slice is posted.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not within the region.
    #[doc(alias = "fi_mr_desc")]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        self.core.slice(range)
    }

    /// Copies `into.len()` bytes at `offset` out of the region.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not within the region, `BadState` if it is
    /// deregistered, `Busy` if it is quiesced or refreshed, `BadAddress` if it is an address range
    /// and a page is not there; bytes before that page may have been copied.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.core.read_at(offset, into)
    }

    /// Copies all of `from` to `offset` of the region.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        check_range(offset, from.len(), self.len())?;
        let memory = self.core.memory();
        memory.write_at(offset, from).map_err(access_error)
    }

    /// Returns a guard with exclusive access to the bytes. From the first poll on, accesses of
    /// peers and local operations on the region are refused (they fail, they do not wait). When
    /// those in progress have completed, the guard gives `&mut [u8]`. Dropping the guard ends the
    /// exclusion. If the guard is leaked, the region stays quiesced.
    ///
    /// Local operations run to completion: a posted receive ends when it gets a message or is
    /// cancelled.
    ///
    /// # Errors
    /// `Busy` if there is a guard, another `quiesce` waits, or a refresh runs; `BadState` if the
    /// region is deregistered; `Unsupported` for a region of address ranges or device memory, whose
    /// bytes cannot be accessed as a slice, and of a [`SharedWindow`](crate::buf::SharedWindow),
    /// whose bytes have other owners.
    ///
    /// # Cancel safety
    /// Dropping the future ends the exclusion; nothing else has happened.
    pub fn quiesce(&self) -> impl Future<Output = Result<Quiesced>> + Send + 'static + use<B> {
        let region = self.erase();
        async move {
            let memory = region.core.memory();
            let why = match (memory.is_touchable(), memory.is_shared()) {
                (false, _) => Some("of address ranges or device memory: it has no bytes to show"),
                (_, true) => Some("of a window of a SharedBuffer: others have the same bytes"),
                _ => None,
            };
            if let Some(why) = why {
                let what = format!("a region cannot be quiesced that is {why}");
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            let quiescing = region.core.memory().quiesce().map_err(gate_error)?;
            region.core.nudge();
            let exclusive = await_driving(region.core.progress(), quiescing).await;
            Ok(Quiesced::new(exclusive, region))
        }
    }

    /// Ends all access by peers, permanently. Once this returns, no peer reads or writes a byte of
    /// the region, even if it stalled in the middle of a transfer. Local use continues, the memory
    /// stays registered, and the key stays in use until the region is deregistered.
    ///
    /// A peer's transfer in progress fails, and so does any later one.
    ///
    /// # Cancel safety
    /// From the first poll on peers are refused permanently; dropping the future only stops waiting
    /// for what the kernel is doing. Calling it again waits again.
    pub fn revoke(&self) -> impl Future<Output = ()> + Send + 'static + use<B> {
        Arc::clone(&self.core).revoke()
    }

    /// The part of [`revoke`](Self::revoke) that does not wait, for use in a `Drop`: from now on
    /// every new access by a peer is refused, permanently, and accesses in progress are being
    /// cancelled. Returns true if none is in progress, so that no peer reads or writes the region
    /// any more. Otherwise await `revoke` for that.
    ///
    /// ```
    /// # use tokio_fabric::MemoryRegion;
    /// /// Memory that peers may write to for as long as this exists.
    /// struct Lent(MemoryRegion);
    ///
    /// impl Drop for Lent {
    ///     fn drop(&mut self) {
    ///         self.0.revoke_now();
    ///     }
    /// }
    /// ```
    pub fn revoke_now(&self) -> bool {
        self.core.revoke_now()
    }
}

impl<B> fmt::Debug for MemoryRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryRegion").field(&self.core).finish()
    }
}
