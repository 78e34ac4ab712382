//! The layer as its users have it: calls between a client and a server in one process.

mod authorize;
mod balance;
mod batches;
mod bodies;
mod calls;
mod cancel;
mod claims;
mod codecs;
mod drain;
mod errors;
mod hedge;
mod hostile;
mod kit;
mod lend;
mod limits;
mod moving;
mod names;
mod nested;
mod observe;
mod overload;
mod panics;
mod reconnect;
mod refused;
mod runtimes;
mod seeds;
mod signatures;
mod stalled;
mod streams;
mod tower;
#[cfg(feature = "opentelemetry")]
mod traces;
mod unread;
mod wakers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    CancelReason, Channel, Code, Cx, Listening, Result, Server, Started, Status, service, testing,
};

/// An error of the service's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    TooOld { by: u32 },
}

#[service]
pub trait Probe {
    async fn nothing(&self, cx: &Cx) -> Result<()>;
    async fn join(&self, cx: &Cx, words: Vec<String>, with: char) -> Result<String>;
    async fn reverse(&self, cx: &Cx, bytes: Bytes) -> Result<Bytes>;
    async fn check(&self, cx: &Cx, age: u32) -> Result<u32, Refusal>;
    async fn fail(&self, cx: &Cx, number: u32) -> Result<()>;
    async fn panic(&self, cx: &Cx) -> Result<()>;
    async fn metadata(&self, cx: &Cx, name: String) -> Result<Option<Vec<u8>>>;
    /// Waits without end, or so long.
    async fn wait(&self, cx: &Cx, millis: Option<u64>) -> Result<()>;
    #[rpc(to_end)]
    async fn insist(&self, cx: &Cx, millis: u64) -> Result<()>;
    async fn large(&self, cx: &Cx, len: usize) -> Result<Vec<u8>>;
    /// Waits without end, with what it was sent.
    async fn hold(&self, cx: &Cx, bytes: Bytes) -> Result<()>;
}

/// What the handlers have done.
#[derive(Debug, Default)]
pub struct Seen {
    pub started: AtomicUsize,
    pub dropped: AtomicUsize,
    pub ended: AtomicUsize,
    pub reason: std::sync::Mutex<Option<CancelReason>>,
    pub change: Notify,
}

impl Seen {
    /// Waits until a count is so high.
    pub async fn wait_for(&self, count: &AtomicUsize, at_least: usize) {
        loop {
            let changed = self.change.notified();
            if count.load(Ordering::SeqCst) >= at_least {
                return;
            }
            changed.await;
        }
    }

    pub fn add(&self, count: &AtomicUsize) {
        count.fetch_add(1, Ordering::SeqCst);
        self.change.notify_waiters();
    }
}

/// Counts when it is dropped before its handler's end.
struct Guard<'a>(&'a Seen);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.add(&self.0.dropped);
    }
}

#[derive(Clone, Debug, Default)]
pub struct Handlers(pub Arc<Seen>);

impl Probe for Handlers {
    async fn nothing(&self, _: &Cx) -> Result<()> {
        Ok(())
    }

    async fn join(&self, _: &Cx, words: Vec<String>, with: char) -> Result<String> {
        Ok(words.join(&with.to_string()))
    }

    async fn reverse(&self, _: &Cx, bytes: Bytes) -> Result<Bytes> {
        Ok(bytes.iter().rev().copied().collect())
    }

    async fn check(&self, _: &Cx, age: u32) -> Result<u32, Refusal> {
        match age.checked_sub(99) {
            Some(by) if by > 0 => Err(Refusal::TooOld { by }),
            _ => Ok(age),
        }
    }

    async fn fail(&self, _: &Cx, number: u32) -> Result<()> {
        Err(Status::application(number, "as it was asked to"))
    }

    async fn panic(&self, _: &Cx) -> Result<()> {
        tokio::task::yield_now().await;
        panic!("as it was asked to");
    }

    async fn metadata(&self, cx: &Cx, name: String) -> Result<Option<Vec<u8>>> {
        Ok(cx.metadata().value(&name).map(<[u8]>::to_vec))
    }

    async fn wait(&self, _: &Cx, millis: Option<u64>) -> Result<()> {
        let guard = Guard(&self.0);
        self.0.add(&self.0.started);
        match millis {
            Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            None => std::future::pending().await,
        }
        std::mem::forget(guard);
        self.0.add(&self.0.ended);
        Ok(())
    }

    async fn insist(&self, cx: &Cx, millis: u64) -> Result<()> {
        self.0.add(&self.0.started);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        *self.0.reason.lock().unwrap() = cx.cancel_reason();
        self.0.add(&self.0.ended);
        Ok(())
    }

    async fn large(&self, _: &Cx, len: usize) -> Result<Vec<u8>> {
        Ok(vec![7; len])
    }

    async fn hold(&self, _: &Cx, _: Bytes) -> Result<()> {
        self.0.add(&self.0.started);
        std::future::pending().await
    }
}

/// A client of the handlers, what they have seen, and their server.
pub async fn probe() -> (ProbeClient, Arc<Seen>, Listening) {
    probe_with(Server::new()).await
}

pub async fn probe_with(server: Server) -> (ProbeClient, Arc<Seen>, Listening) {
    let handlers = Handlers::default();
    let server = server.add(ProbeServer::new(handlers.clone()));
    let (channel, listening) = testing::connect(&Net::new(7), server).await.unwrap();
    (ProbeClient::over(channel), handlers.0, listening)
}

/// Waits until no slot of the channel is held.
pub async fn until_closed_calls(channel: &Channel) {
    while channel.open_calls() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[track_caller]
pub fn expect(status: &Status, code: Code, started: Started) {
    assert_eq!(
        (status.code(), status.started()),
        (code, started),
        "{status}"
    );
}
