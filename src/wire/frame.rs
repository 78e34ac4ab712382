//! Headers of data frames as values. `encode.rs` writes their bytes, `decode.rs` reads them. This
//! module does not decide which frames a connection accepts.

use super::extension::{AtomicCall, AtomicForm, Capabilities, CloseReason};
use super::header::Op;
use super::segments::{RemoteSegment, Segments};
use crate::error::Refusal;

/// The indices of announced messages.
pub(crate) const INDEX_MIN: u8 = 1;
pub(crate) const INDEX_MAX: u8 = 254;

/// A data frame without its payload: the header's content, both when sent and when received.
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
    /// Completes the oldest frame that wanted an ack; the ack carries no number.
    Ack,
    /// Asks for the bytes of these segments. Requests are answered in order.
    ReadRequest {
        /// The segments to read.
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
        /// The segments to write to.
        segments: Segments,
    },
    /// A tagged message; its payload is `len` bytes.
    Tagged {
        /// Completion data for the receiver.
        data: Option<u64>,
        /// The message's tag.
        tag: u64,
        /// The sender awaits an ack.
        ack: bool,
        /// Bytes of payload; below 2^64 - 32.
        len: u64,
    },
    /// Announces a message, which its sender keeps until a [`FrameHeader::Cts`] asks for it.
    Rts {
        /// The message's index until its data has been sent; 1 to 254, per direction.
        index: u8,
        /// The message's tag; without a tag, this is a frame of the extension.
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
        /// The message's index.
        index: u8,
    },
    /// An announced message; its payload is `len` bytes.
    Data {
        /// The message's index, which is free again.
        index: u8,
        /// Set if the announcement had completion data: C peers repeat the announcement's flags
        /// here, though only the announcement counts.
        has_data: bool,
        /// The announcement wanted an ack.
        ack: bool,
        /// Bytes of payload; below 2^64 - 16.
        len: u64,
    },
    /// The first frame of each side of an extended connection; its payload of `len` bytes is a
    /// [`Hello`](super::Hello). All variants below are frames of the extension.
    Hello {
        /// Bytes of payload.
        len: u64,
    },
    /// Asks for a [`FrameHeader::Pong`] with the same token.
    Ping {
        /// Chosen by the sender.
        token: u64,
    },
    /// Answers a [`FrameHeader::Ping`].
    Pong {
        /// The ping's token.
        token: u64,
    },
    /// Reports how many receives have been posted since the beginning, without withdrawn ones.
    Credit {
        /// Number of receives.
        posted: u64,
    },
    /// The sender holds a message back for want of credit.
    Stalled {
        /// Number of messages that the sender has sent before.
        sent: u64,
    },
    /// Comes in the place of an ack: the oldest operation that awaits one was refused.
    Refused {
        /// The reason.
        reason: Refusal,
    },
    /// The next bytes of the answer to the oldest open read request.
    ReadData {
        /// Bytes of payload; below 2^64 - 16.
        len: u64,
    },
    /// Ends the answer to the oldest open read request. Without a reason all bytes have come; with
    /// a reason those that came are void.
    ReadEnd {
        /// The reason why the read was refused or its answer aborted.
        refused: Option<Refusal>,
    },
    /// The sender's last frame, except for answers.
    Close {
        /// The reason for the end.
        reason: CloseReason,
    },
    /// Several acks in one frame: completes the `count` oldest frames that wanted one.
    Acks {
        /// Number of acks; the receiver judges whether so many are awaited.
        count: u64,
    },
    /// Takes an announcement back: the message will not be sent.
    Withdraw {
        /// The message's index, which is free again with the answer.
        index: u8,
    },
    /// Answers a [`FrameHeader::Withdraw`], behind a [`FrameHeader::Cts`] that crossed it.
    Withdrawn {
        /// The message's index, which is free again.
        index: u8,
    },
    /// An atomic operation on the memory of the segments; its payload is the operands, if any, and
    /// the numbers to compare.
    Atomic {
        /// The operation.
        call: AtomicCall,
        /// The memory that the operation changes or reads.
        segments: Segments,
        /// Bytes of payload.
        len: u64,
    },
}

impl FrameHeader {
    /// Bytes of payload after the header.
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

    /// True if the receiver must send an ack when the payload is in place. A commit always asks for
    /// one.
    pub(crate) fn wants_ack(&self) -> bool {
        match self {
            FrameHeader::Message { ack, .. }
            | FrameHeader::Tagged { ack, .. }
            | FrameHeader::Rts { ack, .. } => *ack,
            FrameHeader::Write { ack, commit, .. } => *ack || *commit,
            _ => false,
        }
    }

    /// True if the frame answers a frame that its receiver sent, and asks only for what that frame
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

    /// Returns the frame's operation on the wire.
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

    /// Returns the capabilities that must be agreed on before this frame may be sent; empty for the
    /// frames of libfabric's protocol.
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

    /// The tag that the message is matched by, if it has one.
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
}
