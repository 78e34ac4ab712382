//! The transmit side of a connection: what goes out, in which order.
//!
//! Control frames (acks, read responses) overtake queued user frames but never split one, and acks
//! overtake the parts of an answer that was cut up. Those parts and user frames take turns, since a
//! peer may read for ever. A frame once handed out keeps its place until its last byte is gone.
//! User frames go out in the order in which they were posted, save that RMA passes messages that
//! wait for credit. Byte 7 of each header counts the frames of this direction in transmission
//! order, which debug builds of libfabric insist on.
//!
//! This file holds what is queued and what goes next; `tx/handed_out.rs` follows frames that went
//! to the transport, `tx/unsent.rs` takes back what does not go out.
//!
//! Invariants: sent ≤ handed out ≤ queued; at most one batch is with the transport; while one is,
//! nothing else is handed out.

mod handed_out;
mod injected;
mod lane;
mod unsent;

use std::collections::VecDeque;

use crate::buf::{Frame, Leases, Payload};
use crate::error::Error;
use crate::limits::{GATHER_BYTES_MAX, GATHER_FRAMES_ENOUGH, GATHER_FRAMES_MAX};
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, FrameHeader};

use super::SendOrder;
use super::announce::Announcements;
use super::answer::{AnswerFrame, ReadAnswers};
use super::credit::SendCredit;
use super::fence::Fences;
use super::liveness::Signs;
pub(crate) use handed_out::Outgoing;
pub(super) use handed_out::{Gone, RAW};
use handed_out::{NO_OP, cannot_say, token_of};
pub(crate) use injected::InjectedEnds;
use injected::{Injected, Run};
use lane::Lane;

/// A frame not yet handed out.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) header: FrameHeader,
    pub(super) payload: Payload,
    /// The operation it belongs to; none for acks and read responses.
    pub(super) op: Option<OpKey>,
}

impl Queued {
    fn sign(header: FrameHeader) -> Self {
        Queued {
            header,
            payload: Payload::empty(),
            op: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Tx {
    control: VecDeque<Queued>,
    /// Answers that go out in parts; plain ones are control frames.
    pub(super) reads: ReadAnswers,
    /// A part of an answer went out last, so that it is the turn of a user frame.
    is_users_turn: bool,
    messages: Lane,
    pub(super) injected: Injected,
    /// RMA.
    others: Lane,
    /// Announced messages that the peer has asked for. All that waits elsewhere was posted behind
    /// them, and the peer may take nothing of that before it has them.
    data: Lane,
    /// The messages that are announced, if the peer knows that.
    pub(super) announcements: Option<Announcements>,
    pub(super) fences: Fences,
    /// What goes over the next connection, since the peer takes no more of it over this one, in the
    /// order in which it was posted; what is posted joins it.
    staying: Option<VecDeque<(u64, Queued)>>,
    /// The number of the last message that went out as it is, over this connection.
    last_message: Option<u64>,
    /// The connection is up: user frames may go out.
    is_open: bool,
    /// The number of the next user frame.
    next_number: u64,
    order: SendOrder,
    /// What the peer takes in of messages; `None`: a plain peer, which has to see for itself.
    pub(super) credit: Option<SendCredit>,
    /// Bytes of operations that have been sent.
    pub(super) work: u64,
    signs: Signs,
    /// Handed out before, not sent in full: goes first, as it is.
    carry: VecDeque<Frame>,
    /// An empty list, to be used again.
    spare_leases: Vec<Leases>,
    /// Bytes of the carry that the transport has moved since, and that were not looked at yet.
    sent: usize,
    out: bool,
    next_id: u8,
}

impl Tx {
    pub(super) fn new(order: SendOrder) -> Self {
        Tx {
            control: VecDeque::new(),
            reads: ReadAnswers::default(),
            is_users_turn: false,
            messages: Lane::default(),
            injected: Injected::default(),
            others: Lane::default(),
            data: Lane::default(),
            announcements: None,
            fences: Fences::default(),
            staying: None,
            last_message: None,
            is_open: false,
            next_number: 0,
            order,
            credit: None,
            work: 0,
            signs: Signs::default(),
            carry: VecDeque::new(),
            spare_leases: Vec::new(),
            sent: 0,
            out: false,
            next_id: 0,
        }
    }

    pub(super) fn push_control(&mut self, header: FrameHeader, payload: Payload) {
        self.control.push_back(Queued {
            header,
            payload,
            op: None,
        });
    }

    /// True if a CLOSE was not handed out.
    pub(super) fn has_queued_close(&self) -> bool {
        let is_close = |queued: &Queued| matches!(queued.header, FrameHeader::Close { .. });
        self.control.iter().any(is_close)
    }

    /// Acknowledges one more frame of the peer's. `together`: the peer knows acks of several
    /// frames, so that those of a turn go out as one.
    pub(super) fn push_ack(&mut self, together: bool) {
        let last = self.control.back_mut().filter(|_| together);
        match last.map(|queued| &mut queued.header) {
            Some(FrameHeader::Acks { count }) => *count += 1,
            Some(header @ FrameHeader::Ack) => *header = FrameHeader::Acks { count: 2 },
            _ => self.push_control(FrameHeader::Ack, Payload::empty()),
        }
    }

    pub(super) fn push_user(&mut self, header: FrameHeader, payload: Payload, op: Option<OpKey>) {
        let queued = Queued {
            header,
            payload,
            op,
        };
        let number = self.next_number;
        self.next_number += 1;
        match &mut self.staying {
            Some(staying) => staying.push_back((number, queued)),
            None => self.push_numbered(number, queued),
        }
    }

    /// A message of which these bytes are copied. Its end is told by count only.
    pub(super) fn push_injected(&mut self, header: FrameHeader, bytes: &[u8], order: ByteOrder) {
        debug_assert!(self.staying.is_none(), "of a connected endpoint");
        let number = self.begin_op(false);
        self.next_number += 1;
        self.injected.push(number, &header, bytes, order);
    }

    #[inline]
    fn push_numbered(&mut self, number: u64, queued: Queued) {
        let lane = match queued.header {
            FrameHeader::Message { .. } | FrameHeader::Tagged { .. } => &mut self.messages,
            _ => &mut self.others,
        };
        lane.push(number, queued);
    }

    /// The number of the frame that is pushed next, which is an operation's.
    pub(super) fn begin_op(&mut self, is_fence: bool) -> u64 {
        self.fences.began(self.next_number, is_fence);
        self.next_number
    }

    /// An announced message, which its receiver awaits.
    pub(super) fn push_data(&mut self, data: Queued) {
        self.data.push(self.next_number, data);
        self.next_number += 1;
    }

    /// The connection is up.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// Lets every write that is queued want an answer; each is told to `each`.
    pub(super) fn answer_writes(&mut self, mut each: impl FnMut(OpKey)) {
        for (_, queued) in &mut self.others.queue {
            if let (FrameHeader::Write { ack, .. }, Some(op)) = (&mut queued.header, queued.op) {
                *ack = true;
                each(op);
            }
        }
    }

    /// Forgets what belongs to an attempt to connect; what is posted stays.
    pub(super) fn forget_attempt(&mut self) {
        let staying = self.staying.take();
        debug_assert!(staying.is_some() || !self.is_open, "an attempt only");
        for (number, queued) in staying.into_iter().flatten() {
            self.push_numbered(number, queued);
        }
        self.is_open = false;
        self.last_message = None;
        self.control.clear();
        self.signs = Signs::default();
        self.carry.clear();
        self.next_id = 0;
        self.credit = None;
        self.announcements = None;
    }

    /// A control frame of the handshake: goes out as it is, before everything else.
    pub(super) fn push_raw(&mut self, frame: Frame) {
        self.carry.push_back(frame);
    }

    /// A frame of the connection's beginning, encoded with its number: goes out as it is.
    pub(super) fn push_opening(&mut self, encode: impl FnOnce(u8) -> Vec<u8>) {
        let frame = encode(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.push_raw(Frame::new(&[], Payload::from_vec(frame), RAW));
    }

    /// The first frame of the connection's beginning was sent by others.
    pub(super) fn skip_opening(&mut self) {
        debug_assert_eq!(self.next_id, 0);
        self.next_id = 1;
    }

    /// Nothing queued and nothing with the transport: a new frame may go out at once.
    pub(super) fn is_idle(&self) -> bool {
        !self.out && self.is_drained()
    }

    /// What was handed out has gone; so has the handshake, since that is handed out at once.
    pub(super) fn is_carried(&self) -> bool {
        !self.out && self.carry.is_empty()
    }

    /// Nothing left to hand out.
    pub(super) fn is_drained(&self) -> bool {
        self.carry.is_empty()
            && self.signs.is_empty()
            && self.control.is_empty()
            && self.reads.is_empty()
            && self.messages.queue.is_empty()
            && self.injected.len() == 0
            && self.others.queue.is_empty()
            && self.data.queue.is_empty()
    }

    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// All that must hold between two calls.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for lane in [&self.messages, &self.others, &self.data] {
            let bytes: usize = lane.queue.iter().map(|(_, it)| it.payload.len()).sum();
            assert_eq!(lane.bytes, bytes, "a lane counts the bytes of its frames");
        }
    }

    /// Enough is queued to be sent without waiting for more.
    pub(super) fn is_gathered(&self) -> bool {
        let frames = self.messages.queue.len() + self.injected.len() + self.others.queue.len();
        let bytes = self.messages.bytes + self.injected.bytes() + self.others.bytes;
        self.is_open && (frames >= GATHER_FRAMES_ENOUGH || bytes >= GATHER_BYTES_MAX)
    }

    /// Signs of life that go out before everything else that is queued.
    pub(super) fn signs_mut(&mut self) -> &mut Signs {
        &mut self.signs
    }

    /// Gives the memory back that the queues keep for what may be queued.
    pub(super) fn shrink(&mut self) {
        self.control.shrink_to_fit();
        self.messages.queue.shrink_to_fit();
        self.others.queue.shrink_to_fit();
        self.data.queue.shrink_to_fit();
        self.carry.shrink_to_fit();
        self.injected.shrink();
        self.spare_leases = Vec::new();
    }

    /// Answers that the peer has asked for and not taken yet.
    pub(super) fn queued_answers(&self) -> usize {
        self.control.len() + self.reads.len()
    }

    /// Frames for the transport, in order, within the gather bounds; each newly handed-out frame of
    /// an operation is told to `started`, with true if it is an announcement only.
    pub(super) fn poll(
        &mut self,
        order: ByteOrder,
        mut started: impl FnMut(OpKey, bool),
    ) -> Result<Option<Outgoing>, Error> {
        if self.out || self.is_drained() {
            return Ok(None);
        }
        let mut frames = std::mem::take(&mut self.carry);
        let mut leases = std::mem::take(&mut self.spare_leases);
        if let Err(error) = self.lease_again(&mut frames, order, &mut leases) {
            self.carry = frames;
            return Err(error);
        }
        let mut bytes: usize = frames.iter().map(Frame::remaining).sum();
        let mut run = Run::default();
        let mut count = frames.len();
        while frames.is_empty() && run.is_empty()
            || (bytes < GATHER_BYTES_MAX && frames.len() < GATHER_FRAMES_MAX)
        {
            let room = GATHER_BYTES_MAX.saturating_sub(bytes);
            let (gathered, of_bytes) = self.gather_injected(&mut run, room);
            if gathered > 0 {
                count += gathered;
                bytes += of_bytes;
                self.is_users_turn = false;
                continue;
            }
            count += 1;
            let sign = self.signs.pop().map(Queued::sign);
            let control = sign.or_else(|| self.control.pop_front());
            let (header, payload, token) = if let Some(queued) = control {
                match queued.payload.lease() {
                    Ok(lease) if lease.is_empty() => {}
                    Ok(lease) => leases.push(lease),
                    Err(closed) => {
                        self.carry = frames;
                        return Err(cannot_say(closed.into()));
                    }
                }
                (queued.header, queued.payload, NO_OP)
            } else if let Some(answer) = self.next_answer() {
                self.is_users_turn = true;
                if !answer.leases.is_empty() {
                    leases.push(answer.leases);
                }
                (answer.header, answer.payload, token_of(answer.part))
            } else if let Some(queued) = self.pop_user() {
                self.is_users_turn = false;
                // The regions among its memory are our own operation's, which is inside already.
                let is_announced = matches!(queued.header, FrameHeader::Rts { .. });
                if let Some(op) = queued.op {
                    started(op, is_announced);
                }
                // An announcement ends nothing.
                let op = queued.op.filter(|_| !is_announced);
                let token = op.map_or(NO_OP, OpKey::to_bits);
                (queued.header, queued.payload, token)
            } else if std::mem::take(&mut self.is_users_turn) {
                count -= 1;
                continue; // There is none, so that answers go on.
            } else {
                count -= 1;
                break;
            };
            tracing::trace!(%header, "handed out");
            if !run.is_empty() {
                frames.push_back(run.end());
            }
            let header = header.encode(order, self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            let frame = Frame::new(&header, payload, token);
            bytes = bytes.saturating_add(frame.remaining());
            frames.push_back(frame);
        }
        if !run.is_empty() {
            frames.push_back(run.end());
        }
        if frames.is_empty() {
            return Ok(None); // All there is waits for credit.
        }
        self.out = true;
        Ok(Some(Outgoing {
            frames,
            leases,
            is_burst: count > 1,
        }))
    }

    /// The next part of an answer, if it is its turn.
    fn next_answer(&mut self) -> Option<AnswerFrame> {
        match self.is_users_turn {
            true => None,
            false => self.reads.next_frame(),
        }
    }

    /// Puts the injected messages that go out next into a run, for about `room` bytes; says how
    /// many they are, and how many bytes.
    fn gather_injected(&mut self, run: &mut Run, room: usize) -> (usize, usize) {
        let Some(number) = self.injected.next() else {
            return (0, 0);
        };
        let first = self.signs.is_empty() && self.control.is_empty();
        let first = first && (self.is_users_turn || self.reads.is_empty());
        let first = first && self.is_open && self.data.queue.is_empty();
        let before = |next: Option<u64>| next.is_none_or(|next| number < next);
        let first = first && before(self.messages.next()) && before(self.others.next());
        // Nothing stands between those that are gathered at a time, no fence either.
        if !first || !self.fences.let_pass(number) {
            return (0, 0);
        }
        let (credit, next_id) = (&mut self.credit, &mut self.next_id);
        let (count, bytes) = self.injected.gather(run, room, |len| {
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
            tracing::trace!(count, bytes, "handed out, injected");
            self.last_message = Some(number + count as u64 - 1);
        }
        (count, bytes)
    }

    /// What the peer has asked for, or the oldest user frame that may go out.
    fn pop_user(&mut self) -> Option<Queued> {
        if !self.is_open {
            return None;
        }
        if let Some(queued) = self.data.pop() {
            if let (FrameHeader::Data { index, .. }, Some(it)) =
                (&queued.header, &mut self.announcements)
            {
                it.sent(*index);
            }
            return Some(queued);
        }
        let fences = &self.fences;
        let passing = |number: &u64| fences.let_pass(*number);
        let message = self.next_message().filter(passing);
        let mut other = self.others.next().filter(passing);
        if let Some(number) = message
            && other.is_none_or(|other| number < other)
        {
            match self.pop_message(number) {
                Some(queued) => return Some(queued),
                None if self.order == SendOrder::Strict => other = None,
                None => {}
            }
        }
        self.fences.gone(other?);
        self.others.pop()
    }

    /// The number of the oldest message, injected or not.
    fn next_message(&self) -> Option<u64> {
        let both = [self.messages.next(), self.injected.next()];
        both.into_iter().flatten().min()
    }

    /// The oldest message or its announcement, or word that it waits for credit; `None`: it waits.
    fn pop_message(&mut self, number: u64) -> Option<Queued> {
        if self.injected.next() == Some(number) {
            // It would have been gathered if it could go out.
            return self.credit.as_mut()?.stall().map(Queued::sign);
        }
        let (_, queued) = self.messages.queue.front()?;
        let kept_max = self.credit.as_ref().map_or(u64::MAX, SendCredit::kept_max);
        let announcing = (self.announcements.as_mut())
            .filter(|announcements| announcements.wants(&queued.header, kept_max))
            // Names may be lost for good to messages that were given up: others go as they are.
            .filter(|announcements| announcements.has_room() || !announcements.has_given_up());
        let len = match announcing {
            Some(_) => 0,
            None => queued.header.payload_len(),
        };
        if let Some(credit) = &mut self.credit
            && !credit.allows(len)
        {
            return credit.stall().map(Queued::sign);
        }
        if announcing.as_ref().is_some_and(|it| !it.has_room()) {
            return None;
        }
        let queued = self.messages.pop()?;
        if let Some(credit) = &mut self.credit {
            credit.take(len);
        }
        self.fences.gone(number);
        Some(match announcing {
            Some(announcements) => announcements.keep(number, queued),
            None => {
                self.last_message = Some(number);
                queued
            }
        })
    }
}
