//! The reasons why a peer refused one access to its memory.

use std::fmt;

/// The reason why the peer refused a write, a read or an atomic operation
/// ([`Error::refusal`](super::Error::refusal)): the errors that `fi_domain(3)` calls unmatched RMA
/// and RMA overruns, and `fi_mr(3)` an access that is not granted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::error::Refusal;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 8]).await?;
/// region.revoke_now();
/// let failed = endpoint.write("too late", region.remote()).await.unwrap_err();
/// assert_eq!(failed.error().refusal(), Some(Refusal::Revoked));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// No region has this key and none had it recently, or this endpoint may not know of it: a
    /// region with an authorization key exists only for endpoints with the same key.
    UnknownKey,
    /// The range is not entirely within the region.
    OutOfBounds,
    /// The region does not grant this access.
    AccessDenied,
    /// The region was revoked, deregistered or dropped: recently, or in the middle of the operation
    /// (some bytes of a write may then have been written). A domain remembers the keys of its last
    /// 4,096 regions; for older ones the reason is [`UnknownKey`](Self::UnknownKey).
    Revoked,
    /// The region is quiesced, is being refreshed, or is disabled. The same operation may succeed
    /// later.
    Held,
    /// The memory behind the region does not exist (`FI_EFAULT`).
    Fault,
    /// For an atomic operation: the address of a number is not a multiple of its size, or a number
    /// is not entirely within one buffer of the region.
    Misaligned,
    /// For an atomic operation: the peer does not support the operation or the type, or atomic
    /// operations on this memory (an [`AddressRange`](crate::buf::AddressRange)).
    Unsupported,
    /// The endpoint that received the access was opened without the necessary capability: it allows
    /// no RMA, no atomic operations, or only reads or only writes.
    NoCapability,
    /// A reason that a later version of this library introduced, by its number.
    Other(u8),
}

impl Refusal {
    /// True if a peer gets this refusal only for a guess or an error of its own: a peer that uses
    /// keys as it was given them never gets it.
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
