//! The receiving peer: it reads each announced region, decodes it, and answers with its digest.

use std::fmt;

use anyhow::{Context, Result};
use arrow_ipc::reader::StreamReader;
use tokio_fabric::{Event, EventQueue, Fabric, RemoteRegion};

/// The number of rows of a batch, and the digest of its bytes.
#[derive(PartialEq, Eq)]
pub struct BatchDigest {
    rows: u64,
    digest: [u8; 32],
}

impl BatchDigest {
    pub const LEN: usize = 8 + 32;

    pub fn in_batch(rows: usize, bytes: &[u8]) -> BatchDigest {
        BatchDigest {
            rows: rows as u64,
            digest: blake3::hash(bytes).into(),
        }
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.rows.to_le_bytes());
        bytes[8..].copy_from_slice(&self.digest);
        bytes
    }
}

/// Everything that was received.
#[derive(Default)]
pub struct Received {
    batches: usize,
    rows: u64,
    bytes: usize,
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Received {
            batches,
            rows,
            bytes,
        } = self;
        write!(f, "{batches} batches, {rows} rows, {bytes} bytes")
    }
}

/// Serves one sender until it ends.
pub async fn receive(fabric: &Fabric, events: &EventQueue) -> Result<Received> {
    let domain = fabric.domain().open()?;
    let request = loop {
        match events.next().await.context("the event queue is closed")? {
            Event::ConnRequest(request) => break request,
            Event::Error(error) => return Err(error.error.into()),
            _ => {}
        }
    };
    let sender = request.accept(&domain).await?;
    let mut received = Received::default();
    // The memory of the previous batch is reused.
    let mut memory = Vec::new();
    loop {
        let (arrived, message) = sender.recv(vec![0; RemoteRegion::ENCODED_LEN]).await?;
        if arrived.len == 0 {
            return Ok(received);
        }
        let batch = RemoteRegion::from_bytes(&message[..arrived.len])?;
        memory.resize(usize::try_from(batch.len)?, 0);
        let (_, bytes) = sender.read(memory, batch).await?;
        let (found, bytes) = tokio::task::spawn_blocking(|| look_into(bytes)).await??;
        memory = bytes;
        received.batches += 1;
        received.rows += found.rows;
        received.bytes += memory.len();
        sender.send(found.to_bytes().to_vec()).await?;
    }
}

/// Decodes a batch, which checks its structure.
fn look_into(bytes: Vec<u8>) -> Result<(BatchDigest, Vec<u8>)> {
    let mut rows = 0;
    for batch in StreamReader::try_new(bytes.as_slice(), None)? {
        rows += batch?.num_rows();
    }
    Ok((BatchDigest::in_batch(rows, &bytes), bytes))
}
