//! The client: a few thousand empty calls for their latency, and one transfer.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use tokio_fabric::{
    Access, Backend, Domain, Endpoint, Fabric, Hints, MemoryRegion, RemoteRegion,
    domain::DomainBind, mr::RegionSlice, op::Op,
};

use crate::frame::{Frame, Inbox, Kind, Refusal};
use crate::source::{Filled, Filler, Source};

/// Bytes of a window: the source's bytes that one request speaks of.
const WINDOW: usize = 32 << 20;
/// Windows: one under way, one being filled.
const WINDOWS: usize = 2;
/// Pieces of the server's memory asked for when pushing; it gives fewer if it likes.
const OFFERS: usize = 4;
/// A server that says nothing for so long is given up. A chunk takes milliseconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a transfer came to.
#[derive(Debug)]
pub struct Moved {
    pub bytes: u64,
    pub digest: blake3::Hash,
    /// The server's digest is the same.
    pub verified: bool,
    pub time: Duration,
}

/// A connected client.
pub struct Client {
    domain: Domain,
    endpoint: Endpoint,
    inbox: Inbox,
    ids: u64,
}

impl Client {
    /// Connects to the first of the addresses that answers.
    pub async fn connect(hints: &Hints, addresses: &[SocketAddr]) -> Result<Client> {
        let mut failed = anyhow::anyhow!("no address to connect to");
        for address in addresses {
            match Client::connect_to(hints, *address).await {
                Ok(client) => return Ok(client),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn connect_to(hints: &Hints, address: SocketAddr) -> Result<Client> {
        // The peer's address chooses the interface.
        let fabric = Fabric::open(hints.clone().dest(address))?;
        let events = fabric.event_queue().open()?;
        let domain = fabric.domain().open()?;
        // Registration is awaited: the domain reports it to its event queue.
        domain.bind(&events, DomainBind::REG_MR)?;
        let endpoint = domain.endpoint().open()?;
        let inbox = Inbox::open(&endpoint);
        let connecting = endpoint.connect(address).timeout(CONNECT_TIMEOUT);
        connecting
            .await
            .map_err(|error| match error.data().is_empty() {
                true => anyhow::Error::new(error),
                // The server's own words, if it has rejected us with some.
                false => anyhow::anyhow!("{address}: {}", String::from_utf8_lossy(error.data())),
            })?;
        Ok(Client {
            domain,
            endpoint,
            inbox,
            ids: 0,
        })
    }

    pub fn backend(&self) -> Backend {
        self.domain.backend()
    }

    /// Sends a request; its answer has the number that is returned.
    fn request(&mut self, kind: Kind, value: u64, body: [u8; 32]) -> Result<u64> {
        self.ids += 1;
        let frame = Frame {
            value,
            body,
            ..Frame::new(kind, self.ids)
        };
        self.endpoint
            .inject(&frame.encode())
            .context("cannot send to the server")?;
        Ok(self.ids)
    }

    /// The next answer. May be dropped and called again.
    async fn answer(&mut self) -> Result<Frame> {
        let message = tokio::time::timeout(SILENCE_MAX, self.inbox.next());
        let message = message.await.context("the server has fallen silent")?;
        let message = message.context("the server has closed the connection")?;
        match message.context("lost the server")? {
            Err(_) => bail!("the server does not speak this protocol"),
            Ok(frame) if frame.kind == Kind::Done => Ok(frame),
            Ok(frame) => match Refusal::from_value(frame.value) {
                Some(why) if frame.kind == Kind::Refused => bail!("the server refused: {why}"),
                _ => bail!("the server refused"),
            },
        }
    }

    /// One request at a time: the next answer is this one's.
    async fn call(&mut self, kind: Kind, value: u64, body: [u8; 32]) -> Result<Frame> {
        let id = self.request(kind, value, body)?;
        let answer = self.answer().await?;
        if answer.id != id {
            bail!("the server answered a request that was not made");
        }
        Ok(answer)
    }

    /// Calls that ask for nothing, one after the other; nanoseconds go to the histogram.
    pub async fn ping(&mut self, calls: u32, latency: &mut Histogram<u64>) -> Result<()> {
        for _ in 0..calls {
            let start = Instant::now();
            self.call(Kind::Ping, 0, [0; 32]).await?;
            let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            latency.saturating_record(nanos);
        }
        Ok(())
    }

    /// Moves all of the source to the server and compares digests. `progress` is called with
    /// the number of bytes that the server has.
    pub async fn transfer(
        &mut self,
        source: Source,
        push: bool,
        progress: impl Fn(u64),
    ) -> Result<Moved> {
        let access = if push {
            Access::WRITE
        } else {
            Access::REMOTE_READ
        };
        let windows = self.windows(source.len(), access).await?;
        let start = Instant::now();
        let mut filler = Filler::start(source, windows.len());
        for (index, window) in windows.iter().enumerate() {
            filler.fill(index, window.quiesce().await?).await?;
        }
        let bytes = if push {
            self.push(&windows, &mut filler, progress).await?
        } else {
            self.offer_to_pull(&windows, &mut filler, progress).await?
        };
        let digest = filler.finish().await?;
        let answer = self.call(Kind::Finish, bytes, *digest.as_bytes()).await?;
        let time = start.elapsed();
        Ok(Moved {
            bytes,
            digest,
            verified: answer.body == *digest.as_bytes(),
            time,
        })
    }

    /// Registers the memory that the source's bytes go through: all of them at once if they are
    /// few.
    async fn windows(
        &self,
        len: Option<u64>,
        access: Access,
    ) -> Result<Vec<MemoryRegion<Vec<u8>>>> {
        // One byte more than the source has, so that the first window says that it is the last.
        let all = len.and_then(|len| usize::try_from(len).ok()?.checked_add(1));
        let size = all.unwrap_or(WINDOW).min(WINDOW);
        let count = if size < WINDOW { 1 } else { WINDOWS };
        let mut windows = Vec::with_capacity(count);
        for _ in 0..count {
            windows.push(self.domain.register(vec![0; size]).access(access).await?);
        }
        Ok(windows)
    }

    /// Announces each window to the server, which reads it and then answers.
    async fn offer_to_pull(
        &mut self,
        windows: &[MemoryRegion<Vec<u8>>],
        filler: &mut Filler,
        progress: impl Fn(u64),
    ) -> Result<u64> {
        let mut under_way: HashMap<u64, (usize, u64)> = HashMap::new();
        let mut all_read = false;
        let mut bytes = 0;
        while !all_read || !under_way.is_empty() {
            tokio::select! {
                filled = filler.next(), if !all_read => {
                    let Filled { window, len, last } = filled?;
                    all_read = last;
                    let len = len as u64;
                    if len > 0 {
                        let region = windows[window].remote().slice(..len)?;
                        let id = self.request(Kind::Pull, 0, region.to_bytes())?;
                        under_way.insert(id, (window, len));
                    }
                }
                answer = self.answer(), if !under_way.is_empty() => {
                    let id = answer?.id;
                    let (window, len) = under_way.remove(&id).context("an answer to nothing")?;
                    bytes += len;
                    progress(len);
                    if !all_read {
                        filler.fill(window, windows[window].quiesce().await?).await?;
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Writes each window, piece by piece, into memory that the server offers.
    async fn push(
        &mut self,
        windows: &[MemoryRegion<Vec<u8>>],
        filler: &mut Filler,
        progress: impl Fn(u64),
    ) -> Result<u64> {
        let mut free = self.ask_for_memory(windows).await?;
        let mut to_write: VecDeque<(usize, std::ops::Range<usize>)> = VecDeque::new();
        let mut writes: FuturesUnordered<Op<RegionSlice>> = FuturesUnordered::new();
        let mut under_way: HashMap<u64, (usize, RemoteRegion, u64)> = HashMap::new();
        // Bytes of each window that the server does not have yet.
        let mut missing = vec![0; windows.len()];
        let mut all_read = false;
        let mut bytes = 0;
        while !all_read || !to_write.is_empty() || !under_way.is_empty() {
            tokio::select! {
                filled = filler.next(), if !all_read => {
                    let Filled { window, len, last } = filled?;
                    all_read = last;
                    missing[window] = len as u64;
                    if len > 0 {
                        to_write.push_back((window, 0..len));
                    }
                }
                answer = self.answer(), if !under_way.is_empty() => {
                    let id = answer?.id;
                    let (window, memory, len) = under_way.remove(&id).context("an answer to nothing")?;
                    free.push(memory);
                    bytes += len;
                    progress(len);
                    missing[window] -= len;
                    if missing[window] == 0 && !all_read {
                        filler.fill(window, windows[window].quiesce().await?).await?;
                    }
                }
                // The server answers only what has landed; this reports writes that failed.
                Some(written) = writes.next() => drop(written.context("lost the server")?),
            }
            while let Some((window, range)) = to_write.front_mut() {
                let Some(memory) = free.pop() else { break };
                let len = (memory.len.min(range.len() as u64)) as usize;
                let from = windows[*window].slice(range.start..range.start + len)?;
                let write = self.endpoint.write(from, memory.slice(..len as u64)?);
                writes.push(write.post().context("cannot write to the server")?);
                // Sent after the write, so the bytes have landed when it comes.
                let id = self.request(Kind::Landed, len as u64, memory.to_bytes())?;
                under_way.insert(id, (*window, memory, len as u64));
                range.start += len;
                if range.start == range.end {
                    to_write.pop_front();
                }
            }
        }
        Ok(bytes)
    }

    /// Regions of the server's to write into, as many as can be of use.
    async fn ask_for_memory(
        &mut self,
        windows: &[MemoryRegion<Vec<u8>>],
    ) -> Result<Vec<RemoteRegion>> {
        let mut left: u64 = windows.iter().map(|window| window.len() as u64).sum();
        let mut memory = Vec::new();
        while left > 0 && memory.len() < OFFERS {
            let answer = self.call(Kind::Offer, 0, [0; 32]).await?;
            let region = RemoteRegion::from_bytes(&answer.body)?;
            if region.len == 0 {
                bail!("the server offers no memory");
            }
            left = left.saturating_sub(region.len);
            memory.push(region);
        }
        Ok(memory)
    }
}
