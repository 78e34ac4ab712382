//! The three stages of the sender. Each passes its batch to the next through a channel with room
//! for one batch, so all stages work at the same time, each on its own batch.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, ensure};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_fabric::{Access, Domain, Endpoint, Fabric, Hints, MemoryRegion, domain::DomainBind};

use crate::peer::BatchDigest;
use crate::source::Batch;
use crate::timeline::{Span, Stage, Timeline};

/// A batch, and when each stage has had it.
struct Traveller<T> {
    is: T,
    found: BatchDigest,
    spans: Vec<Span>,
}

/// Sends every batch. Returns when each stage worked.
pub async fn run(
    batches: impl Iterator<Item = Result<Batch>> + Send + 'static,
    address: SocketAddr,
) -> Result<Timeline> {
    // With REG_MR, a region's pages are present once the region is registered. Another thread does
    // that work, and this task awaits it.
    let fabric = Fabric::open(Hints::new())?;
    let domain = fabric.domain().open()?;
    let events = fabric.event_queue().open()?;
    domain.bind(&events, DomainBind::REG_MR)?;
    let endpoint = domain.endpoint().open()?;
    endpoint.connect(address).await?;

    let (read, to_register) = channel(1);
    let (registered, to_transfer) = channel(1);
    let reading = tokio::task::spawn_blocking(move || read_all(batches, read));
    let (timeline, ()) = tokio::try_join!(
        transfer_all(&endpoint, to_transfer),
        register_all(&domain, to_register, registered),
    )?;
    reading.await??;
    endpoint.shutdown().await?;
    Ok(timeline)
}

/// Reads on a blocking thread, since files have no readiness to wait for.
fn read_all(
    batches: impl Iterator<Item = Result<Batch>>,
    next: Sender<Traveller<Vec<u8>>>,
) -> Result<()> {
    let mut begin = Instant::now();
    for batch in batches {
        let batch = batch?;
        let traveller = Traveller {
            found: BatchDigest::in_batch(batch.rows, &batch.bytes),
            is: batch.bytes,
            spans: vec![Span::since(Stage::Read, begin)],
        };
        // The next stage has ended with an error, which that stage returns.
        if next.blocking_send(traveller).is_err() {
            break;
        }
        begin = Instant::now();
    }
    Ok(())
}

async fn register_all(
    domain: &Domain,
    mut read: Receiver<Traveller<Vec<u8>>>,
    next: Sender<Traveller<MemoryRegion<Vec<u8>>>>,
) -> Result<()> {
    while let Some(mut batch) = read.recv().await {
        let begin = Instant::now();
        let region = domain
            .register(batch.is)
            .access(Access::REMOTE_READ)
            .await?;
        batch.spans.push(Span::since(Stage::Register, begin));
        let traveller = Traveller {
            is: region,
            found: batch.found,
            spans: batch.spans,
        };
        if next.send(traveller).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn transfer_all(
    endpoint: &Endpoint,
    mut registered: Receiver<Traveller<MemoryRegion<Vec<u8>>>>,
) -> Result<Timeline> {
    let mut timeline = Timeline::default();
    while let Some(mut batch) = registered.recv().await {
        let begin = Instant::now();
        let answer = endpoint.recv(vec![0; BatchDigest::LEN]).post()?;
        endpoint.send(batch.is.remote().to_bytes().to_vec()).await?;
        let (received, answer) = answer.await?;
        let number = timeline.batches();
        ensure!(
            answer[..received.len] == batch.found.to_bytes(),
            "the peer has found something else in batch {number}"
        );
        batch.spans.push(Span::since(Stage::Transfer, begin));
        let bytes = batch.is.len();
        // The peer has read all of it; its buffers are freed.
        drop(batch.is.deregister().await?);
        timeline.add(batch.found.rows(), bytes, batch.spans);
    }
    // An empty message means that there are no more batches.
    endpoint.send("").await?;
    Ok(timeline)
}
