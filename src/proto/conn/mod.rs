//! One connection: the operations posted to it and the frames on it.
//!
//! This file holds the state and its getters. `post.rs` has the application's mutators,
//! `transmit.rs` hands frames out, `receive.rs` turns bytes into ends, `handshake.rs` and
//! `extension.rs` begin a connection, `auth.rs` proves both sides' key, `liveness.rs` asks for
//! signs of life and gives them, and `end.rs` ends it; `commit.rs` lets writes be made persistent,
//! `refusal.rs` ends an operation that was refused, `answer.rs` cuts the answers to reads into
//! frames that can be broken off, and `atomic.rs` does a peer's atomic operations.
//!
//! A connection of a connectionless endpoint (`peering.rs`) shares its receives with others
//! (`shared.rs`) and may announce messages before it sends them: `announce.rs` is the sender's half
//! of that, `rendezvous.rs` the receiver's. `fence.rs` holds operations back for those before them.
//!
//! Invariants (checked by [`Connection::invariants`] after each step in debug builds):
//! operations in use ≤ context size; every accepted operation ends exactly once; `reads` and
//! `acks` name living operations in the order their frames were handed out.

mod announce;
mod answer;
mod atomic;
mod auth;
mod close;
mod commit;
mod credit;
mod end;
mod expire;
mod extension;
mod fence;
mod handshake;
mod liveness;
mod peering;
mod post;
mod receive;
mod refusal;
mod rendezvous;
mod rx;
mod shared;
mod side;
mod state;
mod transmit;
mod tx;
#[cfg(test)]
pub(in crate::proto) mod walked;

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::info::MsgOrder;
use crate::proto::event::{End, Event};
use crate::proto::matching::first_come::Matcher;
use crate::proto::matching::{Arrival, EarlyMessage, Kind};
use crate::proto::op::{OpKey, Operation};
use crate::slab::Slab;
use crate::wire::{ByteOrder, CmDecoder};

pub(crate) use auth::{Challenge, Challenged, ProvenKey};
use close::Ending;
use credit::ReceiveCredit;
use extension::Extension;
pub(crate) use extension::{OFFERED, Terms};
pub(crate) use peering::{Identity, Peering};
pub(crate) use receive::ReceivePlan;
use refusal::{AwaitedRead, Refusals};
#[cfg(test)]
pub(in crate::proto) use rendezvous::IncomingState;
#[cfg(test)]
pub(in crate::proto) use rx::RxState;
use rx::{PartialHeader, Rx};
use side::{OwnReceives, ReceiveSide};
pub(crate) use state::Lifecycle;
use tx::Tx;
pub(crate) use tx::{InjectedEnds, Outgoing};

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) unexpected_bytes: usize,
    pub(crate) send_order: SendOrder,
}

/// What RMA does that was posted behind a message which has to wait for credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOrder {
    /// It goes ahead.
    Free,
    /// It waits too (`FI_ORDER_WAS`, `FI_ORDER_RAS`).
    Strict,
}

impl SendOrder {
    /// What this order of an endpoint asks for.
    pub(crate) fn of(order: MsgOrder) -> Self {
        if order.intersects(MsgOrder::WAS | MsgOrder::RAS) {
            SendOrder::Strict
        } else {
            SendOrder::Free
        }
    }
}

/// One of the two contexts an endpoint has: how many operations it holds, and who waits.
#[derive(Debug)]
struct ContextQueue {
    size: usize,
    used: usize,
    /// Of these, places of operations that ended before their answer came.
    left: usize,
    backlog: VecDeque<OpKey>,
    /// Room came free since the backlog was looked at.
    freed: bool,
}

impl ContextQueue {
    fn new(size: usize) -> Self {
        ContextQueue {
            size,
            used: 0,
            left: 0,
            backlog: VecDeque::new(),
            freed: false,
        }
    }

    /// True if somebody waits for the room that came free.
    fn wants_admission(&self) -> bool {
        self.freed && !self.backlog.is_empty()
    }

    fn withdraw(&mut self, key: OpKey) -> bool {
        let Some(at) = self.backlog.iter().position(|waiting| *waiting == key) else {
            return false;
        };
        // Who waits behind it may ask for less: not every operation needs a completion slot.
        self.freed = true;
        self.backlog.remove(at);
        true
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
    /// Boxed: of use for a moment in a connection's life.
    handshake: Option<Box<CmDecoder>>,
    extension: Extension,
    side: ReceiveSide,
    tx: Tx,
    rx: Rx,
    /// Of use in [`Rx::Header`].
    partial: PartialHeader,
    ops: Slab<Operation<T>>,
    transmit: ContextQueue,
    receive_credit: ReceiveCredit,
    ending: Ending,
    /// Operations whose ack is awaited, oldest first.
    acks: VecDeque<OpKey>,
    /// Reads whose response is awaited, oldest first.
    reads: VecDeque<AwaitedRead>,
    refusals: Refusals,
    events: Vec<Event<T>>,
    /// Why the connection must end; set once, acted on by the owner.
    fault: Option<Error>,
    /// The peer has sent its last byte; so many of its bytes have not been read yet.
    last_bytes: Option<u64>,
}

impl<T> Connection<T> {
    /// A connection of a connected endpoint.
    pub(crate) fn new(sizes: Sizes, terms: Terms) -> Self {
        let own = OwnReceives {
            context: ContextQueue::new(sizes.rx_size),
            matcher: Matcher::new(sizes.unexpected_bytes),
        };
        Connection::with_side(ReceiveSide::Own(own), &sizes, terms)
    }

    fn with_side(side: ReceiveSide, sizes: &Sizes, terms: Terms) -> Self {
        Connection {
            lifecycle: Lifecycle::Idle,
            order: ByteOrder::Native,
            handshake: None,
            extension: Extension::new(terms),
            side,
            tx: Tx::new(sizes.send_order),
            rx: Rx::Header,
            partial: PartialHeader::new(),
            ops: Slab::new(),
            transmit: ContextQueue::new(sizes.tx_size),
            receive_credit: ReceiveCredit::default(),
            ending: Ending::default(),
            acks: VecDeque::new(),
            reads: VecDeque::new(),
            refusals: Refusals::default(),
            events: Vec::new(),
            fault: None,
            last_bytes: None,
        }
    }

    fn end_op(&mut self, key: OpKey, result: Result<(), Error>, len: usize, payload: Payload) {
        let received = Received {
            len,
            ..Received::default()
        };
        self.end_receive(key, result, received, payload);
    }

    fn end_receive(
        &mut self,
        key: OpKey,
        result: Result<(), Error>,
        received: Received,
        payload: Payload,
    ) {
        let Received {
            len,
            overflow,
            data,
            tag,
            order,
        } = received;
        let Some(op) = self.ops.remove(key) else {
            return;
        };
        self.ending.work += 1;
        let (operation, is_receive) = (op.operation(), op.is_receive());
        if op.phase != Phase::Waiting {
            if let Some(queue) = self.context(is_receive) {
                queue.used -= 1;
                queue.freed = true;
            }
            if !is_receive {
                self.tx.fences.ended(op.number);
            }
        }
        let result = result.map_err(|error| error.with_operation(operation).with_phase(op.phase));
        let identity = self.identity().filter(|_| is_receive);
        let source = identity.map(|identity| identity.source);
        let end = End {
            operation,
            result,
            len,
            overflow,
            data,
            tag,
            source,
            connection: identity.map(|identity| identity.connection),
            order,
            from: None,
            payload,
        };
        self.events.push(Event::Ended {
            token: op.token,
            end,
        });
    }

    /// Gives the memory back that queues keep for what may be queued: of use when nothing has moved
    /// for long, and nothing is expected to.
    pub(crate) fn shrink(&mut self) {
        self.tx.shrink();
        if let Some(own) = self.own_mut() {
            own.matcher.shrink();
            own.context.backlog.shrink_to_fit();
        }
        self.ops.shrink();
        self.acks.shrink_to_fit();
        self.reads.shrink_to_fit();
        self.events.shrink_to_fit();
        self.transmit.backlog.shrink_to_fit();
    }

    // Getters.

    /// True between two frames of the peer's: nothing of the next one has come.
    fn is_at_boundary(&self) -> bool {
        matches!(self.rx, Rx::Header) && self.partial.is_empty()
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// How far an operation has come; `None` once it has ended.
    pub(crate) fn phase(&self, key: OpKey) -> Option<Phase> {
        self.ops.get(key).map(|op| op.phase)
    }

    /// What a living operation does.
    pub(crate) fn operation(&self, key: OpKey) -> Option<OperationKind> {
        self.ops.get(key).map(Operation::operation)
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
        self.tx.is_idle() && self.transmit.backlog.is_empty() && !self.owes_reason()
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
        let receives = self.own();
        self.transmit.wants_admission() || receives.is_some_and(|it| it.context.wants_admission())
    }

    /// Operations that have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.ops.len()
    }

    /// True if there are events to publish.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// True if injected messages have ended since it was asked how many.
    #[inline]
    pub(crate) fn has_injected_ends(&self) -> bool {
        self.tx.injected.has_ends()
    }

    /// All there is to publish, in order.
    #[inline]
    pub(crate) fn take_events(&mut self) -> Vec<Event<T>> {
        std::mem::take(&mut self.events)
    }

    /// A list that was taken comes back, to be used again; what is in it has been published.
    #[inline]
    pub(crate) fn keep_events(&mut self, mut events: Vec<Event<T>>) {
        events.clear();
        if self.events.is_empty() {
            self.events = events;
        }
    }

    /// How many injected messages have ended since this was asked last.
    pub(crate) fn take_injected_ends(&mut self) -> InjectedEnds {
        self.tx.injected.take_ends()
    }

    /// Bytes of early messages held now.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.own().map_or(0, |own| own.matcher.held_bytes())
    }

    pub(crate) fn invariants(&self) {
        debug_assert!(self.transmit.used <= self.transmit.size);
        if let Some(OwnReceives { context, matcher }) = self.own() {
            debug_assert!(context.used <= context.size);
            debug_assert!(matcher.posted_len() <= context.used);
        }
        debug_assert!(self.acks.len() <= self.transmit.used);
        debug_assert!(self.reads.len() <= self.transmit.used);
    }

    /// All that must hold between two calls, at the price of looking at every operation.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.invariants();
        self.tx.check();
        for receive in [false, true] {
            let queue = match self.own() {
                Some(own) if receive => &own.context,
                _ if receive => continue,
                _ => &self.transmit,
            };
            let of_context = |op: &&Operation<T>| op.is_receive() == receive;
            let ops = || self.ops.iter().map(|(_, op)| op).filter(of_context);
            let waiting = ops().filter(|op| op.phase == Phase::Waiting).count();
            assert_eq!(
                waiting,
                queue.backlog.len(),
                "who waits is in the backlog, once"
            );
            let injected = if receive {
                0
            } else {
                self.tx.injected.under_way()
            };
            assert_eq!(
                ops().count() - waiting + queue.left + injected,
                queue.used,
                "who does not takes room, and so do places left behind"
            );
        }
        let reads = self.reads.iter().map(|read| &read.op);
        let awaited = self.acks.iter().chain(reads);
        let left = awaited.filter(|key| self.ops.get(**key).is_none()).count();
        let is_swallowing = matches!(
            &self.rx,
            Rx::Payload(landing) if matches!(
                landing.target,
                rx::Target::Read { op } if self.ops.get(op).is_none()
            )
        );
        assert_eq!(
            left + usize::from(is_swallowing),
            self.transmit.left,
            "an awaited operation is in the table, or has left its place"
        );
        let posted = self
            .ops
            .iter()
            .filter(|(_, op)| op.is_receive() && op.phase == Phase::Queued);
        let matcher = self.own().map(|own| &own.matcher);
        assert_eq!(
            posted.count(),
            matcher.map_or(0, Matcher::posted_len),
            "posted receives can be matched"
        );
        matcher.inspect(|matcher| matcher.check());
    }
}

/// What a receive got.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    /// Bytes that fit.
    len: usize,
    /// Bytes that did not.
    overflow: usize,
    /// CQ data.
    data: Option<u64>,
    tag: Option<u64>,
    /// Its place among the messages of the connection, or of all that share receives.
    order: u64,
}

impl Received {
    /// How a receive ends that got this.
    fn result(&self) -> Result<(), Error> {
        if self.overflow == 0 {
            return Ok(());
        }
        let (len, all) = (self.len, self.len + self.overflow);
        let what = format!("{all} bytes came, {len} fit");
        Err(Error::new(ErrorKind::Truncated, what))
    }

    /// The message, as one that waits for a shared receive.
    fn as_early(&self, identity: Identity, payload: Payload) -> EarlyMessage {
        let arrival = Arrival {
            source: identity.source,
            connection: identity.connection,
            kind: Kind::of(self.tag),
            len: (self.len as u64).saturating_add(self.overflow as u64),
            data: self.data,
            order: self.order,
        };
        EarlyMessage {
            arrival,
            payload,
            len: self.len,
            overflow: self.overflow,
        }
    }
}

/// The peer sent what the protocol forbids.
fn violation(what: &'static str) -> Error {
    Error::new(ErrorKind::ProtocolViolation, what)
}
