//! Where an RMA reaches: ranges of the peer's memory.

use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::RMA_IOV_LIMIT;
use crate::mr::{Access, RemoteRegion, Tag};
use crate::wire::{RemoteSegment, Segments};

/// One range of the peer's memory, or up to four, filled or read one after the other: whatever
/// turns into this can be given to [`Endpoint::write`](crate::Endpoint::write) and
/// [`Endpoint::read`](crate::Endpoint::read).
#[derive(Clone, Debug)]
pub struct RemoteRegions(Vec<RemoteRegion>);

impl From<RemoteRegion> for RemoteRegions {
    fn from(region: RemoteRegion) -> Self {
        RemoteRegions(vec![region])
    }
}

impl<const N: usize> From<[RemoteRegion; N]> for RemoteRegions {
    fn from(regions: [RemoteRegion; N]) -> Self {
        RemoteRegions(regions.to_vec())
    }
}

impl From<&[RemoteRegion]> for RemoteRegions {
    fn from(regions: &[RemoteRegion]) -> Self {
        RemoteRegions(regions.to_vec())
    }
}

impl RemoteRegions {
    /// The segments of an RMA that moves `len` bytes: as much of these ranges, in order, as it
    /// takes.
    pub(super) fn segments(&self, len: usize, need: Access, domain: &Domain) -> Result<Segments> {
        if self.0.is_empty() || self.0.len() > RMA_IOV_LIMIT {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{} remote ranges, an operation takes 1 to {RMA_IOV_LIMIT}",
                    self.0.len()
                ),
            ));
        }
        let mut left = len as u64;
        let mut segments = Vec::with_capacity(self.0.len());
        for region in &self.0 {
            if !region.access.contains(need) {
                return Err(Error::new(
                    ErrorKind::AccessDenied,
                    "the remote range was not handed out for this",
                ));
            }
            let len = region.len.min(left);
            left -= len;
            let wire = domain.wire_key(region.key)?;
            segments.push(RemoteSegment {
                addr: region.addr,
                len,
                key: wire.key,
            });
            segments.extend(wire.tag.map(proof));
        }
        if left > 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the remote ranges are {left} bytes smaller than the local buffers"),
            ));
        }
        if segments.len() > RMA_IOV_LIMIT {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "remote ranges of raw keys take two segments each, of which there are 4",
            ));
        }
        Ok(Segments::new(&segments)?)
    }
}

/// The empty segment behind one whose key's domain demands proof (`FI_MR_RAW`).
fn proof(tag: Tag) -> RemoteSegment {
    let (mut addr, mut key) = ([0; 8], [0; 8]);
    addr.copy_from_slice(&tag[..8]);
    key.copy_from_slice(&tag[8..]);
    RemoteSegment {
        addr: u64::from_le_bytes(addr),
        len: 0,
        key: u64::from_le_bytes(key),
    }
}
