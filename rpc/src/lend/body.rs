//! Bodies by reference: requests and responses that are larger than a frame. The sender lends the
//! body for the duration of the call. The receiver checks its size, waits for room, and reads it
//! into memory of its own.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;
use tokio_fabric::{Access, Endpoint, Error, RemoteRegion};

use super::bulk::{outlive, part_len, status_of};
use super::depth::Depth;
use crate::limits::{BODIES_PER_CONNECTION, CHUNK_DEPTH};
use crate::status::{Code, Result, Status};

/// Unit in which room is counted, in bytes.
const PAGE: usize = 4096;

/// Room for the bodies of one direction of a connection, granted in order of request. Allocated for
/// the first body.
pub(crate) struct BodyRoom(OnceLock<Arc<Semaphore>>);

impl BodyRoom {
    pub(crate) fn new() -> BodyRoom {
        BodyRoom(OnceLock::new())
    }

    /// Waits for room for `len` bytes, at most the largest size of a body.
    pub(crate) async fn reserve(&self, len: u64) -> Result<OwnedSemaphorePermit> {
        let all = || Arc::new(Semaphore::new(BODIES_PER_CONNECTION / PAGE));
        let room = Arc::clone(self.0.get_or_init(all));
        let room = room.acquire_many_owned(pages(len)).await;
        room.map_err(|_| Status::new(Code::Internal, "the room for bodies is closed"))
    }
}

fn pages(len: u64) -> u32 {
    u32::try_from(len.div_ceil(PAGE as u64)).unwrap_or(u32::MAX)
}

/// Reads a body into its own memory, in chunks, so that small frames do not wait for all of it.
///
/// # Cancel safety
/// Dropping the future ends the transfer. The transfer's memory and room are freed when nothing
/// uses the memory any more.
pub(crate) async fn fetch(
    endpoint: &Endpoint,
    from: RemoteRegion,
    room: OwnedSemaphorePermit,
) -> Result<Vec<u8>> {
    let mut fetch = Fetch {
        endpoint,
        depth: Depth::new(),
        reads: VecDeque::with_capacity(CHUNK_DEPTH),
        room: Some(room),
    };
    fetch.read_all(from).await.map_err(status_of)
}

struct Fetch<'a> {
    endpoint: &'a Endpoint,
    depth: Depth,
    /// Each with the time of its post.
    reads: VecDeque<(Op<RegionSlice>, Instant)>,
    room: Option<OwnedSemaphorePermit>,
}

impl Fetch<'_> {
    async fn read_all(&mut self, from: RemoteRegion) -> Result<Vec<u8>, Error> {
        // The decoded length is at most `BODY_MAX`.
        let len = from.len as usize;
        let buffer = vec![0; len];
        if len == 0 {
            return Ok(buffer);
        }
        let registered = self.endpoint.domain().register(buffer).access(Access::READ);
        let into = registered.now().map_err(|failed| failed.into_error())?;
        let part_len = part_len(len);
        for begin in (0..len).step_by(part_len) {
            while self.reads.len() >= self.depth.chunks() {
                let in_flight = self.reads.len();
                let since = self.end_oldest().await?;
                self.depth.chunk_ended(self.endpoint, in_flight, since);
            }
            let range = begin..len.min(begin + part_len);
            let remote = from.slice(range.start as u64..range.end as u64)?;
            let read = self.endpoint.read(into.slice(range)?, remote).post();
            let read = read.map_err(|failed| failed.into_error())?;
            self.reads.push_back((read, Instant::now()));
        }
        while !self.reads.is_empty() {
            self.end_oldest().await?;
        }
        into.deregister().await
    }

    /// Returns when the oldest read was posted, once it has ended.
    async fn end_oldest(&mut self) -> Result<Instant, Error> {
        let (oldest, since) = self.reads.front_mut().expect("a read is in flight");
        let (end, since) = (oldest.await, *since);
        self.reads.pop_front();
        end.map(|_| since).map_err(|failed| failed.into_error())
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let reads: Vec<_> = self.reads.drain(..).map(|(read, _)| read).collect();
        for read in &reads {
            read.cancel();
        }
        outlive(self.endpoint, reads, self.room.take());
    }
}
