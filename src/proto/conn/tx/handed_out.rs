//! Frames that were handed out: their owners, which frames the transport has, and what happens to
//! frames that come back.

use crate::buf::{OutFrame, SendBatch};
use crate::error::{Error, ErrorKind, Refusal};
use crate::proto::op::OpKey;
use crate::wire::ByteOrder;

use super::super::answer::{AnswerFrame, Part};
use super::Tx;

/// The owner of a frame that was handed out; it decides what happens when the frame has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto::conn) enum FrameOwner {
    /// An operation, to which the frame's memory returns.
    Operation(OpKey),
    /// The protocol itself. Only its plain answers to reads hold memory.
    Control,
    /// The handshake: nothing happens.
    Handshake,
    /// A part of a split answer.
    Answer(Part),
    /// This many injected messages, which are one frame for the transport.
    Injected(u32),
}

/// Slab indices that no operation has, since a slab does not grow that large. The other half of
/// such a token is not a generation.
const CONTROL: u32 = u32::MAX;
const HANDSHAKE: u32 = u32::MAX - 1;
const ANSWER_DATA: u32 = u32::MAX - 2;
const ANSWER_DONE: u32 = u32::MAX - 3;
const ANSWER_VOID: u32 = u32::MAX - 4;
const INJECTED: u32 = u32::MAX - 5;

impl FrameOwner {
    /// Packs the owner into one word, the only thing that a frame carries in addition to its bytes.
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
    pub(in crate::proto::conn) fn of(token: u64) -> Self {
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

    /// Returns the number of the owner's frames on the wire.
    fn frame_count(self) -> usize {
        match self {
            FrameOwner::Injected(count) => count as usize,
            _ => 1,
        }
    }
}

impl Tx {
    /// Leases the regions of frames that were handed out before. If the region of a part of an
    /// answer refuses by now, the part goes on as zeros, since its header promised that many bytes,
    /// and the end of the answer gives the reason.
    pub(super) fn lease_again(
        &mut self,
        batch: &mut SendBatch,
        order: ByteOrder,
    ) -> Result<(), Error> {
        let owner_of = |frame: &OutFrame| FrameOwner::of(frame.token());
        for at in 0..batch.len() {
            let frame = batch.frame_mut(at);
            let reason: Refusal = match frame.payload().lease() {
                Ok(lease) => {
                    // It is too late to report missing memory.
                    (frame.refill_bounce()).map_err(|failed| failed.error("it was sent"))?;
                    if !lease.is_empty() {
                        batch.leases.push(lease);
                    }
                    continue;
                }
                Err(closed) => closed.into(),
            };
            if owner_of(frame) != FrameOwner::Answer(Part::Data) {
                return Err(cannot_say(reason));
            }
            frame.blank();
            let is_end = |owner: &FrameOwner| match owner {
                FrameOwner::Answer(part) => matches!(part, Part::Done | Part::Void),
                _ => false,
            };
            let mut behind = (at + 1..).zip(batch.frames().skip(at + 1).map(owner_of));
            let end = behind.find(|(_, owner)| is_end(owner));
            drop(behind);
            match end {
                None => self.read_answers.break_off(reason),
                Some((end, FrameOwner::Answer(Part::Done))) => {
                    // `next_id` follows the number of the last frame, so the number of the END is
                    // `next_id` minus the number of frames from the END on.
                    let ids = batch.frames().skip(end).map(owner_of);
                    let back = ids.map(FrameOwner::frame_count).sum::<usize>() as u8;
                    let AnswerFrame {
                        header,
                        payload,
                        part,
                        ..
                    } = AnswerFrame::end(Some(reason));
                    let id = self.next_id.wrapping_sub(back);
                    let encode = |room: &mut [u8]| header.encode_into(order, id, room);
                    let token = FrameOwner::Answer(part).to_token();
                    batch.replace(end, header.encoded_len(), encode, payload, token);
                }
                Some(_) => {} // The answer is void already.
            }
        }
        Ok(())
    }

    /// Takes the batch back from the transport, with the frames that were not sent in full, and
    /// without leases.
    #[inline]
    pub(in crate::proto::conn) fn take_back(&mut self, mut batch: Box<SendBatch>) {
        debug_assert!(self.out, "a batch comes back only once");
        self.out = false;
        // A HELLO may have been pushed meanwhile: the answer to a request can come before the
        // report that the request was sent.
        if let Some(pushed) = &mut self.batch.out {
            batch.append(pushed);
        }
        self.batch.out = Some(batch);
    }

    /// Accounts for sent bytes of a run of injected messages; returns how many messages have ended.
    pub(in crate::proto::conn) fn injected_gone(&mut self, bytes: usize) -> usize {
        let count = self.injected.advance(bytes);
        self.fences.ended_first(count);
        count
    }

    /// Gives up the batch that the transport has, and which does not come back.
    pub(in crate::proto::conn) fn forget_submitted(&mut self) {
        self.out = false;
    }
}

/// Error of a connection that cannot send the bytes of a region, since the region refuses: to a
/// peer without the extension, the wire can report this only by closing.
pub(in crate::proto::conn) fn cannot_say(reason: Refusal) -> Error {
    Error::new(
        ErrorKind::AccessDenied,
        format!("before its bytes were read out, {reason}"),
    )
}
