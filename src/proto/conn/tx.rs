//! The transmit side of a connection: the queued frames, and their order.
//!
//! Control frames (acks, read responses) overtake queued user frames but never split one, and acks
//! overtake the parts of a split answer. Parts of answers and user frames take turns, since a peer
//! may read without a pause. A frame that was handed out keeps its place until its last byte is
//! sent. User frames go out in the order in which they were posted, except that RMA passes messages
//! that wait for credit. Byte 7 of each header counts the frames of this direction in transmission
//! order, which debug builds of libfabric insist on.
//!
//! This file holds the queues and chooses the next frame; `tx/handed_out.rs` follows frames that
//! went to the transport, `tx/unsent.rs` takes back frames that do not go out.
//!
//! Invariants: sent ≤ handed out ≤ queued; at most one batch is with the transport; while one is,
//! nothing else is handed out.

mod batch;
mod handed_out;
mod injected;
mod lane;
mod unsent;

use std::collections::VecDeque;

use tracing::Level;

use crate::buf::{OutFrame, Payload, SendBatch};
use crate::error::Error;
use crate::limits::{ACKS_WAITING_MAX, GATHER_BYTES_MAX};
use crate::log::{hold_event, is_logged};
use crate::proto::op::{OpKey, Operation};
use crate::wire::{ByteOrder, FrameHeader};

use super::SendOrder;
use super::answer::{AnswerFrame, ReadAnswers};
use super::credit::SendCredit;
use super::fence::Fences;
use super::liveness::ProbeFrames;
use super::rendezvous_sender::OutgoingAnnouncements;
use batch::Batch;
pub(super) use handed_out::{FrameOwner, cannot_say};
use injected::Injected;
pub(crate) use injected::{InjectedEnds, UnsentMessages};
use lane::Lane;
pub(super) use lane::{Queued, QueuedKind};

/// A frame of the protocol itself, without an operation of this side, that waits to go out.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) header: FrameHeader,
    pub(super) payload: Payload,
}

impl Control {
    fn of(header: FrameHeader) -> Self {
        Control {
            header,
            payload: Payload::empty(),
        }
    }
}

/// The next frame of an operation of this side.
#[derive(Clone, Copy, Debug)]
pub(super) enum UserFrame {
    /// The operation's own frame.
    Whole(OpKey),
    /// The announcement of the operation's message, under this index.
    Announcement(OpKey, u8),
    /// The operation's message, announced under this index and requested by the peer.
    Announced(OpKey, u8),
}

impl UserFrame {
    pub(super) fn op(self) -> OpKey {
        match self {
            UserFrame::Whole(op) | UserFrame::Announcement(op, _) | UserFrame::Announced(op, _) => {
                op
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Tx {
    control: VecDeque<Control>,
    /// Answers that go out in parts; answers to plain peers are control frames.
    pub(super) read_answers: ReadAnswers,
    /// The last frame was a part of an answer, so a user frame is next.
    is_users_turn: bool,
    messages: Lane,
    pub(super) injected: Injected,
    /// RMA and atomic operations.
    others: Lane,
    /// Announced messages that the peer has asked for, with their indices. All other queued
    /// operations are newer, and the peer may take none of them before it has these messages.
    requested: VecDeque<(OpKey, u8)>,
    /// The announced messages; `None` if the peer takes no announcements.
    pub(super) announcements: Option<Box<OutgoingAnnouncements>>,
    pub(super) fences: Fences,
    /// Operations that go over the next connection, since the peer takes no more of them over this
    /// one. In the order in which they were posted; new posts join them.
    carried_over: Option<VecDeque<Queued>>,
    /// Number of the last message that was handed out whole on this connection.
    last_message: Option<u64>,
    /// The connection is up: user frames may go out.
    is_open: bool,
    /// The number of the next user frame.
    next_number: u64,
    send_order: SendOrder,
    /// Credit for messages; `None`: the peer gives no credit, and this side holds no message back.
    pub(super) credit: Option<SendCredit>,
    /// Bytes of operations that have been sent.
    pub(super) work: u64,
    /// Number of times that messages stalled for want of credit.
    pub(super) stalls: u64,
    probes: ProbeFrames,
    batch: Batch,
    out: bool,
    next_id: u8,
}

impl Tx {
    pub(super) fn new(send_order: SendOrder) -> Self {
        Tx {
            control: VecDeque::new(),
            read_answers: ReadAnswers::default(),
            is_users_turn: false,
            messages: Lane::default(),
            injected: Injected::default(),
            others: Lane::default(),
            requested: VecDeque::new(),
            announcements: None,
            fences: Fences::default(),
            carried_over: None,
            last_message: None,
            is_open: false,
            next_number: 0,
            send_order,
            credit: None,
            work: 0,
            stalls: 0,
            probes: ProbeFrames::default(),
            batch: Batch::default(),
            out: false,
            next_id: 0,
        }
    }

    pub(super) fn push_control(&mut self, header: FrameHeader, payload: Payload) {
        self.control.push_back(Control { header, payload });
    }

    /// True if a CLOSE is queued and not handed out.
    pub(super) fn has_queued_close(&self) -> bool {
        let is_close = |frame: &Control| matches!(frame.header, FrameHeader::Close { .. });
        self.control.iter().any(is_close)
    }

    /// Acknowledges one more frame of the peer. `together`: the peer knows acks of several frames,
    /// so that all acks of a turn go out as one frame.
    pub(super) fn push_ack(&mut self, together: bool) {
        let last = self.control.back_mut().filter(|_| together);
        match last.map(|frame| &mut frame.header) {
            Some(FrameHeader::Acks { count }) => *count += 1,
            Some(header @ FrameHeader::Ack) => *header = FrameHeader::Acks { count: 2 },
            _ => self.push_control(FrameHeader::Ack, Payload::empty()),
        }
    }

    /// Queues an admitted operation, whose number is the next one.
    #[inline]
    pub(super) fn push<T>(&mut self, key: OpKey, operation: &mut Operation<T>) {
        operation.number = self.take_number(operation.options.fence);
        let queued = Queued::new(key, operation);
        match &mut self.carried_over {
            Some(carried_over) => carried_over.push_back(queued),
            None => self.push_queued(queued),
        }
    }

    #[inline]
    fn push_queued(&mut self, queued: Queued) {
        match queued.kind {
            QueuedKind::Message | QueuedKind::Tagged => self.messages.push(queued),
            QueuedKind::Rma => self.others.push(queued),
        }
    }

    /// Queues a message whose bytes are copied; returns its number.
    pub(super) fn push_injected(
        &mut self,
        header: FrameHeader,
        bytes: &[u8],
        order: ByteOrder,
        is_awaited: bool,
    ) -> u64 {
        debug_assert!(self.carried_over.is_none(), "of a connected endpoint");
        let number = self.take_number(false);
        (self.injected).push(number, &header, bytes, order, is_awaited);
        number
    }

    #[inline]
    fn take_number(&mut self, is_fence: bool) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.fences.began(number, is_fence);
        number
    }

    /// Queues the DATA of a message that was announced under this index and requested.
    pub(super) fn push_announced(&mut self, op: OpKey, index: u8) {
        self.requested.push_back((op, index));
    }

    /// Allows user frames to go out, since the connection is up.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Returns the queued RMA and atomic operations.
    pub(super) fn queued_rma(&self) -> impl Iterator<Item = OpKey> {
        self.others.queue.iter().map(|queued| queued.op)
    }

    /// Drops the state of an attempt to connect; posted operations stay.
    pub(super) fn forget_attempt(&mut self) {
        let carried_over = self.carried_over.take();
        debug_assert!(carried_over.is_some() || !self.is_open, "an attempt only");
        for queued in carried_over.into_iter().flatten() {
            self.push_queued(queued);
        }
        self.is_open = false;
        self.last_message = None;
        self.control.clear();
        self.probes = ProbeFrames::default();
        self.batch.clear();
        self.next_id = 0;
        self.credit = None;
        self.announcements = None;
    }

    /// Queues a control frame of the handshake, which goes out unchanged, before all other frames.
    pub(super) fn push_raw(&mut self, frame: Vec<u8>) {
        let owner = FrameOwner::Handshake;
        self.batch.out_mut().push_bytes(frame, owner.to_token());
    }

    /// Queues an opening frame, which is encoded with its number and goes out unchanged.
    pub(super) fn push_opening(&mut self, encode: impl FnOnce(u8) -> Vec<u8>) {
        let frame = encode(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.push_raw(frame);
    }

    /// Counts the first opening frame, which was sent before this connection began.
    pub(super) fn skip_opening(&mut self) {
        debug_assert_eq!(self.next_id, 0);
        self.next_id = 1;
    }

    /// True if nothing is queued and nothing is with the transport: a new frame may go out at once.
    pub(super) fn is_idle(&self) -> bool {
        !self.out && self.is_drained()
    }

    /// True if all frames that were handed out have been sent, including the handshake, which is
    /// handed out at once.
    pub(super) fn is_batch_sent(&self) -> bool {
        !self.out && self.batch.is_empty()
    }

    /// True if no frame is left to hand out.
    pub(super) fn is_drained(&self) -> bool {
        self.batch.is_empty() && !self.has_queued()
    }

    /// True if any frame waits to be put into a batch.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        !self.control.is_empty() || self.has_queued_beside_control()
    }

    #[inline]
    fn has_queued_beside_control(&self) -> bool {
        !(self.probes.is_empty()
            && self.read_answers.is_empty()
            && self.messages.queue.is_empty()
            && self.injected.len() == 0
            && self.others.queue.is_empty()
            && self.requested.is_empty())
    }

    /// True if fewer than [`ACKS_WAITING_MAX`] acks are queued, at least one, and no other frame.
    #[inline]
    pub(super) fn owes_few_acks(&self) -> bool {
        let are_few = |acks| (1..ACKS_WAITING_MAX).contains(&acks);
        !self.control.is_empty() && self.queued_acks().is_some_and(are_few)
    }

    /// Returns the number of frames that the queued acks acknowledge; `None` if any other frame is
    /// queued.
    fn queued_acks(&self) -> Option<u64> {
        if self.has_queued_beside_control() {
            return None;
        }
        let acks = self.control.iter().map(|frame| match frame.header {
            FrameHeader::Ack => Some(1),
            FrameHeader::Acks { count } => Some(count),
            _ => None,
        });
        acks.sum()
    }

    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// Checks all that must hold between two calls.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for lane in [&self.messages, &self.others] {
            let bytes: usize = lane.queue.iter().map(|it| it.len).sum();
            assert_eq!(lane.bytes, bytes, "a lane counts the bytes of its frames");
        }
    }

    /// True if enough is queued to be sent without waiting for more: `frames_enough` frames, or
    /// many bytes.
    pub(super) fn is_gathered(&self, frames_enough: usize) -> bool {
        let frames = self.messages.queue.len() + self.injected.len() + self.others.queue.len();
        let bytes = self.messages.bytes + self.injected.bytes() + self.others.bytes;
        self.is_open && (frames >= frames_enough || bytes >= GATHER_BYTES_MAX)
    }

    /// Returns the probes and their answers, which go out before all other queued frames.
    pub(super) fn probe_frames_mut(&mut self) -> &mut ProbeFrames {
        &mut self.probes
    }

    /// Frees the spare memory of the queues.
    pub(super) fn shrink(&mut self) {
        self.control.shrink_to_fit();
        self.messages.queue.shrink_to_fit();
        self.others.queue.shrink_to_fit();
        self.requested.shrink_to_fit();
        self.batch.shrink();
        self.injected.shrink();
    }

    /// Number of answers that the peer has asked for and that are still queued.
    pub(super) fn queued_answers(&self) -> usize {
        self.control.len() + self.read_answers.len()
    }

    /// Begins a batch with the frames that were handed out before and not sent in full; their
    /// regions are leased again. False: the transport still has the last batch.
    #[inline]
    pub(super) fn begin_batch(&mut self, order: ByteOrder) -> Result<bool, Error> {
        if !self.out && !self.batch.is_empty() {
            self.resume_batch(order)?;
        }
        Ok(!self.out)
    }

    fn resume_batch(&mut self, order: ByteOrder) -> Result<(), Error> {
        let mut batch = std::mem::take(&mut self.batch);
        let out = batch.out_mut();
        let leased = self.lease_again(out, order);
        let is_cut = out.frames().last().is_some_and(OutFrame::is_partly_here);
        (batch.count, batch.bytes, batch.is_cut) = (out.len(), out.remaining(), is_cut);
        self.batch = batch;
        leased.inspect_err(|_| self.batch.give_up())
    }

    /// True if a probe, its answer, or a control frame waits.
    #[inline]
    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty() || !self.probes.is_empty()
    }

    /// True if the next part of an answer goes before operations.
    #[inline]
    pub(super) fn is_turn_of_answers(&self) -> bool {
        !self.is_users_turn && !self.read_answers.is_empty()
    }

    /// Takes the next probe or its answer, or else the oldest control frame.
    pub(super) fn pop_control(&mut self) -> Option<Control> {
        let probe = self.probes.pop().map(Control::of);
        probe.or_else(|| self.control.pop_front())
    }

    /// Takes the next part of an answer; an operation is next then.
    pub(super) fn pop_answer(&mut self) -> Option<AnswerFrame> {
        let answer = self.read_answers.next_frame();
        self.is_users_turn = answer.is_some();
        answer
    }

    /// Skips the turn of operations, since none goes out; true if it was their turn.
    #[inline]
    pub(super) fn skip_users_turn(&mut self) -> bool {
        std::mem::take(&mut self.is_users_turn)
    }

    /// Takes the number of the next frame.
    #[inline]
    pub(super) fn take_id(&mut self) -> u8 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Gives the batch to the transport. `None`: all queued frames wait for credit.
    #[inline]
    pub(super) fn hand_out(&mut self) -> Option<Box<SendBatch>> {
        let outgoing = self.batch.take();
        self.out = outgoing.is_some();
        outgoing
    }

    /// Returns the batch that is being assembled.
    #[inline]
    pub(super) fn batch_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// Adds the injected messages that go out next to the batch as one run; false: there are none.
    #[inline]
    pub(super) fn gather_injected(&mut self) -> bool {
        match self.injected.next() {
            Some(number) => self.gather_injected_from(number),
            None => false,
        }
    }

    fn gather_injected_from(&mut self, number: u64) -> bool {
        let first = self.probes.is_empty() && self.control.is_empty();
        let first = first && (self.is_users_turn || self.read_answers.is_empty());
        let first = first && self.is_open && self.requested.is_empty();
        let before = |next: Option<u64>| next.is_none_or(|next| number < next);
        let first = first && before(self.messages.next()) && before(self.others.next());
        // Messages that are gathered together have consecutive numbers: no fence stands between.
        if !first || !self.fences.let_pass(number) {
            return false;
        }
        let (credit, next_id, batch) = (&mut self.credit, &mut self.next_id, &mut self.batch);
        let room = GATHER_BYTES_MAX.saturating_sub(batch.bytes);
        let heads = batch.out_mut().heads_mut();
        let (count, bytes) = self.injected.gather(heads, room, |len| {
            if let Some(credit) = credit {
                if !credit.allows(len) {
                    return None;
                }
                credit.take(len);
            }
            let id = *next_id;
            *next_id = next_id.wrapping_add(1);
            Some(id)
        });
        if count > 0 {
            if is_logged(Level::TRACE) {
                hold_event(move || tracing::trace!(count, bytes, "handed out, injected"));
            }
            self.last_message = Some(number + count as u64 - 1);
            batch.push_run(count, bytes);
        }
        self.is_users_turn &= count == 0;
        count > 0
    }

    /// Takes the next frame: a message that the peer has asked for, or else the oldest operation
    /// that may go out.
    pub(super) fn pop_user(&mut self) -> Option<UserFrame> {
        if !self.is_open {
            return None;
        }
        let user = self.choose_user()?;
        self.is_users_turn = false;
        Some(user)
    }

    #[inline]
    fn choose_user(&mut self) -> Option<UserFrame> {
        if let Some((op, index)) = self.requested.pop_front() {
            return Some(UserFrame::Announced(op, index));
        }
        let fences = &self.fences;
        let passing = |number: &u64| fences.let_pass(*number);
        let message = self.next_message().filter(passing);
        let mut other = self.others.next().filter(passing);
        if let Some(number) = message
            && other.is_none_or(|other| number < other)
        {
            match self.pop_message(number) {
                Some(user) => return Some(user),
                None if self.send_order == SendOrder::Strict => other = None,
                None => {}
            }
        }
        self.fences.gone(other?);
        self.others.pop().map(|queued| UserFrame::Whole(queued.op))
    }

    /// Returns the number of the oldest message, injected or not.
    #[inline]
    fn next_message(&self) -> Option<u64> {
        match (self.messages.next(), self.injected.next()) {
            (Some(message), Some(injected)) => Some(message.min(injected)),
            (message, injected) => message.or(injected),
        }
    }

    /// Takes the oldest message or its announcement. `None`: the message waits for an index, or for
    /// credit; in the second case the peer gets a STALLED.
    fn pop_message(&mut self, number: u64) -> Option<UserFrame> {
        let queued = match self.messages.queue.front() {
            Some(queued) if queued.number == number => *queued,
            // An injected message would have been gathered if it could go out.
            _ => return self.stall(),
        };
        let stored_max = self
            .credit
            .as_ref()
            .map_or(u64::MAX, SendCredit::stored_max);
        let announcing = (self.announcements.as_mut())
            .filter(|announcements| announcements.needs_announcement(&queued, stored_max))
            // Messages that were given up may keep indices for good; others go unannounced then.
            .filter(|it| it.has_room() || !it.has_given_up() || queued.matched);
        let len = match announcing {
            Some(_) => 0,
            None => queued.len as u64,
        };
        if let Some(credit) = &mut self.credit
            && !credit.allows(len)
        {
            return self.stall();
        }
        if announcing.as_ref().is_some_and(|it| !it.has_room()) {
            return None;
        }
        self.messages.pop();
        if let Some(credit) = &mut self.credit {
            credit.take(len);
        }
        self.fences.gone(number);
        Some(match announcing {
            Some(announcements) => {
                UserFrame::Announcement(queued.op, announcements.announce(queued))
            }
            None => UserFrame::Whole(queued.op),
        })
    }

    /// Notes that the message with this number is handed out whole.
    #[inline]
    pub(super) fn message_handed_out(&mut self, number: u64) {
        self.last_message = Some(number);
    }

    /// Notes that the DATA of this message is handed out.
    pub(super) fn data_handed_out(&mut self, index: u8) {
        if let Some(announcements) = &mut self.announcements {
            announcements.data_handed_out(index);
        }
    }

    /// Withdraws a message that the peer has asked for and that cannot be sent, as if the request
    /// and the withdrawal had crossed. False: the peer takes no withdrawals.
    pub(super) fn withdraw_requested(&mut self, index: u8) -> bool {
        let announcements = self.announcements.as_mut();
        let withdrawn = announcements.is_some_and(|it| it.withdraw_requested(index));
        if withdrawn {
            self.push_control(FrameHeader::Withdraw { index }, Payload::empty());
        }
        withdrawn
    }

    /// Gives back the credit of the last chosen message, of `len` bytes, which does not go out.
    pub(super) fn message_not_sent(&mut self, len: Option<u64>) {
        if let (Some(credit), Some(len)) = (&mut self.credit, len) {
            credit.give_back(len);
        }
    }

    /// Queues a STALLED for the oldest message, which waits for credit; one per CREDIT of the peer.
    #[cold]
    fn stall(&mut self) -> Option<UserFrame> {
        if let Some(header) = self.credit.as_mut().and_then(SendCredit::stall) {
            self.stalls += 1;
            self.push_control(header, Payload::empty());
        }
        None
    }
}
