//! The handle of a region whose memory never changes.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use super::access::Access;
use super::core::{PreparedRegion, RegionCore, RegisterError};
use super::deregistration::Deregistration;
use super::remote::RemoteRegion;
use super::slice::RegionSlice;
use crate::buf::{Buffer, IoBuf};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::stats::RegionStats;

/// Registered memory that never changes: `Bytes`, `Arc<[u8]>` or a static slice.
///
/// Its rights are among [`Access::SEND`], [`Access::WRITE`] and [`Access::REMOTE_READ`]. The region
/// therefore derefs to its bytes, and the memory may be shared with any number of regions, domains
/// and readers.
///
/// Clones are handles of the same region. When the last one is dropped, the key becomes invalid at
/// once, and the memory is released as soon as no operation uses it.
///
/// `B` is the type of the registered buffer, which [`deregister`](Self::deregister) returns. A
/// handle without this type returns a [`Buffer`].
///
/// ```
/// use bytes::Bytes;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Net::loopback().peer()?.domain;
/// let region = domain.register_read_only(Bytes::from_static(b"constant")).await?;
/// assert_eq!(&region[..], b"constant"); // Nothing writes it, so it is a slice.
/// # Ok(()) }
/// ```
pub struct ReadOnlyRegion<B = Buffer> {
    core: Arc<RegionCore>,
    /// Its memory was taken from a `B`, or `B` is the erased type.
    contents: PhantomData<fn() -> B>,
}

impl<B: 'static> Clone for ReadOnlyRegion<B> {
    fn clone(&self) -> Self {
        ReadOnlyRegion::of(Arc::clone(&self.core))
    }
}

impl<B: IoBuf> ReadOnlyRegion<B> {
    /// Registers prepared memory. Returns the buffers with the error if the memory is not one
    /// read-only buffer, or if the key is not available.
    pub(crate) fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        if parts.memory.as_read_only().is_none() {
            let error = Error::new(
                ErrorKind::InvalidArgument,
                "a read-only region is made of one read-only buffer",
            );
            return Err(RegisterError::of_memory(error, &parts.memory));
        }
        RegionCore::create(parts).map(|core| ReadOnlyRegion::of(Arc::new(core)))
    }

    /// Removes the region from the domain and returns its buffer, as
    /// [`MemoryRegion::deregister`](super::MemoryRegion::deregister) does. Other handles can still
    /// read the bytes, and share the buffer with the returned one.
    ///
    /// # Errors
    /// None at present.
    ///
    /// # Cancel safety
    /// From the first poll on the region is closed; calling it again returns the buffer.
    pub fn deregister(&self) -> impl Future<Output = Result<B>> + Send + 'static + use<B> {
        Deregistration::new(&self.core)
    }
}

impl<B: 'static> ReadOnlyRegion<B> {
    fn of(core: Arc<RegionCore>) -> Self {
        ReadOnlyRegion {
            core,
            contents: PhantomData,
        }
    }

    /// A handle of the same region without the type of its buffer.
    pub fn erase(&self) -> ReadOnlyRegion {
        ReadOnlyRegion::of(Arc::clone(&self.core))
    }

    /// The key by which peers name the region (`fi_mr_key(3)`).
    pub fn key(&self) -> u64 {
        self.core.key()
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

    /// A range of the region, in bytes, as the source of a local operation.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not within the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        self.core.slice(range)
    }

    /// Ends all access by peers, permanently, as
    /// [`MemoryRegion::revoke`](super::MemoryRegion::revoke) does.
    ///
    /// # Cancel safety
    /// From the first poll on peers are refused permanently; dropping the future only stops
    /// waiting.
    pub fn revoke(&self) -> impl Future<Output = ()> + Send + 'static + use<B> {
        Arc::clone(&self.core).revoke()
    }

    /// The part of [`revoke`](Self::revoke) that does not wait, as
    /// [`MemoryRegion::revoke_now`](super::MemoryRegion::revoke_now).
    pub fn revoke_now(&self) -> bool {
        self.core.revoke_now()
    }
}

impl<B: 'static> std::ops::Deref for ReadOnlyRegion<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.core.memory().as_read_only();
        bytes.expect("a read-only region is only made of one read-only buffer")
    }
}

impl<B: 'static> AsRef<[u8]> for ReadOnlyRegion<B> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<B> fmt::Debug for ReadOnlyRegion<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadOnlyRegion").field(&self.core).finish()
    }
}
