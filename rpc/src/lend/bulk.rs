//! Lent memory as a handler has it: read and written by RMA, in chunks.
//!
//! Chunks are of a bounded size, so that a small answer waits behind two of them at most, and come
//! out of memory that the server has set aside. A handler may keep what it has read, and stand
//! still: so each piece of lent memory has a small chunk of its own beside what all share, and a
//! transfer waits for its own handler alone. A client that does not serve a transfer
//! cannot prolong it: it ends soon after its call's deadline, even if the handler runs on. But the
//! library keeps the memory of a transfer until the client has answered, so its room is kept for as
//! long: a client has no more memory of the server by not answering. One that has not answered for
//! 10 s is disconnected.

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

use crate::caught::log;
use crate::drive::close;
use crate::limits::{
    ANSWERED_WITHIN, BODY_MAX, CHUNK, CHUNK_DEPTH, CHUNKS_PER_CONNECTION, CHUNKS_PER_SERVER,
    LATE_TRANSFER, OWN_CHUNK, UNANSWERED_MAX,
};
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

    /// Only whole ones are kept.
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

/// A connection, as far as transfers need it.
pub(crate) struct Bulk {
    pub(super) endpoint: Endpoint,
    pool: Arc<ChunkPool>,
    room: Arc<Semaphore>,
    /// For transfers that have ended for their handlers, and not for the client. Made for the
    /// first.
    unanswered: OnceLock<Arc<Semaphore>>,
}

/// Room for a chunk, until this is dropped.
enum ChunkPermit {
    /// Among those of its connection, and of all.
    Shared {
        _of_connection: OwnedSemaphorePermit,
        _of_server: OwnedSemaphorePermit,
    },
    /// The small one of its piece.
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

    /// Room for a piece that has none: at once, unless its handler keeps its own chunk, or the
    /// client has left too much unanswered.
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

    /// A connection that has its share already waits for itself alone.
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

/// Keeps what a transfer holds until its operations have ended, which the client determines: if it
/// does not answer in time, its connection is closed.
pub(super) fn outlive<F>(endpoint: &Endpoint, operations: Vec<F>, held: impl Send + 'static)
where
    F: Future<Output: Send> + Send + 'static,
{
    // Without a runtime there is no driver either, and all of its operations have ended.
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

/// Bytes that move at a time, of so many: all of them, if they may be on their way at once.
pub(super) fn part_len(all: usize) -> usize {
    match all <= CHUNK * CHUNK_DEPTH {
        true => all.max(1),
        false => CHUNK,
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
    /// Of the call.
    deadline: Option<Instant>,
    /// Room for the chunk that it is sure of.
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

    /// Reads all of it in chunks, in order: 512 KiB each, with up to two in flight. While the
    /// handlers of the connection or of the server hold all chunks that there are, it reads 32 KiB
    /// at a time instead.
    pub fn chunks(&self) -> Chunks {
        Chunks {
            region: self.region,
            bulk: Arc::clone(&self.bulk),
            deadline: self.deadline,
            own: Arc::clone(&self.own),
            asked: 0,
            reads: VecDeque::with_capacity(CHUNK_DEPTH),
        }
    }

    /// Reads all of it, if it is not longer than `max` bytes.
    ///
    /// # Errors
    /// [`Code::TooLarge`] if it is longer, before anything is read; [`Code::LentRefused`] if the
    /// caller takes the memory back meanwhile; [`Code::DeadlineExceeded`] if it has not
    /// served it a second after the call's deadline; [`Code::ConnectionLost`].
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
        // Not for all that is claimed: it has not come yet.
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
    /// Bytes that were asked for.
    asked: u64,
    reads: VecDeque<(Op<Vec<u8>>, ChunkPermit)>,
}

impl Chunks {
    /// The next chunk; `None` at the end. If the handler holds no earlier chunk, this waits only
    /// for the transfer, whatever other handlers hold. Otherwise it may also wait for room, which
    /// is limited to 16 chunks per connection.
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
        while self.reads.len() < CHUNK_DEPTH && self.asked < self.region.len {
            let Some(room) = self.bulk.try_reserve() else {
                break;
            };
            self.ask(room)?;
        }
        let Some((read, _)) = self.reads.front_mut() else {
            return Ok(None);
        };
        let done = read.await;
        let room = self.reads.pop_front().map(|(_, room)| room);
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
        self.reads.push_back((read, room));
        Ok(())
    }
}

/// What has not been answered keeps its room.
impl Drop for Chunks {
    fn drop(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let (reads, room): (Vec<_>, Vec<_>) = self.reads.drain(..).unzip();
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

/// A chunk of lent memory, copied into memory of the server; it derefs to its bytes.
///
/// Dropping it returns that memory, so drop it before you read the next one.
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
