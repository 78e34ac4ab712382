//! Who has been promised an end, and who has had it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio_fabric::{CompletionQueue, Error, Event, EventQueue, buf::IoBufs, op::QueuedOp};

/// How something ended.
#[derive(Clone, Debug)]
pub struct OpEnding {
    pub what: &'static str,
    /// `None`: well.
    pub error: Option<Error>,
    pub at: Instant,
}

type Open = Pin<Box<dyn Future<Output = OpEnding>>>;

/// What was posted, in both ways to complete, and how each of it ended.
#[derive(Default)]
pub struct Ledger {
    open: FuturesUnordered<Open>,
    queued: BTreeMap<u64, &'static str>,
    posted: usize,
    pub ended: Vec<OpEnding>,
    /// Connected was reported.
    pub connected: bool,
    /// When Shutdown, or the failure of the connection, was reported.
    pub over: Option<Instant>,
    /// Why, if that was Shutdown.
    pub lost: Option<Error>,
}

impl Ledger {
    /// Something that ends by a future.
    pub fn add<T, E: Into<Error>>(
        &mut self,
        what: &'static str,
        future: impl Future<Output = Result<T, E>> + 'static,
    ) {
        self.posted += 1;
        self.open.push(Box::pin(async move {
            let error = future.await.err().map(Into::into);
            OpEnding {
                what,
                error,
                at: Instant::now(),
            }
        }));
    }

    /// The same, of what has to be polled to go on.
    pub fn spawn<T: Send + 'static>(
        &mut self,
        what: &'static str,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) {
        let running = tokio::spawn(future);
        self.add(what, async { running.await.expect("it does not panic") });
    }

    /// A name for something that ends by the queue; [`Ledger::queue`] follows.
    pub fn next(&self) -> u64 {
        self.posted as u64
    }

    /// What was posted under the name [`Ledger::next`] gave.
    pub fn queue<B: IoBufs>(&mut self, what: &'static str, posted: QueuedOp<B>) {
        assert!(posted.is_accepted(), "{what}: there is room");
        self.queued.insert(self.next(), what);
        self.posted += 1;
    }

    pub fn posted(&self) -> usize {
        self.posted
    }

    /// What has not ended.
    pub fn missing(&self) -> usize {
        self.posted - self.ended.len()
    }

    /// The last end of all, the connection's own among them.
    pub fn last(&self) -> Option<Instant> {
        let ends = self.ended.iter().map(|ended| ended.at);
        ends.chain(self.over).max()
    }

    /// Reads completions until none is due and the connection's end was reported, or the time is
    /// up. Panics on a completion that no operation is due.
    pub async fn collect(&mut self, queue: &CompletionQueue, events: &EventQueue, limit: Duration) {
        let limit = tokio::time::sleep(limit);
        tokio::pin!(limit);
        while self.missing() > 0 || self.over.is_none() {
            tokio::select! {
                biased;
                Some(ended) = self.open.next() => self.ended.push(ended),
                completion = queue.next() => {
                    let completion = completion.expect("the queue is open");
                    let what = self.queued.remove(&completion.context.0);
                    self.ended.push(OpEnding {
                        what: what.expect("an end that is not due, or a second one"),
                        error: completion.result.err().map(|failed| failed.error),
                        at: Instant::now(),
                    });
                }
                event = events.next() => self.on_event(event.expect("the queue is open")),
                () = &mut limit => return,
            }
        }
        assert!(
            queue.is_empty() && events.is_empty(),
            "something follows the end"
        );
    }

    fn on_event(&mut self, event: Event) {
        assert!(self.over.is_none(), "{event:?} follows the end");
        match event {
            Event::Connected { .. } => self.connected = true,
            Event::Shutdown { error, .. } if self.connected => {
                self.over = Some(Instant::now());
                self.lost = error;
            }
            Event::Error(_) if !self.connected => self.over = Some(Instant::now()),
            other => panic!("{other:?} out of turn"),
        }
    }
}
