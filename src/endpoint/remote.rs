//! Where an RMA reaches: ranges of the peer's memory.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::RMA_IOV_LIMIT;
use crate::mr::{Access, RemoteRegion};
use crate::wire::{RemoteSegment, Segments};

/// One range of the peer's memory, or up to four, filled or read one after the other: whatever
/// turns into this can be given to [`Endpoint::write`] and [`Endpoint::read`].
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
    pub(super) fn segments(&self, len: usize, need: Access) -> Result<Segments> {
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
            segments.push(RemoteSegment {
                addr: region.addr,
                len,
                key: region.key,
            });
        }
        if left > 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the remote ranges are {left} bytes smaller than the local buffers"),
            ));
        }
        Ok(Segments::new(&segments)?)
    }
}
