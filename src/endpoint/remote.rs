//! The target of an RMA operation: ranges of the peer's memory.

use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::RMA_IOV_LIMIT;
use crate::mr::{Access, RemoteRegion, Tag};
use crate::wire::{RemoteSegment, Segments};

/// One to four ranges of the peer's memory, written or read in order.
///
/// Everything that converts into this type can be passed to
/// [`Endpoint::write`](crate::Endpoint::write) and [`Endpoint::read`](crate::Endpoint::read).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 8]).await?;
/// let remote = region.remote();
/// let ranges = [remote.slice(..2)?, remote.slice(6..)?]; // Its first and its last two bytes.
/// endpoint.write(b"abcd".to_vec(), ranges).await?;
/// assert_eq!(region.deregister().await?, b"ab\0\0\0\0cd");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteRegions {
    /// The given ranges, as far as there is room for them.
    regions: [Option<RemoteRegion>; RMA_IOV_LIMIT],
    /// Number of ranges that were given, which may be too many.
    count: usize,
}

impl From<RemoteRegion> for RemoteRegions {
    fn from(region: RemoteRegion) -> Self {
        Self::from(&[region][..])
    }
}

impl<const N: usize> From<[RemoteRegion; N]> for RemoteRegions {
    fn from(regions: [RemoteRegion; N]) -> Self {
        Self::from(&regions[..])
    }
}

impl From<&[RemoteRegion]> for RemoteRegions {
    fn from(given: &[RemoteRegion]) -> Self {
        let mut regions = [None; RMA_IOV_LIMIT];
        for (place, region) in regions.iter_mut().zip(given) {
            *place = Some(*region);
        }
        RemoteRegions {
            regions,
            count: given.len(),
        }
    }
}

impl RemoteRegions {
    /// Returns the segments of an operation with the largest possible length. Posting cuts them to
    /// the length of the local memory.
    pub(super) fn segments(&self, need: Access, domain: &Domain) -> Result<Segments> {
        if !(1..=RMA_IOV_LIMIT).contains(&self.count) {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!(
                    "{} remote ranges, an operation takes 1 to {RMA_IOV_LIMIT}",
                    self.count
                ),
            ));
        }
        let mut left = isize::MAX as u64;
        let mut segments = [RemoteSegment::default(); 2 * RMA_IOV_LIMIT];
        let mut used = 0;
        for region in self.regions.iter().flatten() {
            if !region.access.contains(need) {
                return Err(Error::new(
                    ErrorKind::AccessDenied,
                    format!("the remote range was not handed out for {need:?}"),
                ));
            }
            let len = region.len.min(left);
            left -= len;
            let wire = domain.wire_key(region.key)?;
            let segment = RemoteSegment {
                addr: region.addr,
                len,
                key: wire.key,
            };
            for segment in [Some(segment), wire.tag.map(proof)].into_iter().flatten() {
                segments[used] = segment;
                used += 1;
            }
        }
        if used > RMA_IOV_LIMIT {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "remote ranges of raw keys take two segments each, of which there are 4",
            ));
        }
        Ok(Segments::new(&segments[..used])?)
    }
}

/// Returns the empty segment that carries the tag of the preceding segment. A domain with
/// `FI_MR_RAW` demands this proof.
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
