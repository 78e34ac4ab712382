//! A service whose handlers keep a ledger of what they do, here or, a line each, for another
//! process: what a killed process has said stands in the pipe.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use tokio::sync::Notify;
use tokio_fabric_rpc::{Cx, Pull, Push, Result, Streaming, service};

use super::child;

#[service]
pub trait Work {
    /// Waits without end.
    async fn wait(&self, cx: &Cx, id: u64) -> Result<()>;
    /// Gives so many bytes.
    async fn give(&self, cx: &Cx, id: u64, len: usize) -> Result<Vec<u8>>;
    /// Reads all that is lent.
    async fn put(&self, cx: &Cx, id: u64, data: Pull) -> Result<u64>;
    /// Writes to all that is lent.
    async fn get(&self, cx: &Cx, id: u64, into: Push) -> Result<u64>;
    /// Gives what it gets: by reference, if that is larger than a frame.
    async fn echo(&self, cx: &Cx, id: u64, bytes: Bytes) -> Result<Bytes>;
    /// Gives so many numbers, one by one.
    async fn numbers(&self, cx: &Cx, id: u64, to: u64) -> Result<Streaming<u64>>;
    /// Takes numbers one by one.
    async fn sum(&self, cx: &Cx, id: u64, numbers: Streaming<u64>) -> Result<u64>;
    /// Both, one for one.
    async fn double(&self, cx: &Cx, id: u64, numbers: Streaming<u64>) -> Result<Streaming<u64>>;
    /// Waits without end, with a request of many bytes.
    async fn hold(&self, cx: &Cx, bytes: Bytes) -> Result<()>;
    /// Reads all that is lent, and keeps it until all is there.
    async fn keep(&self, cx: &Cx, data: Pull) -> Result<()>;
}

/// What `get` writes.
pub const WRITTEN_BYTE: u8 = 9;

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    Started,
    /// It has its result.
    Ended,
    /// It was dropped before.
    Dropped,
}

impl Deed {
    pub const ALL: [Deed; 3] = [Deed::Started, Deed::Ended, Deed::Dropped];

    /// In what a process says.
    pub fn letter(self) -> char {
        match self {
            Deed::Started => 'S',
            Deed::Ended => 'E',
            Deed::Dropped => 'D',
        }
    }

    pub fn of_letter(letter: &str) -> Option<Deed> {
        Deed::ALL
            .into_iter()
            .find(|deed| letter == deed.letter().to_string())
    }
}

/// What the handlers of a server have done, by the numbers of their calls.
#[derive(Debug, Default)]
pub struct Ledger {
    deeds: Mutex<BTreeMap<(Deed, u64), u64>>,
    /// Each goes to standard output too.
    is_printed: bool,
    change: Notify,
}

impl Ledger {
    pub fn printed() -> Ledger {
        Ledger {
            is_printed: true,
            ..Ledger::default()
        }
    }

    pub fn note(&self, deed: Deed, id: u64) {
        if self.is_printed {
            child::say(format_args!("{} {id}", deed.letter()));
        }
        *self.deeds.lock().unwrap().entry((deed, id)).or_default() += 1;
        self.change.notify_waiters();
    }

    /// How often the call's handler has done that.
    pub fn times(&self, deed: Deed, id: u64) -> u64 {
        let deeds = self.deeds.lock().unwrap();
        deeds.get(&(deed, id)).copied().unwrap_or_default()
    }

    /// How often all have.
    pub fn total(&self, deed: Deed) -> u64 {
        let deeds = self.deeds.lock().unwrap();
        let of = deeds.iter().filter(|((it, _), _)| *it == deed);
        of.map(|(_, times)| times).sum()
    }

    /// Handlers that are neither done nor dropped.
    pub fn open(&self) -> u64 {
        let [started, ended, dropped] = Deed::ALL.map(|deed| self.total(deed));
        started - ended - dropped
    }

    pub async fn wait_for(&self, deed: Deed, at_least: u64) {
        loop {
            let changed = self.change.notified();
            if self.total(deed) >= at_least {
                return;
            }
            changed.await;
        }
    }
}

/// A handler at work, or the stream that it gives: it ends or is dropped.
struct Handler {
    ledger: Arc<Ledger>,
    id: u64,
    has_ended: bool,
}

impl Handler {
    fn ended<T>(mut self, value: T) -> Result<T> {
        self.has_ended = true;
        self.ledger.note(Deed::Ended, self.id);
        Ok(value)
    }

    /// What it streams; it has ended when all was taken.
    fn streaming<S>(self, items: S) -> Streaming<u64>
    where
        S: Stream<Item = Result<u64>> + Send + 'static,
    {
        let state = (Box::pin(items), self);
        Streaming::new(stream::unfold(
            state,
            async |(mut items, handler)| match items.next().await {
                Some(item) => Some((item, (items, handler))),
                None => {
                    let _ = handler.ended(());
                    None
                }
            },
        ))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if !self.has_ended {
            self.ledger.note(Deed::Dropped, self.id);
        }
    }
}

/// The handlers.
#[derive(Debug)]
pub struct Worker(pub Arc<Ledger>);

impl Worker {
    fn start(&self, id: u64) -> Handler {
        self.0.note(Deed::Started, id);
        Handler {
            ledger: Arc::clone(&self.0),
            id,
            has_ended: false,
        }
    }
}

impl Work for Worker {
    async fn wait(&self, _: &Cx, id: u64) -> Result<()> {
        let _handler = self.start(id);
        std::future::pending().await
    }

    async fn give(&self, _: &Cx, id: u64, len: usize) -> Result<Vec<u8>> {
        self.start(id).ended(vec![7; len])
    }

    async fn put(&self, _: &Cx, id: u64, data: Pull) -> Result<u64> {
        let handler = self.start(id);
        let (mut chunks, mut sum) = (data.chunks(), 0);
        while let Some(chunk) = chunks.next().await? {
            sum += chunk.len() as u64;
        }
        handler.ended(sum)
    }

    async fn get(&self, _: &Cx, id: u64, into: Push) -> Result<u64> {
        let handler = self.start(id);
        let written = into.write(vec![WRITTEN_BYTE; into.len() as usize]).await?;
        handler.ended(written)
    }

    async fn echo(&self, _: &Cx, id: u64, bytes: Bytes) -> Result<Bytes> {
        self.start(id).ended(bytes)
    }

    async fn numbers(&self, _: &Cx, id: u64, to: u64) -> Result<Streaming<u64>> {
        Ok(self.start(id).streaming(stream::iter(0..to).map(Ok)))
    }

    async fn sum(&self, _: &Cx, id: u64, mut numbers: Streaming<u64>) -> Result<u64> {
        let (handler, mut sum) = (self.start(id), 0);
        while let Some(number) = numbers.next().await {
            sum += number?;
        }
        handler.ended(sum)
    }

    async fn double(&self, _: &Cx, id: u64, numbers: Streaming<u64>) -> Result<Streaming<u64>> {
        let doubled = numbers.map(|number| Ok(2 * number?));
        Ok(self.start(id).streaming(doubled))
    }

    async fn hold(&self, _: &Cx, _: Bytes) -> Result<()> {
        let _handler = self.start(0);
        std::future::pending().await
    }

    async fn keep(&self, _: &Cx, data: Pull) -> Result<()> {
        let handler = self.start(0);
        let (mut chunks, mut kept) = (data.chunks(), Vec::new());
        while let Some(chunk) = chunks.next().await? {
            kept.push(chunk);
        }
        handler.ended(())
    }
}

/// Reads all of the numbers: how many there were.
pub async fn read_all(numbers: Result<Streaming<u64>>) -> Result<u64> {
    let (mut numbers, mut count) = (numbers?, 0);
    while let Some(number) = numbers.next().await {
        number?;
        count += 1;
    }
    Ok(count)
}
