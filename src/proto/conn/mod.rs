//! One connection: the operations posted to it and the frames on it.
//!
//! This file holds the state and its getters. `post.rs` has the application's mutators,
//! `transmit.rs` hands frames out, `receive.rs` turns received bytes into ends of operations.
//! `handshake.rs` and `extension.rs` begin a connection, `auth.rs` proves the keys of both sides,
//! `liveness.rs` sends and answers probes, and `end.rs` ends a connection. `acks.rs` completes
//! operations that the peer has answered, `refusal.rs` counts refused ones, `commit.rs` makes
//! writes persistent, `answer.rs` splits the answers to reads into frames, so that an answer can be
//! aborted, and `atomic.rs` performs a peer's atomic operations.
//!
//! `messages.rs` receives messages. A connection has its own receives (`own_receives.rs`) or shares
//! them with others ([`Receives`](crate::proto::Receives)). Connections of a connectionless
//! endpoint share receives (`rdm_binding.rs`); those of a connected endpoint do if the endpoint was
//! opened so. Messages for shared receives may be announced before they are sent, by
//! `rendezvous_sender.rs` and `rendezvous_receiver.rs`. `fence.rs` holds operations back until
//! earlier ones have ended. `stats.rs` collects the statistics of a connection.
//!
//! Invariants: operations in use ≤ context size (checked by [`Connection::invariants`] after each
//! step in debug builds); every admitted operation ends exactly once; `awaited_reads` and
//! `awaited_acks` have the keys of operations in the order in which their frames were handed out,
//! including operations that ended before their answer came.

mod acks;
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
mod inbox;
mod liveness;
mod messages;
mod own_receives;
mod post;
mod rdm_binding;
mod receive;
mod receive_side;
mod receive_state;
mod refusal;
mod rendezvous_receiver;
mod rendezvous_sender;
mod state;
mod stats;
mod transmit;
mod tx;

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::info::MsgOrder;
use crate::proto::event::ConnEvent;
use crate::proto::matching::fifo::FifoMatcher;
use crate::proto::matching::inbox::Inboxes;
use crate::proto::op::{OpKey, Operation};
use crate::slab::Slab;
use crate::sync::OwnedRecord;
use crate::wire::{ByteOrder, CmDecoder};

use acks::AwaitedRead;
pub(crate) use auth::{Challenge, ChallengeResult, ProvenKey};
use close::CloseState;
use credit::ReceiveCredit;
use extension::Extension;
pub(crate) use extension::{ExtensionParams, OFFERED};
use own_receives::OwnReceives;
pub(crate) use rdm_binding::{RdmParams, no_contexts};
pub(crate) use receive::ReceivePlan;
pub(crate) use receive_side::{ConnIds, LongMessages, SharedParams};
use receive_side::{ReceiveSide, SharedBinding};
use receive_state::{PartialHeader, ReceiveState};
use refusal::Refusals;
pub(crate) use state::Lifecycle;
use tx::Tx;
pub(crate) use tx::{InjectedEnds, UnsentMessages};

/// Sizes of a connection's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) unexpected_bytes: usize,
    pub(crate) send_order: SendOrder,
}

/// The order of an RMA operation relative to an earlier message that waits for credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOrder {
    /// The RMA operation goes ahead.
    Free,
    /// The RMA operation waits too (`FI_ORDER_WAS`, `FI_ORDER_RAS`).
    Strict,
}

impl SendOrder {
    /// Returns the send order for an endpoint's message order.
    pub(crate) fn of(order: MsgOrder) -> Self {
        if order.intersects(MsgOrder::WAS | MsgOrder::RAS) {
            SendOrder::Strict
        } else {
            SendOrder::Free
        }
    }
}

/// One of an endpoint's two contexts: the number of its operations, and those that wait for room.
#[derive(Debug)]
struct ContextQueue {
    size: usize,
    used: usize,
    /// Used places whose operations ended before their answer came.
    abandoned: usize,
    backlog: VecDeque<OpKey>,
    /// Room has become free since the backlog was last looked at.
    freed: bool,
    /// The backlog is not looked at any more: after a loss, receives do not wait for room.
    ignores_backlog: bool,
}

impl ContextQueue {
    fn new(size: usize) -> Self {
        ContextQueue {
            size,
            used: 0,
            abandoned: 0,
            backlog: VecDeque::new(),
            freed: false,
            ignores_backlog: false,
        }
    }

    /// True if operations wait, and room has become free.
    #[inline]
    fn wants_admission(&self) -> bool {
        self.freed && !self.backlog.is_empty()
    }

    /// Frees `count` places. Only operations that wait already need to know.
    #[inline]
    fn free(&mut self, count: usize) {
        self.used -= count;
        self.freed = !self.backlog.is_empty();
    }

    fn withdraw(&mut self, key: OpKey) -> bool {
        let Some(at) = self.backlog.iter().position(|waiting| *waiting == key) else {
            return false;
        };
        // Operations behind this one may ask for less: not every operation needs a completion slot.
        self.freed = true;
        self.backlog.remove(at);
        true
    }
}

/// Outcome of a request to end an operation early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// The operation had not started and has ended now.
    Ended,
    /// The operation has started and runs to its own end.
    Running,
    /// The operation had ended before.
    Gone,
}

/// One connection's protocol state. `T` is the owner's note of where an operation reports.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    lifecycle: Lifecycle,
    byte_order: ByteOrder,
    /// Boxed, since only the start of a connection needs it.
    handshake: Option<Box<CmDecoder>>,
    extension: Extension,
    side: ReceiveSide,
    tx: Tx,
    rx: ReceiveState,
    /// Used in [`ReceiveState::Header`].
    partial: PartialHeader,
    ops: Slab<OwnedRecord<Operation<T>>>,
    tx_context: ContextQueue,
    receive_credit: ReceiveCredit,
    close: CloseState,
    /// Counts the bytes received by our reads, the ended operations, and the bytes read after the
    /// peer has sent its last byte.
    work: u64,
    /// Operations whose ack is awaited, oldest first.
    awaited_acks: VecDeque<OpKey>,
    /// Reads whose response is awaited, oldest first.
    awaited_reads: VecDeque<AwaitedRead>,
    refusals: Refusals,
    events: Vec<ConnEvent<T>>,
    /// The reason why the connection must end; set once. The owner acts on it.
    fault: Option<Error>,
    /// Number of unread bytes of the peer, once the peer has sent its last byte.
    last_bytes: Option<u64>,
}

impl<T> Connection<T> {
    /// Creates a connection of a connected endpoint that has its own receives.
    pub(crate) fn new(sizes: Sizes, params: ExtensionParams) -> Self {
        let own = Box::new(OwnReceives {
            context: ContextQueue::new(sizes.rx_size),
            matcher: FifoMatcher::new(sizes.unexpected_bytes),
            inboxes: Inboxes::default(),
        });
        Connection::with_side(ReceiveSide::Own(own), &sizes, params)
    }

    /// Creates a connection of a connected endpoint that uses the receives of
    /// [`Host::shared`](crate::proto::Host::shared): `sizes` applies to the transmit context only.
    pub(crate) fn new_shared(sizes: Sizes, params: ExtensionParams, shared: SharedParams) -> Self {
        Connection::with_shared(SharedBinding::new(shared, None), &sizes, params)
    }

    fn with_shared(binding: Box<SharedBinding>, sizes: &Sizes, params: ExtensionParams) -> Self {
        let params = params.for_messages(binding.params.long_messages);
        Connection::with_side(ReceiveSide::Shared(binding), sizes, params)
    }

    fn with_side(side: ReceiveSide, sizes: &Sizes, params: ExtensionParams) -> Self {
        Connection {
            lifecycle: Lifecycle::Idle,
            byte_order: ByteOrder::Native,
            handshake: None,
            extension: Extension::new(params),
            side,
            tx: Tx::new(sizes.send_order),
            rx: ReceiveState::Header,
            partial: PartialHeader::default(),
            ops: Slab::new(),
            tx_context: ContextQueue::new(sizes.tx_size),
            receive_credit: ReceiveCredit::default(),
            close: CloseState::default(),
            work: 0,
            awaited_acks: VecDeque::new(),
            awaited_reads: VecDeque::new(),
            refusals: Refusals::default(),
            events: Vec::new(),
            fault: None,
            last_bytes: None,
        }
    }

    /// Returns memory to the record of its operation.
    #[inline]
    fn put_back(&mut self, key: OpKey, payload: Payload) {
        if let Some(op) = self.ops.get_mut(key) {
            op.payload = Some(payload);
        }
    }

    /// Completes an operation: its record gets the result and goes to the owner, with the memory.
    /// The key becomes invalid.
    #[inline]
    fn complete(&mut self, key: OpKey, result: Result<(), Error>, len: usize) {
        let Some(mut op) = self.ops.remove(key) else {
            return;
        };
        // 1. The record gets the result.
        let result = match op.failed {
            Some(failed) => Err(failed.error("what came was copied to it")),
            None => result,
        };
        op.set_end(result, len);
        let (phase, is_receive, number) = (op.phase, op.is_receive(), op.number);
        self.work += 1;
        self.events.push(ConnEvent::Completed(op));
        // 2. The place in the context becomes free, and later fences wait for one operation less.
        if phase != Phase::Waiting {
            let context = match &mut self.side {
                ReceiveSide::Own(own) if is_receive => &mut own.context,
                _ => &mut self.tx_context,
            };
            context.free(1);
            if !is_receive {
                self.tx.fences.ended(number);
            }
        }
    }

    /// Frees the spare memory of queues: for a connection that has been idle for long and is
    /// expected to stay idle.
    pub(crate) fn shrink(&mut self) {
        self.tx.shrink();
        if let Some(own) = self.own_mut() {
            own.matcher.shrink();
            own.inboxes.shrink();
            own.context.backlog.shrink_to_fit();
        }
        self.ops.shrink();
        self.awaited_acks.shrink_to_fit();
        self.awaited_reads.shrink_to_fit();
        self.events.shrink_to_fit();
        self.partial.shrink();
        self.tx_context.backlog.shrink_to_fit();
    }

    // Getters.

    /// True between two frames of the peer: no byte of the next frame has come.
    fn is_at_boundary(&self) -> bool {
        matches!(self.rx, ReceiveState::Header) && self.partial.is_empty()
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// Returns an operation's phase; `None` once the operation has ended.
    pub(crate) fn phase(&self, key: OpKey) -> Option<Phase> {
        self.ops.get(key).map(|op| op.phase)
    }

    /// Returns the owner's note of an operation that has not ended.
    pub(crate) fn token_mut(&mut self, key: OpKey) -> Option<&mut T> {
        self.ops.get_mut(key).map(|op| &mut op.token)
    }

    /// Returns the record of an operation that has not ended.
    pub(crate) fn record_mut(&mut self, key: OpKey) -> Option<&mut OwnedRecord<Operation<T>>> {
        self.ops.get_mut(key)
    }

    /// Returns why the connection must end, once it must.
    pub(crate) fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// True if a frame posted now could go out at once.
    pub(crate) fn is_transmit_idle(&self) -> bool {
        self.tx.is_idle()
    }

    /// True once everything posted for transmission, including operations that waited for room, has
    /// been handed to the transport, and the transport has sent it.
    pub(crate) fn is_transmit_drained(&self) -> bool {
        self.tx.is_idle() && self.tx_context.backlog.is_empty() && !self.owes_reason()
    }

    /// True while the transport has a batch of this connection.
    pub(crate) fn is_transmit_out(&self) -> bool {
        self.tx.is_out()
    }

    #[cfg(test)]
    pub(crate) fn queued_answers(&self) -> usize {
        self.tx.queued_answers()
    }

    /// True if enough is queued to send it without waiting for the driver (ruling 5):
    /// `frames_enough` frames, or many bytes.
    pub(crate) fn is_transmit_gathered(&self, frames_enough: usize) -> bool {
        self.tx.is_gathered(frames_enough)
    }

    /// True if operations wait, and room has become free: the owner is to call
    /// [`Connection::admit_waiting`].
    pub(crate) fn wants_admission(&self) -> bool {
        let receives = self.own();
        self.tx_context.wants_admission() || receives.is_some_and(|it| it.context.wants_admission())
    }

    /// Returns the phase of an awaited message that was copied; `None` once the message has ended.
    pub(crate) fn injected_phase(&self, number: u64) -> Option<Phase> {
        self.tx.injected.phase(number)
    }

    /// Returns the number below which all copied messages have ended.
    pub(crate) fn injected_ended_before(&self) -> u64 {
        self.tx.injected.ended_before()
    }

    /// Takes the awaited messages that were copied but not sent, except those taken before.
    pub(crate) fn take_unsent(&mut self) -> Vec<UnsentMessages> {
        self.tx.injected.take_unsent()
    }

    /// Number of operations that have not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.ops.len()
    }

    /// True if this side may await a message of the peer: a receive is posted, a stream takes
    /// messages, or receives are shared, which take the messages of every connection.
    pub(crate) fn may_await_message(&self) -> bool {
        let has_inbox = |own: &OwnReceives| !own.inboxes.is_empty();
        self.own().is_none_or(has_inbox) || self.outstanding() > 0
    }

    /// True if there are events to publish.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// True if injected messages have ended since they were last counted.
    #[inline]
    pub(crate) fn has_injected_ends(&self) -> bool {
        self.tx.injected.has_ends()
    }

    /// Takes all events to publish, in order.
    #[inline]
    pub(crate) fn take_events(&mut self) -> Vec<ConnEvent<T>> {
        std::mem::take(&mut self.events)
    }

    /// Takes back an event list whose events have been published, for reuse.
    #[inline]
    pub(crate) fn keep_events(&mut self, mut events: Vec<ConnEvent<T>>) {
        events.clear();
        if self.events.is_empty() {
            self.events = events;
        }
    }

    /// Returns how many injected messages have ended since the last call.
    pub(crate) fn take_injected_ends(&mut self) -> InjectedEnds {
        self.tx.injected.take_ends()
    }

    /// Bytes of unexpected messages held now.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.own().map_or(0, |own| own.matcher.held_bytes())
    }

    pub(crate) fn invariants(&self) {
        debug_assert!(self.tx_context.used <= self.tx_context.size);
        if let Some(OwnReceives {
            context, matcher, ..
        }) = self.own()
        {
            debug_assert!(context.used <= context.size);
            debug_assert!(matcher.posted_len() <= context.used);
            debug_assert!(
                !self.lifecycle.is_closed() || context.backlog.len() <= matcher.unexpected_len(),
                "after the end who waits has a message"
            );
        }
        debug_assert!(self.awaited_acks.len() <= self.tx_context.used);
        debug_assert!(self.awaited_reads.len() <= self.tx_context.used);
    }

    /// Checks all that must hold between two calls; visits every operation.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.invariants();
        self.tx.check();
        for receive in [false, true] {
            let queue = match self.own() {
                Some(own) if receive => &own.context,
                _ if receive => continue,
                _ => &self.tx_context,
            };
            let of_context = |op: &&OwnedRecord<Operation<T>>| op.is_receive() == receive;
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
                ops().count() - waiting + queue.abandoned + injected,
                queue.used,
                "who does not takes room, and so do places left behind"
            );
        }
        let reads = self.awaited_reads.iter().map(|read| &read.op);
        let awaited = self.awaited_acks.iter().chain(reads);
        let left = awaited.filter(|key| self.ops.get(**key).is_none()).count();
        let is_swallowing = matches!(
            &self.rx,
            ReceiveState::Payload(transfer) if matches!(
                transfer.target,
                receive_state::PayloadTarget::Read { op } if self.ops.get(op).is_none()
            )
        );
        assert_eq!(
            left + usize::from(is_swallowing),
            self.tx_context.abandoned,
            "an awaited operation is in the table, or has left its place"
        );
        let posted = self
            .ops
            .iter()
            .filter(|(_, op)| op.is_receive() && op.phase == Phase::Queued);
        let matcher = self.own().map(|own| &own.matcher);
        assert_eq!(
            posted.count(),
            matcher.map_or(0, FifoMatcher::posted_len),
            "posted receives can be matched"
        );
        matcher.inspect(|matcher| matcher.check());
        let has_place = |own: &OwnReceives| own.inboxes.has_place();
        assert!(
            !self
                .own()
                .is_some_and(|own| has_place(own) && own.matcher.has_unexpected()),
            "what a stream has a place for does not wait elsewhere"
        );
    }
}

/// Makes the error of a connection whose peer has violated the protocol.
fn violation(what: &'static str) -> Error {
    Error::new(ErrorKind::ProtocolViolation, what)
}
