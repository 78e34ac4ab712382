//! The server: it reads the lent memory of a call by RMA, and digests it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_fabric_rpc::{Code, Cx, Pull, Push, Result, Status, service};

/// Largest number of simultaneous transfers. Each has a hasher; the library bounds the memory for
/// bulk data.
const TRANSFERS_MAX: usize = 64;
/// A transfer that has received nothing for this long gives its place to another.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[service]
pub trait Bulk {
    /// Does nothing, so that its latency can be measured.
    async fn ping(&self, cx: &Cx) -> Result<()>;
    /// Reads the bytes that follow the first `at` bytes of this connection's transfer, and writes
    /// them back if `back` has memory for them. `at` = 0 begins a transfer.
    async fn put(&self, cx: &Cx, at: u64, data: Pull, back: Push) -> Result<()>;
    /// Returns the digest of all `bytes`, which the client compares with its own.
    async fn finish(&self, cx: &Cx, bytes: u64, digest: [u8; 32]) -> Result<[u8; 32]>;
}

/// The transfers in progress, by client: hasher, number of bytes, and time of the last bytes.
pub struct Transfers {
    open: Mutex<HashMap<SocketAddr, (blake3::Hasher, u64, Instant)>>,
    /// Whether to log received transfers on standard error.
    logs: bool,
}

impl Transfers {
    pub fn new(logs: bool) -> Transfers {
        let open = Mutex::default();
        Transfers { open, logs }
    }

    /// Takes the caller's transfer, which ends unless it is put back.
    fn take(&self, cx: &Cx, at: u64) -> Result<blake3::Hasher> {
        let mut open = self.open.lock().unwrap();
        let found = open.remove(&cx.peer()).filter(|(_, bytes, _)| *bytes == at);
        open.retain(|_, (.., last)| last.elapsed() < SILENCE_MAX);
        match found {
            Some((hasher, ..)) => Ok(hasher),
            None if at > 0 => Err(Status::new(Code::BadRequest, "not what comes next")),
            None if open.len() < TRANSFERS_MAX => Ok(blake3::Hasher::new()),
            None => Err(Status::new(Code::Overloaded, "too many transfers at once")),
        }
    }
}

impl Bulk for Transfers {
    async fn ping(&self, _: &Cx) -> Result<()> {
        Ok(())
    }

    async fn put(&self, cx: &Cx, at: u64, data: Pull, back: Push) -> Result<()> {
        let mut hasher = self.take(cx, at)?;
        let (mut chunks, mut offset) = (data.chunks(), 0);
        while let Some(chunk) = chunks.next().await? {
            hasher.update(&chunk);
            if !back.is_empty() {
                offset += back.write_at(offset, Bytes::from_owner(chunk)).await?;
            }
        }
        let transfer = (hasher, at + data.len(), Instant::now());
        self.open.lock().unwrap().insert(cx.peer(), transfer);
        Ok(())
    }

    async fn finish(&self, cx: &Cx, bytes: u64, digest: [u8; 32]) -> Result<[u8; 32]> {
        let own = *self.take(cx, bytes)?.finalize().as_bytes();
        let not = if own == digest { "" } else { "NOT " };
        if self.logs {
            eprintln!("{}: {bytes} bytes {not}verified", cx.peer());
        }
        Ok(own)
    }
}
