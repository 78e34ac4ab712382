//! Bodies by reference: requests and answers that are larger than a frame. Its sender lends it
//! for as long as the call goes on; its receiver reads it into memory of its own, whose size it
//! has checked, when it has room for it.

use std::collections::VecDeque;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_fabric::mr::RegionSlice;
use tokio_fabric::op::Op;
use tokio_fabric::{Access, Endpoint, Error, RemoteRegion};

use super::bulk::{part_len, status_of};
use crate::limits::{BODIES_PER_CONNECTION, CHUNK_DEPTH};
use crate::status::{Code, Result, Status};

/// What room is counted in.
const PAGE: usize = 4096;

/// Room for the bodies that move in one direction of a connection; in turns.
pub(crate) struct BodyRoom(Semaphore);

impl BodyRoom {
    pub(crate) fn new() -> BodyRoom {
        BodyRoom(Semaphore::new(BODIES_PER_CONNECTION / PAGE))
    }

    /// Waits for room for so many bytes, at most what a body may have.
    pub(crate) async fn reserve(&self, len: u64) -> Result<SemaphorePermit<'_>> {
        let room = self.0.acquire_many(pages(len)).await;
        room.map_err(|_| Status::new(Code::Internal, "the room for bodies is closed"))
    }
}

fn pages(len: u64) -> u32 {
    u32::try_from(len.div_ceil(PAGE as u64)).unwrap_or(u32::MAX)
}

/// Reads a body, in chunks: small frames wait for two of them at most.
///
/// # Cancel safety
/// Dropping the future ends the transfer; its memory is freed when nothing uses it any more.
pub(crate) async fn fetch(endpoint: &Endpoint, from: RemoteRegion) -> Result<Vec<u8>> {
    read_all(endpoint, from).await.map_err(status_of)
}

async fn read_all(endpoint: &Endpoint, from: RemoteRegion) -> Result<Vec<u8>, Error> {
    // What is decoded has at most `BODY_MAX`.
    let len = from.len as usize;
    let buffer = vec![0; len];
    if len == 0 {
        return Ok(buffer);
    }
    let registered = endpoint.domain().register(buffer).access(Access::READ);
    let into = registered.now().map_err(|failed| failed.into_error())?;
    let mut reads = VecDeque::with_capacity(CHUNK_DEPTH);
    let part_len = part_len(len);
    for begin in (0..len).step_by(part_len) {
        if reads.len() == CHUNK_DEPTH
            && let Some(oldest) = reads.pop_front()
        {
            end(oldest).await?;
        }
        let range = begin..len.min(begin + part_len);
        let remote = from.slice(range.start as u64..range.end as u64)?;
        let read = endpoint.read(into.slice(range)?, remote).post();
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
