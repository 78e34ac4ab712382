//! The description of a region that a peer needs for RMA.

use std::ops::{Bound, RangeBounds};

use super::access::Access;
use crate::error::{Error, ErrorKind, Result};

/// A peer's region, or a range of one, as RMA operations address it: address, length, key and
/// rights.
///
/// It is a plain value: send it, in any message, to the peers that may read or write the memory. It
/// does not keep the region alive. The target checks every access, so an outdated or forged value
/// only leads to an error. Anyone who has the key has access, so `Debug` does not show the key.
///
/// ```
/// use tokio_fabric::{Access, RemoteRegion};
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Net::loopback().peer()?.domain;
/// let region = domain.register(vec![0; 64]).access(Access::REMOTE_READ).await?;
/// let bytes = region.remote().to_bytes(); // To be sent to a peer, which does:
/// let remote = RemoteRegion::from_bytes(&bytes)?;
/// assert_eq!(remote, region.remote());
/// let _first_half = remote.slice(..32)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Plain", into = "Plain"))]
pub struct RemoteRegion {
    /// Start of the range: an offset in bytes from the start of the region, or a virtual address if
    /// the target's domain has `FI_MR_VIRT_ADDR`.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The region's key (`fi_mr_key(3)`).
    pub key: u64,
    /// The rights of peers, as far as they are known here.
    pub access: Access,
}

impl RemoteRegion {
    /// Length of the encoding of [`to_bytes`](Self::to_bytes), in bytes.
    pub const ENCODED_LEN: usize = 32;

    /// A region that a peer described in a format of its own: C programs send address, length and
    /// key. The value claims all rights of peers; the target decides.
    pub fn new(addr: u64, len: u64, key: u64) -> Self {
        RemoteRegion {
            addr,
            len,
            key,
            access: Access::REMOTE,
        }
    }

    /// A part of this range. The bounds are in bytes from its start.
    ///
    /// # Errors
    /// `InvalidArgument` if the part is not within the range.
    pub fn slice(self, range: impl RangeBounds<u64>) -> Result<RemoteRegion> {
        let (start, end) = resolve_range(range, self.len)?;
        // The peer chose the address, so the addition may overflow.
        let addr = self.addr.checked_add(start).ok_or_else(|| {
            let RemoteRegion { addr, len, .. } = self;
            invalid(format!(
                "{start} bytes into {len} at {addr:#x} is no address"
            ))
        })?;
        Ok(RemoteRegion {
            addr,
            len: end - start,
            ..self
        })
    }

    /// Encodes the value in 32 bytes, the same on every machine: address, length, key and rights,
    /// each as a little-endian 64-bit number.
    pub fn to_bytes(self) -> [u8; Self::ENCODED_LEN] {
        let words = [self.addr, self.len, self.key, self.access.bits()];
        let mut bytes = [0; Self::ENCODED_LEN];
        for (piece, word) in bytes.chunks_exact_mut(8).zip(words) {
            piece.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a value that [`RemoteRegion::to_bytes`] encoded. Rights that this version does not
    /// know are ignored.
    ///
    /// # Errors
    /// `InvalidArgument` if there are not exactly [`RemoteRegion::ENCODED_LEN`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<RemoteRegion> {
        let bytes: &[u8; Self::ENCODED_LEN] = bytes
            .try_into()
            .map_err(|_| invalid("an encoded remote region has 32 bytes"))?;
        let mut words = [0; 4];
        for (word, piece) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(piece);
            *word = u64::from_le_bytes(raw);
        }
        let [addr, len, key, access] = words;
        Ok(RemoteRegion {
            addr,
            len,
            key,
            access: Access::from_bits_truncate(access),
        })
    }
}

debug_fields!(RemoteRegion, self => addr: self.addr, len: self.len, access: self.access);

/// The form serde sees: four numbers.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "RemoteRegion")]
struct Plain {
    addr: u64,
    len: u64,
    key: u64,
    access: u64,
}

#[cfg(feature = "serde")]
impl From<Plain> for RemoteRegion {
    fn from(plain: Plain) -> Self {
        RemoteRegion {
            addr: plain.addr,
            len: plain.len,
            key: plain.key,
            access: Access::from_bits_truncate(plain.access),
        }
    }
}

#[cfg(feature = "serde")]
impl From<RemoteRegion> for Plain {
    fn from(region: RemoteRegion) -> Self {
        Plain {
            addr: region.addr,
            len: region.len,
            key: region.key,
            access: region.access.bits(),
        }
    }
}

#[cold]
fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Returns the start and end of a range within `len` bytes.
///
/// # Errors
/// `InvalidArgument` if not `start <= end <= len`.
pub(super) fn resolve_range(range: impl RangeBounds<u64>, len: u64) -> Result<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end)),
        (Some(start), Some(end)) if start <= end => Err(invalid(format!(
            "the range {start}..{end} is not all within the {len} bytes"
        ))),
        (Some(start), Some(end)) => {
            Err(invalid(format!("the range {start}..{end} runs backwards")))
        }
        _ => Err(invalid("the range goes beyond the largest number")),
    }
}
