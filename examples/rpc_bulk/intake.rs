//! The server's half of one transfer: registered memory that chunks arrive in, and the thread that
//! digests them in order.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_fabric::{Access, Domain, Endpoint, MemoryRegion, RemoteRegion, mr::Quiesced};

use crate::frame::Refusal;

/// Bytes of a piece of registered memory, and so of one read or write: large enough that a system
/// call costs nothing beside its copy, small enough that digesting the last one is no long tail.
pub const CHUNK: usize = 8 << 20;
/// Pieces per transfer: one being digested, one waiting for that, two on the way.
pub const DEPTH: usize = 4;
/// Regions of a client that may wait to be read; one takes a few dozen bytes here.
const REGIONS_MAX: usize = 64;

/// A client's region that is being read.
struct Window {
    region: RemoteRegion,
    read: u64,
    /// The request to answer once all of it is digested.
    request: u64,
}

/// A chunk in the server's memory. While this exists peers cannot access the memory: a client
/// that goes on writing is refused, so that what was digested is what is there.
struct Arrived {
    memory: MemoryRegion<Vec<u8>>,
    bytes: Quiesced,
    len: usize,
    request: Option<u64>,
}

/// A chunk that is part of the digest.
pub struct Digested {
    memory: MemoryRegion<Vec<u8>>,
    pub len: usize,
    /// The request to answer now.
    pub request: Option<u64>,
}

/// One transfer.
pub struct Intake {
    domain: Domain,
    windows: VecDeque<Window>,
    arriving: FuturesOrdered<BoxFuture<'static, Result<Arrived>>>,
    /// Memory for reads.
    free: Vec<MemoryRegion<Vec<u8>>>,
    /// Memory that the client may write into, by its key.
    offered: HashMap<u64, MemoryRegion<Vec<u8>>>,
    /// Pieces of memory there are of either kind, wherever they are.
    for_reads: usize,
    for_writes: usize,
    digesting: usize,
    to_digest: mpsc::Sender<Arrived>,
    digested: mpsc::Receiver<Digested>,
    thread: JoinHandle<blake3::Hash>,
}

impl Intake {
    pub fn start(domain: &Domain) -> Intake {
        let (to_digest, mut arrived) = mpsc::channel::<Arrived>(DEPTH);
        let (done, digested) = mpsc::channel(DEPTH);
        // A digest takes longer than anything else here, and never on the runtime's threads.
        let thread = tokio::task::spawn_blocking(move || {
            let mut hasher = blake3::Hasher::new();
            while let Some(Arrived {
                memory,
                bytes,
                len,
                request,
            }) = arrived.blocking_recv()
            {
                hasher.update(&bytes[..len]);
                drop(bytes);
                if done
                    .blocking_send(Digested {
                        memory,
                        len,
                        request,
                    })
                    .is_err()
                {
                    break;
                }
            }
            hasher.finalize()
        });
        Intake {
            domain: domain.clone(),
            windows: VecDeque::new(),
            arriving: FuturesOrdered::new(),
            free: Vec::new(),
            offered: HashMap::new(),
            for_reads: 0,
            for_writes: 0,
            digesting: 0,
            to_digest,
            digested,
            thread,
        }
    }

    /// Queues a region of the client's to be read.
    pub async fn pull(&mut self, region: RemoteRegion, request: u64) -> Result<Option<Refusal>> {
        let readable = region.access.contains(Access::REMOTE_READ);
        if region.len == 0 || !readable || region.addr.checked_add(region.len).is_none() {
            return Ok(Some(Refusal::BadRegion));
        }
        if self.windows.len() >= REGIONS_MAX {
            return Ok(Some(Refusal::TooMany));
        }
        // A small transfer gets no more memory than it can use.
        let chunks = usize::try_from(region.len.div_ceil(CHUNK as u64)).unwrap_or(DEPTH);
        while self.for_reads < chunks && self.for_reads + self.for_writes < DEPTH {
            let memory = self.memory(Access::READ).await?;
            self.for_reads += 1;
            self.free.push(memory);
        }
        if self.for_reads == 0 {
            return Ok(Some(Refusal::TooMany));
        }
        self.windows.push_back(Window {
            region,
            read: 0,
            request,
        });
        Ok(None)
    }

    /// Registers a piece for the client to write into; `None` if it has all it gets.
    pub async fn offer(&mut self) -> Result<Option<RemoteRegion>> {
        if self.for_reads + self.for_writes >= DEPTH {
            return Ok(None);
        }
        let memory = self.memory(Access::REMOTE_WRITE).await?;
        self.for_writes += 1;
        let remote = memory.remote();
        self.offered.insert(memory.key(), memory);
        Ok(Some(remote))
    }

    async fn memory(&mut self, access: Access) -> Result<MemoryRegion<Vec<u8>>> {
        Ok(self.domain.register(vec![0; CHUNK]).access(access).await?)
    }

    /// The client has written into an offered region.
    pub fn landed(&mut self, region: RemoteRegion, len: u64, request: u64) -> Option<Refusal> {
        let Some(len) = usize::try_from(len)
            .ok()
            .filter(|len| (1..=CHUNK).contains(len))
        else {
            return Some(Refusal::BadRegion);
        };
        let Some(memory) = self.offered.remove(&region.key) else {
            return Some(Refusal::BadRegion);
        };
        self.arriving.push_back(Box::pin(async move {
            let bytes = memory.quiesce().await?;
            Ok(Arrived {
                memory,
                bytes,
                len,
                request: Some(request),
            })
        }));
        None
    }

    /// Posts a read for every piece of memory that is free.
    pub fn post_reads(&mut self, endpoint: &Endpoint) -> Result<()> {
        while let Some(window) = self.windows.front_mut() {
            let Some(memory) = self.free.pop() else { break };
            let len = (window.region.len - window.read).min(CHUNK as u64);
            let from = window.region.slice(window.read..window.read + len)?;
            window.read += len;
            let last = window.read == window.region.len;
            let request = last.then_some(window.request);
            if last {
                self.windows.pop_front();
            }
            let len = usize::try_from(len)?;
            let read = endpoint.read(memory.slice(..len)?, from).post()?;
            self.arriving.push_back(Box::pin(async move {
                read.await?;
                let bytes = memory.quiesce().await?;
                Ok(Arrived {
                    memory,
                    bytes,
                    len,
                    request,
                })
            }));
        }
        Ok(())
    }

    /// Moves chunks on; ends with the next one that is digested. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Digested> {
        loop {
            tokio::select! {
                Some(arrived) = self.arriving.next() => {
                    self.digesting += 1;
                    // There is room: no more pieces exist than the channel holds.
                    self.to_digest.try_send(arrived?).ok().context("the digest's thread has gone")?;
                }
                digested = self.digested.recv() => {
                    self.digesting -= 1;
                    return digested.context("the digest's thread has gone");
                }
            }
        }
    }

    /// Takes the memory of a digested chunk back.
    pub fn recycle(&mut self, digested: Digested) {
        let memory = digested.memory;
        if memory.access().contains(Access::REMOTE_WRITE) {
            self.offered.insert(memory.key(), memory);
        } else {
            self.free.push(memory);
        }
    }

    /// True if nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.windows.is_empty() && self.arriving.is_empty() && self.digesting == 0
    }

    /// The digest of all that has come.
    pub async fn finish(self) -> Result<blake3::Hash> {
        drop(self.to_digest);
        Ok(self.thread.await?)
    }
}
