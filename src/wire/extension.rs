//! What is offered and agreed on in the unused words of the control frames, and the small values
//! that the extension's frames carry. `docs/extension.md` is the specification.

use std::fmt;

/// The eight bytes that C peers call `conn_id`, send as zero and never read.
pub(super) const OFFER_AT: usize = 8;
/// Bytes of an offer.
pub(super) const OFFER_SIZE: usize = 8;
/// What an offer starts with.
const MAGIC: [u8; 4] = *b"tofa";
/// The version spoken here.
const VERSION: u8 = 1;

bitflags::bitflags! {
    /// What both sides of a connection can do beyond libfabric's protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) struct Capabilities: u16 {
        /// One RMA operation can be refused with its reason: every write is answered, and read
        /// responses tell how they ended.
        const REFUSAL = 1 << 0;
        /// A silent peer can be asked for a sign of life.
        const LIVENESS = 1 << 1;
        /// Messages are held back by their sender while nothing awaits them.
        const CREDIT = 1 << 2;
        /// A connection ends when both sides have said so.
        const CLOSE = 1 << 3;
    }
}

/// Eight bytes of a control frame: in a request what the sender can do, in a response what both
/// will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    version: u8,
    capabilities: Capabilities,
}

impl Offer {
    /// An offer of the version spoken here.
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Offer {
            version: VERSION,
            capabilities,
        }
    }

    /// What the peer can do, or does.
    pub(crate) fn capabilities(self) -> Capabilities {
        self.capabilities
    }

    /// The answer to a peer's offer by one that can do `ours`.
    pub(crate) fn answer(self, ours: Capabilities) -> Self {
        Offer {
            version: self.version.min(VERSION),
            capabilities: self.capabilities & ours,
        }
    }

    /// True if this is a possible answer to `asked`: no later version, nothing that was not asked.
    pub(crate) fn answers(self, asked: Offer) -> bool {
        self.version <= asked.version && asked.capabilities.contains(self.capabilities)
    }

    /// The offer in these bytes; `None` for anything a peer without the extension may send. Bits
    /// that are unknown here are somebody else's, and left out.
    pub(super) fn from_bytes(bytes: [u8; OFFER_SIZE]) -> Option<Offer> {
        let [m0, m1, m2, m3, version, _reserved, high, low] = bytes;
        if [m0, m1, m2, m3] != MAGIC || version == 0 {
            return None;
        }
        let bits = u16::from_be_bytes([high, low]);
        Some(Offer {
            version,
            capabilities: Capabilities::from_bits_truncate(bits),
        })
    }

    pub(super) fn to_bytes(self) -> [u8; OFFER_SIZE] {
        let [m0, m1, m2, m3] = MAGIC;
        let [high, low] = self.capabilities.bits().to_be_bytes();
        [m0, m1, m2, m3, self.version, 0, high, low]
    }
}

/// Why one RMA operation was refused, as the wire has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// No region has this key.
    UnknownKey,
    /// The range is not within the region.
    OutOfBounds,
    /// The region does not grant this access.
    AccessDenied,
    /// The region was revoked, or is being closed.
    Revoked,
    /// The region is held by its owner for a while: quiesced, refreshed or disabled.
    Held,
    /// The memory behind the region is not there (`FI_EFAULT`).
    Fault,
    /// A reason of a later version.
    Other(u8),
}

impl Reason {
    /// `None` for 0, which stands for success.
    pub(super) fn from_byte(byte: u8) -> Option<Reason> {
        Some(match byte {
            0 => return None,
            1 => Reason::UnknownKey,
            2 => Reason::OutOfBounds,
            3 => Reason::AccessDenied,
            4 => Reason::Revoked,
            5 => Reason::Held,
            6 => Reason::Fault,
            other => Reason::Other(other),
        })
    }

    pub(super) fn to_byte(self) -> u8 {
        match self {
            Reason::UnknownKey => 1,
            Reason::OutOfBounds => 2,
            Reason::AccessDenied => 3,
            Reason::Revoked => 4,
            Reason::Held => 5,
            Reason::Fault => 6,
            Reason::Other(other) => other,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::UnknownKey => "no region has this key",
            Reason::OutOfBounds => "the range is outside of the region",
            Reason::AccessDenied => "the region does not grant this access",
            Reason::Revoked => "the region was revoked",
            Reason::Held => "the region is held by its owner",
            Reason::Fault => "the region's memory is not there",
            Reason::Other(code) => return write!(f, "reason {code}"),
        })
    }
}
