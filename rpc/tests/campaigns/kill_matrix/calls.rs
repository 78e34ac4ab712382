//! The calls of a step, each in a task of its own: all are under way at once.

use std::fmt;
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_fabric_rpc::{Lend, Started, Status, Streaming};

use super::super::work::{WRITTEN_BYTE, WorkClient, read_all};
use super::step::Step;

/// Calls of a step, besides those that only lead to it.
pub const CALLS: u64 = 8;
const LENT: usize = 2 << 20;
const LENT_BYTE: u8 = 7;
/// Bytes of an answer: a few of them fill a socket.
const ANSWER: usize = 60_000;
/// Of a body by reference.
const BODY: usize = 1 << 20;

/// How a call ended.
pub struct CallEnd {
    pub id: u64,
    /// What it says of its handler; `None`: it has its result.
    pub started: Option<Started>,
    pub at: Instant,
    /// What it lent.
    buffer: Option<Vec<u8>>,
}

impl CallEnd {
    fn of<T>(id: u64, ended: Result<T, Status>) -> CallEnd {
        CallEnd {
            id,
            started: ended.err().map(|status| status.started()),
            at: Instant::now(),
            buffer: None,
        }
    }

    /// What was lent is whole: as it was, or as a handler writes it.
    pub fn check_buffer(&self, step: Step) {
        let Some(buffer) = &self.buffer else { return };
        let is_whole =
            |byte: &u8| *byte == LENT_BYTE || (*byte == WRITTEN_BYTE && step == Step::Pushing);
        assert_eq!(buffer.len(), LENT);
        assert!(
            buffer.iter().all(is_whole),
            "call {}: it was harmed",
            self.id
        );
    }
}

/// Without what was lent.
impl fmt::Debug for CallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, {:?}", self.id, self.started)
    }
}

/// Calls under way. Tasks that are dropped with their calls give nothing.
pub type Calls = JoinSet<CallEnd>;

pub fn wait(calls: &mut Calls, client: &WorkClient, id: u64) -> tokio::task::AbortHandle {
    let client = client.clone();
    calls.spawn(async move { CallEnd::of(id, client.wait(id).no_deadline().await) })
}

pub fn give(calls: &mut Calls, client: &WorkClient, id: u64) {
    let client = client.clone();
    calls.spawn(async move { CallEnd::of(id, client.give(id, 100).await) });
}

/// Calls with long answers, one after the other, until one fails; numbers from `first` on.
pub fn give_on(calls: &mut Calls, client: &WorkClient, first: u64) {
    let client = client.clone();
    calls.spawn(async move {
        let mut id = first;
        loop {
            match client.give(id, ANSWER).await {
                Ok(_) => id += CALLS,
                Err(status) => return CallEnd::of(id, Err::<(), _>(status)),
            }
        }
    });
}

/// A call that lends; what it lent is in its end.
pub fn lend(calls: &mut Calls, client: &WorkClient, id: u64, step: Step) {
    let client = client.clone();
    calls.spawn(async move {
        let lent = vec![LENT_BYTE; LENT];
        let ended = match step {
            Step::Pulling => client.put(id, Lend::read(lent)).await,
            _ => client.get(id, Lend::write(lent)).await,
        };
        let (ended, buffer) = match ended {
            Ok((_, buffer)) => (Ok(()), Some(buffer)),
            Err(failed) => {
                let (status, buffer) = failed.into_parts();
                (Err(status), buffer)
            }
        };
        let buffer = Some(buffer.expect("what was lent is back"));
        let end = CallEnd::of(id, ended);
        CallEnd { buffer, ..end }
    });
}

/// The same with bodies by reference, there and back.
pub fn echo_on(calls: &mut Calls, client: &WorkClient, first: u64) {
    let client = client.clone();
    let bytes = Bytes::from(vec![LENT_BYTE; BODY]);
    calls.spawn(async move {
        let mut id = first;
        loop {
            match client.echo(id, bytes.clone()).await {
                Ok(echoed) => assert_eq!(echoed, bytes),
                Err(status) => return CallEnd::of(id, Err::<(), _>(status)),
            }
            id += CALLS;
        }
    });
}

/// Sends numbers without end, and reads what comes of them.
pub fn double(calls: &mut Calls, client: &WorkClient, id: u64) {
    let client = client.clone();
    calls.spawn(async move {
        let doubled = client.double(id, Streaming::of(0..)).no_deadline();
        CallEnd::of(id, read_all(doubled.await).await)
    });
}

/// The calls of this step that are under way when a side dies, numbered from 0.
pub fn begin(calls: &mut Calls, client: &WorkClient, step: Step) {
    for id in 0..CALLS {
        match step {
            Step::Pulling | Step::Pushing => lend(calls, client, id, step),
            Step::Answering => give_on(calls, client, id),
            Step::Fetching => echo_on(calls, client, id),
            Step::Streaming => double(calls, client, id),
            Step::Answered => give(calls, client, id),
            _ => drop(wait(calls, client, id)),
        }
    }
}

/// Lets other tasks have their turns, so that a death comes at another moment each time.
pub async fn pass_time(turns: u64) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}
