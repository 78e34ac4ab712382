//! What a receive context promises to those who post to it and to the ports that share it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake};
use std::time::Duration;

use super::*;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::progress::publish::Untold;
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
        let queue = CompletionQueue::builder(LockKind::Mutex, None);
        let queue = queue.size(places).open().unwrap();
        let counter = Counter::open(LockKind::Mutex, None);
        let context = ReceiveContext::new(ReceiveConfig {
            lock_kind: LockKind::Mutex,
            endpoint: EndpointId::next(),
            size,
            unexpected_bytes,
            unexpected_bytes_per_peer: unexpected_bytes,
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
        let promised = self
            .context
            .attach(identity, &Waker::from(Arc::clone(&woken)));
        let receives = PortReceives::new(Arc::clone(&self.context), identity);
        Sender {
            receives,
            identity,
            woken,
            promised,
        }
    }

    fn post_with(&self, wanted: Wanted, len: usize, manner: Manner) -> Result<Receive> {
        let cell = OpCell::new();
        let sought = Sought {
            wanted,
            source: None,
        };
        let payload = Payload::from_vec(vec![0; len]);
        let report = Report::Future(Arc::clone(&cell));
        match self.context.post(sought, payload, report, manner) {
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
            context: Context(context),
            kind: CompletionFlags::MSG,
            slot: None,
            waiting: None,
        };
        let payload = Payload::from_vec(vec![0; 8]);
        self.context.post(sought, payload, report, WAIT).unwrap()
    }

    fn detach(&self, receive: Receive) {
        self.context.detach(receive.key, &receive.cell);
    }

    fn expire(&self) -> Option<Instant> {
        self.context.expire(self.now, |_| None)
    }
}

const WAIT: Manner = Manner {
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
        let told = context
            .telling()
            .tell(&mut receive.token, &mut end, &mut WakeList::new());
        if let Untold::Message = told {
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

/// Ruling 3: "`post()`/await wait in one FIFO per context; `try_*` cannot overtake a waiter."
#[test]
fn receives_wait_their_turn_in_a_full_context() {
    let world = World::new(1, 1 << 16, 4);
    let first = world.post(tagged(1), 8);
    let second = world.post(tagged(2), 8);
    let third = world.post(tagged(3), 8);
    let now = Manner {
        wait: false,
        ..WAIT
    };
    let refused = world.post_with(tagged(4), 8, now).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Again);
    let phases = [&first, &second, &third].map(|it| world.context.phase(it.key));
    assert_eq!(phases, [Phase::Queued, Phase::Waiting, Phase::Waiting]);
    assert_eq!(world.context.cancel(first.key), Withdrawn::Ended);
    assert_eq!(first.end().result.unwrap_err().kind(), ErrorKind::Canceled);
    assert_eq!(world.context.phase(second.key), Phase::Queued);
    let mut sender = world.sender(1, 1);
    let met = sender.meet(Some(2), 1);
    assert_eq!(
        world.context.phase(third.key),
        Phase::Queued,
        "a match makes room"
    );
    sender.end(met, b"2");
    assert_eq!(bytes_of(&second.end()), b"2");
}

/// Ruling 3: "A CQ slot is reserved when an operation is queued to it"; who finds none waits, and
/// goes on when the queue is read.
#[test]
fn receives_wait_for_room_in_their_queue() {
    let world = World::new(8, 1 << 16, 1);
    let mut sender = world.sender(1, 1);
    sender.send_early(None, b"1");
    sender.send_early(None, b"2");
    assert!(world.post_queued(Wanted::Message, 1).waiting.is_none());
    let second = world.post_queued(Wanted::Message, 2);
    let accepted = second.waiting.expect("it waits");
    assert!(!accepted.has_ended());
    world.driver.take();
    assert_eq!(world.queue.try_next().unwrap().context, Context(1));
    assert!(world.driver.take(), "the driver hears of the room");
    world.expire();
    assert!(matches!(
        accepted.poll_accepted(Waker::noop()),
        Poll::Ready(Ok(()))
    ));
    let mut completion = world.queue.try_next().unwrap();
    assert_eq!(completion.context, Context(2));
    assert_eq!(completion.take_buffer().unwrap()[..completion.len], *b"2");
}

/// Ruling 4: "Dropping a *receive* (or timing it out) un-posts it; a message already matched to it
/// goes back to the head of the unexpected store": before those that came later, and those of one
/// sender in the order in which they were sent, whichever is dropped first.
#[test]
fn messages_of_dropped_receives_go_back_in_order() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    let unposted = world.post(Wanted::Message, 8);
    world.detach(unposted);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_early(None, bytes);
    }
    let (first, second) = (
        world.post(Wanted::Message, 8),
        world.post(Wanted::Message, 8),
    );
    world.detach(first);
    world.detach(second);
    assert_eq!(sender.receives.held(), 3);
    for bytes in [b"1", b"2", b"3"] {
        assert_eq!(bytes_of(&world.post(Wanted::Message, 8).end()), bytes);
    }
}

/// The same of one that is dropped while a connection has it: the message comes back, counted once.
#[test]
fn a_message_that_lands_for_nobody_goes_to_the_next_receive() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    let dropped = world.post(Wanted::Message, 8);
    let met = sender.meet(None, 4);
    assert_eq!(world.context.phase(dropped.key), Phase::Moving);
    world.detach(dropped);
    let next = world.post(Wanted::Message, 8);
    sender.end(met, b"lost");
    assert_eq!(bytes_of(&next.end()), b"lost");
    assert_eq!(world.counter.read(), 1);
}

/// A receive ends when its time has passed, as TimedOut, wherever it is; a message that is landing
/// in it is kept for the next one.
#[test]
fn receives_end_when_their_time_has_passed() {
    let mut world = World::new(1, 1 << 16, 4);
    let timeout = Duration::from_secs(1);
    let timed = Manner {
        timeout: Some(timeout),
        ..WAIT
    };
    let posted = world.post_with(tagged(1), 8, timed).unwrap();
    let waiting = world.post_with(tagged(1), 8, timed).unwrap();
    assert!(world.driver.take(), "the driver starts its clock");
    assert_eq!(world.expire(), Some(world.now + timeout));
    let mut sender = world.sender(1, 1);
    let met = sender.meet(Some(1), 4);
    world.now += timeout;
    // Later it only looks whether memory can be given back.
    assert!(world.expire().is_none_or(|next| next > world.now));
    for receive in [&posted, &waiting] {
        assert_eq!(
            receive.end().result.unwrap_err().kind(),
            ErrorKind::TimedOut
        );
    }
    assert_eq!(world.counter.read_error(), 2);
    sender.end(met, b"late");
    assert_eq!(bytes_of(&world.post(tagged(1), 8).end()), b"late");
    assert_eq!((world.counter.read(), world.counter.read_error()), (1, 2));
}

/// A kept announcement is answered once a receive matches, with no lock held; if its connection is
/// gone, the receive goes back to its place and takes what comes next.
#[test]
fn a_receive_whose_announced_message_is_gone_is_posted_again() {
    let world = World::new(8, 1 << 16, 4);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let context = Arc::downgrade(&world.context);
    let log = Arc::clone(&asked);
    world
        .context
        .set_rendezvous(Box::new(move |_, index, receive| {
            context.upgrade().unwrap().unexpected_bytes(); // Takes the lock.
            log.lock().unwrap().push(index);
            if index == 1 {
                Err(receive)
            } else {
                drop(receive);
                Ok(())
            }
        }));
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 1 << 30, 1), Arrived::Store));
    let receive = world.post(tagged(5), 8);
    assert_eq!(world.context.phase(receive.key), Phase::Queued);
    let later = world.post(tagged(5), 8);
    assert_eq!(sender.meet(Some(5), 1).1.key, receive.key, "in its place");
    assert_eq!(world.context.cancel(later.key), Withdrawn::Ended);
    assert!(matches!(sender.announce(5, 9, 2), Arrived::Store));
    let third = world.post(tagged(5), 8);
    assert_eq!(
        world.context.phase(third.key),
        Phase::Moving,
        "its connection has it"
    );
    assert_eq!(*asked.lock().unwrap(), [1, 2]);
}

/// A receive that comes in from the line while a port is locked may match another port's
/// announcement: the driver answers that.
#[test]
fn announcements_matched_under_a_lock_are_answered_by_the_driver() {
    let world = World::new(1, 1 << 16, 4);
    let asked = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&asked);
    world.context.set_rendezvous(Box::new(move |_, _, receive| {
        flag.store(true, Ordering::SeqCst);
        drop(receive);
        Ok(())
    }));
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), Arrived::Store));
    let _posted = world.post(tagged(4), 8);
    let _waiting = world.post(tagged(5), 8);
    world.driver.take();
    drop(world.sender(2, 2).meet(Some(4), 1)); // Makes room for it.
    assert!(!asked.load(Ordering::SeqCst));
    sender.unlock();
    world.expire();
    assert!(asked.load(Ordering::SeqCst));
}

/// A port that stopped reading for want of room is woken by a receive for its message, and one that
/// awaits credit by whatever of its messages leaves.
#[test]
fn ports_are_woken_when_they_may_go_on() {
    let world = World::new(8, 20 * OVERHEAD, 4);
    let mut sender = world.sender(1, 1);
    let mut other = world.sender(2, 2);
    assert!(sender.promised >= OVERHEAD as u64);
    assert!(matches!(sender.begin(Some(1), 1 << 30).1, Arrived::NoRoom));
    other.send_early(Some(2), b"other");
    let _elsewhere = world.post(tagged(3), 8);
    assert!(!sender.woken.take());
    let _receive = world.post(tagged(1), 8);
    assert!(sender.woken.take());
    sender.meet(Some(1), 1 << 30);
    other.receives.awaits_credit();
    other.woken.take();
    world.post(tagged(2), 8).end();
    assert!(other.woken.take());
}

/// fi_tagged(3): "Claimed messages can only be retrieved using a subsequent, paired receive
/// operation with the FI_CLAIM flag set"; FI_DISCARD: "the message is discarded by the provider".
#[test]
fn claimed_messages_are_for_their_claims() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_early(Some(1), bytes);
    }
    let sought = Sought {
        wanted: tagged(1),
        source: None,
    };
    let (first, arrival) = world.context.claim(sought).unwrap();
    assert_eq!(world.context.peek(sought).unwrap().order, arrival.order + 1);
    assert_eq!(world.context.discard(sought).unwrap().len, 1);
    assert_eq!(bytes_of(&world.post(tagged(1), 8).end()), b"3");
    assert!(world.context.peek(sought).is_none());
    let cell = OpCell::new();
    let report = Report::Future(Arc::clone(&cell));
    let payload = Payload::from_vec(vec![0; 8]);
    let posted = world
        .context
        .receive_claimed(first, payload, report, None)
        .unwrap();
    let receive = Receive {
        key: posted.key,
        cell,
    };
    assert_eq!(bytes_of(&receive.end()), b"1");
    assert!(!world.context.discard_claimed(first), "once");
    assert_eq!(sender.receives.held(), 0);
}

/// What a claim stood for may go with its connection; who asks for it then is told.
#[test]
fn a_claim_whose_sender_has_gone_is_void() {
    let world = World::new(8, 1 << 16, 4);
    let mut sender = world.sender(1, 1);
    assert!(matches!(sender.announce(5, 9, 1), Arrived::Store));
    let sought = Sought {
        wanted: tagged(5),
        source: None,
    };
    let (claimed, _) = world.context.claim(sought).unwrap();
    sender.receives.leave();
    let payload = Payload::from_vec(vec![0; 8]);
    let refused = world
        .context
        .receive_claimed(claimed, payload, Report::Nowhere, None);
    let (error, payload) = refused.err().unwrap();
    assert_eq!((error.kind(), payload.len()), (ErrorKind::NoMessage, 8));
}

fn post_many(world: &World, len: usize, free_min: usize) -> Posted {
    let sought = Sought {
        wanted: Wanted::Message,
        source: None,
    };
    let payload = Payload::from_vec(vec![0; len]);
    let posted = world
        .context
        .post_many(sought, payload, Context(9), free_min, WAIT);
    posted.unwrap()
}

/// fi_msg(3): "Received messages will be packed into the receive buffer until the buffer has been
/// consumed", and it "will be released by the provider when the available buffer space falls below
/// the specified minimum". fi_cq(3) lets a completion of its own say so; here it comes last.
#[test]
fn many_messages_land_in_one_buffer() {
    let world = World::new(8, 1 << 16, 8);
    let mut sender = world.sender(1, 1);
    let mut other = world.sender(2, 2);
    sender.send_early(None, b"early");
    post_many(&world, 16, 4);
    let slow = other.meet(None, 4);
    let quick = sender.meet(None, 5);
    sender.end(quick, b"quick");
    // 2 bytes are left: fewer than 4.
    assert!(matches!(sender.begin(None, 1).1, Arrived::Store));
    let mut pieces = Vec::new();
    for bytes in [&b"early"[..], b"quick"] {
        let mut completion = world.queue.try_next().unwrap();
        assert_eq!(
            completion.flags,
            CompletionFlags::RECV | CompletionFlags::MSG
        );
        assert_eq!(completion.context, Context(9));
        let piece = completion.take_buffer().unwrap();
        assert_eq!(*piece, *bytes);
        pieces.push(piece);
    }
    assert!(world.queue.try_next().is_none(), "one is still landing");
    other.end(slow, b"slow");
    let mut last = world.queue.try_next().unwrap();
    assert_eq!(*last.take_buffer().unwrap(), *b"slow");
    let end = world.queue.try_next().unwrap();
    assert_eq!(
        (end.flags, end.context),
        (CompletionFlags::MULTI_RECV, Context(9))
    );
    assert!(end.result.is_ok());
    assert!(
        pieces.pop().unwrap().into_whole().is_none(),
        "another is left"
    );
    let whole = pieces.pop().unwrap().into_whole().expect("the last one");
    assert_eq!(whole[..14], *b"earlyslowquick");
    assert_eq!(world.counter.read(), 3);
}

/// What was announced, and is gone before its sender could be asked for it, uses up nothing of a
/// buffer for many messages.
#[test]
fn an_announcement_that_is_gone_uses_up_nothing_of_a_buffer() {
    let world = World::new(8, 1 << 16, 8);
    let mut sender = world.sender(1, 1);
    let announcement = Announcement {
        arrival: sender.arrival(None, 40),
        index: 1,
    };
    let kept = sender.receives.announced(&mut announcement.clone());
    assert!(matches!(kept, Arrived::Store), "{kept:?}");
    // Nobody can be asked here: the announcement is as good as gone.
    post_many(&world, 64, 1);
    assert!(world.queue.try_next().is_none());
    let whole = sender.meet(None, 64);
    assert_eq!(whole.1.payload.len(), 64);
    sender.end(whole, &[7; 64]);
    let mut piece = world.queue.try_next().unwrap();
    assert_eq!(*piece.take_buffer().unwrap(), [7; 64]);
    let end = world.queue.try_next().unwrap();
    assert_eq!(end.flags, CompletionFlags::MULTI_RECV);
}

/// Ruling 3: "for an unasked completion with no free slot the engine stops": a buffer without a
/// place for the next completion takes nothing, and goes on, in order, when the queue is read.
#[test]
fn a_buffer_for_many_waits_for_room_in_its_queue() {
    let world = World::new(8, 1 << 16, 2);
    let mut sender = world.sender(1, 1);
    for bytes in [b"1", b"2", b"3"] {
        sender.send_early(None, bytes);
    }
    let posted = post_many(&world, 64, 1);
    for bytes in [b"1", b"2", b"3"] {
        let mut completion = world.queue.try_next().unwrap();
        assert_eq!(*completion.take_buffer().unwrap(), *bytes);
        assert!(world.queue.try_next().is_none());
        assert!(world.driver.take(), "the driver hears of the room");
        world.expire();
    }
    assert_eq!(world.context.cancel(posted.key), Withdrawn::Ended);
    let mut end = world.queue.try_next().unwrap();
    assert_eq!(
        end.result.as_ref().unwrap_err().error.kind(),
        ErrorKind::Canceled
    );
    let whole: Vec<u8> = end.take_buffer().unwrap().downcast().unwrap();
    assert_eq!(whole[..4], *b"123\0");
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
