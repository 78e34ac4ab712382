//! Lent memory that a handler writes to.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_fabric::RemoteRegion;
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;

use super::bulk::{Bulk, outlive, part_len, status_of, within};
use super::depth::Depth;
use crate::limits::CHUNK_DEPTH;
use crate::status::{Code, Result, Status};

/// The source of a write to lent memory: bytes, or a slice of a region.
///
/// `Bytes`, `Vec<u8>`, `&'static [u8]` and [`RegionSlice`] convert into it.
///
/// ```
/// use bytes::Bytes;
/// use tokio_fabric_rpc::{Cx, Lend, Push, Result, service, testing};
///
/// #[service]
/// trait Blob {
///     async fn get(&self, cx: &Cx, into: Push) -> Result<u64>;
/// }
/// struct Shared(Bytes);
/// impl Blob for Shared {
///     async fn get(&self, _: &Cx, into: Push) -> Result<u64> {
///         into.write(self.0.clone()).await // Without a copy.
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let server = BlobServer::new(Shared(Bytes::from_static(b"blob")));
/// let (channel, _server) = testing::pair(server).await?;
/// let (count, buffer) = BlobClient::over(channel).get(Lend::write(vec![0; 8])).await?;
/// assert_eq!(&buffer[..count as usize], b"blob");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum BulkSource {
    /// Bytes that the handler owns.
    Bytes(Bytes),
    /// Registered memory, for example a mapped file.
    Region(RegionSlice),
}

impl BulkSource {
    fn len(&self) -> usize {
        match self {
            BulkSource::Bytes(bytes) => bytes.len(),
            BulkSource::Region(slice) => slice.len(),
        }
    }
}

impl From<Bytes> for BulkSource {
    fn from(bytes: Bytes) -> Self {
        BulkSource::Bytes(bytes)
    }
}

impl From<Vec<u8>> for BulkSource {
    fn from(bytes: Vec<u8>) -> Self {
        BulkSource::Bytes(bytes.into())
    }
}

impl From<&'static [u8]> for BulkSource {
    fn from(bytes: &'static [u8]) -> Self {
        BulkSource::Bytes(bytes.into())
    }
}

impl From<RegionSlice> for BulkSource {
    fn from(slice: RegionSlice) -> Self {
        BulkSource::Region(slice)
    }
}

/// A write in progress.
enum Write {
    Bytes(Op<Bytes>),
    Region(Op<RegionSlice>),
}

impl Write {
    fn cancel(&self) {
        match self {
            Write::Bytes(op) => op.cancel(),
            Write::Region(op) => op.cancel(),
        };
    }
}

impl Future for Write {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let end = match self.get_mut() {
            Write::Bytes(op) => {
                let end = ready!(Pin::new(op).poll(cx));
                end.map(drop).map_err(|failed| failed.into_error())
            }
            Write::Region(op) => {
                let end = ready!(Pin::new(op).poll(cx));
                end.map(drop).map_err(|failed| failed.into_error())
            }
        };
        Poll::Ready(end.map_err(status_of))
    }
}

/// The writes of a transfer, in order.
struct Writes<'a> {
    bulk: &'a Bulk,
    /// Each with the time of its post.
    under_way: VecDeque<(Write, Instant)>,
}

impl Writes<'_> {
    /// Waits for the oldest write; returns when it was posted. If this future is dropped first, the
    /// write stays in the list.
    async fn end_oldest(&mut self) -> Result<Instant> {
        let (oldest, since) = self.under_way.front_mut().expect("a write is under way");
        let (end, since) = (oldest.await, *since);
        self.under_way.pop_front();
        end.map(|()| since)
    }
}

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        let writes: Vec<_> = self.under_way.drain(..).map(|(write, _)| write).collect();
        writes.iter().for_each(Write::cancel);
        outlive(&self.bulk.endpoint, writes, ());
    }
}

/// Memory of the caller that the handler may write to while the call is running.
///
/// It is an argument of a method, for which the caller passes [`Lend::write`](super::Lend::write).
///
/// ```
/// use tokio_fabric_rpc::{Cx, Lend, Push, Result, service, testing};
///
/// #[service]
/// trait Fill {
///     async fn fill(&self, cx: &Cx, value: u8, into: Push) -> Result<()>;
/// }
/// struct Filler;
/// impl Fill for Filler {
///     async fn fill(&self, _: &Cx, value: u8, into: Push) -> Result<()> {
///         into.write(vec![value; into.len() as usize]).await?;
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, _server) = testing::pair(FillServer::new(Filler)).await?;
/// let ((), filled) = FillClient::over(channel).fill(7, Lend::write(vec![0; 4])).await?;
/// assert_eq!(filled, [7; 4]);
/// # Ok(()) }
/// ```
pub struct Push {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
    deadline: Option<Instant>,
}

impl Push {
    pub(crate) fn new(region: RemoteRegion, bulk: &Arc<Bulk>, deadline: Option<Instant>) -> Push {
        Push {
            region,
            bulk: Arc::clone(bulk),
            deadline,
        }
    }

    /// Length in bytes, as the caller states it.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// Writes to the start of the memory, and returns the number of bytes. The bytes are in the
    /// caller's memory when the future is ready, and thus before the caller has its response.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    ///
    /// # Cancel safety
    /// As for [`write_at`](Self::write_at).
    pub async fn write(&self, source: impl Into<BulkSource>) -> Result<u64> {
        self.write_at(0, source).await
    }

    /// Writes to the memory from `offset` on, and returns the number of bytes.
    ///
    /// # Errors
    /// [`Code::TooLarge`] if the bytes do not fit, before anything is written;
    /// [`Code::LentRefused`] if the caller takes the memory back meanwhile;
    /// [`Code::DeadlineExceeded`] if the caller has not served the write a second after the call's
    /// deadline; [`Code::ConnectionLost`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the transfer. Bytes that have been sent may still be written.
    pub async fn write_at(&self, offset: u64, source: impl Into<BulkSource>) -> Result<u64> {
        let source = source.into();
        let len = source.len();
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= self.region.len);
        if end.is_none() {
            let what = format!(
                "{len} bytes at {offset} do not fit into the {} that were lent",
                self.region.len
            );
            return Err(Status::new(Code::TooLarge, what));
        }
        let mut writes = Writes {
            bulk: &self.bulk,
            under_way: VecDeque::with_capacity(CHUNK_DEPTH),
        };
        let part_len = part_len(len);
        let mut depth = Depth::new();
        for begin in (0..len).step_by(part_len) {
            while writes.under_way.len() >= depth.chunks() {
                let in_flight = writes.under_way.len();
                let since = within(self.deadline, writes.end_oldest()).await?;
                depth.chunk_ended(&self.bulk.endpoint, in_flight, since);
            }
            let part = begin..len.min(begin + part_len);
            let write = self.post(offset, &source, part)?;
            writes.under_way.push_back((write, Instant::now()));
        }
        while !writes.under_way.is_empty() {
            within(self.deadline, writes.end_oldest()).await?;
        }
        Ok(len as u64)
    }

    fn post(&self, offset: u64, source: &BulkSource, part: Range<usize>) -> Result<Write> {
        let (begin, end) = (offset + part.start as u64, offset + part.end as u64);
        let to = self.region.slice(begin..end).map_err(status_of)?;
        let endpoint = &self.bulk.endpoint;
        match source {
            BulkSource::Bytes(bytes) => {
                let posted = endpoint.write(bytes.slice(part), to).post();
                posted
                    .map(Write::Bytes)
                    .map_err(|failed| status_of(failed.into_error()))
            }
            BulkSource::Region(slice) => {
                let slice = slice.slice(part).map_err(status_of)?;
                let posted = endpoint.write(slice, to).post();
                posted
                    .map(Write::Region)
                    .map_err(|failed| status_of(failed.into_error()))
            }
        }
    }
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push")
            .field("len", &self.region.len)
            .finish_non_exhaustive()
    }
}
