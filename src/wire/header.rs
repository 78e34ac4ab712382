//! The sixteen bytes at the start of every data frame, and their two byte orders.

use super::WireError;

/// Bytes of the base header, and of the shortest frame.
pub(super) const BASE_SIZE: usize = 16;
/// Bytes of one word of the extension.
pub(super) const WORD_SIZE: usize = 8;
/// Bytes of one remote segment in the extension: address, length, key.
pub(super) const SEGMENT_SIZE: usize = 3 * WORD_SIZE;

/// The version in data frames: peers send and ignore it. Only the control frame's version counts.
const DATA_VERSION: u8 = 3;
/// `op_data` that turns a message into an acknowledgement.
pub(super) const OP_DATA_ACK: u8 = 2;

/// The extension starts with completion data for the receiver (`FI_REMOTE_CQ_DATA`).
pub(super) const FLAG_CQ_DATA: u16 = 0x0001;
/// The sender awaits an ack once the payload is in memory (`FI_DELIVERY_COMPLETE`).
pub(super) const FLAG_ACK_WANTED: u16 = 0x0004;
/// The sender awaits an ack once the payload is in persistent memory (`FI_COMMIT_COMPLETE`).
pub(super) const FLAG_COMMIT: u16 = 0x0008;

/// Byte order of the numbers in data-frame headers, settled by the handshake's probes: native if
/// both machines have the same order, else big-endian. Payload is never converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    /// This machine's order, which is also the peer's.
    Native,
    /// Big-endian: the machines' orders differ, so both sides convert to network order.
    Big,
}

impl ByteOrder {
    /// Returns the byte order that follows from a peer's probe: a 1 in the peer's own order.
    ///
    /// `None` for any other value, which a C peer treats as a mismatch: no machine sends one, and
    /// its sender chooses the order from *our* probe, so the choice could only be guessed.
    pub(super) fn from_probe(probe: [u8; 8]) -> Option<ByteOrder> {
        const SWAPPED: u64 = 1_u64.swap_bytes();
        match u64::from_ne_bytes(probe) {
            1 => Some(ByteOrder::Native),
            SWAPPED => Some(ByteOrder::Big),
            _ => None,
        }
    }

    /// Returns the probe that this machine sends.
    pub(super) fn probe() -> [u8; 8] {
        1_u64.to_ne_bytes()
    }

    pub(super) fn read_u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            ByteOrder::Native => u64::from_ne_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        }
    }

    fn read_u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            ByteOrder::Native => u16::from_ne_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        }
    }

    fn write_u64(self, value: u64) -> [u8; 8] {
        match self {
            ByteOrder::Native => value.to_ne_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }

    fn write_u16(self, value: u16) -> [u8; 2] {
        match self {
            ByteOrder::Native => value.to_ne_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }
}

/// The operation of a data frame. An ack and a message have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// A message for the next posted receive.
    Msg,
    /// The answer to the oldest frame that wanted one.
    Ack,
    /// A message for a receive with a matching tag.
    Tagged,
    /// Asks for bytes of the receiver's memory.
    ReadRequest,
    /// The bytes of the oldest read request.
    ReadResponse,
    /// Bytes for the receiver's memory.
    Write,
    /// Announces a large tagged message.
    TaggedRts,
    /// Asks for the payload of an announced message.
    Cts,
    /// The payload of an announced message.
    Data,
    /// The first frame of each side of an extended connection. This and all following variants are
    /// frames of the extension (`docs/extension.md`).
    Hello,
    /// One step of proving an authorization key, before the HELLO.
    Proof,
    /// Probes whether the peer is alive.
    Ping,
    /// The answer to a probe.
    Pong,
    /// Reports how many receives have been posted.
    Credit,
    /// Reports that a message waits for credit.
    Stalled,
    /// Takes the place of an ack: the operation was refused.
    Refused,
    /// Some bytes of the oldest read request.
    ReadData,
    /// The end of the answer to the oldest read request.
    ReadEnd,
    /// The last frame of its direction.
    Close,
    /// Several acks in one frame.
    Acks,
    /// Announces a large message without a tag.
    Rts,
    /// Takes an announcement back.
    Withdraw,
    /// Answers a withdrawal: the announcement's index is free.
    Withdrawn,
    /// Changes numbers in the receiver's memory, each atomically.
    Atomic,
    /// Like `Atomic`, and asks for the former numbers.
    FetchAtomic,
    /// Like `Atomic` if a comparison holds, and asks for the former numbers.
    CompareAtomic,
}

impl Op {
    #[inline]
    fn from_bytes(op: u8, op_data: u8) -> Option<Op> {
        Some(match op {
            // As in C peers, any `op_data` except the ack's is a message.
            0 if op_data == OP_DATA_ACK => Op::Ack,
            0 => Op::Msg,
            1 => Op::Tagged,
            2 => Op::ReadRequest,
            3 => Op::ReadResponse,
            4 => Op::Write,
            5 => Op::TaggedRts,
            6 => Op::Cts,
            7 => Op::Data,
            0x80 => Op::Hello,
            0x81 => Op::Proof,
            0x82 => Op::Ping,
            0x83 => Op::Pong,
            0x84 => Op::Credit,
            0x85 => Op::Stalled,
            0x86 => Op::Refused,
            0x87 => Op::ReadData,
            0x88 => Op::ReadEnd,
            0x89 => Op::Close,
            0x8a => Op::Acks,
            0x8b => Op::Rts,
            0x8c => Op::Withdraw,
            0x8d => Op::Withdrawn,
            0x90 => Op::Atomic,
            0x91 => Op::FetchAtomic,
            0x92 => Op::CompareAtomic,
            _ => return None,
        })
    }

    /// True for the frames that only extended connections have.
    pub(crate) fn is_extension(self) -> bool {
        self.to_byte() >= 0x80
    }

    /// The frame's byte 1.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Op::Msg | Op::Ack => 0,
            Op::Tagged => 1,
            Op::ReadRequest => 2,
            Op::ReadResponse => 3,
            Op::Write => 4,
            Op::TaggedRts => 5,
            Op::Cts => 6,
            Op::Data => 7,
            Op::Hello => 0x80,
            Op::Proof => 0x81,
            Op::Ping => 0x82,
            Op::Pong => 0x83,
            Op::Credit => 0x84,
            Op::Stalled => 0x85,
            Op::Refused => 0x86,
            Op::ReadData => 0x87,
            Op::ReadEnd => 0x88,
            Op::Close => 0x89,
            Op::Acks => 0x8a,
            Op::Rts => 0x8b,
            Op::Withdraw => 0x8c,
            Op::Withdrawn => 0x8d,
            Op::Atomic => 0x90,
            Op::FetchAtomic => 0x91,
            Op::CompareAtomic => 0x92,
        }
    }
}

/// The base header's fields as they are on the wire; only the operation is known to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BaseHeader {
    pub(super) op: Op,
    pub(super) flags: u16,
    /// 2 in an ack; in [`Op::Refused`] and [`Op::ReadEnd`] the reason; in [`Op::TaggedRts`],
    /// [`Op::Rts`], [`Op::Cts`], [`Op::Data`], [`Op::Withdraw`] and [`Op::Withdrawn`] the announced
    /// message's index; in [`Op::Atomic`] and its kin the operation.
    pub(super) op_data: u8,
    /// Remote segments in the extension. Valid only in reads, writes and atomic operations: C peers
    /// leave it unset in other frames.
    pub(super) segment_count: u8,
    /// `hdr_size`: bytes before the payload, these sixteen included.
    pub(super) header_len: u8,
    /// Counts the frames of one direction. Debug builds of libfabric check it, release builds leave
    /// it unset: always send it, never check it.
    pub(super) id: u8,
    /// `size`: bytes of the whole frame, header included.
    pub(super) frame_len: u64,
}

impl BaseHeader {
    #[inline]
    pub(super) fn parse(bytes: &[u8; BASE_SIZE], order: ByteOrder) -> Result<Self, WireError> {
        let [
            _version,
            op,
            f0,
            f1,
            op_data,
            segment_count,
            header_len,
            id,
            size @ ..,
        ] = *bytes;
        Ok(BaseHeader {
            op: Op::from_bytes(op, op_data).ok_or(WireError::UnknownOp(op))?,
            flags: order.read_u16([f0, f1]),
            op_data,
            segment_count,
            header_len,
            id,
            frame_len: order.read_u64(size),
        })
    }

    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Writes the base header to the front of `room`, which is as long as the whole header and so
    /// sets the length fields. Returns the rest of `room`.
    #[inline]
    pub(super) fn encode_into(
        mut self,
        order: ByteOrder,
        payload_len: u64,
        room: &mut [u8],
    ) -> Words<'_> {
        self.header_len = room.len() as u8; // at most HEADER_SIZE_MAX
        self.frame_len = payload_len
            .checked_add(room.len() as u64)
            .expect("a payload lies in memory, so it is far shorter than 2^64 bytes");
        let (base, words) = room
            .split_first_chunk_mut()
            .expect("a header has its first sixteen bytes");
        *base = self.to_bytes(order);
        Words {
            room: words.as_chunks_mut().0,
        }
    }

    /// Returns the header's bytes; the frame's number is at [`ID_AT`].
    #[inline]
    fn to_bytes(self, order: ByteOrder) -> [u8; BASE_SIZE] {
        let [f0, f1] = order.write_u16(self.flags);
        let [s0, s1, s2, s3, s4, s5, s6, s7] = order.write_u64(self.frame_len);
        [
            DATA_VERSION,
            self.op.to_byte(),
            f0,
            f1,
            self.op_data,
            self.segment_count,
            self.header_len,
            self.id,
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
        ]
    }
}

/// Offset of the frame's number in a header.
const ID_AT: usize = 7;

/// Sets the number of a frame that was encoded before its place among all frames was known.
#[inline]
pub(crate) fn set_id(frame: &mut [u8], id: u8) {
    frame[ID_AT] = id;
}

/// The unwritten words of a header's extension.
pub(super) struct Words<'a> {
    room: &'a mut [[u8; WORD_SIZE]],
}

impl Words<'_> {
    /// Writes the next word. The header's length includes it.
    #[inline]
    pub(super) fn push(&mut self, order: ByteOrder, word: u64) {
        let room = self.room.split_off_first_mut();
        *room.expect("a header's words are counted") = order.write_u64(word);
    }
}
