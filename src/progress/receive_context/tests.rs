//! What a receive context promises to those who post to it and to the ports that share it.

mod announced;
mod claims;
mod dropped;
mod many;
mod waiting;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake};
use std::time::Duration;

use super::*;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::progress::publish::Undelivered;
use crate::proto::{Announcement, Arrival, Arrived, EarlyMessage, End, Kind, Receives};
use crate::sync::WakeList;

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
struct World {
    context: Arc<ReceiveContext>,
    driver: Arc<Flag>,
    queue: CompletionQueue,
    counter: Counter,
    now: Instant,
}

/// One sender's connection.
struct Sender {
    receives: PortReceives,
    identity: Identity,
    woken: Arc<Flag>,
    promised: u64,
}

impl World {
    fn new(size: usize, unexpected_bytes: usize, places: usize) -> Self {
        let queue = CompletionQueue::builder(None);
        let queue = queue.size(places).open().unwrap();
        let counter = Counter::open(None);
        let context = ReceiveContext::new(ReceiveConfig {
            endpoint: EndpointId::next(),
            size,
            unexpected_bytes,
            unexpected_bytes_per_peer: unexpected_bytes,
            addresses: Arc::default(),
            queue: queue.clone(),
            counter: Some(counter.clone()),
            sources: None,
        });
        let driver = Arc::new(Flag::default());
        context.set_waker(&Waker::from(Arc::clone(&driver)));
        let now = Instant::now();
        World {
            context,
            driver,
            queue,
            counter,
            now,
        }
    }

    fn sender(&self, source: u64, connection: u64) -> Sender {
        let identity = Identity {
            source: SourceId(source),
            connection: ConnectionId(connection),
        };
        let woken = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&woken));
        let (receives, promised) = self.context.attach(identity, &waker);
        Sender {
            receives,
            identity,
            woken,
            promised,
        }
    }

    fn post_with(&self, wanted: Wanted, len: usize, options: PostOptions) -> Result<Receive> {
        let cell = OpCell::new();
        let sought = Sought {
            wanted,
            source: None,
        };
        let payload = Payload::from_vec(vec![0; len]);
        let report = Report::Future(Arc::clone(&cell));
        match self.context.post(sought, payload, report, options) {
            Ok(posted) => Ok(Receive {
                key: posted.key,
                cell,
            }),
            Err((error, payload)) => {
                assert_eq!(payload.len(), len, "the buffer comes back");
                Err(error)
            }
        }
    }

    fn post(&self, wanted: Wanted, len: usize) -> Receive {
        self.post_with(wanted, len, WAIT).unwrap()
    }

    fn post_queued(&self, wanted: Wanted, context: u64) -> Posted {
        let sought = Sought {
            wanted,
            source: None,
        };
        let report = Report::Queue {
            queue: self.queue.clone(),
            context: UserContext(context),
            kind: CompletionFlags::MSG,
            slot: None,
            waiting: None,
        };
        let payload = Payload::from_vec(vec![0; 8]);
        self.context.post(sought, payload, report, WAIT).unwrap()
    }

    fn withdraw(&self, receive: Receive) {
        self.context.withdraw(receive.key, &receive.cell);
    }

    fn expire(&self) -> Option<Instant> {
        self.context.expire(self.now, |_| None)
    }
}

const WAIT: PostOptions = PostOptions {
    wait: true,
    more: false,
    timeout: None,
    fence: false,
};

struct Receive {
    key: OpKey,
    cell: Arc<OpCell>,
}

impl Receive {
    #[track_caller]
    fn end(&self) -> End {
        match self.cell.poll(Waker::noop(), End::take) {
            Poll::Ready(end) => end,
            Poll::Pending => panic!("it has not ended"),
        }
    }

    fn is_pending(&self) -> bool {
        !self.cell.has_ended()
    }
}

fn bytes_of(end: &End) -> Vec<u8> {
    let mut bytes = vec![0; end.len];
    end.payload.copy_out(0, &mut bytes).unwrap();
    bytes
}

/// ARCHITECTURE.md: "An idle port gives back what its queues kept for what might be queued", and so
/// do the receives that ports share; while they are idle there is no timer.
#[test]
fn memory_of_a_burst_is_given_back_when_it_is_over() {
    let mut world = World::new(8, 1 << 20, 8);
    assert_eq!(kept_of(&world), 0);
    let mut sender = world.sender(1, 1);
    for tag in 0..200 {
        sender.send_early(Some(tag), b"early");
    }
    for tag in 0..200 {
        assert_eq!(bytes_of(&world.post(tagged(tag), 5).end()), b"early");
    }
    // Places that were in use do not all count as free again, by where the hashes put them.
    assert!(kept_of(&world) >= 100);
    let looks_again = world.expire().expect("it is looked at again");
    world.driver.take();
    // Something came meanwhile.
    sender.send_early(Some(7), b"early");
    world.now = looks_again;
    let later = world.expire().expect("and again");
    assert!(later > looks_again && kept_of(&world) >= 100);
    world.now = later;
    assert_eq!(world.expire(), None, "no timer while it is idle");
    assert!(kept_of(&world) < 20, "what is there is all that is kept");
    assert!(!world.driver.take());
    sender.send_early(Some(8), b"early");
    sender.unlock();
    assert!(world.driver.take(), "the driver looks again");
    assert!(world.expire().is_some());
}

fn kept_of(world: &World) -> usize {
    world.context.lock("test").matcher.lists_kept()
}

fn tagged(tag: u64) -> Wanted {
    Wanted::Tagged { tag, ignore: 0 }
}

impl Sender {
    fn arrival(&self, tag: Option<u64>, len: usize) -> Arrival {
        Arrival {
            source: self.identity.source,
            connection: self.identity.connection,
            kind: Kind::of(tag),
            len: len as u64,
            data: None,
            order: 0,
        }
    }

    fn begin(&mut self, tag: Option<u64>, len: usize) -> (Arrival, Arrived<Report>) {
        let mut arrival = self.arrival(tag, len);
        let arrived = self.receives.arrive(&mut arrival);
        (arrival, arrived)
    }

    /// A message that no receive awaits comes in full.
    #[track_caller]
    fn send_early(&mut self, tag: Option<u64>, bytes: &[u8]) {
        let (arrival, arrived) = self.begin(tag, bytes.len());
        assert!(matches!(arrived, Arrived::Store), "{arrived:?}");
        self.receives.landed(EarlyMessage {
            arrival,
            payload: Payload::from_vec(bytes.to_vec()),
            len: bytes.len(),
            overflow: 0,
        });
    }

    /// A message that a receive awaits begins.
    #[track_caller]
    fn meet(&mut self, tag: Option<u64>, len: usize) -> (Arrival, PostedReceive<Report>) {
        match self.begin(tag, len) {
            (arrival, Arrived::Receive(receive)) => (arrival, receive),
            (_, arrived) => panic!("{arrived:?} where a receive was expected"),
        }
    }

    /// The message has landed in the receive, as the port publishes it.
    fn end(&mut self, met: (Arrival, PostedReceive<Report>), bytes: &[u8]) {
        let (arrival, mut receive) = met;
        receive.payload.copy_in(0, bytes).unwrap();
        let mut end = End {
            operation: OperationKind::Receive,
            result: Ok(()),
            len: bytes.len(),
            overflow: 0,
            data: None,
            tag: arrival.kind.tag(),
            source: Some(arrival.source),
            connection: Some(arrival.connection),
            order: arrival.order,
            from: None,
            payload: receive.payload,
        };
        let context = Arc::clone(&self.receives.context);
        let told = context.completion_context().deliver(
            &mut receive.token,
            &mut end,
            &mut WakeList::new(),
        );
        if let Undelivered::Message = told {
            self.receives.give_back(message_of(end).unwrap());
        }
    }

    fn announce(&mut self, tag: u64, len: usize, index: u8) -> Arrived<Report> {
        let arrival = self.arrival(Some(tag), len);
        self.receives
            .announced(&mut Announcement { arrival, index })
    }

    /// Wakes whoever was to be woken after the port's lock was released.
    fn unlock(&mut self) {
        drop(self.receives.take_aftermath());
    }
}

/// A message that came before its receive ends it within the post, and is counted.
#[test]
fn an_early_message_ends_a_receive_at_once() {
    let world = World::new(4, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    sender.send_early(Some(7), b"early");
    assert_eq!(sender.receives.held(), 1);
    let other = world.post(tagged(8), 8);
    let receive = world.post(tagged(7), 8);
    let end = receive.end();
    assert_eq!((bytes_of(&end), end.tag), (b"early".to_vec(), Some(7)));
    assert_eq!(end.source, Some(SourceId(1)));
    assert!(other.is_pending());
    assert_eq!(
        (sender.receives.held(), world.context.unexpected_bytes()),
        (0, 0)
    );
    assert_eq!(world.counter.read(), 1);
}

/// `FI_ETRUNC`: what fits is received, the rest is told as overflow.
#[test]
fn an_early_message_that_does_not_fit_is_truncated() {
    let world = World::new(4, 1 << 16, 4);
    world.sender(1, 1).send_early(None, b"too long");
    let end = world.post(Wanted::Message, 3).end();
    assert_eq!((end.len, end.overflow), (3, 5));
    assert_eq!(end.result.unwrap_err().kind(), ErrorKind::Truncated);
}

/// Closing ends what is posted, what waits and what is kept, and refuses what comes.
#[test]
fn closing_ends_everything() {
    let world = World::new(1, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    sender.send_early(Some(9), b"kept");
    let receives = [world.post(tagged(1), 8), world.post(tagged(2), 8)];
    world
        .context
        .close(Error::new(ErrorKind::Canceled, "closed"));
    for receive in &receives {
        let end = receive.end();
        assert_eq!(end.result.unwrap_err().kind(), ErrorKind::Canceled);
        assert_eq!(end.payload.len(), 8);
    }
    assert_eq!(world.context.unexpected_bytes(), 0);
    let refused = world.post_with(tagged(9), 8, WAIT).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Canceled);
}
