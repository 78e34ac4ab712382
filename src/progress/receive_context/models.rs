//! A message and the receive that gets it, in every order of the two steps by which a connection
//! takes a receive (it is matched when the message begins, and ends when the message is complete)
//! and of posting, dropping, timing out and closing receives meanwhile.

use std::cell::RefCell;
use std::future::poll_fn;
use std::time::Duration;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::cq::{CompletionFlags, CompletionQueue};
use crate::id::UserContext;
use crate::progress::report::Report;
use crate::proto::{
    Arrival, ArrivalOutcome, ConnectionId, LongMessages, MessageKind, OpKind, Operation,
    PostOptions, ReceivedMessage, Receives,
};
use crate::sync::model::Model;
use crate::sync::{DomainScope, OwnedRecord};

pub(crate) const MODELS: &[Model] = &[
    Model::of("receives: a message and a receive meet", met),
    Model::of(
        "receives: two connections give two receives one message each",
        two,
    )
    .bounded(2),
    Model::of(
        "receives: the message of a dropped receive goes to the next",
        dropped,
    ),
    Model::of(
        "receives: one whose time passes ends once, and its message goes to the next",
        timed,
    ),
    Model::of(
        "receives: one whose message stalls ends when its time passes",
        stalled,
    ),
    Model::of(
        "receives: one that lost its connection is canceled or posted again",
        requeued,
    ),
    Model::of(
        "receives: closing ends what is posted and what comes",
        closed,
    ),
    Model::of(
        "receives: messages of one connection are reported in its order",
        ordered,
    )
    .bounded(2),
];

/// Receives that connections share.
fn context() -> Arc<ReceiveContext> {
    ReceiveContext::new(ReceiveConfig {
        endpoint: EndpointId::next(),
        size: 4,
        unexpected_bytes: 1 << 16,
        unexpected_bytes_per_peer: 1 << 16,
        addresses: Arc::default(),
        counter: None,
        sources: None,
    })
}

/// A posted receive, and the record that is awaited.
struct Receive {
    key: OpKey,
    awaited: RefCell<AwaitedOp>,
}

/// A receive of one byte.
fn receive_of(report: Report, timeout: Option<Duration>) -> Operation<Report> {
    let options = PostOptions {
        wait: true,
        more: false,
        timeout,
        fence: false,
        matched: false,
    };
    let payload = Payload::from_vec(vec![0; 1]);
    Operation::new(OpKind::Receive, payload, report, options)
}

const ANY: ReceiveSelector = ReceiveSelector {
    wanted: MatchCriteria::Message,
    source: None,
};

fn post(context: &ReceiveContext, timeout: Option<Duration>) -> Receive {
    let (record, awaited) = OwnedRecord::awaited(receive_of(Report::Future, timeout));
    match context.post(ANY, record) {
        Ok(posted) => Receive {
            key: posted.key,
            awaited: RefCell::new(awaited),
        },
        Err((error, _)) => panic!("{error}"),
    }
}

impl Receive {
    /// Awaits its end: the byte of its message, or the error.
    fn end(&self) -> Result<u8> {
        let mut awaited = self.awaited.borrow_mut();
        block_on(poll_fn(|cx| {
            awaited.poll(cx.waker(), &mut None).map(|op| {
                op.end.result.clone()?;
                let mut byte = [0];
                let payload = op.take_payload();
                payload.copy_out(0, &mut byte).unwrap();
                Ok(byte[0])
            })
        }))
    }
}

/// A connection: the state that its port's lock guards.
struct Sender {
    receives: PortReceives,
    ids: ConnIds,
}

/// The state of a message that has begun.
enum Begun {
    Stored(Arrival),
    Matched(Arrival, OpKey, Payload),
}

impl Sender {
    fn attach(context: &Arc<ReceiveContext>, number: u64) -> Sender {
        let ids = ConnIds {
            source: SourceId(number),
            connection: ConnectionId::numbered(number),
        };
        let long = LongMessages::Announced { min: 0 };
        Sender {
            receives: context.attach(ids, long, Waker::noop()).0,
            ids,
        }
    }

    /// A message of one byte begins.
    fn begin(&mut self) -> Begun {
        let ids = self.ids;
        let mut arrival = Arrival {
            source: ids.source,
            connection: ids.connection,
            kind: MessageKind::of(None),
            len: 1,
            data: None,
            order: 0,
        };
        match self.receives.begin_message(&mut arrival) {
            ArrivalOutcome::Store => Begun::Stored(arrival),
            ArrivalOutcome::Matched((receive, buffer)) => Begun::Matched(arrival, receive, buffer),
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Completes a message: it is stored, or placed in its receive; then the port's turn ends.
    fn come(&mut self, begun: Begun, byte: u8) {
        let message = |arrival, payload| ReceivedMessage {
            arrival,
            payload,
            len: 1,
            overflow: 0,
        };
        match begun {
            Begun::Stored(arrival) => {
                let payload = Payload::from_vec(vec![byte]);
                self.receives.store_message(message(arrival, payload));
            }
            Begun::Matched(arrival, receive, mut buffer) => {
                buffer.copy_in(0, &[byte]).unwrap();
                let message = message(arrival, buffer);
                self.receives.end_receive(receive, message, None);
            }
        }
        drop(self.receives.take_deferred());
    }

    fn send(&mut self, byte: u8) {
        let begun = self.begin();
        self.come(begun, byte);
    }
}

fn met() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let sends = thread::spawn(move || sender.send(7));
    let receive = post(&context, None);
    assert_eq!(receive.end().unwrap(), 7);
    sends.join().unwrap();
    assert_eq!(context.unexpected_bytes(), 0);
}

fn two() {
    let context = context();
    let sends = [1, 2].map(|number| {
        let mut sender = Sender::attach(&context, number);
        thread::spawn(move || sender.send(number as u8))
    });
    let receives = [post(&context, None), post(&context, None)];
    let sum: u8 = receives.iter().map(|it| it.end().unwrap()).sum();
    assert_eq!(sum, 3);
    sends.map(|sends| sends.join().unwrap());
}

fn dropped() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let receive = post(&context, None);
    let sends = thread::spawn(move || sender.send(7));
    context.withdraw(receive.key, receive.awaited.into_inner());
    assert_eq!(post(&context, None).end().unwrap(), 7);
    sends.join().unwrap();
}

/// Posts a receive with a time limit that runs from now on. Returns the receive and its deadline.
fn post_timed(context: &ReceiveContext) -> (Receive, Instant) {
    let second = Duration::from_secs(1);
    let receive = post(context, Some(second));
    let now = Instant::now();
    context.expire(now);
    (receive, now + second)
}

fn timed() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let (receive, deadline) = post_timed(&context);
    let sends = thread::spawn(move || sender.send(7));
    context.expire(deadline);
    let end = receive.end();
    sends.join().unwrap();
    if let Err(error) = end {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(post(&context, None).end().unwrap(), 7);
    }
    assert_eq!(context.unexpected_bytes(), 0);
}

fn stalled() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let (receive, deadline) = post_timed(&context);
    let begins = thread::spawn(move || {
        let begun = sender.begin();
        (sender, begun)
    });
    context.expire(deadline);
    assert_eq!(receive.end().unwrap_err().kind(), ErrorKind::TimedOut);
    let (mut sender, begun) = begins.join().unwrap();
    sender.come(begun, 7);
    assert_eq!(post(&context, None).end().unwrap(), 7);
}

fn requeued() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let receive = post(&context, None);
    let breaks = thread::spawn(move || {
        if let Begun::Matched(_, receive, buffer) = sender.begin() {
            let gone = Error::new(ErrorKind::PeerClosed, "");
            (sender.receives).requeue_receive(receive, Some(buffer), gone);
            drop(sender.receives.take_deferred());
        }
    });
    context.cancel(receive.key);
    breaks.join().unwrap();
    assert_eq!(receive.end().unwrap_err().kind(), ErrorKind::Canceled);
    assert_eq!(context.lock("model").receives.len(), 0);
}

fn closed() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let receive = post(&context, None);
    let sends = thread::spawn(move || {
        sender.send(7);
        sender.send(8);
    });
    context.close(Error::new(ErrorKind::Canceled, ""));
    match receive.end() {
        Ok(byte) => assert_eq!(byte, 7),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Canceled),
    }
    sends.join().unwrap();
    assert_eq!(context.unexpected_bytes(), 0);
}

/// Posts a receive that reports to this queue.
fn post_queued(context: &ReceiveContext, queue: &CompletionQueue) {
    let report = Report::Queue {
        queue: queue.clone(),
        context: UserContext(0),
        flags: CompletionFlags::MSG,
        errors_only: false,
        slot: None,
    };
    let posted = context.post(ANY, OwnedRecord::new(receive_of(report, None)));
    assert!(posted.is_ok());
}

fn ordered() {
    let queue = CompletionQueue::builder(&DomainScope::apart(), Ok(None))
        .size(2)
        .open()
        .unwrap();
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let sends = thread::spawn(move || {
        sender.send(7);
        sender.send(8);
    });
    let (poster, reports) = (Arc::clone(&context), queue.clone());
    let posts = thread::spawn(move || post_queued(&poster, &reports));
    post_queued(&context, &queue);
    sends.join().unwrap();
    posts.join().unwrap();
    let mut next = || {
        let buffer = queue.try_next().unwrap().take_buffer();
        buffer.map(|it| it.into_vec().unwrap())
    };
    assert_eq!((next(), next()), (Some(vec![7]), Some(vec![8])));
}
