//! The bytes of libfabric's `tcp` protocol between connected endpoints (MSG) and between
//! connectionless ones (RDM): no sockets, no state, no clock. Outgoing frames are encoded from
//! values that are valid by construction; incoming bytes are checked in full before any field is
//! used.
//!
//! A connection starts with one *control frame* from each side ([`cm`]); all later bytes, in both
//! directions, are *data frames* ([`frame`]), each a header and then its payload.
//!
//! ```text
//! control frame: connect request, its response, or its reject
//!
//!   0       1      2         4                                24        32         32 + n
//!   +-------+------+---------+--------------------------------+---------+------------+
//!   | ver 3 | type | n       | unused by C peers: seg_no 4,   | probe   | n <= 256   |
//!   |       |      | (big)   | conn_id 8 (our offer), msg_id 8| 1 native| bytes      |
//!   +-------+------+---------+--------------------------------+---------+------------+
//!
//! data frame
//!
//!   0       1    2       4         5       6          7    8      16          hdr_size   size
//!   +-------+----+-------+---------+-------+----------+----+------+-----------+----------+
//!   | ver 3 | op | flags | op_data | count | hdr_size | id | size | extension | payload  |
//!   +-------+----+-------+---------+-------+----------+----+------+-----------+----------+
//!
//!   extension: [cq data 8] then count segments of [addr 8 | len 8 | key 8]
//!   flags:     0x0001 cq data is there, 0x0004 ack wanted, 0x0008 commit (an ack is wanted too)
//!
//!   op               op_data  flags looked at  extension              payload
//!   0 message        not 2    0x0001, 0x0004   cq data if flagged     the message
//!   0 ack            2        -                none                   none
//!   2 read request   -        -                1..=4 segments         none
//!   3 read response  -        -                none                   what the segments hold
//!   4 write          -        all three        cq data if flagged,    what the segments shall
//!                                              1..=4 segments         hold
//!   between connectionless endpoints only:
//!   1 tagged         -        0x0001, 0x0004   cq data if flagged,    the message
//!                                              tag
//!   5 announcement   1..=254  0x0001, 0x0004   cq data if flagged,    none
//!     of a tagged one                          tag, length
//!   6 clear to send  1..=254  -                none                   none
//!   7 its data       1..=254  both, left over  none                   the announced message
//!   0x80 and up: frames of the extension, after both sides agreed on it (docs/extension.md)
//! ```
//!
//! The probe settles the byte order of `flags`, `size` and every extension word ([`ByteOrder`]).
//! Bytes that C peers leave unset are ignored: the version, `id`, `count` outside of reads and
//! writes, unknown flags. As in C peers, further bytes after the known extension of a message, a
//! read response, a clear-to-send or its data are skipped: a later version of the protocol may use
//! them.
//!
//! Invariants:
//! - Nothing here panics on input, and [`decode()`] allocates nothing.
//! - `16 <= hdr_size <= 120`, `hdr_size <= size`: the payload's length never wraps.
//! - A write's payload is exactly as long as its segments together.
//! - `decode(encode(header)) == header`, in both byte orders.
//! - No `Debug`, `Display` or trace line shows the key of a memory region.

#![forbid(unsafe_code)]

mod auth;
mod cm;
mod decode;
mod encode;
mod extension;
mod frame;
mod header;
mod hello;
mod peer;
mod pretty;
mod segments;
#[cfg(test)]
mod tests;

pub(crate) use auth::{AuthHello, Nonce, Proof, ProofDecoded, ProofDecoder, Seal, transcript};
pub(crate) use cm::{CmDecoded, CmDecoder, ControlFrame, ControlKind, NO_DESCRIPTORS};
pub(crate) use decode::{Decoded, decode};
pub(crate) use extension::{
    AtomicCall, AtomicForm, BIG_ENDIAN, Capabilities, CloseReason, ExtensionOffer,
};
pub(crate) use frame::{FrameHeader, INDEX_MAX, INDEX_MIN};
pub(crate) use header::{ByteOrder, Op, set_id};
pub(crate) use hello::{Hello, HelloDecoded, HelloDecoder, LOCAL_SIZE, MessageCredit};
pub(crate) use peer::{NamedContexts, PeerData, RXM_REJECT, is_rxm_request};
pub(crate) use segments::{RemoteSegment, Segments};

use crate::error::{Error, ErrorKind};

/// The reason why a peer's bytes are not a valid frame. Each of these errors ends the connection: a
/// stream whose framing is in doubt has no next frame, and the protocol has no frame that says
/// "error".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// An operation that is in no version of the protocol.
    #[error("unknown operation {0}")]
    UnknownOp(u8),
    /// A tagged message or its announcement: valid elsewhere, but this endpoint has no tags. (A
    /// libfabric endpoint without tags would have crashed here.)
    #[error("tagged message on an untagged endpoint")]
    TaggedOnMsg,
    /// A rendezvous frame on an endpoint that cannot have asked for one.
    #[error("{0} frame on an endpoint without rendezvous")]
    Unsupported(Op),
    /// `hdr_size` is outside of 16..=120, or does not fit the operation, its flags and its count.
    #[error("{op} frame with a header of {header_len} bytes")]
    HeaderSize {
        /// The operation.
        op: Op,
        /// `hdr_size` as received.
        header_len: u8,
    },
    /// The frame ends before its header does.
    #[error("frame of {frame_len} bytes with a header of {header_len} bytes")]
    FrameSize {
        /// `size` as received.
        frame_len: u64,
        /// `hdr_size` as received.
        header_len: u8,
    },
    /// A frame without a payload came with one.
    #[error("{op} frame with a payload of {payload_len} bytes")]
    UnexpectedPayload {
        /// The operation.
        op: Op,
        /// Bytes of payload announced.
        payload_len: u64,
    },
    /// A read or write names no segment, or more than four.
    #[error("{0} remote segments, of 1 to 4 possible")]
    SegmentCount(usize),
    /// The lengths of the segments add up to more than a frame can carry.
    #[error("remote segments longer together than any frame")]
    SegmentsOverflow,
    /// A write's payload is shorter or longer than its segments together.
    #[error("write of {payload_len} bytes into segments of {segments_len} bytes")]
    SegmentsMismatch {
        /// Bytes of payload announced.
        payload_len: u64,
        /// Sum of the segments' lengths.
        segments_len: u64,
    },
    /// An atomic operation names more memory than is allowed, or its operands have another length.
    #[error("atomic operation of {payload_len} bytes on {segments_len} bytes of memory")]
    AtomicSize {
        /// Bytes of payload announced.
        payload_len: u64,
        /// Sum of the segments' lengths.
        segments_len: u64,
    },
    /// The index of an announced message is not one of 1 to 254.
    #[error("{op} frame of message {index}, of 1 to 254 possible")]
    Index {
        /// The operation.
        op: Op,
        /// `op_data` as received.
        index: u8,
    },
    /// A refusal has no reason.
    #[error("a refusal without a reason")]
    NoReason,
    /// The extension was agreed on, but the first frame is not a HELLO.
    #[error("{0} frame where a hello was due")]
    HelloMissing(Op),
    /// A value of a HELLO is longer than the remaining frame.
    #[error("a hello that ends within a value")]
    HelloCut,
    /// A value of a HELLO is missing, present twice, or has the wrong length for its type.
    #[error("a hello whose value {0:#06x} is missing or wrong")]
    HelloValue(u16),
    /// A HELLO has an unknown value that must not be ignored.
    #[error("a hello with the unknown value {0:#06x}, which may not be ignored")]
    HelloCritical(u16),
    /// The peer had to prove a key, but the frame is not a PROOF.
    #[error("{0} frame where a proof was due")]
    ProofMissing(Op),
    /// A PROOF has an unknown step, or the wrong length for its step.
    #[error("a proof of unknown step {0}")]
    ProofStep(u8),
    /// The peer agreed to more of the extension than it was offered.
    #[error("the peer agreed to an extension that it was not offered")]
    OfferNotAsked,
    /// The private data of a connectionless endpoint's handshake, or its extension block, is too
    /// short.
    #[error("{0} bytes of private data where a connectionless endpoint's were due")]
    PeerData(usize),
    /// Another version of the control frame, or no control frame at all.
    #[error("{}", another_protocol(*.0))]
    ControlVersion(u8),
    /// A control frame that is neither request nor response nor reject.
    #[error("control frame of unknown type {0}")]
    ControlType(u8),
    /// More private data than a control frame may carry.
    #[error("{0} bytes of private data, of at most 256")]
    ControlDataSize(usize),
    /// The probe is 1 in neither byte order.
    #[error("the byte-order probe is not 1 in any byte order")]
    ControlProbe,
}

impl WireError {
    /// Returns the kind that an endpoint reports. Errors of the handshake have the kinds of
    /// libfabric's `tcp` provider: FI_ENOPROTOOPT, except that a reply of unknown type counts as a
    /// refusal.
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            WireError::UnknownOp(_)
            | WireError::TaggedOnMsg
            | WireError::Unsupported(_)
            | WireError::HeaderSize { .. }
            | WireError::FrameSize { .. }
            | WireError::UnexpectedPayload { .. }
            | WireError::SegmentCount(_)
            | WireError::SegmentsOverflow
            | WireError::SegmentsMismatch { .. }
            | WireError::AtomicSize { .. }
            | WireError::Index { .. }
            | WireError::NoReason
            | WireError::HelloMissing(_)
            | WireError::HelloCut
            | WireError::HelloValue(_)
            | WireError::ProofMissing(_)
            | WireError::ProofStep(_) => ErrorKind::ProtocolViolation,
            WireError::HelloCritical(_)
            | WireError::OfferNotAsked
            | WireError::PeerData(_)
            | WireError::ControlVersion(_)
            | WireError::ControlDataSize(_)
            | WireError::ControlProbe => ErrorKind::Incompatible,
            WireError::ControlType(_) => ErrorKind::ConnectionRefused,
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Error::new(error.kind(), error.to_string())
    }
}

/// Guesses the peer's protocol from the first byte, which is not a control frame's version.
fn another_protocol(first: u8) -> String {
    let what = match first {
        b'H' | b'G' | b'P' | b'D' | b'O' => "the peer speaks HTTP, as it seems",
        0x15 | 0x16 => "the peer speaks TLS, as it seems",
        b'S' => "the peer speaks SSH, as it seems",
        version @ 1..8 => return format!("control frame of version {version}, not 3"),
        _ => "the peer speaks another protocol",
    };
    format!("{what}, not libfabric's tcp (it began with the byte {first:#04x}); check the address")
}
