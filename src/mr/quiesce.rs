//! The guard of exclusive access to a region.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::region::MemoryRegion;
use crate::buf::QuiescedAccess;

/// Exclusive access to a region's bytes, made by [`MemoryRegion::quiesce`].
///
/// Accesses by peers and local operations are refused until the guard is dropped. The guard owns a
/// handle of the region, so it may be sent and stored. If it is leaked, the region stays quiesced,
/// and `deregister` fails with `Busy`.
///
/// The guard derefs to the bytes of the region's first buffer. If the region was registered from
/// several buffers, [`segments_mut`](Self::segments_mut) gives them all.
///
/// ```
/// use tokio_fabric::Access;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Net::loopback().peer()?.domain;
/// let region = domain.register(vec![3u8, 1, 2]).access(Access::REMOTE_WRITE).await?;
/// let mut guard = region.quiesce().await?; // Peers and operations are kept out.
/// guard.sort();
/// assert_eq!(&guard[..], [1, 2, 3]);
/// # Ok(()) }
/// ```
pub struct Quiesced {
    // Declared, and so dropped, before the handle: the last handle must not be dropped while the
    // gate is quiesced.
    exclusive: QuiescedAccess,
    region: MemoryRegion,
}

impl Quiesced {
    pub(super) fn new(exclusive: QuiescedAccess, region: MemoryRegion) -> Self {
        Quiesced { exclusive, region }
    }

    /// The region.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The bytes of each buffer, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.exclusive.segment_count()).map(|index| self.exclusive.segment(index))
    }

    /// The bytes of each buffer, in order, mutable.
    pub fn segments_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        self.exclusive.segments_mut()
    }
}

impl Deref for Quiesced {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.exclusive.segment(0)
    }
}

impl DerefMut for Quiesced {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.exclusive.segment_mut(0)
    }
}

impl fmt::Debug for Quiesced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quiesced").field(&self.region).finish()
    }
}
