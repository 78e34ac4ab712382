//! The transmit side of a connection: what goes out, in which order.
//!
//! Control frames (acks, read responses) overtake queued user frames but never split one, and acks
//! overtake the parts of an answer that was cut up; a frame once handed out keeps its place until
//! its last byte is gone. User frames go out in the order in which they were posted, save that RMA
//! passes messages that wait for credit. Byte 7 of each header counts the
//! frames of this direction in transmission order, which debug builds of libfabric insist on.
//!
//! Invariants: sent ≤ handed out ≤ queued; at most one batch is with the transport; while one is,
//! nothing else is handed out.

use std::collections::VecDeque;

use crate::buf::{Frame, Leases, Payload};
use crate::error::{Error, ErrorKind, Refusal};
use crate::limits::{GATHER_BYTES_MAX, GATHER_FRAMES_ENOUGH, GATHER_FRAMES_MAX};
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, FrameHeader};

use super::SendOrder;
use super::announce::Announcements;
use super::answer::{AnswerFrame, Part, ReadAnswers};
use super::credit::SendCredit;
use super::fence::Fences;
use super::liveness::Signs;

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

/// Frames for the transport, with the leases that keep their regions open while it has them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) leases: Vec<Leases>,
}

/// Who is told of a frame's fate: the operation's key, or nobody in particular.
const NO_OP: u64 = u64::MAX;
/// The same of frames of the handshake, of whose fate nobody is told. No key has these values,
/// since a slab never has an entry of the highest index.
pub(super) const RAW: u64 = u64::MAX - 1;
/// The same of the parts of a read's answer.
const READ_DATA: u64 = u64::MAX - 2;
const READ_DONE: u64 = u64::MAX - 3;
const READ_VOID: u64 = u64::MAX - 4;

/// What is told of a frame that is gone in full.
#[derive(Debug)]
pub(super) enum Gone {
    /// An operation's own, with its memory.
    Op(OpKey, Payload),
    /// The answer to a peer's read, to its end, with what it was of.
    Answer(Payload),
}

/// User frames of one kind, each with its number in the order of all.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<(u64, Queued)>,
    /// Payload bytes of them.
    bytes: usize,
}

impl Lane {
    fn push(&mut self, number: u64, queued: Queued) {
        self.bytes += queued.payload.len();
        self.queue.push_back((number, queued));
    }

    fn pop(&mut self) -> Option<Queued> {
        let (_, queued) = self.queue.pop_front()?;
        self.bytes -= queued.payload.len();
        Some(queued)
    }

    fn withdraw(&mut self, op: OpKey) -> Option<(u64, Payload)> {
        let at = self
            .queue
            .iter()
            .position(|(_, queued)| queued.op == Some(op))?;
        let (number, queued) = self.queue.remove(at)?;
        self.bytes -= queued.payload.len();
        Some((number, queued.payload))
    }

    /// Takes what has this number or a higher one.
    fn split_off(&mut self, from: u64) -> VecDeque<(u64, Queued)> {
        let at = self.queue.partition_point(|(number, _)| *number < from);
        let taken = self.queue.split_off(at);
        let bytes = taken.iter().map(|(_, queued)| queued.payload.len());
        self.bytes -= bytes.sum::<usize>();
        taken
    }

    fn next(&self) -> Option<u64> {
        self.queue.front().map(|(number, _)| *number)
    }
}

#[derive(Debug)]
pub(super) struct Tx {
    control: VecDeque<Queued>,
    /// Answers that go out in parts; plain ones are control frames.
    pub(super) reads: ReadAnswers,
    messages: Lane,
    /// RMA, and the end of the direction.
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
            messages: Lane::default(),
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
            // The end of the direction is this connection's.
            Some(staying) if op.is_some() => staying.push_back((number, queued)),
            _ => self.push_numbered(number, queued),
        }
    }

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

    /// Takes a frame back that was never handed out.
    pub(super) fn withdraw(&mut self, op: OpKey) -> Option<Payload> {
        let withdrawn = self.messages.withdraw(op);
        let withdrawn = withdrawn.or_else(|| self.others.withdraw(op));
        let (number, payload) = withdrawn.or_else(|| self.withdraw_staying(op))?;
        self.fences.gone(number);
        Some(payload)
    }

    fn withdraw_staying(&mut self, op: OpKey) -> Option<(u64, Payload)> {
        let staying = self.staying.as_mut()?;
        let at = (staying.iter()).position(|(_, queued)| queued.op == Some(op))?;
        let (number, queued) = staying.remove(at)?;
        Some((number, queued.payload))
    }

    /// The number of the first message that waits for credit, or would have to be announced.
    fn first_waiting(&self) -> Option<u64> {
        let mut credit = self.credit.clone();
        let announcements = self.announcements.as_ref();
        let waits = |queued: &Queued| {
            let kept_max = credit.as_ref().map_or(u64::MAX, SendCredit::kept_max);
            if announcements.is_some_and(|it| it.wants(&queued.header, kept_max)) {
                return true;
            }
            let len = queued.header.payload_len();
            let Some(credit) = &mut credit else {
                return false;
            };
            let is_allowed = credit.allows(len);
            credit.take(len);
            !is_allowed
        };
        let mut queue = self.messages.queue.iter();
        let at = queue.position({
            let mut waits = waits;
            move |(_, queued)| waits(queued)
        })?;
        self.messages.queue.get(at).map(|(number, _)| *number)
    }

    /// The peer gives no more credit, and asks for nothing that is announced from now on: takes
    /// back the messages that would have to wait for either, and those behind them.
    pub(super) fn drain_waiting(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let Some(first) = self.first_waiting() else {
            return Vec::new();
        };
        let fences = &mut self.fences;
        let waiting = self.messages.split_off(first).into_iter();
        waiting
            .map(|(number, queued)| {
                fences.gone(number);
                (queued.op, queued.payload)
            })
            .collect()
    }

    /// Takes back what was announced, and not asked for, before a message that went out: what goes
    /// over the next connection comes behind that one.
    pub(super) fn drain_overtaken(&mut self) -> Vec<(u64, Queued)> {
        match (&mut self.announcements, self.last_message) {
            (Some(announcements), Some(last)) => announcements.drain_before(last),
            _ => Vec::new(),
        }
    }

    /// The same, but it goes over the next connection, with all that may not pass it. Tells `each`
    /// operation that was announced and is not any more. False: there is nothing such.
    pub(super) fn stay(&mut self, mut each: impl FnMut(OpKey)) -> bool {
        let announced = self.announcements.as_mut();
        let mut staying = announced.map(Announcements::drain).unwrap_or_default();
        staying
            .iter()
            .filter_map(|(_, queued)| queued.op)
            .for_each(&mut each);
        let waiting = self.first_waiting();
        if staying.is_empty() && waiting.is_none() {
            return false;
        }
        let numbers = staying.iter().map(|(number, _)| *number);
        let first = numbers.chain(waiting).min();
        let fence = self.fences.first();
        if let Some(from) = first.into_iter().chain(fence).min() {
            staying.extend(self.messages.split_off(from));
        }
        let first = first.filter(|_| self.order == SendOrder::Strict);
        if let Some(from) = first.into_iter().chain(fence).min() {
            staying.extend(self.others.split_off(from));
        }
        staying.sort_unstable_by_key(|(number, _)| *number);
        self.staying = Some(staying.into());
        true
    }

    /// Operations that go over the next connection; `None`: nothing does.
    pub(super) fn staying(&self) -> Option<usize> {
        self.staying.as_ref().map(VecDeque::len)
    }

    /// Takes back what was to go over the next connection: there will be none.
    pub(super) fn drain_staying(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let fences = &mut self.fences;
        let staying = self.staying.take().into_iter().flatten();
        staying
            .map(|(number, queued)| {
                fences.gone(number);
                (queued.op, queued.payload)
            })
            .collect()
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
            && self.others.queue.is_empty()
            && self.data.queue.is_empty()
    }

    pub(super) fn is_out(&self) -> bool {
        self.out
    }

    /// Enough is queued to be sent without waiting for more.
    pub(super) fn is_gathered(&self) -> bool {
        let frames = self.messages.queue.len() + self.others.queue.len();
        let bytes = self.messages.bytes + self.others.bytes;
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
        while frames.is_empty() || (bytes < GATHER_BYTES_MAX && frames.len() < GATHER_FRAMES_MAX) {
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
            } else if let Some(answer) = self.reads.next_frame() {
                if !answer.leases.is_empty() {
                    leases.push(answer.leases);
                }
                (answer.header, answer.payload, token_of(answer.part))
            } else if let Some(queued) = self.pop_user() {
                // The regions among its memory are our own operation's, which is inside already.
                let is_announced = matches!(queued.header, FrameHeader::Rts { .. });
                if let Some(op) = queued.op {
                    started(op, is_announced);
                }
                // An announcement ends nothing.
                let op = queued.op.filter(|_| !is_announced);
                let token = op.map_or(NO_OP, OpKey::to_bits);
                (queued.header, queued.payload, token)
            } else {
                break;
            };
            tracing::trace!(%header, "handed out");
            let header = header.encode(order, self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            let frame = Frame::new(&header, payload, token);
            bytes = bytes.saturating_add(frame.remaining());
            frames.push_back(frame);
        }
        if frames.is_empty() {
            return Ok(None); // All there is waits for credit.
        }
        self.out = true;
        Ok(Some(Outgoing { frames, leases }))
    }

    /// Leases the regions of frames that were handed out before. A part of an answer whose region
    /// refuses by now goes on as zeros, since its header promised as many bytes, and that
    /// answer's end then says why.
    fn lease_again(
        &mut self,
        frames: &mut VecDeque<Frame>,
        order: ByteOrder,
        leases: &mut Vec<Leases>,
    ) -> Result<(), Error> {
        for at in 0..frames.len() {
            let reason: Refusal = match frames[at].payload().lease() {
                Ok(lease) => {
                    if !lease.is_empty() {
                        leases.push(lease);
                    }
                    continue;
                }
                Err(closed) => closed.into(),
            };
            if frames[at].token() != READ_DATA {
                return Err(cannot_say(reason));
            }
            frames[at].blank();
            let is_end = |frame: &Frame| matches!(frame.token(), READ_DONE | READ_VOID);
            match (at + 1..frames.len()).find(|at| is_end(&frames[*at])) {
                None => self.reads.break_off(reason),
                Some(end) if frames[end].token() == READ_DONE => {
                    // Its number counts back from the next one's, for all of these are counted.
                    let back = (frames.len() - end) as u8;
                    let answer = AnswerFrame::end(Some(reason));
                    let header = answer.header.encode(order, self.next_id.wrapping_sub(back));
                    frames[end] = Frame::new(&header, answer.payload, token_of(answer.part));
                }
                Some(_) => {} // It is void already.
            }
        }
        Ok(())
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
        let message = self.messages.next().filter(passing);
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

    /// The oldest message or its announcement, or word that it waits for credit; `None`: it waits.
    fn pop_message(&mut self, number: u64) -> Option<Queued> {
        let (_, queued) = self.messages.queue.front()?;
        let kept_max = self.credit.as_ref().map_or(u64::MAX, SendCredit::kept_max);
        let announcing = (self.announcements.as_mut())
            .filter(|announcements| announcements.wants(&queued.header, kept_max));
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

    /// Ends leases whose frames are not with the transport any more.
    pub(super) fn end_leases(&mut self, mut leases: Vec<Leases>) {
        leases.clear();
        self.spare_leases = leases;
    }

    /// The transport moved `sent` bytes of the frames it had and gives them back.
    pub(super) fn handle_sent(&mut self, mut frames: VecDeque<Frame>, sent: usize) {
        debug_assert!(self.out, "a batch comes back only once");
        self.out = false;
        self.sent = sent;
        // A hello may have been pushed meanwhile: the answer to a request can come before the word
        // that the request has left.
        frames.append(&mut self.carry);
        self.carry = frames;
    }

    /// The next frame that is gone in full, if it matters to anybody; asked after a batch came back
    /// until there is none.
    pub(super) fn next_gone(&mut self) -> Option<Gone> {
        while let Some(frame) = self.carry.front_mut() {
            let step = frame.remaining().min(self.sent);
            frame.advance(step);
            if op_of(frame.token()).is_some() {
                self.work += step as u64;
            }
            self.sent -= step;
            if frame.remaining() > 0 {
                break;
            }
            let frame = self.carry.pop_front()?;
            match frame.token() {
                RAW | READ_DATA | READ_VOID => {}
                READ_DONE => return Some(Gone::Answer(frame.into_payload())),
                // Of such control frames only plain read responses hold memory.
                NO_OP if frame.payload().piece_count() > 0 => {
                    return Some(Gone::Answer(frame.into_payload()));
                }
                NO_OP => {}
                op => return Some(Gone::Op(OpKey::from_bits(op), frame.into_payload())),
            }
        }
        debug_assert_eq!(self.sent, 0, "the transport moved more than it had");
        None
    }

    /// The batch that is with the transport does not come back.
    pub(super) fn forget_submitted(&mut self) {
        self.out = false;
    }

    /// Everything that was not sent, as the connection ends.
    pub(super) fn drain(&mut self) -> Vec<(Option<OpKey>, Payload)> {
        let mut all = Vec::new();
        for frame in self.carry.drain(..) {
            let token = frame.token();
            all.push((op_of(token), frame.into_payload()));
        }
        self.reads.clear();
        let announced = self.announcements.as_mut();
        let announced = announced.map(Announcements::drain).unwrap_or_default();
        let staying = self.staying.take().into_iter().flatten();
        for (_, queued) in announced.into_iter().chain(staying) {
            all.push((queued.op, queued.payload));
        }
        let lanes = [
            std::mem::take(&mut self.messages),
            std::mem::take(&mut self.others),
            std::mem::take(&mut self.data),
        ];
        let user = lanes.into_iter().flat_map(|lane| lane.queue);
        for queued in self.control.drain(..).chain(user.map(|(_, queued)| queued)) {
            all.push((queued.op, queued.payload));
        }
        all
    }
}

/// The operation that a frame belongs to.
fn op_of(token: u64) -> Option<OpKey> {
    (token < READ_VOID).then(|| OpKey::from_bits(token))
}

fn token_of(part: Part) -> u64 {
    match part {
        Part::Data => READ_DATA,
        Part::Done => READ_DONE,
        Part::Void => READ_VOID,
    }
}

/// Towards a peer without the extension, closing is all the wire can say.
fn cannot_say(reason: Refusal) -> Error {
    Error::new(
        ErrorKind::AccessDenied,
        format!("before its bytes were read out, {reason}"),
    )
}
