//! Encodes a header's value to bytes.

use super::extension::reason_byte;
use super::frame::FrameHeader;
use super::header::{
    BASE_SIZE, BaseHeader, ByteOrder, FLAG_ACK_WANTED, FLAG_COMMIT, FLAG_CQ_DATA, OP_DATA_ACK, Op,
    SEGMENT_SIZE, WORD_SIZE,
};

impl FrameHeader {
    /// Bytes of the header, 16 to 120.
    #[inline]
    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            // Messages are the most frequent frames, and their length is simple.
            FrameHeader::Message { data, .. } => {
                BASE_SIZE + WORD_SIZE * usize::from(data.is_some())
            }
            _ => {
                let len = matches!(self, FrameHeader::Rts { .. });
                let words = [self.word().is_some(), self.tag().is_some(), len];
                let words: usize = words.map(usize::from).iter().sum();
                BASE_SIZE + WORD_SIZE * words + SEGMENT_SIZE * self.segments().len()
            }
        }
    }

    /// Writes the header into `room`, which is as long as the header. `id` is the count of frames
    /// sent before on this connection, modulo 256.
    ///
    /// # Panics
    ///
    /// If `len` plus the header's length reaches 2^64; no memory is that large.
    #[inline]
    pub(crate) fn encode_into(&self, order: ByteOrder, id: u8, room: &mut [u8]) {
        match *self {
            FrameHeader::Message { data, ack, len } => {
                let base = BaseHeader {
                    op: Op::Msg,
                    flags: flags(data.is_some(), ack, false),
                    op_data: 0,
                    segment_count: 0,
                    header_len: 0,
                    frame_len: 0,
                    id,
                };
                let mut words = base.encode_into(order, len, room);
                if let Some(data) = data {
                    words.push(order, data);
                }
            }
            _ => self.encode_any_into(order, id, room),
        }
        debug_assert_eq!(
            super::decode(room, order),
            Ok(super::Decoded::Frame {
                header: self.clone(),
                header_len: room.len(),
                id
            }),
            "a header that is sent reads as it was meant"
        );
    }

    fn encode_any_into(&self, order: ByteOrder, id: u8, room: &mut [u8]) {
        let segments = self.segments();
        let base = BaseHeader {
            op: self.op(),
            flags: self.flags(),
            op_data: self.op_data(),
            segment_count: segments.len() as u8, // at most RMA_IOV_LIMIT, by Segments' invariant
            header_len: 0,                       // this and `frame_len` are set by `encode_into`
            frame_len: 0,
            id,
        };
        let mut words = base.encode_into(order, self.payload_len(), room);
        if let Some(word) = self.word() {
            words.push(order, word);
        }
        if let Some(tag) = self.tag() {
            words.push(order, tag);
        }
        if let FrameHeader::Rts { len, .. } = self {
            words.push(order, *len);
        }
        for segment in segments {
            words.push(order, segment.addr);
            words.push(order, segment.len);
            words.push(order, segment.key);
        }
    }

    /// Returns the header's bytes.
    pub(crate) fn encode(&self, order: ByteOrder, id: u8) -> Vec<u8> {
        let mut bytes = vec![0; self.encoded_len()];
        self.encode_into(order, id, &mut bytes);
        bytes
    }

    /// Returns the first word of the header's extension: completion data, or the value of a frame
    /// that this library adds.
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
