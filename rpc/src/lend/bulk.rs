//! Lent memory on the handler's side: read and written by RMA, in chunks.
//!
//! Chunks have a bounded size, so that a small response waits for at most two of them, and their
//! memory comes from a pool of the server. A handler may stop and keep the chunks that it has read.
//! Therefore each piece of lent memory has a small chunk of its own in addition to the shared
//! chunks, and a transfer waits only for its own handler. A client that does not serve a transfer
//! cannot prolong it: the transfer ends soon after its call's deadline, even if the handler
//! continues. But the library keeps the transfer's memory until the client has answered, and the
//! transfer's room is kept as long, so a client gets no more of the server's memory by not
//! answering. A client that has not answered for 10 s is disconnected.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures::future::{Either, join_all, select};
use tokio::runtime::Handle;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_fabric::op::Op;
use tokio_fabric::{Endpoint, Error, RemoteRegion};

use super::depth::Depth;
use crate::caught::log;
use crate::drive::close;
use crate::limits::{
    ANSWERED_WITHIN, BODY_MAX, CHUNK, CHUNK_DEPTH, CHUNKS_PER_CONNECTION, CHUNKS_PER_SERVER,
    LATE_TRANSFER, OWN_CHUNK, UNANSWERED_MAX,
};
use crate::status::{Code, Result, Status};

/// The memory for the chunks of a server's transfers.
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

    /// Returns the number of chunks that transfers and handlers hold.
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

    /// Returns a buffer to the pool, if it is a whole chunk.
    fn put(&self, buffer: Vec<u8>) {
        if buffer.capacity() < CHUNK {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < CHUNKS_PER_SERVER {
            free.push(buffer);
        }
    }
}

/// The part of a connection that transfers use.
pub(crate) struct Bulk {
    pub(super) endpoint: Endpoint,
    pool: Arc<ChunkPool>,
    room: Arc<Semaphore>,
    /// Permits for transfers that have ended for their handlers but are unanswered by the client.
    /// Allocated for the first one.
    unanswered: OnceLock<Arc<Semaphore>>,
}

/// Room for a chunk, until it is dropped.
enum ChunkPermit {
    /// One of the shared chunks of its connection and of the server.
    Shared {
        _of_connection: OwnedSemaphorePermit,
        _of_server: OwnedSemaphorePermit,
    },
    /// The small chunk that belongs to one piece of lent memory.
    Own(#[allow(dead_code, reason = "held")] OwnedSemaphorePermit),
}

impl ChunkPermit {
    fn len(&self) -> u64 {
        match self {
            ChunkPermit::Shared { .. } => CHUNK as u64,
            ChunkPermit::Own(_) => OWN_CHUNK as u64,
        }
    }
}

impl Bulk {
    pub(crate) fn new(endpoint: Endpoint, pool: Arc<ChunkPool>) -> Arc<Bulk> {
        Arc::new(Bulk {
            endpoint,
            pool,
            room: Arc::new(Semaphore::new(CHUNKS_PER_CONNECTION)),
            unanswered: OnceLock::new(),
        })
    }

    fn unanswered(&self) -> &Arc<Semaphore> {
        let all = || Arc::new(Semaphore::new(UNANSWERED_MAX));
        self.unanswered.get_or_init(all)
    }

    /// Waits for room for a chunk of a piece that holds none. Room is available at once, unless the
    /// handler keeps the piece's own chunk, or the client has left too many transfers unanswered.
    async fn reserve(&self, own: &Arc<Semaphore>) -> Result<ChunkPermit> {
        if let Some(shared) = self.try_reserve() {
            return Ok(shared);
        }
        let own = async {
            drop(self.unanswered().acquire().await?);
            Ok(ChunkPermit::Own(Arc::clone(own).acquire_owned().await?))
        };
        let shared = std::pin::pin!(self.reserve_shared());
        let first: std::result::Result<ChunkPermit, AcquireError> =
            match select(std::pin::pin!(own), shared).await {
                Either::Left((room, _)) | Either::Right((room, _)) => room,
            };
        first.map_err(|_| Status::new(Code::Internal, "the server's memory is closed"))
    }

    /// A connection that has its full share waits for its own chunks before it waits for the
    /// server's.
    async fn reserve_shared(&self) -> std::result::Result<ChunkPermit, AcquireError> {
        Ok(ChunkPermit::Shared {
            _of_connection: Arc::clone(&self.room).acquire_owned().await?,
            _of_server: Arc::clone(&self.pool.room).acquire_owned().await?,
        })
    }

    fn try_reserve(&self) -> Option<ChunkPermit> {
        Some(ChunkPermit::Shared {
            _of_connection: Arc::clone(&self.room).try_acquire_owned().ok()?,
            _of_server: Arc::clone(&self.pool.room).try_acquire_owned().ok()?,
        })
    }
}

/// Keeps `held` until the transfer's operations have ended, which depends on the client: a client
/// that does not answer in time is disconnected.
pub(super) fn outlive<F>(endpoint: &Endpoint, operations: Vec<F>, held: impl Send + 'static)
where
    F: Future<Output: Send> + Send + 'static,
{
    // Without a runtime there is no driver, so all operations have ended.
    let (false, Ok(runtime)) = (operations.is_empty(), Handle::try_current()) else {
        return;
    };
    let endpoint = endpoint.clone();
    runtime.spawn(async move {
        let _held = held;
        let mut ended = std::pin::pin!(join_all(operations));
        if timeout(ANSWERED_WITHIN, &mut ended).await.is_err() {
            log(|| {
                tracing::warn!("a client does not answer transfers: the connection is closed");
            });
            close(&endpoint);
            ended.await;
        }
    });
}

/// Returns the size of the parts in which `all` bytes are moved: a single part, if all bytes may be
/// in flight at once.
pub(super) fn part_len(all: usize) -> usize {
    match all <= CHUNK * CHUNK_DEPTH {
        true => all.max(1),
        false => CHUNK,
    }
}

/// Returns the status of a transfer that failed with this error.
pub(super) fn status_of(error: Error) -> Status {
    let code = match error.refusal() {
        Some(_) => Code::LentRefused,
        None if error.is_connection_lost() => Code::ConnectionLost,
        None => Code::Internal,
    };
    Status::maybe_ran(code, "").with_source(&error)
}

/// Runs a part of a transfer until a second after the call's deadline.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    part: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(end) = deadline.and_then(|it| it.checked_add(LATE_TRANSFER)) else {
        return part.await;
    };
    timeout_at(end, part).await.unwrap_or_else(|_| {
        let what = "the client does not serve what it has lent";
        Err(Status::maybe_ran(Code::DeadlineExceeded, what))
    })
}

/// Memory of the caller that the handler may read while the call is running.
///
/// It is an argument of a method, for which the caller passes [`Lend::read`](super::Lend::read).
///
/// ```
/// use tokio_fabric_rpc::{Cx, Lend, Pull, Result, service, testing};
///
/// #[service]
/// trait Sum {
///     async fn sum(&self, cx: &Cx, bytes: Pull) -> Result<u64>;
/// }
/// struct Adder;
/// impl Sum for Adder {
///     async fn sum(&self, _: &Cx, bytes: Pull) -> Result<u64> {
///         let (mut chunks, mut sum) = (bytes.chunks(), 0);
///         while let Some(chunk) = chunks.next().await? {
///             sum += chunk.iter().map(|it| u64::from(*it)).sum::<u64>();
///         }
///         Ok(sum)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, _server) = testing::pair(SumServer::new(Adder)).await?;
/// let (sum, _bytes) = SumClient::over(channel).sum(Lend::read(vec![2; 1000])).await?;
/// assert_eq!(sum, 2000);
/// # Ok(()) }
/// ```
pub struct Pull {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
    deadline: Option<Instant>,
    /// Room for the piece's own chunk.
    own: Arc<Semaphore>,
}

impl Pull {
    pub(crate) fn new(region: RemoteRegion, bulk: &Arc<Bulk>, deadline: Option<Instant>) -> Pull {
        Pull {
            region,
            bulk: Arc::clone(bulk),
            deadline,
            own: Arc::new(Semaphore::new(1)),
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

    /// Reads the whole memory in order, in chunks of 512 KiB. Two are in flight; on a path with a
    /// long round trip as many more as fill it, up to eight. While the handlers of the connection
    /// or of the server hold all shared chunks, it reads 32 KiB at a time instead.
    pub fn chunks(&self) -> Chunks {
        Chunks {
            region: self.region,
            bulk: Arc::clone(&self.bulk),
            deadline: self.deadline,
            own: Arc::clone(&self.own),
            asked: 0,
            depth: Depth::new(),
            reads: VecDeque::with_capacity(CHUNK_DEPTH),
        }
    }

    /// Reads the whole memory, if it is not longer than `max` bytes.
    ///
    /// # Errors
    /// [`Code::TooLarge`] if it is longer, before anything is read; [`Code::LentRefused`] if the
    /// caller takes the memory back meanwhile; [`Code::DeadlineExceeded`] if the caller has not
    /// served the read a second after the call's deadline; [`Code::ConnectionLost`].
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
        // Not allocated for the claimed length, since those bytes have not arrived yet.
        let mut all = Vec::with_capacity(len.min(BODY_MAX));
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

/// The chunks of a [`Pull`], in order; see [`Pull::chunks`].
pub struct Chunks {
    region: RemoteRegion,
    bulk: Arc<Bulk>,
    deadline: Option<Instant>,
    own: Arc<Semaphore>,
    /// Number of bytes that were requested.
    asked: u64,
    depth: Depth,
    /// Each with the time of its post.
    reads: VecDeque<(Op<Vec<u8>>, Instant, ChunkPermit)>,
}

impl Chunks {
    /// The next chunk; `None` at the end. If the handler holds no earlier chunk, this waits only
    /// for the transfer, whatever other handlers hold. Otherwise it may also wait for room, of at
    /// most 16 chunks per connection.
    ///
    /// # Errors
    /// As for [`Pull::read`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing. Dropping the `Chunks` ends the transfer.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        within(self.deadline, self.read_next()).await
    }

    async fn read_next(&mut self) -> Result<Option<Chunk>> {
        if self.reads.is_empty() && self.asked < self.region.len {
            let room = self.bulk.reserve(&self.own).await?;
            self.ask(room)?;
        }
        while self.reads.len() < self.depth.chunks() && self.asked < self.region.len {
            let Some(room) = self.bulk.try_reserve() else {
                break;
            };
            self.ask(room)?;
        }
        let Some((read, since, _)) = self.reads.front_mut() else {
            return Ok(None);
        };
        let (done, since) = (read.await, *since);
        if self.asked < self.region.len {
            let in_flight = self.reads.len();
            (self.depth).chunk_ended(&self.bulk.endpoint, in_flight, since);
        }
        let room = self.reads.pop_front().map(|(_, _, room)| room);
        let (_, bytes) = done.map_err(|failed| status_of(failed.into_error()))?;
        Ok(Some(Chunk {
            bytes,
            pool: Arc::clone(&self.bulk.pool),
            _room: room,
        }))
    }

    fn ask(&mut self, room: ChunkPermit) -> Result<()> {
        let len = (self.region.len - self.asked).min(room.len());
        let from = self
            .region
            .slice(self.asked..self.asked + len)
            .map_err(status_of)?;
        let mut buffer = match &room {
            ChunkPermit::Shared { .. } => self.bulk.pool.take(),
            ChunkPermit::Own(_) => Vec::new(),
        };
        buffer.resize(len as usize, 0);
        let read = self.bulk.endpoint.read(buffer, from).post();
        let read = read.map_err(|failed| status_of(failed.into_error()))?;
        self.asked += len;
        self.reads.push_back((read, Instant::now(), room));
        Ok(())
    }
}

/// Keeps the room of reads that are not answered yet.
impl Drop for Chunks {
    fn drop(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let reads = self.reads.drain(..).map(|(read, _, room)| (read, room));
        let (reads, room): (Vec<_>, Vec<_>) = reads.unzip();
        for read in &reads {
            read.cancel();
        }
        let unanswered = Arc::clone(self.bulk.unanswered()).try_acquire_owned();
        outlive(&self.bulk.endpoint, reads, (room, unanswered));
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

/// A chunk of lent memory, copied into the server's memory; it derefs to its bytes.
///
/// Dropping it returns its memory to the server, so drop it before you read the next one.
pub struct Chunk {
    bytes: Vec<u8>,
    pool: Arc<ChunkPool>,
    _room: Option<ChunkPermit>,
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
