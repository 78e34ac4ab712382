//! A range of a region as the buffer of a local operation.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::access::Access;
use super::core::{access_error, gate_error, local_range, read_at};
use crate::buf::{
    Convert, IoBuf, IoBufMut, LocalUse, Memory, OwnedBuffer, Refused, RegionMemory, RegionUse,
};
use crate::error::{Error, ErrorKind, Result};

/// A range of a registered region that an operation uses in place of a buffer (in C, a buffer with
/// the descriptor of `fi_mr_desc(3)`).
///
/// The bytes stay in the region; the slice is returned with the operation's result, like any
/// buffer.
///
/// A slice gives no exclusive access: peers and other operations may use the region at the same
/// time. It does not keep the region registered either. When the last handle of the region is
/// dropped, or the region is deregistered or quiesced, an operation posted with the slice is
/// refused; an operation posted before keeps the memory until it completes.
///
/// Rights are checked when the operation is posted: sending takes [`Access::SEND`], receiving
/// [`Access::RECV`], the destination of an RMA read [`Access::READ`], the source of an RMA write
/// [`Access::WRITE`]. In a domain opened with `FI_MR_LOCAL` only slices of the domain's own regions
/// may be posted; otherwise slices of other domains' regions are accepted too.
///
/// ```
/// use tokio_fabric::testing::{Net, connect};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let net = Net::loopback();
/// let (a, b) = (net.peer()?, net.peer()?);
/// let (to_b, at_b) = connect(&a, &b).await?;
/// let region = a.domain.register(b"header, body".to_vec()).await?;
/// to_b.send(region.slice(8..)?).await?; // It is not copied.
/// let (received, buffer) = at_b.recv(vec![0; 16]).await?;
/// assert_eq!(&buffer[..received.len], b"body");
/// # Ok(()) }
/// ```
pub struct RegionSlice {
    memory: Arc<RegionMemory>,
    offset: usize,
    len: usize,
}

impl RegionSlice {
    /// Creates a slice; the range has been checked against the region.
    pub(super) fn new(memory: Arc<RegionMemory>, offset: usize, len: usize) -> Self {
        RegionSlice {
            memory,
            offset,
            len,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offset of its first byte in the region, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The rights of its region.
    pub fn access(&self) -> Access {
        Access::from_bits_truncate(self.memory.rights())
    }

    /// A part of this slice. The bounds are in bytes from its start.
    ///
    /// # Errors
    /// `InvalidArgument` if the part is not within the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RegionSlice> {
        let (offset, len) = local_range(range, self.len)?;
        Ok(RegionSlice::new(
            Arc::clone(&self.memory),
            self.offset + offset,
            len,
        ))
    }

    /// Copies its bytes. Concurrent writes of peers or operations may be seen in part.
    ///
    /// # Errors
    /// `BadState` if the region is deregistered, `Busy` if it is quiesced.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        read_at(&self.memory, self.offset, &mut bytes)?;
        Ok(bytes)
    }
}

impl Convert for RegionSlice {
    fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>> {
        if let Err(error) = self.access().check(usage) {
            return Err((error, self));
        }
        let region = match RegionUse::local(Arc::clone(&self.memory), self.offset, self.len) {
            Ok(region) => region,
            Err(why) => return Err((gate_error(why), self)),
        };
        // Missing pages fail the operation here, before anything is sent. A receive is not checked:
        // it may wait long, and the pages may become present meanwhile.
        let probed = match usage {
            LocalUse::Receive => Ok(()),
            LocalUse::Send | LocalUse::Write => region.probe(false),
            LocalUse::Read => region.probe(true),
        };
        match probed {
            Ok(()) => Ok(Memory::Region(region)),
            Err(why) => Err((access_error(why), self)),
        }
    }

    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
        let error = Error::new(ErrorKind::InvalidArgument, "part of another region");
        Err((error, self))
    }

    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
        Err(owned)
    }

    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory::Region(region) => Ok(RegionSlice::new(
                Arc::clone(region.memory()),
                region.offset(),
                region.len(),
            )),
            owned => Err(owned),
        }
    }

    fn buffer_len(&self) -> usize {
        self.len
    }

    fn is_buffer_registered(&self) -> bool {
        true
    }
}

impl IoBuf for RegionSlice {}
impl IoBufMut for RegionSlice {}

debug_fields!(RegionSlice, self => offset: self.offset, len: self.len, access: self.access());
