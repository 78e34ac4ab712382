//! The offers and answers in the unused words of the control frames, and the small values in the
//! extension's frames. `docs/extension.md` is the specification.

use crate::error::Refusal;
use crate::limits::ATOMIC_SIZE_MAX;

/// Offset of the eight bytes that C peers call `conn_id`, send as zero and never read.
pub(super) const OFFER_AT: usize = 8;
/// Bytes of an offer.
pub(super) const OFFER_SIZE: usize = 8;
/// The first bytes of an offer.
pub(super) const MAGIC: [u8; 4] = *b"tofa";
/// The version of the extension that this library implements.
const VERSION: u8 = 1;

bitflags::bitflags! {
    /// Abilities of both sides of a connection beyond libfabric's protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Capabilities: u16 {
        /// One RMA operation can be refused with its reason: every write is answered, and the
        /// answer to a read ends with its result.
        const REFUSAL = 1 << 0;
        /// A silent peer can be probed.
        const LIVENESS = 1 << 1;
        /// A sender holds messages back while it has no credit for them.
        const CREDIT = 1 << 2;
        /// A connection ends when both sides have sent CLOSE.
        const CLOSE = 1 << 3;
        /// Both sides prove that they have the same authorization key.
        const AUTH = 1 << 4;
        /// Numbers in the peer's memory can be changed atomically. Ignored without REFUSAL, whose
        /// frames answer such operations.
        const ATOMIC = 1 << 5;
        /// A message, with or without a tag, may be announced before it is sent, if its receiver
        /// shares receives among connections.
        const RENDEZVOUS = 1 << 7;
        /// An announcement can be withdrawn. Ignored without RENDEZVOUS.
        const WITHDRAW = 1 << 8;
        /// The connection is between contexts of scalable endpoints that the request names. Only
        /// between connectionless endpoints.
        const CONTEXTS = 1 << 9;
    }
}

impl Capabilities {
    /// The capabilities that atomic operations need.
    pub(crate) const ATOMICS: Capabilities = Capabilities::ATOMIC.union(Capabilities::REFUSAL);

    /// Reduces `self`, the capabilities that both sides have, to those that can be agreed on.
    /// `either`: the capabilities that at least one side has. A side that announces messages shares
    /// its receives. Its credit covers no message that is larger than the promised bytes, so both
    /// sides have to announce such messages.
    pub(crate) fn consistent(self, either: Capabilities) -> Capabilities {
        let shares = either.contains(Capabilities::RENDEZVOUS);
        if shares && !self.contains(Capabilities::RENDEZVOUS) {
            self - Capabilities::CREDIT - Capabilities::WITHDRAW
        } else {
            self
        }
    }
}

/// Eight bytes of a control frame: the sender's capabilities in a request, the agreed ones in a
/// response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionOffer {
    version: u8,
    capabilities: Capabilities,
}

impl ExtensionOffer {
    /// Creates an offer with the version of this library.
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        ExtensionOffer {
            version: VERSION,
            capabilities,
        }
    }

    /// The capabilities that are offered, or agreed on.
    pub(crate) fn capabilities(self) -> Capabilities {
        self.capabilities
    }

    /// True if the sender's endpoint has an authorization key.
    pub(crate) fn proves_key(self) -> bool {
        self.capabilities.contains(Capabilities::AUTH)
    }

    /// True if the names of contexts follow the offer.
    pub(super) fn names_contexts(self) -> bool {
        self.capabilities.contains(Capabilities::CONTEXTS)
    }

    /// The version of the offer.
    pub(super) fn version(self) -> u8 {
        self.version
    }

    /// Returns the answer to a peer's offer, by a side with the capabilities `ours`.
    pub(crate) fn answer(self, ours: Capabilities) -> Self {
        ExtensionOffer {
            version: self.version.min(VERSION),
            capabilities: self.capabilities & ours,
        }
    }

    /// True if this is a possible answer to `asked`: no later version, no capability not asked for.
    pub(crate) fn answers(self, asked: ExtensionOffer) -> bool {
        self.version <= asked.version && asked.capabilities.contains(self.capabilities)
    }

    /// Reads the offer in these bytes; `None` for any bytes of a peer without the extension.
    /// Unknown bits are dropped.
    pub(super) fn from_bytes(bytes: [u8; OFFER_SIZE]) -> Option<ExtensionOffer> {
        let [m0, m1, m2, m3, values @ ..] = bytes;
        ExtensionOffer::from_parts([m0, m1, m2, m3], values)
    }

    /// Reads an offer from its magic and its values, which may stand apart.
    pub(super) fn from_parts(magic: [u8; 4], values: [u8; 4]) -> Option<ExtensionOffer> {
        let [version, _reserved, high, low] = values;
        if magic != MAGIC || version == 0 {
            return None;
        }
        let bits = u16::from_be_bytes([high, low]);
        Some(ExtensionOffer {
            version,
            capabilities: Capabilities::from_bits_truncate(bits),
        })
    }

    pub(super) fn to_bytes(self) -> [u8; OFFER_SIZE] {
        let ([m0, m1, m2, m3], [version, reserved, high, low]) = self.to_parts();
        [m0, m1, m2, m3, version, reserved, high, low]
    }

    pub(super) fn to_parts(self) -> ([u8; 4], [u8; 4]) {
        let [high, low] = self.capabilities.bits().to_be_bytes();
        (MAGIC, [self.version, 0, high, low])
    }
}

/// The reason why a side sent CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The side has nothing more to send, or its peer has sent CLOSE.
    Done,
    /// It has refused too many operations of its peer, and processes no more of the peer's frames.
    Refusals,
    /// Its peer has sent a message to an endpoint that receives none. The side processes no more of
    /// the peer's frames.
    NoReceive,
    /// Its peer has sent a message that is longer than its endpoint takes. The side processes no
    /// more of the peer's frames.
    TooLong,
}

impl CloseReason {
    /// Returns the reason with this number; an unknown number is an ordinary end.
    pub(super) fn of(byte: u8) -> Self {
        match byte {
            1 => CloseReason::Refusals,
            2 => CloseReason::NoReceive,
            3 => CloseReason::TooLong,
            _ => CloseReason::Done,
        }
    }

    pub(super) fn to_byte(self) -> u8 {
        match self {
            CloseReason::Done => 0,
            CloseReason::Refusals => 1,
            CloseReason::NoReceive => 2,
            CloseReason::TooLong => 3,
        }
    }
}

/// The kind of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AtomicForm {
    /// Changes numbers; an ack is wanted.
    Update,
    /// Changes numbers, and returns the former ones as a read returns bytes.
    Fetch,
    /// Compares numbers before it changes them, and returns the former ones. In the payload, the
    /// operands are followed by as many numbers to compare.
    Compare,
}

/// An atomic operation, as numbers on the wire, some of which this library may not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicCall {
    pub(crate) form: AtomicForm,
    /// libfabric's number of the operation (`enum fi_op`).
    pub(crate) operation: u8,
    /// The type of the numbers: libfabric's number (`enum fi_datatype`) in the lowest byte, and
    /// [`BIG_ENDIAN`].
    pub(crate) numbers: u64,
}

/// Flag in [`AtomicCall::numbers`]: operands and results are big-endian. They have the byte order
/// of the initiator's machine; the target converts.
pub(crate) const BIG_ENDIAN: u64 = 1 << 8;

impl AtomicForm {
    /// True if a payload of this length fits an operation on `total` bytes of memory.
    pub(super) fn fits(self, payload_len: u64, total: u64) -> bool {
        (1..=ATOMIC_SIZE_MAX as u64).contains(&total)
            && match self {
                AtomicForm::Update => payload_len == total,
                // An operation that only reads has no operands.
                AtomicForm::Fetch => payload_len == total || payload_len == 0,
                AtomicForm::Compare => payload_len == 2 * total,
            }
    }
}

/// Returns the reason with this number; `None` for 0, which stands for success.
pub(super) fn reason_of(byte: u8) -> Option<Refusal> {
    Some(match byte {
        0 => return None,
        1 => Refusal::UnknownKey,
        2 => Refusal::OutOfBounds,
        3 => Refusal::AccessDenied,
        4 => Refusal::Revoked,
        5 => Refusal::Held,
        6 => Refusal::Fault,
        7 => Refusal::Misaligned,
        8 => Refusal::Unsupported,
        9 => Refusal::NoCapability,
        other => Refusal::Other(other),
    })
}

/// The number of this reason.
pub(super) fn reason_byte(reason: Refusal) -> u8 {
    match reason {
        Refusal::UnknownKey => 1,
        Refusal::OutOfBounds => 2,
        Refusal::AccessDenied => 3,
        Refusal::Revoked => 4,
        Refusal::Held => 5,
        Refusal::Fault => 6,
        Refusal::Misaligned => 7,
        Refusal::Unsupported => 8,
        Refusal::NoCapability => 9,
        Refusal::Other(other) => other,
    }
}
