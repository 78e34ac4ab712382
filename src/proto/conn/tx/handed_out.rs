//! Frames that were handed out: whose each is, what of them is with the transport, and what becomes
//! of those that come back.

use std::collections::VecDeque;

use crate::buf::{Leases, OutFrame, Payload, SendBatch};
use crate::error::{Error, ErrorKind, Refusal};
use crate::proto::op::OpKey;
use crate::wire::{ByteOrder, FrameHeader};

use super::super::answer::{AnswerFrame, Part};
use super::Tx;

/// Whose a frame is that was handed out, and what happens when it has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto::conn) enum FrameOwner {
    /// An operation, with whose memory it comes back.
    Operation(OpKey),
    /// The protocol. Of such frames only plain answers to reads hold memory.
    Control,
    /// The handshake: nothing happens.
    Handshake,
    /// A part of an answer that was cut up.
    Answer(Part),
    /// So many injected messages, which are one frame for the transport.
    Injected(u32),
}

/// Indices that no operation has, since it would take a slab of as many: what is behind them in a
/// token is no generation.
const CONTROL: u32 = u32::MAX;
const HANDSHAKE: u32 = u32::MAX - 1;
const ANSWER_DATA: u32 = u32::MAX - 2;
const ANSWER_DONE: u32 = u32::MAX - 3;
const ANSWER_VOID: u32 = u32::MAX - 4;
const INJECTED: u32 = u32::MAX - 5;

impl FrameOwner {
    /// As one word, which is all that a frame carries beside its bytes.
    #[inline]
    pub(in crate::proto::conn) fn to_token(self) -> u64 {
        match self {
            FrameOwner::Operation(key) => key.to_bits(),
            FrameOwner::Control => CONTROL.into(),
            FrameOwner::Handshake => HANDSHAKE.into(),
            FrameOwner::Answer(Part::Data) => ANSWER_DATA.into(),
            FrameOwner::Answer(Part::Done) => ANSWER_DONE.into(),
            FrameOwner::Answer(Part::Void) => ANSWER_VOID.into(),
            FrameOwner::Injected(count) => u64::from(count) << 32 | u64::from(INJECTED),
        }
    }

    #[inline]
    pub(in crate::proto::conn) fn of(frame: &OutFrame) -> Self {
        let token = frame.token();
        match token as u32 {
            CONTROL => FrameOwner::Control,
            HANDSHAKE => FrameOwner::Handshake,
            ANSWER_DATA => FrameOwner::Answer(Part::Data),
            ANSWER_DONE => FrameOwner::Answer(Part::Done),
            ANSWER_VOID => FrameOwner::Answer(Part::Void),
            INJECTED => FrameOwner::Injected((token >> 32) as u32),
            _ => FrameOwner::Operation(OpKey::from_bits(token)),
        }
    }

    /// How many frames it is on the wire.
    fn frame_count(self) -> usize {
        match self {
            FrameOwner::Injected(count) => count as usize,
            _ => 1,
        }
    }
}

/// A frame of this header and what is behind it; the header is encoded in the frame.
#[inline]
pub(in crate::proto::conn) fn frame(
    header: &FrameHeader,
    order: ByteOrder,
    id: u8,
    payload: Payload,
    owner: FrameOwner,
) -> OutFrame {
    let encode = |room: &mut [u8]| header.encode_into(order, id, room);
    OutFrame::with_header(header.encoded_len(), encode, payload, owner.to_token())
}

impl Tx {
    /// Leases the regions of frames that were handed out before. A part of an answer whose region
    /// refuses by now goes on as zeros, since its header promised as many bytes, and that
    /// answer's end then says why.
    pub(super) fn lease_again(
        &mut self,
        frames: &mut VecDeque<OutFrame>,
        order: ByteOrder,
        leases: &mut Vec<Leases>,
    ) -> Result<(), Error> {
        for at in 0..frames.len() {
            let reason: Refusal = match frames[at].payload().lease() {
                Ok(lease) => {
                    if !lease.is_empty() {
                        leases.push(lease);
                    }
                    // Too late to say that memory is missing.
                    (frames[at].refill_bounce()).map_err(|failed| failed.error("it was sent"))?;
                    continue;
                }
                Err(closed) => closed.into(),
            };
            if FrameOwner::of(&frames[at]) != FrameOwner::Answer(Part::Data) {
                return Err(cannot_say(reason));
            }
            frames[at].blank();
            let part = |at: usize| match FrameOwner::of(&frames[at]) {
                FrameOwner::Answer(part) => Some(part),
                _ => None,
            };
            let is_end = |at: &usize| matches!(part(*at), Some(Part::Done | Part::Void));
            match (at + 1..frames.len()).find(is_end) {
                None => self.read_answers.break_off(reason),
                Some(end) if part(end) == Some(Part::Done) => {
                    // Its number counts back from the next one's, for all of these are counted.
                    let ids = |frame: &OutFrame| FrameOwner::of(frame).frame_count();
                    let back = frames.range(end..).map(ids).sum::<usize>() as u8;
                    let answer = AnswerFrame::end(Some(reason));
                    let id = self.next_id.wrapping_sub(back);
                    let owner = FrameOwner::Answer(answer.part);
                    frames[end] = frame(&answer.header, order, id, answer.payload, owner);
                }
                Some(_) => {} // It is void already.
            }
        }
        Ok(())
    }

    /// The transport gives the batch back, with the frames that are not gone in full, and no
    /// leases.
    #[inline]
    pub(in crate::proto::conn) fn take_back(&mut self, mut batch: SendBatch) {
        debug_assert!(self.out, "a batch comes back only once");
        self.out = false;
        // A hello may have been pushed meanwhile: the answer to a request can come before the word
        // that the request has left.
        if !self.batch.out.frames.is_empty() {
            batch.frames.append(&mut self.batch.out.frames);
        }
        self.batch.out = batch;
    }

    /// So many bytes of a run of injected messages have gone. Says how many of those have ended.
    pub(in crate::proto::conn) fn injected_gone(&mut self, bytes: usize) -> usize {
        let count = self.injected.advance(bytes);
        self.fences.ended_first(count);
        count
    }

    /// All of a run has gone: its memory comes back.
    pub(in crate::proto::conn) fn keep_run(&mut self, run: Payload) {
        self.injected.keep(run);
    }

    /// The batch that is with the transport does not come back.
    pub(in crate::proto::conn) fn forget_submitted(&mut self) {
        self.out = false;
    }
}

/// Towards a peer without the extension, closing is all the wire can say.
pub(in crate::proto::conn) fn cannot_say(reason: Refusal) -> Error {
    Error::new(
        ErrorKind::AccessDenied,
        format!("before its bytes were read out, {reason}"),
    )
}
