//! The data frames: a header as a value, to bytes and back. Which of them a connection takes is its
//! own to say.

use std::fmt;

use super::WireError;
use super::extension::{AtomicCall, AtomicForm, Capabilities, CloseReason, reason_byte, reason_of};
use super::header::{
    BASE_SIZE, BaseHeader, ByteOrder, FLAG_ACK_WANTED, FLAG_COMMIT, FLAG_CQ_DATA, HeaderBytes,
    OP_DATA_ACK, Op, SEGMENT_SIZE, WORD_SIZE,
};
use crate::error::Refusal;
use crate::limits::{HEADER_SIZE_MAX, RMA_IOV_LIMIT};

/// Most bytes the segments of one operation may have together. Whatever header goes before them,
/// the length of the frame that carries them stays below 2^64.
const SEGMENTS_LEN_MAX: u64 = u64::MAX - HEADER_SIZE_MAX as u64;

/// The names of announced messages.
pub(crate) const INDEX_MIN: u8 = 1;
pub(crate) const INDEX_MAX: u8 = 254;

/// A piece of the receiver's memory that a read or write is about (`struct fi_rma_iov`). Whether
/// it exists and may be touched is for the receiver's region table to say.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemoteSegment {
    /// Where it starts: offset into the region, or virtual address, by the receiver's domain.
    pub(crate) addr: u64,
    /// Bytes; 0 is legal.
    pub(crate) len: u64,
    /// The region's key.
    pub(crate) key: u64,
}

impl fmt::Debug for RemoteSegment {
    /// Leaves the key out: who knows it may use the memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSegment")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The one to four segments of a read or write, in payload order.
///
/// Invariants: their lengths add up to at most 2^64 - 121; several are two to four.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Segments {
    /// The usual case, which takes no allocation.
    One(RemoteSegment),
    /// Apart, so that headers, which are moved a lot, stay small.
    Several(Box<[RemoteSegment]>),
}

impl Segments {
    /// These segments, or [`WireError::SegmentCount`] when there are none or more than
    /// [`RMA_IOV_LIMIT`], or [`WireError::SegmentsOverflow`] when no frame could carry their bytes.
    pub(crate) fn new(segments: &[RemoteSegment]) -> Result<Self, WireError> {
        if !(1..=RMA_IOV_LIMIT).contains(&segments.len()) {
            return Err(WireError::SegmentCount(segments.len()));
        }
        segments
            .iter()
            .try_fold(0_u64, |sum, segment| sum.checked_add(segment.len))
            .filter(|total| *total <= SEGMENTS_LEN_MAX)
            .ok_or(WireError::SegmentsOverflow)?;
        Ok(match segments {
            [one] => Segments::One(*one),
            several => Segments::Several(several.into()),
        })
    }

    /// The segments, first one first; never empty.
    pub(crate) fn as_slice(&self) -> &[RemoteSegment] {
        match self {
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Several(several) => several,
        }
    }

    /// Bytes of all segments together.
    pub(crate) fn total(&self) -> u64 {
        self.as_slice().iter().map(|segment| segment.len).sum()
    }

    /// Takes `count` segments from the words of an extension.
    fn read(count: u8, words: &mut impl Iterator<Item = u64>) -> Result<Self, WireError> {
        let count = usize::from(count);
        let mut list = [RemoteSegment::default(); RMA_IOV_LIMIT];
        let places = list
            .get_mut(..count)
            .ok_or(WireError::SegmentCount(count))?;
        for place in places.iter_mut() {
            let (Some(addr), Some(len), Some(key)) = (words.next(), words.next(), words.next())
            else {
                return Err(WireError::SegmentCount(count));
            };
            *place = RemoteSegment { addr, len, key };
        }
        Segments::new(places)
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// A data frame without its payload: what the header says, both when sent and when received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrameHeader {
    /// A message; its payload is `len` bytes.
    Message {
        /// Completion data for the receiver.
        data: Option<u64>,
        /// The sender awaits an ack.
        ack: bool,
        /// Bytes of payload; below 2^64 - 24, as every length of real memory is.
        len: u64,
    },
    /// Completes the sender's oldest frame that wanted an ack; says not which.
    Ack,
    /// Asks for the bytes of these segments, to be answered in the order of the requests.
    ReadRequest {
        /// What to read.
        segments: Segments,
    },
    /// The answer to the oldest open read request; its payload is `len` bytes.
    ReadResponse {
        /// Bytes of payload; below 2^64 - 16.
        len: u64,
    },
    /// A write; its payload fills the segments one after the other.
    Write {
        /// Completion data for the receiver.
        data: Option<u64>,
        /// The sender awaits an ack once the payload is in memory.
        ack: bool,
        /// The sender awaits an ack once the payload is in persistent memory.
        commit: bool,
        /// Where to write.
        segments: Segments,
    },
    /// A tagged message; its payload is `len` bytes.
    Tagged {
        /// Completion data for the receiver.
        data: Option<u64>,
        /// What it is matched by.
        tag: u64,
        /// The sender awaits an ack.
        ack: bool,
        /// Bytes of payload; below 2^64 - 32.
        len: u64,
    },
    /// Announces a message, which its sender keeps until a [`FrameHeader::Cts`] asks for it.
    Rts {
        /// The message's name until its data has been sent; 1 to 254, per direction.
        index: u8,
        /// What it is matched by; without one this is a frame of the extension.
        tag: Option<u64>,
        /// Completion data for the receiver.
        data: Option<u64>,
        /// The sender awaits an ack, once the data has come.
        ack: bool,
        /// Bytes of the message.
        len: u64,
    },
    /// Asks for an announced message.
    Cts {
        /// Its name.
        index: u8,
    },
    /// An announced message; its payload is `len` bytes.
    Data {
        /// Its name, which is free again.
        index: u8,
        /// The announcement had completion data: C peers leave its flags in, though it is the
        /// announcement that counts.
        has_data: bool,
        /// The announcement wanted an ack.
        ack: bool,
        /// Bytes of payload; below 2^64 - 16.
        len: u64,
    },
    /// The first frame of each side of an extended connection; its payload is `len` bytes of what
    /// [`Hello`](super::Hello) says. All variants below are frames of the extension.
    Hello {
        /// Bytes of payload.
        len: u64,
    },
    /// Asks for a [`FrameHeader::Pong`] with the same token.
    Ping {
        /// The sender's own.
        token: u64,
    },
    /// Answers a [`FrameHeader::Ping`].
    Pong {
        /// The ping's token.
        token: u64,
    },
    /// So many receives have been posted since the beginning, withdrawn ones not counted.
    Credit {
        /// How many.
        posted: u64,
    },
    /// The sender holds a message back for want of credit.
    Stalled {
        /// Messages it has sent before.
        sent: u64,
    },
    /// In the place of an ack: the oldest operation that awaits one was refused.
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// The next bytes of the answer to the oldest open read request.
    ReadData {
        /// Bytes of payload; below 2^64 - 16.
        len: u64,
    },
    /// The answer to the oldest open read request is over: all of its bytes have come, or, with a
    /// reason, what came is void.
    ReadEnd {
        /// Why it was refused or broken off.
        refused: Option<Refusal>,
    },
    /// The sender's last frame, but for answers.
    Close {
        /// Why it is.
        reason: CloseReason,
    },
    /// As many acks in one: completes so many of the sender's oldest frames that wanted one.
    Acks {
        /// How many; whether so many are awaited is for the receiver to say.
        count: u64,
    },
    /// Takes an announcement back: the message will not be sent.
    Withdraw {
        /// Its name, which is free again with the answer.
        index: u8,
    },
    /// Answers a [`FrameHeader::Withdraw`], behind a [`FrameHeader::Cts`] that crossed it.
    Withdrawn {
        /// The announced message's name, which is free again.
        index: u8,
    },
    /// An atomic operation on what the segments hold; its payload is the operands, if there are
    /// any, and what is compared.
    Atomic {
        /// What is to be done.
        call: AtomicCall,
        /// With what.
        segments: Segments,
        /// Bytes of payload.
        len: u64,
    },
}

impl FrameHeader {
    /// The header's bytes. `id` is the count of frames sent before on this connection, modulo 256.
    ///
    /// # Panics
    ///
    /// If `len` is within a header's length of 2^64; no memory is that large.
    pub(crate) fn encode(&self, order: ByteOrder, id: u8) -> HeaderBytes {
        let bytes = match *self {
            // Of what is sent most, all that is asked below is known.
            FrameHeader::Message { data, ack, len } => {
                let mut bytes = HeaderBytes::new();
                if let Some(data) = data {
                    bytes.push(order, data);
                }
                let base = BaseHeader {
                    op: Op::Msg,
                    flags: flags(data.is_some(), ack, false),
                    op_data: 0,
                    segment_count: 0,
                    header_len: 0,
                    frame_len: 0,
                    id,
                };
                bytes.finish(base, order, len);
                bytes
            }
            _ => self.encode_any(order, id),
        };
        debug_assert_eq!(
            decode(&bytes, order),
            Ok(Decoded::Frame {
                header: self.clone(),
                header_len: bytes.len(),
                id
            }),
            "a header that is sent reads as it was meant"
        );
        bytes
    }

    fn encode_any(&self, order: ByteOrder, id: u8) -> HeaderBytes {
        let segments = self.segments();
        let base = BaseHeader {
            op: self.op(),
            flags: self.flags(),
            op_data: self.op_data(),
            segment_count: segments.len() as u8, // at most RMA_IOV_LIMIT, by Segments' invariant
            header_len: 0,                       // this and the next: set with the extension
            frame_len: 0,
            id,
        };
        let mut bytes = HeaderBytes::new();
        let mut push = |word| bytes.push(order, word);
        if let Some(word) = self.word() {
            push(word);
        }
        if let Some(tag) = self.tag() {
            push(tag);
        }
        if let FrameHeader::Rts { len, .. } = self {
            push(*len);
        }
        for segment in segments {
            push(segment.addr);
            push(segment.len);
            push(segment.key);
        }
        bytes.finish(base, order, self.payload_len());
        bytes
    }

    /// Bytes of payload behind the header.
    pub(crate) fn payload_len(&self) -> u64 {
        match self {
            FrameHeader::Message { len, .. }
            | FrameHeader::Tagged { len, .. }
            | FrameHeader::Data { len, .. }
            | FrameHeader::ReadResponse { len }
            | FrameHeader::Hello { len }
            | FrameHeader::ReadData { len }
            | FrameHeader::Atomic { len, .. } => *len,
            FrameHeader::Write { segments, .. } => segments.total(),
            _ => 0,
        }
    }

    /// True if the receiver must answer with an ack when the payload is where it belongs. A commit
    /// asks for one by itself.
    pub(crate) fn wants_ack(&self) -> bool {
        match self {
            FrameHeader::Message { ack, .. }
            | FrameHeader::Tagged { ack, .. }
            | FrameHeader::Rts { ack, .. } => *ack,
            FrameHeader::Write { ack, commit, .. } => *ack || *commit,
            _ => false,
        }
    }

    /// True if the frame answers one of the receiver's own, and asks for nothing but what that
    /// promised.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            FrameHeader::Ack
                | FrameHeader::Acks { .. }
                | FrameHeader::Cts { .. }
                | FrameHeader::Data { .. }
                | FrameHeader::ReadResponse { .. }
                | FrameHeader::Refused { .. }
                | FrameHeader::ReadData { .. }
                | FrameHeader::ReadEnd { .. }
                | FrameHeader::Withdrawn { .. }
                | FrameHeader::Pong { .. }
        )
    }

    /// The operation on the wire.
    pub(crate) fn op(&self) -> Op {
        match self {
            FrameHeader::Message { .. } => Op::Msg,
            FrameHeader::Tagged { .. } => Op::Tagged,
            FrameHeader::Rts { tag: Some(_), .. } => Op::TaggedRts,
            FrameHeader::Rts { tag: None, .. } => Op::Rts,
            FrameHeader::Cts { .. } => Op::Cts,
            FrameHeader::Data { .. } => Op::Data,
            FrameHeader::Ack => Op::Ack,
            FrameHeader::ReadRequest { .. } => Op::ReadRequest,
            FrameHeader::ReadResponse { .. } => Op::ReadResponse,
            FrameHeader::Write { .. } => Op::Write,
            FrameHeader::Hello { .. } => Op::Hello,
            FrameHeader::Ping { .. } => Op::Ping,
            FrameHeader::Pong { .. } => Op::Pong,
            FrameHeader::Credit { .. } => Op::Credit,
            FrameHeader::Stalled { .. } => Op::Stalled,
            FrameHeader::Refused { .. } => Op::Refused,
            FrameHeader::ReadData { .. } => Op::ReadData,
            FrameHeader::ReadEnd { .. } => Op::ReadEnd,
            FrameHeader::Close { .. } => Op::Close,
            FrameHeader::Acks { .. } => Op::Acks,
            FrameHeader::Withdraw { .. } => Op::Withdraw,
            FrameHeader::Withdrawn { .. } => Op::Withdrawn,
            FrameHeader::Atomic { call, .. } => match call.form {
                AtomicForm::Update => Op::Atomic,
                AtomicForm::Fetch => Op::FetchAtomic,
                AtomicForm::Compare => Op::CompareAtomic,
            },
        }
    }

    /// What must have been agreed on for this frame to be sent; nothing for the protocol's own.
    pub(crate) fn needs(&self) -> Capabilities {
        match self {
            FrameHeader::Ping { .. } | FrameHeader::Pong { .. } => Capabilities::LIVENESS,
            FrameHeader::Credit { .. } | FrameHeader::Stalled { .. } => Capabilities::CREDIT,
            FrameHeader::Refused { .. }
            | FrameHeader::Acks { .. }
            | FrameHeader::ReadData { .. }
            | FrameHeader::ReadEnd { .. } => Capabilities::REFUSAL,
            FrameHeader::Close { .. } => Capabilities::CLOSE,
            FrameHeader::Rts { tag: None, .. } => Capabilities::RENDEZVOUS,
            FrameHeader::Withdraw { .. } | FrameHeader::Withdrawn { .. } => Capabilities::WITHDRAW,
            FrameHeader::Atomic { .. } => Capabilities::ATOMICS,
            _ => Capabilities::empty(),
        }
    }

    /// The one word that a frame of the extension or with completion data starts its extension by.
    fn word(&self) -> Option<u64> {
        match *self {
            FrameHeader::Ping { token } | FrameHeader::Pong { token } => Some(token),
            FrameHeader::Credit { posted } => Some(posted),
            FrameHeader::Stalled { sent } => Some(sent),
            FrameHeader::Acks { count } => Some(count),
            FrameHeader::Atomic { call, .. } => Some(call.numbers),
            _ => self.data(),
        }
    }

    fn op_data(&self) -> u8 {
        match self {
            FrameHeader::Ack => OP_DATA_ACK,
            FrameHeader::Refused { reason } => reason_byte(*reason),
            FrameHeader::ReadEnd { refused } => refused.map_or(0, reason_byte),
            FrameHeader::Rts { index, .. }
            | FrameHeader::Cts { index }
            | FrameHeader::Withdraw { index }
            | FrameHeader::Withdrawn { index }
            | FrameHeader::Data { index, .. } => *index,
            FrameHeader::Close { reason } => reason.to_byte(),
            FrameHeader::Atomic { call, .. } => call.operation,
            _ => 0,
        }
    }

    /// Completion data for the receiver, if there is any.
    pub(crate) fn data(&self) -> Option<u64> {
        match self {
            FrameHeader::Message { data, .. }
            | FrameHeader::Tagged { data, .. }
            | FrameHeader::Rts { data, .. }
            | FrameHeader::Write { data, .. } => *data,
            _ => None,
        }
    }

    /// What the message is matched by, if it has a tag.
    pub(crate) fn tag(&self) -> Option<u64> {
        match self {
            FrameHeader::Tagged { tag, .. } => Some(*tag),
            FrameHeader::Rts { tag, .. } => *tag,
            _ => None,
        }
    }

    /// The remote segments of a read, a write or an atomic operation; empty for other frames.
    pub(crate) fn segments(&self) -> &[RemoteSegment] {
        match self {
            FrameHeader::ReadRequest { segments }
            | FrameHeader::Write { segments, .. }
            | FrameHeader::Atomic { segments, .. } => segments.as_slice(),
            _ => &[],
        }
    }

    fn flags(&self) -> u16 {
        let (ack, commit) = match *self {
            FrameHeader::Message { ack, .. }
            | FrameHeader::Tagged { ack, .. }
            | FrameHeader::Rts { ack, .. }
            | FrameHeader::Data { ack, .. } => (ack, false),
            FrameHeader::Write { ack, commit, .. } => (ack, commit),
            _ => (false, false),
        };
        let left_over = matches!(self, FrameHeader::Data { has_data: true, .. });
        flags(self.data().is_some() || left_over, ack, commit)
    }
}

fn flags(has_data: bool, ack: bool, commit: bool) -> u16 {
    let pick = |wanted: bool, flag: u16| if wanted { flag } else { 0 };
    pick(has_data, FLAG_CQ_DATA) | pick(ack, FLAG_ACK_WANTED) | pick(commit, FLAG_COMMIT)
}

/// What the bytes at the start of a frame say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Not all of the header is there. It takes at least this many bytes *in total*, more than were
    /// given and none of the payload's; the first call says 16, a later one the whole header.
    Need(usize),
    /// The header is there.
    Frame {
        /// What it says.
        header: FrameHeader,
        /// Its bytes on the wire; the payload starts behind them.
        header_len: usize,
        /// The sender's frame counter, or anything: for traces only.
        id: u8,
    },
}

/// Reads the header at the start of `bytes`, which may go on with payload and further frames.
///
/// A header that cannot be valid is an error as soon as its first sixteen bytes are there, before
/// anything waits for the rest.
pub(crate) fn decode(bytes: &[u8], order: ByteOrder) -> Result<Decoded, WireError> {
    let Some(base) = bytes.first_chunk::<BASE_SIZE>() else {
        return Ok(Decoded::Need(BASE_SIZE));
    };
    let base = BaseHeader::parse(base, order)?;
    match base.op {
        // The same, of what comes most: all that is asked of it is known here.
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
        "the length of the payload is told twice, and alike"
    );
    Ok(Decoded::Frame {
        header,
        header_len,
        id: base.id,
    })
}

/// Checks all that the base header says against itself; gives the length of the payload.
#[inline(always)]
fn check(base: &BaseHeader) -> Result<u64, WireError> {
    let op = base.op;
    let count = usize::from(base.segment_count);
    // Which flags and counts mean anything depends on the operation: C peers leave old values in.
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
        // It stands before the frames that are read here, and nowhere else.
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

/// The completion data that a message, an announcement or a write starts its extension with, if its
/// flag is set; that the extension is long enough was checked with the base header.
fn read_data(base: &BaseHeader, words: &mut impl Iterator<Item = u64>) -> Option<u64> {
    if base.has(FLAG_CQ_DATA) {
        words.next()
    } else {
        None
    }
}
