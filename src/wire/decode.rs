//! Decodes a header's bytes, and checks them in full.

use super::WireError;
use super::extension::{AtomicCall, AtomicForm, CloseReason, reason_of};
use super::frame::{FrameHeader, INDEX_MAX, INDEX_MIN};
use super::header::{
    BASE_SIZE, BaseHeader, ByteOrder, FLAG_ACK_WANTED, FLAG_COMMIT, FLAG_CQ_DATA, Op, SEGMENT_SIZE,
    WORD_SIZE,
};
use super::segments::Segments;
use crate::limits::{HEADER_SIZE_MAX, RMA_IOV_LIMIT};

/// Result of decoding the bytes at the start of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// The header is incomplete. Needs at least this many bytes *in total*: more than were given,
    /// none of the payload. The first call returns 16, a later one the length of the whole header.
    Need(usize),
    /// The header is complete.
    Frame {
        /// The header's value.
        header: FrameHeader,
        /// Bytes of the header on the wire; the payload follows.
        header_len: usize,
        /// The sender's frame counter, or any value: for traces only.
        id: u8,
    },
}

/// Reads the header at the start of `bytes`; payload and further frames may follow it.
///
/// An invalid header is refused as soon as its first sixteen bytes are there.
pub(crate) fn decode(bytes: &[u8], order: ByteOrder) -> Result<Decoded, WireError> {
    let Some(base) = bytes.first_chunk::<BASE_SIZE>() else {
        return Ok(Decoded::Need(BASE_SIZE));
    };
    let base = BaseHeader::parse(base, order)?;
    match base.op {
        // Messages are the most frequent frames; in this call `op` is a constant.
        Op::Msg => decode_rest(
            BaseHeader {
                op: Op::Msg,
                ..base
            },
            bytes,
            order,
        ),
        _ => decode_rest(base, bytes, order),
    }
}

#[inline(always)]
fn decode_rest(base: BaseHeader, bytes: &[u8], order: ByteOrder) -> Result<Decoded, WireError> {
    let payload_len = check(&base)?;
    let header_len = usize::from(base.header_len);
    let Some(extension) = bytes.get(BASE_SIZE..header_len) else {
        return Ok(Decoded::Need(header_len));
    };
    let (words, _skipped) = extension.as_chunks::<WORD_SIZE>();
    let mut words = words.iter().map(|word| order.read_u64(*word));
    let header = read_frame(&base, payload_len, &mut words)?;
    debug_assert_eq!(
        header.payload_len(),
        payload_len,
        "both lengths of the payload are the same"
    );
    Ok(Decoded::Frame {
        header,
        header_len,
        id: base.id,
    })
}

/// Checks the fields of the base header against each other; returns the length of the payload.
#[inline(always)]
fn check(base: &BaseHeader) -> Result<u64, WireError> {
    let op = base.op;
    let count = usize::from(base.segment_count);
    // Each operation has its own flags and counts: C peers leave old values in the others.
    let flagged = usize::from(base.has(FLAG_CQ_DATA));
    let (words, has_segments, has_payload, may_be_longer) = match op {
        Op::Msg => (flagged, false, true, true),
        Op::Ack | Op::Refused | Op::ReadEnd | Op::Close => (0, false, false, false),
        Op::Withdraw | Op::Withdrawn => (0, false, false, false),
        Op::ReadRequest => (0, true, false, false),
        Op::ReadResponse | Op::Data => (0, false, true, true),
        Op::Write => (flagged, true, true, false),
        Op::Hello | Op::ReadData => (0, false, true, false),
        Op::Ping | Op::Pong | Op::Credit | Op::Stalled | Op::Acks => (1, false, false, false),
        Op::Tagged => (flagged + 1, false, true, false),
        Op::TaggedRts => (flagged + 2, false, false, false),
        Op::Rts => (flagged + 1, false, false, false),
        Op::Cts => (0, false, false, true),
        Op::Atomic | Op::FetchAtomic | Op::CompareAtomic => (1, true, true, false),
        // A PROOF is valid only before the frames that are decoded here.
        Op::Proof => return Err(WireError::UnknownOp(op.to_byte())),
    };
    let is_named = matches!(
        op,
        Op::TaggedRts | Op::Rts | Op::Cts | Op::Data | Op::Withdraw | Op::Withdrawn
    );
    if is_named && !(INDEX_MIN..=INDEX_MAX).contains(&base.op_data) {
        let index = base.op_data;
        return Err(WireError::Index { op, index });
    }
    if has_segments && !(1..=RMA_IOV_LIMIT).contains(&count) {
        return Err(WireError::SegmentCount(count));
    }
    let segments_len = if has_segments {
        count * SEGMENT_SIZE
    } else {
        0
    };
    let least = BASE_SIZE + words * WORD_SIZE + segments_len;
    let most = if may_be_longer {
        HEADER_SIZE_MAX
    } else {
        least
    };
    if !(least..=most).contains(&usize::from(base.header_len)) {
        return Err(WireError::HeaderSize {
            op,
            header_len: base.header_len,
        });
    }
    let payload_len = base
        .frame_len
        .checked_sub(u64::from(base.header_len))
        .ok_or(WireError::FrameSize {
            frame_len: base.frame_len,
            header_len: base.header_len,
        })?;
    if !has_payload && payload_len != 0 {
        return Err(WireError::UnexpectedPayload { op, payload_len });
    }
    Ok(payload_len)
}

/// Reads the extension of a frame whose base header is consistent.
#[inline(always)]
fn read_frame(
    base: &BaseHeader,
    payload_len: u64,
    words: &mut impl Iterator<Item = u64>,
) -> Result<FrameHeader, WireError> {
    let ack = base.has(FLAG_ACK_WANTED);
    Ok(match base.op {
        Op::Msg => FrameHeader::Message {
            data: read_data(base, words),
            ack,
            len: payload_len,
        },
        Op::Ack => FrameHeader::Ack,
        Op::ReadRequest => FrameHeader::ReadRequest {
            segments: Segments::read(base.segment_count, words)?,
        },
        Op::ReadResponse => FrameHeader::ReadResponse { len: payload_len },
        Op::Write => {
            let data = read_data(base, words);
            let segments = Segments::read(base.segment_count, words)?;
            if segments.total() != payload_len {
                return Err(WireError::SegmentsMismatch {
                    payload_len,
                    segments_len: segments.total(),
                });
            }
            FrameHeader::Write {
                data,
                ack,
                commit: base.has(FLAG_COMMIT),
                segments,
            }
        }
        Op::Hello => FrameHeader::Hello { len: payload_len },
        Op::Ping => FrameHeader::Ping {
            token: words.next().unwrap_or(0),
        },
        Op::Pong => FrameHeader::Pong {
            token: words.next().unwrap_or(0),
        },
        Op::Credit => FrameHeader::Credit {
            posted: words.next().unwrap_or(0),
        },
        Op::Stalled => FrameHeader::Stalled {
            sent: words.next().unwrap_or(0),
        },
        Op::Refused => FrameHeader::Refused {
            reason: reason_of(base.op_data).ok_or(WireError::NoReason)?,
        },
        Op::ReadData => FrameHeader::ReadData { len: payload_len },
        Op::ReadEnd => FrameHeader::ReadEnd {
            refused: reason_of(base.op_data),
        },
        Op::Close => FrameHeader::Close {
            reason: CloseReason::of(base.op_data),
        },
        Op::Acks => FrameHeader::Acks {
            count: words.next().unwrap_or(0),
        },
        Op::Tagged => FrameHeader::Tagged {
            data: read_data(base, words),
            tag: words.next().unwrap_or(0),
            ack,
            len: payload_len,
        },
        Op::TaggedRts | Op::Rts => FrameHeader::Rts {
            index: base.op_data,
            data: read_data(base, words),
            tag: match base.op {
                Op::Rts => None,
                _ => words.next(),
            },
            ack,
            len: words.next().unwrap_or(0),
        },
        Op::Cts => FrameHeader::Cts {
            index: base.op_data,
        },
        Op::Withdraw => FrameHeader::Withdraw {
            index: base.op_data,
        },
        Op::Withdrawn => FrameHeader::Withdrawn {
            index: base.op_data,
        },
        Op::Data => FrameHeader::Data {
            index: base.op_data,
            has_data: base.has(FLAG_CQ_DATA),
            ack,
            len: payload_len,
        },
        Op::Atomic => read_atomic(base, AtomicForm::Update, payload_len, words)?,
        Op::FetchAtomic => read_atomic(base, AtomicForm::Fetch, payload_len, words)?,
        Op::CompareAtomic => read_atomic(base, AtomicForm::Compare, payload_len, words)?,
        Op::Proof => return Err(WireError::UnknownOp(base.op.to_byte())),
    })
}

fn read_atomic(
    base: &BaseHeader,
    form: AtomicForm,
    payload_len: u64,
    words: &mut impl Iterator<Item = u64>,
) -> Result<FrameHeader, WireError> {
    let call = AtomicCall {
        form,
        operation: base.op_data,
        numbers: words.next().unwrap_or(0),
    };
    let segments = Segments::read(base.segment_count, words)?;
    if !form.fits(payload_len, segments.total()) {
        return Err(WireError::AtomicSize {
            payload_len,
            segments_len: segments.total(),
        });
    }
    Ok(FrameHeader::Atomic {
        call,
        segments,
        len: payload_len,
    })
}

/// Reads the completion data at the start of a message's, an announcement's or a write's extension,
/// if its flag is set. The check of the base header covered the extension's length.
fn read_data(base: &BaseHeader, words: &mut impl Iterator<Item = u64>) -> Option<u64> {
    if base.has(FLAG_CQ_DATA) {
        words.next()
    } else {
        None
    }
}
