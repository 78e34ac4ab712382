//! One connection: the operations posted to it and the frames on it.
//!
//! This file holds the state, the application's mutators and the transmit half; `receive.rs` turns
//! bytes into ends, `handshake.rs` begins a connection and `end.rs` ends it.
//!
//! Invariants (checked by [`Connection::invariants`] after each step in debug builds):
//! operations in use ≤ context size; every accepted operation ends exactly once; `reads` and
//! `acks` name living operations in the order their frames were handed out.

mod end;
mod handshake;
mod receive;
mod rx;
mod state;
mod tx;

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::proto::Host;
use crate::proto::event::{End, Event};
use crate::proto::matching::{Early, Found, Matcher};
use crate::proto::op::{Op, OpKey, Post, Refused};
use crate::slab::Slab;
use crate::wire::{ByteOrder, CmDecoder, FrameHeader};

pub(crate) use receive::ReceivePlan;
use rx::Rx;
pub(crate) use state::Lifecycle;
pub(crate) use tx::Outgoing;
use tx::Tx;

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) unexpected_bytes: usize,
}

/// One of the two contexts an endpoint has: how many operations it holds, and who waits.
#[derive(Debug)]
struct ContextQueue {
    size: usize,
    used: usize,
    backlog: VecDeque<(OpKey, Post)>,
    /// Room came free since the backlog was looked at.
    freed: bool,
}

impl ContextQueue {
    fn new(size: usize) -> Self {
        ContextQueue {
            size,
            used: 0,
            backlog: VecDeque::new(),
            freed: false,
        }
    }

    /// True if somebody waits for the room that came free.
    fn wants_admission(&self) -> bool {
        self.freed && !self.backlog.is_empty()
    }

    fn withdraw(&mut self, key: OpKey) -> Option<Payload> {
        let at = self
            .backlog
            .iter()
            .position(|(waiting, _)| *waiting == key)?;
        // Who waits behind it may ask for less: not every operation needs a completion slot.
        self.freed = true;
        self.backlog.remove(at).map(|(_, post)| post.into_payload())
    }
}

/// What became of a request to end an operation early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// It had not started and has ended now.
    Ended,
    /// It has started and runs to its own end.
    Running,
    /// It has ended before.
    Gone,
}

/// One connection's protocol state. `T` is the owner's note of where an operation reports.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    lifecycle: Lifecycle,
    order: ByteOrder,
    handshake: Option<CmDecoder>,
    tx: Tx,
    rx: Rx,
    ops: Slab<Op<T>>,
    transmit: ContextQueue,
    receive: ContextQueue,
    matcher: Matcher,
    /// Operations whose ack is awaited, oldest first.
    acks: VecDeque<OpKey>,
    /// Reads whose response is awaited, oldest first.
    reads: VecDeque<OpKey>,
    events: VecDeque<Event<T>>,
    /// Why the connection must end; set once, acted on by the owner.
    fault: Option<Error>,
    /// The peer has sent its last byte; so many of its bytes have not been read yet.
    last_bytes: Option<u64>,
}

impl<T> Connection<T> {
    pub(crate) fn new(sizes: Sizes) -> Self {
        Connection {
            lifecycle: Lifecycle::Idle,
            order: ByteOrder::Native,
            handshake: None,
            tx: Tx::new(),
            rx: Rx::header(),
            ops: Slab::new(),
            transmit: ContextQueue::new(sizes.tx_size),
            receive: ContextQueue::new(sizes.rx_size),
            matcher: Matcher::new(sizes.unexpected_bytes),
            acks: VecDeque::new(),
            reads: VecDeque::new(),
            events: VecDeque::new(),
            fault: None,
            last_bytes: None,
        }
    }

    // Application mutators.

    /// Accepts an operation, or, when its context is full, lets it wait (`wait`) or refuses it with
    /// Again. Nothing overtakes a waiting operation of the same context.
    pub(crate) fn post(
        &mut self,
        post: Post,
        mut token: T,
        wait: bool,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Refused> {
        if let Err(error) = self.check_post(&post) {
            if self.lifecycle == Lifecycle::Closed && post.is_receive() {
                return self.post_after_end(post, token, error, host);
            }
            let error = error.with_operation(post.operation());
            return Err(Refused {
                error,
                payload: post.into_payload(),
            });
        }
        let queue = self.context(post.is_receive());
        let free = queue.used < queue.size && queue.backlog.is_empty();
        let accepted = free && host.reserve(&mut token);
        if !accepted && !wait {
            let error = Error::new(ErrorKind::Again, "").with_operation(post.operation());
            return Err(Refused {
                error,
                payload: post.into_payload(),
            });
        }
        let key = self.ops.insert(Op {
            token,
            operation: post.operation(),
            phase: Phase::Waiting,
            payload: None,
            len: 0,
            ack: false,
            acked: false,
            orphaned: false,
        });
        if accepted {
            self.accept(key, post, host);
        } else {
            self.context(post.is_receive())
                .backlog
                .push_back((key, post));
        }
        self.invariants();
        Ok(key)
    }

    /// A receive posted after the peer's end still takes a message that came in full before it.
    fn post_after_end(
        &mut self,
        post: Post,
        mut token: T,
        error: Error,
        host: &mut impl Host<T>,
    ) -> Result<OpKey, Refused> {
        let payload = post.into_payload();
        let refuse = |error: Error, payload| {
            let error = error.with_operation(OperationKind::Receive);
            Err(Refused { error, payload })
        };
        if !self.matcher.has_early() {
            return refuse(error, payload);
        }
        if !host.reserve(&mut token) {
            return refuse(
                Error::new(ErrorKind::Again, "the completion queue is full"),
                payload,
            );
        }
        let early = self.matcher.take_early().expect("seen above");
        self.receive.used += 1;
        let key = self.ops.insert(Op {
            token,
            operation: OperationKind::Receive,
            phase: Phase::Queued,
            len: payload.len(),
            payload: Some(payload),
            ack: false,
            acked: false,
            orphaned: false,
        });
        self.deliver_early(key, early);
        Ok(key)
    }

    fn context(&mut self, receive: bool) -> &mut ContextQueue {
        if receive {
            &mut self.receive
        } else {
            &mut self.transmit
        }
    }

    fn check_post(&self, post: &Post) -> Result<(), Error> {
        if let Post::Write {
            payload, segments, ..
        }
        | Post::Read { payload, segments } = post
            && segments.total() != payload.len() as u64
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the remote segments hold {} bytes, the local buffers {}",
                    segments.total(),
                    payload.len()
                ),
            ));
        }
        match (self.lifecycle, &self.fault) {
            (_, Some(error)) => Err(error.clone()),
            (Lifecycle::Closed, None) => {
                Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
            }
            (Lifecycle::Connected, None) => Ok(()),
            (Lifecycle::Idle | Lifecycle::Connecting | Lifecycle::Accepting, None)
                if post.is_receive() =>
            {
                Ok(())
            }
            _ => Err(Error::new(ErrorKind::NotConnected, "")),
        }
    }

    /// Lets waiting operations in, as far as there is room.
    pub(crate) fn admit(&mut self, host: &mut impl Host<T>) {
        for receive in [false, true] {
            self.context(receive).freed = false;
            loop {
                let queue = self.context(receive);
                if queue.used >= queue.size {
                    break;
                }
                let Some(&(key, _)) = queue.backlog.front() else {
                    break;
                };
                let op = self
                    .ops
                    .get_mut(key)
                    .expect("a waiting operation is in the table");
                if !host.reserve(&mut op.token) {
                    break;
                }
                if let Some((key, post)) = self.context(receive).backlog.pop_front() {
                    self.accept(key, post, host);
                }
            }
        }
    }

    fn accept(&mut self, key: OpKey, post: Post, host: &mut impl Host<T>) {
        self.context(post.is_receive()).used += 1;
        let op = self
            .ops
            .get_mut(key)
            .expect("the operation was just inserted");
        op.phase = Phase::Queued;
        match post {
            Post::Send { payload, data, ack } => {
                op.len = payload.len();
                op.ack = ack;
                let len = payload.len() as u64;
                self.tx
                    .push_user(FrameHeader::Message { data, ack, len }, payload, Some(key));
            }
            Post::Inject { payload, data } => {
                op.len = payload.len();
                let len = payload.len() as u64;
                self.tx.push_user(
                    FrameHeader::Message {
                        data,
                        ack: false,
                        len,
                    },
                    payload,
                    Some(key),
                );
            }
            Post::Write {
                payload,
                data,
                ack,
                segments,
            } => {
                op.len = payload.len();
                op.ack = ack;
                let header = FrameHeader::Write {
                    data,
                    ack,
                    commit: false,
                    segments,
                };
                self.tx.push_user(header, payload, Some(key));
            }
            Post::Read { payload, segments } => {
                op.len = payload.len();
                op.payload = Some(payload);
                self.tx.push_user(
                    FrameHeader::ReadRequest { segments },
                    Payload::empty(),
                    Some(key),
                );
            }
            Post::Receive { payload } => {
                op.len = payload.len();
                op.payload = Some(payload);
                if let Found::Early(early) = self.matcher.post(key) {
                    self.deliver_early(key, early);
                }
                self.resume(host);
            }
        }
    }

    /// Asks an operation to end early. It ends with Canceled if no byte of it has moved.
    pub(crate) fn cancel(&mut self, key: OpKey) -> Withdrawn {
        match self.take_unstarted(key) {
            Some(payload) => {
                let error = Error::new(ErrorKind::Canceled, "");
                self.end_op(key, Err(error), 0, payload);
                Withdrawn::Ended
            }
            None if self.ops.get(key).is_some() => Withdrawn::Running,
            None => Withdrawn::Gone,
        }
    }

    /// The owner of the operation went away: withdraws it if it has not started; marks a receive
    /// that a message is landing in, so that the message survives. The end is still an event.
    pub(crate) fn detach(&mut self, key: OpKey) -> Withdrawn {
        let withdrawn = self.cancel(key);
        if withdrawn == Withdrawn::Running
            && let Some(op) = self.ops.get_mut(key)
        {
            op.orphaned = op.operation == OperationKind::Receive;
        }
        withdrawn
    }

    /// A completed receive whose owner never looked: its message goes back to the head.
    pub(crate) fn give_back(
        &mut self,
        payload: Payload,
        len: usize,
        overflow: usize,
        data: Option<u64>,
    ) {
        if self.lifecycle == Lifecycle::Closed && self.fault.is_none() {
            return; // Closed by this side: nobody will ask for it.
        }
        // A region is not where a message waits: its owner writes there, and may take it away. One
        // that is taken away already took the message along.
        let Ok(payload) = payload.apart_from_regions(len) else {
            return;
        };
        if let Some((key, early)) = self.matcher.give_back(Early {
            payload,
            len,
            overflow,
            data,
        }) {
            self.deliver_early(key, early);
        }
    }

    fn take_unstarted(&mut self, key: OpKey) -> Option<Payload> {
        let op = self.ops.get_mut(key)?;
        let is_receive = op.operation == OperationKind::Receive;
        match op.phase {
            Phase::Waiting => self.context(is_receive).withdraw(key),
            Phase::Queued if is_receive => self
                .matcher
                .withdraw(key)
                .then(|| op.payload.take())
                .flatten(),
            Phase::Queued => {
                let kept = op.payload.take();
                let queued = self.tx.withdraw(key);
                match (queued, kept) {
                    (Some(_), Some(destination)) => Some(destination),
                    (Some(payload), None) => Some(payload),
                    (None, kept) => {
                        // Handed out meanwhile: give the destination back to the operation.
                        if let Some(op) = self.ops.get_mut(key) {
                            op.payload = kept;
                        }
                        None
                    }
                }
            }
            _ => None,
        }
    }

    // Transmit.

    /// Frames for the transport, if there are any and it has none of ours.
    pub(crate) fn poll_transmit(&mut self) -> Option<Outgoing> {
        if self.fault.is_some() {
            return None;
        }
        let Connection {
            tx,
            ops,
            acks,
            reads,
            order,
            ..
        } = self;
        let polled = tx.poll(*order, |key| {
            if let Some(op) = ops.get_mut(key) {
                op.phase = Phase::Moving;
                if op.ack {
                    acks.push_back(key);
                }
                if op.operation == OperationKind::Read {
                    reads.push_back(key);
                }
            }
        });
        match polled {
            Ok(outgoing) => outgoing,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// The transport gives a batch back after moving `sent` bytes of it.
    pub(crate) fn handle_sent(&mut self, frames: VecDeque<crate::buf::Frame>, sent: usize) {
        let mut finished = Vec::new();
        self.tx
            .handle_sent(frames, sent, |op, payload| finished.push((op, payload)));
        for (key, payload) in finished {
            match key {
                Some(key) => self.frame_sent(key, payload),
                // An ack holds no memory, and a control frame is sent before the connection is up.
                None if self.lifecycle == Lifecycle::Connected && payload.piece_count() > 0 => {
                    let operation = OperationKind::RemoteRead;
                    self.events.push_back(Event::RemoteAccess { operation });
                }
                None => {}
            }
        }
        if self.lifecycle == Lifecycle::Accepting && self.tx.is_drained() {
            self.response_sent();
        }
        self.invariants();
    }

    fn frame_sent(&mut self, key: OpKey, payload: Payload) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::AwaitingPeer;
        if op.operation == OperationKind::Read {
            return;
        }
        let len = op.len;
        if op.ack && !op.acked {
            op.payload = Some(payload);
        } else {
            self.end_op(key, Ok(()), len, payload);
        }
    }

    fn handle_ack(&mut self) -> Result<(), Error> {
        let Some(key) = self.acks.pop_front() else {
            return Err(violation("an acknowledgement that nothing awaits"));
        };
        let Some(op) = self.ops.get_mut(key) else {
            return Ok(());
        };
        match (op.phase, op.payload.take()) {
            (Phase::AwaitingPeer, Some(payload)) => {
                let len = op.len;
                self.end_op(key, Ok(()), len, payload);
            }
            (_, kept) => {
                op.payload = kept;
                op.acked = true;
            }
        }
        Ok(())
    }

    fn end_op(&mut self, key: OpKey, result: Result<(), Error>, len: usize, payload: Payload) {
        self.end_receive(key, result, len, 0, None, payload);
    }

    fn end_receive(
        &mut self,
        key: OpKey,
        result: Result<(), Error>,
        len: usize,
        overflow: usize,
        data: Option<u64>,
        payload: Payload,
    ) {
        let Some(op) = self.ops.remove(key) else {
            return;
        };
        if op.phase != Phase::Waiting {
            let queue = self.context(op.operation == OperationKind::Receive);
            queue.used -= 1;
            queue.freed = true;
        }
        let result =
            result.map_err(|error| error.with_operation(op.operation).with_phase(op.phase));
        let end = End {
            operation: op.operation,
            result,
            len,
            overflow,
            data,
            payload,
        };
        self.events.push_back(Event::Ended {
            token: op.token,
            end,
        });
    }

    // Getters.

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// How far an operation has come; `None` once it has ended.
    pub(crate) fn phase(&self, key: OpKey) -> Option<Phase> {
        self.ops.get(key).map(|op| op.phase)
    }

    /// The owner's note of a living operation.
    pub(crate) fn token_mut(&mut self, key: OpKey) -> Option<&mut T> {
        self.ops.get_mut(key).map(|op| &mut op.token)
    }

    /// Why the connection must end, once it must.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// True if a frame posted now could go out at once.
    pub(crate) fn is_transmit_idle(&self) -> bool {
        self.tx.is_idle()
    }

    /// True once everything posted for transmission has been handed to the transport and come back
    /// sent, what waited for room included.
    pub(crate) fn is_transmit_drained(&self) -> bool {
        self.tx.is_idle() && self.transmit.backlog.is_empty()
    }

    /// True while the transport has a batch of ours.
    pub(crate) fn is_transmit_out(&self) -> bool {
        self.tx.is_out()
    }

    #[cfg(test)]
    pub(crate) fn queued_answers(&self) -> usize {
        self.tx.queued_answers()
    }

    /// True if enough is queued that it should go out without waiting for the driver (ruling 5).
    pub(crate) fn is_transmit_gathered(&self) -> bool {
        self.tx.is_gathered()
    }

    /// True if room came free for which operations wait: [`Connection::admit`] is to be called.
    pub(crate) fn wants_admission(&self) -> bool {
        self.transmit.wants_admission() || self.receive.wants_admission()
    }

    /// The next thing to publish.
    pub(crate) fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Bytes of early messages held now.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.matcher.held_bytes()
    }

    pub(crate) fn invariants(&self) {
        debug_assert!(self.transmit.used <= self.transmit.size);
        debug_assert!(self.receive.used <= self.receive.size);
        debug_assert!(self.matcher.posted_len() <= self.receive.used);
        debug_assert!(self.acks.len() <= self.transmit.used);
        debug_assert!(self.reads.len() <= self.transmit.used);
    }

    /// All that must hold between two calls, at the price of looking at every operation.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.invariants();
        for receive in [false, true] {
            let queue = if receive {
                &self.receive
            } else {
                &self.transmit
            };
            let of_context = |op: &&Op<T>| (op.operation == OperationKind::Receive) == receive;
            let ops = || self.ops.iter().map(|(_, op)| op).filter(of_context);
            let waiting = ops().filter(|op| op.phase == Phase::Waiting).count();
            assert_eq!(
                waiting,
                queue.backlog.len(),
                "who waits is in the backlog, once"
            );
            assert_eq!(
                ops().count() - waiting,
                queue.used,
                "who does not takes room"
            );
        }
        for key in self.acks.iter().chain(&self.reads) {
            assert!(
                self.ops.get(*key).is_some(),
                "an awaited operation is in the table"
            );
        }
        let posted = self
            .ops
            .iter()
            .filter(|(_, op)| op.operation == OperationKind::Receive && op.phase == Phase::Queued);
        assert_eq!(
            posted.count(),
            self.matcher.posted_len(),
            "posted receives can be matched"
        );
        self.matcher.check();
    }
}

/// The peer sent what the protocol forbids.
fn violation(what: &'static str) -> Error {
    Error::new(ErrorKind::ProtocolViolation, what)
}
