//! Bodies by reference: requests and answers that are larger than a frame. Its sender lends it
//! for as long as the call goes on; its receiver reads it into memory of its own, whose size it
//! has checked, when it has room for it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;
use tokio_fabric::{Access, Endpoint, Error, RemoteRegion};

use super::bulk::status_of;
use crate::limits::{BODIES_PER_CONNECTION, CHUNK, CHUNK_DEPTH};
use crate::status::{Code, Result, Status};

/// What room is counted in.
const PAGE: usize = 4096;

/// Room for the bodies of one direction of a connection, or of all connections; in turns.
#[derive(Clone)]
pub(crate) struct BodyRoom(Arc<Semaphore>);

impl BodyRoom {
    pub(crate) fn of_connection() -> BodyRoom {
        BodyRoom::new(BODIES_PER_CONNECTION)
    }

    pub(crate) fn new(bytes: usize) -> BodyRoom {
        BodyRoom(Arc::new(Semaphore::new(bytes / PAGE)))
    }

    /// Waits for room for so many bytes, at most what a body may have.
    pub(crate) async fn reserve(&self, len: u64) -> Result<OwnedSemaphorePermit> {
        let room = Arc::clone(&self.0).acquire_many_owned(pages(len)).await;
        room.map_err(|_| Status::new(Code::Internal, "the room for bodies is closed"))
    }

    /// The same if it is there.
    pub(crate) fn try_reserve(&self, len: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(pages(len)).ok()
    }
}

fn pages(len: u64) -> u32 {
    u32::try_from(len.div_ceil(PAGE as u64)).unwrap_or(u32::MAX)
}

/// Reads a body, in chunks: small frames wait for one of them at most.
///
/// # Cancel safety
/// Dropping the future ends the transfer; its memory is freed when nothing uses it any more.
pub(crate) async fn fetch(endpoint: &Endpoint, from: RemoteRegion) -> Result<Vec<u8>> {
    read_all(endpoint, from).await.map_err(status_of)
}

async fn read_all(endpoint: &Endpoint, from: RemoteRegion) -> Result<Vec<u8>, Error> {
    let len = from.len;
    // What is decoded has at most `BODY_MAX`.
    let buffer = vec![0; len as usize];
    if len == 0 {
        return Ok(buffer);
    }
    let registered = endpoint.domain().register(buffer).access(Access::READ);
    let into = registered.now().map_err(|failed| failed.into_error())?;
    let mut reads = VecDeque::with_capacity(CHUNK_DEPTH);
    for begin in (0..len).step_by(CHUNK) {
        if reads.len() == CHUNK_DEPTH
            && let Some(oldest) = reads.pop_front()
        {
            end(oldest).await?;
        }
        let range = begin..len.min(begin + CHUNK as u64);
        let part = into.slice(range.start as usize..range.end as usize)?;
        let read = endpoint.read(part, from.slice(range)?).post();
        reads.push_back(read.map_err(|failed| failed.into_error())?);
    }
    for read in reads {
        end(read).await?;
    }
    into.deregister().await
}

async fn end(read: Op<RegionSlice>) -> Result<(), Error> {
    read.await.map(drop).map_err(|failed| failed.into_error())
}
