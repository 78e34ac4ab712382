//! The promises of a receive context to the tasks that post to it and to the ports that share it.

mod announced;
mod claims;
mod dropped;
mod multi;
mod op_states;
mod waiting;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake};
use std::time::Duration;

use super::*;
use crate::cq::{CompletionFlags, CompletionQueue};
use crate::id::UserContext;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ConnectionId, LongMessages, MessageKind, OpKind,
    Operation, PostOptions, ReceivedMessage, Receives,
};
use crate::sync::{DomainScope, OwnedRecord};

const OVERHEAD: usize = UNEXPECTED_OVERHEAD;

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Flag {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// A context, its driver's flag, and its queue.
struct Fixture {
    context: Arc<ReceiveContext>,
    driver: Arc<Flag>,
    queue: CompletionQueue,
    counter: Counter,
    now: Instant,
}

/// One sender's connection.
struct Sender {
    receives: PortReceives,
    ids: ConnIds,
    woken: Arc<Flag>,
    promised: u64,
}

impl Fixture {
    fn new(size: usize, unexpected_bytes: usize, slots: usize) -> Self {
        let queue = CompletionQueue::builder(&DomainScope::apart(), Ok(None));
        let queue = queue.size(slots).open().unwrap();
        let counter = Counter::open(&DomainScope::apart(), None);
        let context = ReceiveContext::new(ReceiveConfig {
            endpoint: EndpointId::next(),
            size,
            unexpected_bytes,
            unexpected_bytes_per_peer: unexpected_bytes,
            addresses: Arc::default(),
            counter: Some(counter.clone()),
            sources: None,
        });
        let driver = Arc::new(Flag::default());
        context.set_waker(&Waker::from(Arc::clone(&driver)));
        let now = Instant::now();
        Fixture {
            context,
            driver,
            queue,
            counter,
            now,
        }
    }

    fn sender(&self, source: u64, connection: u64) -> Sender {
        let ids = ConnIds {
            source: SourceId(source),
            connection: ConnectionId::numbered(connection),
        };
        let woken = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&woken));
        let (receives, promised) =
            self.context
                .attach(ids, LongMessages::Announced { min: 0 }, &waker);
        Sender {
            receives,
            ids,
            woken,
            promised,
        }
    }

    fn post_with(
        &self,
        wanted: MatchCriteria,
        len: usize,
        options: PostOptions,
    ) -> Result<Receive> {
        let selector = ReceiveSelector {
            wanted,
            source: None,
        };
        let (record, awaited) = OwnedRecord::awaited(receive_of(len, Report::Future, options));
        match self.context.post(selector, record) {
            Ok(posted) => Ok(Receive::new(posted.key, awaited)),
            Err((error, payload)) => {
                assert_eq!(payload.len(), len, "the buffer comes back");
                Err(error)
            }
        }
    }

    fn post(&self, wanted: MatchCriteria, len: usize) -> Receive {
        self.post_with(wanted, len, WAIT).unwrap()
    }

    fn post_queued(&self, wanted: MatchCriteria, context: u64) -> PostedOp {
        let selector = ReceiveSelector {
            wanted,
            source: None,
        };
        let record = receive_of(8, self.queued(context), WAIT);
        self.context
            .post(selector, OwnedRecord::new(record))
            .unwrap()
    }

    /// The report of a receive with this context.
    fn queued(&self, context: u64) -> Report {
        Report::Queue {
            queue: self.queue.clone(),
            context: UserContext(context),
            flags: CompletionFlags::MSG,
            errors_only: false,
            slot: None,
        }
    }

    fn withdraw(&self, receive: Receive) {
        let awaited = receive.awaited.into_inner().expect("it was not read");
        self.context.withdraw(receive.key, awaited);
    }

    fn expire(&self) -> Option<Instant> {
        self.context.expire(self.now)
    }
}

/// Makes a receive of this length.
fn receive_of(len: usize, report: Report, options: PostOptions) -> Operation<Report> {
    let payload = Payload::from_vec(vec![0; len]);
    Operation::new(OpKind::Receive, payload, report, options)
}

const WAIT: PostOptions = PostOptions {
    matched: false,
    wait: true,
    more: false,
    timeout: None,
    fence: false,
};

struct Receive {
    key: OpKey,
    /// `None` once its end was read.
    awaited: RefCell<Option<AwaitedOp>>,
}

impl Receive {
    fn new(key: OpKey, awaited: AwaitedOp) -> Self {
        Receive {
            key,
            awaited: RefCell::new(Some(awaited)),
        }
    }

    #[track_caller]
    fn end(&self) -> OpRecord {
        let awaited = self.awaited.take().expect("it was not read");
        awaited.detach().expect("it has ended")
    }

    fn is_pending(&self) -> bool {
        !(self.awaited.borrow().as_ref()).is_some_and(AwaitedOp::has_ended)
    }
}

fn kind_of(op: &OpRecord) -> ErrorKind {
    op.end.result.as_ref().expect_err("it failed").kind()
}

fn bytes_of(op: &OpRecord) -> Vec<u8> {
    let mut bytes = vec![0; op.end.len];
    let payload = op.payload.as_ref().expect("a receive has memory");
    payload.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// `progress/liveness/mod.rs`: "An idle port gives back the memory that its queues keep", and so do
/// the receives that ports share; while they are idle there is no timer.
#[test]
fn memory_of_a_burst_is_given_back_when_it_is_over() {
    let mut fixture = Fixture::new(8, 1 << 20, 8);
    assert_eq!(kept_of(&fixture), 0);
    let mut sender = fixture.sender(1, 1);
    for tag in 0..200 {
        sender.send_unexpected(Some(tag), b"first");
    }
    for tag in 0..200 {
        assert_eq!(bytes_of(&fixture.post(tagged(tag), 5).end()), b"first");
    }
    // Places that were in use do not all count as free again, depending on where the hashes put
    // them.
    assert!(kept_of(&fixture) >= 100);
    let looks_again = fixture.expire().expect("it is looked at again");
    fixture.driver.take();
    // A message came meanwhile.
    sender.send_unexpected(Some(7), b"first");
    fixture.now = looks_again;
    let later = fixture.expire().expect("and again");
    assert!(later > looks_again && kept_of(&fixture) >= 100);
    fixture.now = later;
    assert_eq!(fixture.expire(), None, "no timer while it is idle");
    assert!(kept_of(&fixture) < 20, "what is there is all that is kept");
    assert!(!fixture.driver.take());
    sender.send_unexpected(Some(8), b"first");
    sender.unlock();
    assert!(fixture.driver.take(), "the driver looks again");
    assert!(fixture.expire().is_some());
}

fn kept_of(fixture: &Fixture) -> usize {
    fixture.context.lock("test").matcher.lists_kept()
}

fn tagged(tag: u64) -> MatchCriteria {
    MatchCriteria::Tagged { tag, ignore: 0 }
}

/// A message that has begun, and the receive that takes it.
struct Met {
    arrival: Arrival,
    receive: OpKey,
    payload: Payload,
}

impl Sender {
    fn arrival(&self, tag: Option<u64>, len: usize) -> Arrival {
        Arrival {
            source: self.ids.source,
            connection: self.ids.connection,
            kind: MessageKind::of(tag),
            len: len as u64,
            data: None,
            order: 0,
        }
    }

    fn begin(
        &mut self,
        tag: Option<u64>,
        len: usize,
    ) -> (Arrival, ArrivalOutcome<(OpKey, Payload)>) {
        let mut arrival = self.arrival(tag, len);
        let outcome = self.receives.begin_message(&mut arrival);
        (arrival, outcome)
    }

    /// A message that no receive awaits is received completely.
    #[track_caller]
    fn send_unexpected(&mut self, tag: Option<u64>, bytes: &[u8]) {
        let (arrival, outcome) = self.begin(tag, bytes.len());
        assert!(matches!(outcome, ArrivalOutcome::Store), "{outcome:?}");
        self.receives.store_message(ReceivedMessage {
            arrival,
            payload: Payload::from_vec(bytes.to_vec()),
            len: bytes.len(),
            overflow: 0,
        });
    }

    /// Begins a message that a receive awaits.
    #[track_caller]
    fn meet(&mut self, tag: Option<u64>, len: usize) -> Met {
        match self.begin(tag, len) {
            (arrival, ArrivalOutcome::Matched((receive, payload))) => Met {
                arrival,
                receive,
                payload,
            },
            (_, outcome) => panic!("{outcome:?} where a receive was expected"),
        }
    }

    /// Places the message in the receive.
    fn end(&mut self, met: Met, bytes: &[u8]) {
        let Met {
            arrival,
            receive,
            mut payload,
        } = met;
        payload.copy_in(0, bytes).unwrap();
        let message = ReceivedMessage {
            arrival,
            payload,
            len: bytes.len(),
            overflow: 0,
        };
        self.receives.end_receive(receive, message, None);
    }

    fn announce(&mut self, tag: u64, len: usize, index: u8) -> ArrivalOutcome<OpKey> {
        let arrival = self.arrival(Some(tag), len);
        self.receives
            .begin_announcement(&mut Announcement { arrival, index })
    }

    /// Wakes the tasks that are woken after the port's lock is released.
    fn unlock(&mut self) {
        drop(self.receives.take_deferred());
    }
}

/// A message that came before its receive completes it within the post, and is counted.
#[test]
fn an_unexpected_message_ends_a_receive_at_once() {
    let fixture = Fixture::new(4, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    sender.send_unexpected(Some(7), b"first");
    assert_eq!(sender.receives.held_messages(), 1);
    let other = fixture.post(tagged(8), 8);
    let receive = fixture.post(tagged(7), 8);
    let end = receive.end();
    assert_eq!((bytes_of(&end), end.end.tag), (b"first".to_vec(), Some(7)));
    assert_eq!(end.end.source(), Some(SourceId(1)));
    assert!(other.is_pending());
    assert_eq!(
        (
            sender.receives.held_messages(),
            fixture.context.unexpected_bytes()
        ),
        (0, 0)
    );
    assert_eq!(fixture.counter.read(), 1);
}

/// `FI_ETRUNC`: what fits is received, the rest is reported as overflow.
#[test]
fn an_unexpected_message_that_does_not_fit_is_truncated() {
    let fixture = Fixture::new(4, 1 << 16, 4);
    fixture.sender(1, 1).send_unexpected(None, b"too long");
    let end = fixture.post(MatchCriteria::Message, 3).end();
    assert_eq!((end.end.len, end.end.overflow), (3, 5));
    assert_eq!(kind_of(&end), ErrorKind::Truncated);
}

/// A receive is reported when its message is in its buffer, and so before any later message of the
/// connection is, although any post may report a stored one.
#[test]
fn a_receive_is_reported_as_soon_as_its_message_has_come() {
    let fixture = Fixture::new(4, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let first = fixture.post(tagged(1), 8);
    let met = sender.meet(Some(1), 5);
    assert!(first.is_pending());
    sender.end(met, b"first");
    assert_eq!(bytes_of(&first.end()), b"first");
    let stats = fixture.context.stats();
    assert_eq!(stats.ended.succeeded, 0, "its connection counts it");
    assert_eq!(sender.receives.ended().succeeded, 1);
    sender.receives.detach();
    assert_eq!(sender.receives.ended().succeeded, 1);
}

/// The error of a receive names the peer whose message it is.
#[test]
fn the_error_of_a_receive_names_the_sender_of_its_message() {
    let mut fixture = Fixture::new(4, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    let peer = "192.0.2.1:7".parse().unwrap();
    sender.receives.set_peer(Some(peer));
    sender.send_unexpected(None, b"too long");
    let mut ends = vec![fixture.post(MatchCriteria::Message, 3).end()];
    let timeout = Some(Duration::from_secs(1));
    let timed = PostOptions { timeout, ..WAIT };
    let receive = fixture.post_with(MatchCriteria::Message, 3, timed).unwrap();
    let _met = sender.meet(None, 3);
    fixture.expire();
    fixture.now += Duration::from_secs(1);
    fixture.expire();
    ends.push(receive.end());
    for end in ends {
        assert_eq!(end.end.result.as_ref().unwrap_err().peer(), Some(peer));
    }
}

/// Closing ends posted and waiting receives, drops stored messages, and refuses later ones.
#[test]
fn closing_ends_everything() {
    let fixture = Fixture::new(1, 1 << 16, 4);
    let mut sender = fixture.sender(1, 1);
    sender.send_unexpected(Some(9), b"kept");
    let receives = [fixture.post(tagged(1), 8), fixture.post(tagged(2), 8)];
    fixture
        .context
        .close(Error::new(ErrorKind::Canceled, "closed"));
    for receive in &receives {
        let end = receive.end();
        assert_eq!(kind_of(&end), ErrorKind::Canceled);
        assert_eq!(end.payload.as_ref().map(Payload::len), Some(8));
    }
    assert_eq!(fixture.context.unexpected_bytes(), 0);
    let refused = fixture.post_with(tagged(9), 8, WAIT).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Canceled);
}
