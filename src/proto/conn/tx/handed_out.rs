//! Frames that were handed out: whose each is, what of them is with the transport, and what becomes
//! of those that come back.

use std::collections::VecDeque;

use crate::buf::{Frame, Leases, Payload};
use crate::error::{Error, ErrorKind, Refusal};
use crate::proto::op::OpKey;
use crate::wire::ByteOrder;

use super::super::answer::{AnswerFrame, Part};
use super::Tx;
use super::injected::run_of;

/// Frames for the transport, with the leases that keep their regions open while it has them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frames: VecDeque<Frame>,
    pub(crate) leases: Vec<Leases>,
    /// Several messages go out together.
    pub(crate) is_burst: bool,
}

/// Who is told of a frame's fate: the operation's key, or nobody in particular.
pub(super) const NO_OP: u64 = u64::MAX;
/// The same of frames of the handshake, of whose fate nobody is told. No key has these values,
/// since a slab never has an entry of the highest index.
pub(in crate::proto::conn) const RAW: u64 = u64::MAX - 1;
/// The same of the parts of a read's answer.
const READ_DATA: u64 = u64::MAX - 2;
const READ_DONE: u64 = u64::MAX - 3;
const READ_VOID: u64 = u64::MAX - 4;

/// What is told of a frame that is gone in full.
#[derive(Debug)]
pub(in crate::proto::conn) enum Gone {
    /// An operation's own, with its memory.
    Op(OpKey, Payload),
    /// The answer to a peer's read, to its end, with what it was of.
    Answer(Payload),
    /// So many injected messages.
    Injected(usize),
}

impl Tx {
    /// Leases the regions of frames that were handed out before. A part of an answer whose region
    /// refuses by now goes on as zeros, since its header promised as many bytes, and that
    /// answer's end then says why.
    pub(super) fn lease_again(
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
                    let ids = |frame: &Frame| run_of(frame.token()).unwrap_or(1);
                    let back = frames.range(end..).map(ids).sum::<usize>() as u8;
                    let answer = AnswerFrame::end(Some(reason));
                    let header = answer.header.encode(order, self.next_id.wrapping_sub(back));
                    frames[end] = Frame::new(&header, answer.payload, token_of(answer.part));
                }
                Some(_) => {} // It is void already.
            }
        }
        Ok(())
    }

    /// Ends leases whose frames are not with the transport any more.
    pub(in crate::proto::conn) fn end_leases(&mut self, mut leases: Vec<Leases>) {
        leases.clear();
        self.spare_leases = leases;
    }

    /// The transport moved `sent` bytes of the frames it had and gives them back.
    pub(in crate::proto::conn) fn handle_sent(&mut self, mut frames: VecDeque<Frame>, sent: usize) {
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
    pub(in crate::proto::conn) fn next_gone(&mut self) -> Option<Gone> {
        while let Some(frame) = self.carry.front_mut() {
            let step = frame.remaining().min(self.sent);
            frame.advance(step);
            if op_of(frame.token()).is_some() || run_of(frame.token()).is_some() {
                self.work += step as u64;
            }
            self.sent -= step;
            if frame.remaining() > 0 {
                break;
            }
            let frame = self.carry.pop_front()?;
            if let Some(count) = run_of(frame.token()) {
                self.injected.sent(count, frame.into_payload());
                self.fences.ended_first(count);
                return Some(Gone::Injected(count));
            }
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
    pub(in crate::proto::conn) fn forget_submitted(&mut self) {
        self.out = false;
    }
}

/// The operation that a frame belongs to.
pub(super) fn op_of(token: u64) -> Option<OpKey> {
    (token < READ_VOID && run_of(token).is_none()).then(|| OpKey::from_bits(token))
}

pub(super) fn token_of(part: Part) -> u64 {
    match part {
        Part::Data => READ_DATA,
        Part::Done => READ_DONE,
        Part::Void => READ_VOID,
    }
}

/// Towards a peer without the extension, closing is all the wire can say.
pub(super) fn cannot_say(reason: Refusal) -> Error {
    Error::new(
        ErrorKind::AccessDenied,
        format!("before its bytes were read out, {reason}"),
    )
}
