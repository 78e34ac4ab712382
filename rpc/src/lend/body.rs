//! Bodies by reference: requests and answers that are larger than a frame. Its sender lends it
//! for as long as the call goes on; its receiver reads it into memory of its own, whose size it
//! has checked, when it has room for it.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;
use tokio_fabric::{Access, Endpoint, Error, RemoteRegion};

use super::bulk::{outlive, part_len, status_of};
use crate::limits::{BODIES_PER_CONNECTION, CHUNK_DEPTH};
use crate::status::{Code, Result, Status};

/// What room is counted in.
const PAGE: usize = 4096;

/// Room for the bodies that move in one direction of a connection; in turns. Made for the first.
pub(crate) struct BodyRoom(OnceLock<Arc<Semaphore>>);

impl BodyRoom {
    pub(crate) fn new() -> BodyRoom {
        BodyRoom(OnceLock::new())
    }

    /// Waits for room for so many bytes, at most what a body may have.
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

/// Reads a body into room of its own, in chunks: small frames wait for two of them at most.
///
/// # Cancel safety
/// Dropping the future ends the transfer. Its memory is freed when nothing uses it any more, and
/// with it its room.
pub(crate) async fn fetch(
    endpoint: &Endpoint,
    from: RemoteRegion,
    room: OwnedSemaphorePermit,
) -> Result<Vec<u8>> {
    let mut fetch = Fetch {
        endpoint,
        reads: VecDeque::with_capacity(CHUNK_DEPTH),
        room: Some(room),
    };
    fetch.read_all(from).await.map_err(status_of)
}

struct Fetch<'a> {
    endpoint: &'a Endpoint,
    reads: VecDeque<Op<RegionSlice>>,
    room: Option<OwnedSemaphorePermit>,
}

impl Fetch<'_> {
    async fn read_all(&mut self, from: RemoteRegion) -> Result<Vec<u8>, Error> {
        // What is decoded has at most `BODY_MAX`.
        let len = from.len as usize;
        let buffer = vec![0; len];
        if len == 0 {
            return Ok(buffer);
        }
        let registered = self.endpoint.domain().register(buffer).access(Access::READ);
        let into = registered.now().map_err(|failed| failed.into_error())?;
        let part_len = part_len(len);
        for begin in (0..len).step_by(part_len) {
            if self.reads.len() == CHUNK_DEPTH {
                self.end_oldest().await?;
            }
            let range = begin..len.min(begin + part_len);
            let remote = from.slice(range.start as u64..range.end as u64)?;
            let read = self.endpoint.read(into.slice(range)?, remote).post();
            self.reads
                .push_back(read.map_err(|failed| failed.into_error())?);
        }
        while !self.reads.is_empty() {
            self.end_oldest().await?;
        }
        into.deregister().await
    }

    async fn end_oldest(&mut self) -> Result<(), Error> {
        let Some(oldest) = self.reads.front_mut() else {
            return Ok(());
        };
        let end = oldest.await;
        self.reads.pop_front();
        end.map(drop).map_err(|failed| failed.into_error())
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        let reads: Vec<_> = self.reads.drain(..).collect();
        for read in &reads {
            read.cancel();
        }
        outlive(self.endpoint, reads, self.room.take());
    }
}
