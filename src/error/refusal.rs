//! Why a peer refused one access to its memory.

use std::fmt;

/// Why the peer refused a write or a read ([`Error::refusal`](super::Error::refusal)): what
/// `fi_domain(3)` calls unmatched RMA and RMA overruns, and `fi_mr(3)` an access that is not
/// granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// No region has this key, and none had it lately, or none that may be reached from this
    /// endpoint: a region with an authorization key is there for endpoints with the same only.
    UnknownKey,
    /// The range is not all within the region.
    OutOfBounds,
    /// The region does not grant this access.
    AccessDenied,
    /// The region was revoked or deregistered, or dropped: lately, or in the middle of the
    /// operation (of a write, some bytes may have landed). A domain remembers the keys of its last
    /// 4,096 regions; older ones are [`UnknownKey`](Self::UnknownKey).
    Revoked,
    /// The region is quiesced, being refreshed or disabled. The same operation may succeed later.
    Held,
    /// The memory behind the region is not there (`FI_EFAULT`).
    Fault,
    /// Of an atomic operation: the address of a number is no multiple of its size, or a number is
    /// not all within one buffer of the region.
    Misaligned,
    /// Of an atomic operation: the peer does not know the operation or the type, or has no atomics
    /// on this memory, an [`AddressRange`](crate::buf::AddressRange).
    Unsupported,
    /// The endpoint that the access came to was opened without the capability for it: it admits no
    /// RMA, or no atomic operations, or only reads or only writes.
    NoCapability,
    /// A reason of a later version of this library, by its number.
    Other(u8),
}

impl Refusal {
    /// True if a peer that uses keys as it was given them is never refused so: it guesses, or is in
    /// error.
    pub(crate) fn is_guess(self) -> bool {
        matches!(
            self,
            Refusal::UnknownKey | Refusal::OutOfBounds | Refusal::AccessDenied
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::UnknownKey => "no region has this key",
            Refusal::OutOfBounds => "the range is outside of the region",
            Refusal::AccessDenied => "the region does not grant this access",
            Refusal::Revoked => "the region was revoked or deregistered",
            Refusal::Held => "the region is quiesced, refreshed or disabled: try again later",
            Refusal::Fault => "the region's memory is not there",
            Refusal::Misaligned => "the address is not aligned for an atomic operation",
            Refusal::Unsupported => "there is no such atomic operation on this memory",
            Refusal::NoCapability => "the peer's endpoint was opened without the capability for it",
            Refusal::Other(code) => return write!(f, "reason {code}"),
        })
    }
}
