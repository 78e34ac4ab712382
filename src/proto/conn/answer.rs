//! The answers to a peer's reads where refusals are agreed on. Each answer is split into frames, so
//! that it can be aborted (`docs/extension.md`, section 4).
//!
//! ```text
//!   resolved --> DATA ... DATA --> END 0
//!                 | a region refuses
//!                 v
//!   refused ----> END reason
//! ```
//!
//! Invariant: the oldest answer stays in the queue until its END is handed out.

use std::collections::VecDeque;

use crate::buf::{Leases, Payload};
use crate::error::Refusal;
use crate::limits::{DEVICE_PIECE_MAX, READ_DATA_MAX};
use crate::wire::FrameHeader;

#[derive(Debug)]
enum ReadAnswer {
    /// `rest`: the bytes still to be handed out. `regions`: the regions that count the read once it
    /// is answered in full.
    Rest {
        rest: Payload,
        regions: Payload,
    },
    Refused(Refusal),
}

/// The part of an answer that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes.
    Data,
    /// The end of an answer that was given in full.
    Done,
    /// The end of a refused or aborted answer.
    Void,
}

/// One frame of an answer.
#[derive(Debug)]
pub(super) struct AnswerFrame {
    pub(super) header: FrameHeader,
    pub(super) payload: Payload,
    pub(super) leases: Leases,
    pub(super) part: Part,
}

impl AnswerFrame {
    pub(super) fn end(refused: Option<Refusal>) -> Self {
        AnswerFrame {
            header: FrameHeader::ReadEnd { refused },
            payload: Payload::empty(),
            leases: Leases::none(),
            part: match refused {
                None => Part::Done,
                Some(_) => Part::Void,
            },
        }
    }
}

/// Answers that are not fully handed out, oldest first.
#[derive(Debug, Default)]
pub(super) struct ReadAnswers {
    queue: VecDeque<ReadAnswer>,
}

impl ReadAnswers {
    /// Answers a read with these bytes, which are ranges of regions.
    pub(super) fn give(&mut self, bytes: Payload) {
        let regions = bytes.counting_regions();
        self.queue.push_back(ReadAnswer::Rest {
            rest: bytes,
            regions,
        });
    }

    /// Answers with bytes in this side's own memory. `counting`: the regions that count the access.
    pub(super) fn give_values(&mut self, bytes: Payload, counting: Payload) {
        self.queue.push_back(ReadAnswer::Rest {
            rest: bytes,
            regions: counting,
        });
    }

    /// Refuses a read, for this reason.
    pub(super) fn refuse(&mut self, reason: Refusal) {
        self.queue.push_back(ReadAnswer::Refused(reason));
    }

    /// Aborts the oldest answer with this reason: a frame of the answer was handed out, and its
    /// region refuses now.
    pub(super) fn break_off(&mut self, reason: Refusal) {
        if let Some(oldest @ ReadAnswer::Rest { .. }) = self.queue.front_mut() {
            *oldest = ReadAnswer::Refused(reason);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Returns the next frame, with its regions leased.
    pub(super) fn next_frame(&mut self) -> Option<AnswerFrame> {
        let oldest = self.queue.front_mut()?;
        if let ReadAnswer::Rest { rest, .. } = oldest
            && rest.len() > 0
        {
            let data = match rest.is_of_device() {
                false => data_frame(rest),
                true => device_data_frame(rest),
            };
            match data {
                Ok(frame) => return Some(frame),
                Err(reason) => *oldest = ReadAnswer::Refused(reason),
            }
        }
        Some(match self.queue.pop_front()? {
            ReadAnswer::Rest { regions, .. } => AnswerFrame {
                payload: regions,
                ..AnswerFrame::end(None)
            },
            ReadAnswer::Refused(reason) => AnswerFrame::end(Some(reason)),
        })
    }
}

/// Takes the next bytes of an answer, and leases their regions. Missing memory is found here,
/// before any byte of the frame is sent: later it could not be reported.
#[inline]
fn data_frame(rest: &mut Payload) -> Result<AnswerFrame, Refusal> {
    let payload = rest.split_front(rest.len().min(READ_DATA_MAX));
    let len = payload.len() as u64;
    let leases = payload.lease()?;
    payload.probe()?;
    Ok(AnswerFrame {
        header: FrameHeader::ReadData { len },
        payload,
        leases,
        part: Part::Data,
    })
}

/// Copies the next bytes of an answer out of device memory.
#[cold]
fn device_data_frame(rest: &mut Payload) -> Result<AnswerFrame, Refusal> {
    let payload = rest.split_front(rest.len().min(DEVICE_PIECE_MAX));
    let len = payload.len();
    Ok(AnswerFrame {
        header: FrameHeader::ReadData { len: len as u64 },
        payload: payload.copy_front(len)?,
        leases: Leases::none(),
        part: Part::Data,
    })
}
