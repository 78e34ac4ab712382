//! A message and the receive that gets it, in every order of the two steps by which a connection
//! takes a receive (it is claimed when the message begins, and fulfilled when that has come) and of
//! those who post, drop, time and close receives meanwhile.

use std::future::poll_fn;
use std::time::Duration;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::id::DomainId;
use crate::progress::completing::Undelivered;
use crate::proto::{
    Arrival, ArrivalOutcome, ConnectionId, LongMessages, MessageKind, OpResult, Receives,
    UnexpectedMessage,
};
use crate::stats::OperationStats;
use crate::sync::WakeList;
use crate::sync::model::Model;

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
    context_with(
        CompletionQueue::builder(DomainId::next(), Ok(None))
            .size(1)
            .open()
            .unwrap(),
    )
}

fn context_with(queue: CompletionQueue) -> Arc<ReceiveContext> {
    ReceiveContext::new(ReceiveConfig {
        endpoint: EndpointId::next(),
        names_connections: false,
        size: 4,
        unexpected_bytes: 1 << 16,
        unexpected_bytes_per_peer: 1 << 16,
        addresses: Arc::default(),
        queue,
        counter: None,
        sources: None,
    })
}

/// A posted receive, and the future that awaits it.
struct Receive {
    key: OpKey,
    cell: Arc<OpCell>,
}

fn post(context: &ReceiveContext, timeout: Option<Duration>) -> Receive {
    let cell = OpCell::new();
    let selector = ReceiveSelector {
        wanted: MatchCriteria::Message,
        source: None,
    };
    let options = PostOptions {
        wait: true,
        more: false,
        timeout,
        fence: false,
        matched: false,
    };
    let payload = Payload::from_vec(vec![0; 1]);
    let report = Report::Future(Arc::clone(&cell));
    match context.post(selector, payload, report, options) {
        Ok(posted) => Receive {
            key: posted.key,
            cell,
        },
        Err((error, _)) => panic!("{error}"),
    }
}

impl Receive {
    /// Awaits its end: the byte of its message, or why it got none.
    fn end(&self) -> Result<u8> {
        let end = block_on(poll_fn(|cx| self.cell.poll(cx.waker(), OpResult::take)));
        end.result?;
        let mut byte = [0];
        end.payload.copy_out(0, &mut byte).unwrap();
        Ok(byte[0])
    }
}

/// A connection, under its port's lock.
struct Sender(PortReceives, ConnIds);

impl Sender {
    fn attach(context: &Arc<ReceiveContext>, number: u64) -> Sender {
        let ids = ConnIds {
            source: SourceId(number),
            connection: ConnectionId(number),
        };
        let long = LongMessages::Announced { min: 0 };
        Sender(context.attach(ids, long, Waker::noop()).0, ids)
    }

    /// A message of one byte begins.
    fn begin(&mut self) -> (Arrival, ArrivalOutcome<Report>) {
        let ids = self.1;
        let mut arrival = Arrival {
            source: ids.source,
            connection: ids.connection,
            kind: MessageKind::of(None),
            len: 1,
            data: None,
            order: 0,
        };
        let outcome = self.0.begin_message(&mut arrival);
        (arrival, outcome)
    }

    /// It has come, to be kept or to its receive, whose end the port reports later in its turn.
    fn place(
        &mut self,
        begun: (Arrival, ArrivalOutcome<Report>),
        byte: u8,
    ) -> Option<(Report, OpResult)> {
        match begun {
            (arrival, ArrivalOutcome::Store) => {
                self.0.store_message(UnexpectedMessage {
                    arrival,
                    payload: Payload::from_vec(vec![byte]),
                    len: 1,
                    overflow: 0,
                });
                None
            }
            (arrival, ArrivalOutcome::Matched(mut receive)) => {
                receive.payload.copy_in(0, &[byte]).unwrap();
                let mut end = OpResult::empty();
                end.len = 1;
                end.origin = Some(arrival.origin());
                end.order = arrival.order;
                end.payload = receive.payload;
                self.0.receive_ended(receive.key);
                Some((receive.token, end))
            }
            (_, outcome) => panic!("{outcome:?}"),
        }
    }

    /// Reports what has ended.
    fn report(&mut self, ends: impl IntoIterator<Item = (Report, OpResult)>) {
        let context = Arc::clone(&self.0.context);
        let mut ended = OperationStats::default();
        let mut completion_context = context.completion_context(&mut ended);
        let mut wakes = WakeList::new();
        for (mut report, mut end) in ends {
            let undelivered = completion_context.deliver(&mut report, &mut end, &mut wakes);
            if let Undelivered::Message(result) = undelivered {
                self.0.requeue_message(message_of(&result).unwrap());
            }
        }
    }

    /// It has come, and the port's turn ends.
    fn come(&mut self, begun: (Arrival, ArrivalOutcome<Report>), byte: u8) {
        let end = self.place(begun, byte);
        self.report(end);
        drop(self.0.take_deferred());
    }

    fn send(&mut self, byte: u8) {
        let begun = self.begin();
        self.come(begun, byte);
    }

    /// All of these come in one turn, of a round, or of two if a message is held.
    fn send_in_one_turn(&mut self, bytes: &[u8]) {
        let mut ends = Vec::new();
        for byte in bytes {
            let begun = self.begin();
            ends.extend(self.place(begun, *byte));
            if self.0.is_holding() {
                self.report(ends.drain(..));
                self.0.release();
            }
        }
        self.report(ends);
        drop(self.0.take_deferred());
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
    context.withdraw(receive.key, &receive.cell);
    assert_eq!(post(&context, None).end().unwrap(), 7);
    sends.join().unwrap();
}

/// Posts a receive with a time limit that runs from now on, and returns it with its end.
fn post_timed(context: &ReceiveContext) -> (Receive, Instant) {
    let second = Duration::from_secs(1);
    let receive = post(context, Some(second));
    let now = Instant::now();
    context.expire(now, |_| None);
    (receive, now + second)
}

fn timed() {
    let context = context();
    let mut sender = Sender::attach(&context, 1);
    let (receive, deadline) = post_timed(&context);
    let sends = thread::spawn(move || sender.send(7));
    context.expire(deadline, |_| None);
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
    context.expire(deadline, |_| None);
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
        if let (_, ArrivalOutcome::Matched(receive)) = sender.begin() {
            let gone = Error::new(ErrorKind::PeerClosed, "");
            sender.0.requeue_receive(receive, gone);
            drop(sender.0.take_deferred());
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

/// A receive that reports to the context's queue.
fn post_queued(context: &ReceiveContext) {
    let selector = ReceiveSelector {
        wanted: MatchCriteria::Message,
        source: None,
    };
    let report = Report::Queue {
        queue: context.config.queue.clone(),
        context: UserContext(0),
        flags: CompletionFlags::MSG,
        errors_only: false,
        slot: None,
        waiting: None,
    };
    let payload = Payload::from_vec(vec![0; 1]);
    let posted = context.post(selector, payload, report, PostOptions::default());
    assert!(posted.is_ok());
}

fn ordered() {
    let queue = CompletionQueue::builder(DomainId::next(), Ok(None))
        .size(2)
        .open()
        .unwrap();
    let context = context_with(queue.clone());
    let mut sender = Sender::attach(&context, 1);
    let sends = thread::spawn(move || sender.send_in_one_turn(&[7, 8]));
    let poster = Arc::clone(&context);
    let posts = thread::spawn(move || post_queued(&poster));
    post_queued(&context);
    sends.join().unwrap();
    posts.join().unwrap();
    let mut next = || {
        let buffer = queue.try_next().unwrap().take_buffer();
        buffer.map(|it| it.into_vec().unwrap())
    };
    assert_eq!((next(), next()), (Some(vec![7]), Some(vec![8])));
}
