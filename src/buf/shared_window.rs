//! A range of shared memory that is registered by itself, outside of any cache.
//!
//! Others have its bytes too: handles of the buffer, cached registrations, other windows. So a
//! window is never exposed as a slice, in whatever form it is returned, and its region cannot be
//! quiesced; all owners access the bytes only through the functions of `copy`, in the cells of the
//! whole buffer.

use std::fmt;
use std::ops::RangeBounds;

use super::memory::Memory;
use super::owned_buffer::OwnedBuffer;
use super::shared::{SharedBuffer, range_within};
use super::traits::{Convert, LocalUse, Refused, RegionBuf};
use crate::error::{Error, ErrorKind, Result};

/// A range of a [`SharedBuffer`], to be registered with a domain as a region of its own
/// ([`Domain::register`](crate::Domain::register)).
///
/// The region's key, rights and lifetime are independent of other registrations of the same bytes.
/// You can thus lend a part of a buffer to a peer for one call, and take it back with
/// [`revoke_now`](crate::MemoryRegion::revoke_now) whatever else the buffer is used for. A
/// [`RegistrationCache`](crate::domain::RegistrationCache), whose registrations are shared, cannot
/// revoke them.
///
/// Clones, and windows that overlap, share their bytes. Their regions do not support
/// [`quiesce`](crate::MemoryRegion::quiesce), which would claim exclusive access to bytes that have
/// other owners. [`deregister`](crate::MemoryRegion::deregister) returns the window. While a window
/// exists, [`SharedBuffer::into_buffer`] fails.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{buf::SharedBuffer, Access, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 1 << 16]);
/// let answer = domain.register(buffer.window(..4096)?).access(Access::REMOTE_WRITE).await?;
/// answer.write_at(0, b"as a peer would")?;
/// answer.revoke_now();
/// let mut seen = [0; 4];
/// buffer.read_at(3, &mut seen)?;
/// assert_eq!(seen, *b"a pe");
/// # Ok(()) }
/// ```
pub struct SharedWindow {
    owned: OwnedBuffer,
}

impl SharedBuffer {
    /// A range of the memory, in bytes, to be registered separately.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not entirely within the memory.
    pub fn window(&self, range: impl RangeBounds<usize>) -> Result<SharedWindow> {
        let range = range_within(self.len(), range).ok_or_else(|| {
            let what = format!("range is not all within the {} bytes", self.len());
            Error::new(ErrorKind::InvalidArgument, what)
        })?;
        let owned = OwnedBuffer::shared_window(self.memory(), range.start, range.len());
        Ok(SharedWindow { owned })
    }
}

impl SharedWindow {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.owned.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Clone for SharedWindow {
    fn clone(&self) -> Self {
        let owned = self.owned.share();
        SharedWindow {
            owned: owned.expect("a window of shared memory has any number of owners"),
        }
    }
}

impl fmt::Debug for SharedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWindow({} bytes)", self.len())
    }
}

impl From<SharedWindow> for OwnedBuffer {
    fn from(window: SharedWindow) -> Self {
        window.owned
    }
}

/// Only for registration: it cannot be the buffer of an operation itself.
impl Convert for SharedWindow {
    fn into_memory(self, _usage: LocalUse) -> Result<Memory, Refused<Self>> {
        let what = "a window of shared memory is used as a slice of a region made of it";
        Err((Error::new(ErrorKind::InvalidArgument, what), self))
    }

    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
        Ok(self.owned)
    }

    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
        match owned.is_shared_window() {
            true => Ok(SharedWindow { owned }),
            false => Err(owned),
        }
    }

    fn buffer_len(&self) -> usize {
        self.len()
    }
}

impl RegionBuf for SharedWindow {}
