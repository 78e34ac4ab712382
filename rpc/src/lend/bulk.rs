//! Lent memory as a handler has it: read and written by RMA, in chunks.
//!
//! Chunks are of a bounded size, so that a small answer waits behind one of them at most, and come
//! out of memory that the server has set aside. A transfer that finds none waits; one whose handler
//! is dropped gives what it has back as the library lets go of it.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;
use tokio_fabric::{Endpoint, Error, RemoteRegion};

use crate::limits::{CHUNK, CHUNK_DEPTH, CHUNKS_PER_CONNECTION, CHUNKS_PER_SERVER};
use crate::status::{Code, Result, Status};

/// The memory that the chunks of a server's transfers are in.
pub(crate) struct ChunkPool {
    room: Arc<Semaphore>,
    free: Mutex<Vec<Vec<u8>>>,
}

impl ChunkPool {
    pub(crate) fn new() -> Arc<ChunkPool> {
        Arc::new(ChunkPool {
            room: Arc::new(Semaphore::new(CHUNKS_PER_SERVER)),
            free: Mutex::default(),
        })
    }

    /// Chunks that transfers and handlers have.
    #[cfg(feature = "test-util")]
    pub(crate) fn taken(&self) -> usize {
        CHUNKS_PER_SERVER - self.room.available_permits()
    }

    fn take(&self) -> Vec<u8> {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        free.unwrap_or_else(|| vec![0; CHUNK])
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < CHUNKS_PER_SERVER {
            free.push(buffer);
        }
    }
}

/// A connection, as far as transfers need it.
pub(crate) struct Bulk {
    endpoint: Endpoint,
    pool: Arc<ChunkPool>,
    room: Arc<Semaphore>,
}

/// Room for a chunk: of its connection's share, and of all.
type Permits = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Bulk {
    pub(crate) fn new(endpoint: Endpoint, pool: Arc<ChunkPool>) -> Arc<Bulk> {
        Arc::new(Bulk {
            endpoint,
            pool,
            room: Arc::new(Semaphore::new(CHUNKS_PER_CONNECTION)),
        })
    }

    /// A connection that has its share already waits for itself alone.
    async fn reserve(&self) -> Result<Permits> {
        let closed = |_| Status::new(Code::Internal, "the server's memory is closed");
        let own = Arc::clone(&self.room)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let all = Arc::clone(&self.pool.room)
            .acquire_owned()
            .await
            .map_err(closed)?;
        Ok((own, all))
    }

    fn try_reserve(&self) -> Option<Permits> {
        let own = Arc::clone(&self.room).try_acquire_owned().ok()?;
        let all = Arc::clone(&self.pool.room).try_acquire_owned().ok()?;
        Some((own, all))
    }
}

/// Why a transfer failed.
pub(super) fn status_of(error: Error) -> Status {
    let code = match error.refusal() {
        Some(_) => Code::LentRefused,
        None if error.is_connection_lost() => Code::ConnectionLost,
        None => Code::Internal,
    };
    Status::maybe_ran(code, error.to_string()).with_source(error)
}

/// Memory of the caller's that the handler may read, for as long as the call goes on. An argument
/// of a method; the caller gives [`Lend::read`](super::Lend::read).
pub struct Pull {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
}

impl Pull {
    pub(crate) fn new(region: RemoteRegion, bulk: &Arc<Bulk>) -> Pull {
        Pull {
            region,
            bulk: Arc::clone(bulk),
        }
    }

    /// Its length in bytes, as the caller says.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// All of it, chunk by chunk, in order: 512 KiB each, four of them on the way.
    pub fn chunks(&self) -> Chunks {
        Chunks {
            region: self.region,
            bulk: Arc::clone(&self.bulk),
            asked: 0,
            reads: VecDeque::with_capacity(CHUNK_DEPTH),
        }
    }

    /// All of it, if it is no longer than `max` bytes.
    ///
    /// # Errors
    /// [`Code::TooLarge`] before anything is read; [`Code::LentRefused`] if the caller takes it
    /// back meanwhile; [`Code::ConnectionLost`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the transfer.
    pub async fn read(&self, max: usize) -> Result<Vec<u8>> {
        let len = usize::try_from(self.region.len)
            .ok()
            .filter(|len| *len <= max);
        let Some(len) = len else {
            let what = format!(
                "{} bytes were lent, at most {max} are read",
                self.region.len
            );
            return Err(Status::new(Code::TooLarge, what));
        };
        let mut all = Vec::with_capacity(len);
        let mut chunks = self.chunks();
        while let Some(chunk) = chunks.next().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

impl fmt::Debug for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pull")
            .field("len", &self.region.len)
            .finish_non_exhaustive()
    }
}

/// The chunks of a [`Pull`], in order.
pub struct Chunks {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
    /// Bytes that were asked for.
    asked: u64,
    reads: VecDeque<(Op<Vec<u8>>, Permits)>,
}

impl Chunks {
    /// The next one; `None` at the end. Waits for room, of which a handler that keeps chunks leaves
    /// none: 16 of them are a connection's share.
    ///
    /// # Errors
    /// As of [`Pull::read`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; dropping the chunks ends the transfer.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        if self.reads.is_empty() && self.asked < self.region.len {
            let permits = self.bulk.reserve().await?;
            self.ask(permits)?;
        }
        while self.reads.len() < CHUNK_DEPTH && self.asked < self.region.len {
            let Some(permits) = self.bulk.try_reserve() else {
                break;
            };
            self.ask(permits)?;
        }
        let Some((read, _)) = self.reads.front_mut() else {
            return Ok(None);
        };
        let done = read.await;
        let permits = self.reads.pop_front().map(|(_, permits)| permits);
        let (_, bytes) = done.map_err(|failed| status_of(failed.into_error()))?;
        Ok(Some(Chunk {
            bytes,
            pool: Arc::clone(&self.bulk.pool),
            _permits: permits,
        }))
    }

    fn ask(&mut self, permits: Permits) -> Result<()> {
        let len = (self.region.len - self.asked).min(CHUNK as u64);
        let from = self
            .region
            .slice(self.asked..self.asked + len)
            .map_err(status_of)?;
        let mut buffer = self.bulk.pool.take();
        buffer.resize(len as usize, 0);
        let read = self.bulk.endpoint.read(buffer, from).post();
        let read = read.map_err(|failed| status_of(failed.into_error()))?;
        self.asked += len;
        self.reads.push_back((read, permits));
        Ok(())
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks")
            .field("len", &self.region.len)
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

/// A chunk of lent memory, in memory of the server's that it returns to when it is dropped.
pub struct Chunk {
    bytes: Vec<u8>,
    pool: Arc<ChunkPool>,
    _permits: Option<Permits>,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.bytes.len())
    }
}

/// What a handler writes to lent memory: bytes that it owns, or a slice of a region.
#[derive(Debug)]
pub enum BulkSource {
    /// Bytes.
    Bytes(Bytes),
    /// Registered memory, a mapped file's too.
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

/// A write under way.
enum Write {
    Bytes(Op<Bytes>),
    Region(Op<RegionSlice>),
}

impl Write {
    async fn end(self) -> Result<()> {
        let end = match self {
            Write::Bytes(op) => op.await.map(drop).map_err(|failed| failed.into_error()),
            Write::Region(op) => op.await.map(drop).map_err(|failed| failed.into_error()),
        };
        end.map_err(status_of)
    }
}

/// Memory of the caller's that the handler may write to, for as long as the call goes on. An
/// argument of a method; the caller gives [`Lend::write`](super::Lend::write).
pub struct Push {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
}

impl Push {
    pub(crate) fn new(region: RemoteRegion, bulk: &Arc<Bulk>) -> Push {
        Push {
            region,
            bulk: Arc::clone(bulk),
        }
    }

    /// Its length in bytes, as the caller says.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// Writes to its start, and says how many bytes. They are there when this ends, and so before
    /// the caller has its answer.
    ///
    /// # Errors
    /// As of [`write_at`](Self::write_at).
    ///
    /// # Cancel safety
    /// As of [`write_at`](Self::write_at).
    pub async fn write(&self, source: impl Into<BulkSource>) -> Result<u64> {
        self.write_at(0, source).await
    }

    /// Writes from this offset on, and says how many bytes.
    ///
    /// # Errors
    /// [`Code::TooLarge`] before anything is written, if it does not fit; [`Code::LentRefused`] if
    /// the caller takes it back meanwhile; [`Code::ConnectionLost`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the transfer: what has gone out may be written.
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
        let mut writes = VecDeque::with_capacity(CHUNK_DEPTH);
        for begin in (0..len).step_by(CHUNK) {
            if writes.len() == CHUNK_DEPTH
                && let Some(oldest) = writes.pop_front()
            {
                Write::end(oldest).await?;
            }
            let part = begin..len.min(begin + CHUNK);
            writes.push_back(self.post(offset, &source, part)?);
        }
        for write in writes {
            write.end().await?;
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
