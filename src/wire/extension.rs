//! The offers and answers in the unused words of the control frames, and the small values that the
//! extension's frames carry. `docs/extension.md` is the specification.

use crate::error::Refusal;
use crate::limits::ATOMIC_SIZE_MAX;

/// The eight bytes that C peers call `conn_id`, send as zero and never read.
pub(super) const OFFER_AT: usize = 8;
/// Bytes of an offer.
pub(super) const OFFER_SIZE: usize = 8;
/// The first bytes of an offer.
pub(super) const MAGIC: [u8; 4] = *b"tofa";
/// The version spoken here.
const VERSION: u8 = 1;

bitflags::bitflags! {
    /// What both sides of a connection can do beyond libfabric's protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Capabilities: u16 {
        /// One RMA operation can be refused with its reason: every write is answered, and read
        /// responses say how they ended.
        const REFUSAL = 1 << 0;
        /// A silent peer can be probed.
        const LIVENESS = 1 << 1;
        /// Messages are held back by their sender while nothing awaits them.
        const CREDIT = 1 << 2;
        /// A connection ends when both sides have said so.
        const CLOSE = 1 << 3;
        /// Both sides prove that they have the same authorization key.
        const AUTH = 1 << 4;
        /// Numbers in the peer's memory can be changed atomically. Means nothing without REFUSAL,
        /// by which such operations are answered.
        const ATOMIC = 1 << 5;
        /// A message may be announced before it is sent, also one without a tag. Of connectionless
        /// endpoints only.
        const RENDEZVOUS = 1 << 7;
        /// An announcement can be withdrawn. Means nothing without RENDEZVOUS.
        const WITHDRAW = 1 << 8;
        /// The connection is between contexts of scalable endpoints that the request names. Of
        /// connectionless endpoints only.
        const CONTEXTS = 1 << 9;
    }
}

impl Capabilities {
    /// The capabilities that atomic operations need.
    pub(crate) const ATOMICS: Capabilities = Capabilities::ATOMIC.union(Capabilities::REFUSAL);

    /// Returns the capabilities that can be agreed on, out of those that both sides have; `either`
    /// is what one of them has. A side that announces messages shares its receives. There credit
    /// covers no message that is larger than the promised bytes, so both sides have to announce
    /// such ones.
    pub(crate) fn consistent(self, either: Capabilities) -> Capabilities {
        let shares = either.contains(Capabilities::RENDEZVOUS);
        if shares && !self.contains(Capabilities::RENDEZVOUS) {
            self - Capabilities::CREDIT - Capabilities::WITHDRAW
        } else {
            self
        }
    }
}

/// Eight bytes of a control frame: in a request the sender's capabilities, in a response the agreed
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionOffer {
    version: u8,
    capabilities: Capabilities,
}

impl ExtensionOffer {
    /// An offer of the version spoken here.
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

    /// True if contexts are named behind the offer.
    pub(super) fn names_contexts(self) -> bool {
        self.capabilities.contains(Capabilities::CONTEXTS)
    }

    /// The version of the offer.
    pub(super) fn version(self) -> u8 {
        self.version
    }

    /// Returns the answer to a peer's offer by a side that can do `ours`.
    pub(crate) fn answer(self, ours: Capabilities) -> Self {
        ExtensionOffer {
            version: self.version.min(VERSION),
            capabilities: self.capabilities & ours,
        }
    }

    /// True if this is a possible answer to `asked`: no later version, nothing that was not asked.
    pub(crate) fn answers(self, asked: ExtensionOffer) -> bool {
        self.version <= asked.version && asked.capabilities.contains(self.capabilities)
    }

    /// Reads the offer in these bytes; `None` for anything a peer without the extension may send.
    /// Bits that are unknown here are left out.
    pub(super) fn from_bytes(bytes: [u8; OFFER_SIZE]) -> Option<ExtensionOffer> {
        let [m0, m1, m2, m3, values @ ..] = bytes;
        ExtensionOffer::from_parts([m0, m1, m2, m3], values)
    }

    /// Reads an offer from the magic and the values that belong to it, wherever they stand.
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

/// Why a side sends CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// It has nothing more to say, or its peer has sent CLOSE.
    Done,
    /// It has refused too many operations of its peer, and processes nothing of it any more.
    Refusals,
    /// Its peer has sent a message to an endpoint that receives none, and it processes nothing of
    /// it any more.
    NoReceive,
    /// Its peer has sent a message that is longer than its endpoint takes, and it processes nothing
    /// of it any more.
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

/// Which of the three kinds of atomic operation a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AtomicForm {
    /// Changes numbers; an ack is wanted.
    Update,
    /// Changes numbers, and returns the former ones as a read returns bytes.
    Fetch,
    /// Compares numbers before it changes them, and returns the former ones: as many numbers to
    /// compare follow the operands.
    Compare,
}

/// An atomic operation in the numbers of the wire, which need not be known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicCall {
    pub(crate) form: AtomicForm,
    /// libfabric's number of the operation (`enum fi_op`).
    pub(crate) operation: u8,
    /// The type of the numbers: libfabric's number (`enum fi_datatype`) in the lowest byte, and
    /// [`BIG_ENDIAN`].
    pub(crate) numbers: u64,
}

/// Flag in [`AtomicCall::numbers`]: operands and results have the highest byte first. Their order
/// is that of the machine that asks; the one that answers converts.
pub(crate) const BIG_ENDIAN: u64 = 1 << 8;

impl AtomicForm {
    /// True if a payload of this length belongs to an operation on `total` bytes of memory.
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
