//! The policy for connections on which operations are refused.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::REFUSALS_MAX;

/// The effect on a connection when an RMA operation on it is refused, by the peer or by this side
/// ([`EndpointBuilder::on_refusal`](super::EndpointBuilder::on_refusal)).
///
/// In either case the operation itself fails with [`ErrorKind::AccessDenied`] (or
/// [`ErrorKind::BadAddress`], if no memory is there) and its [reason](Error::refusal), and other
/// connections are not affected.
///
/// ```
/// use tokio_fabric::ep::OnRefusal;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Net::loopback().peer()?.domain;
/// let endpoint = domain.endpoint().on_refusal(OnRefusal::Continue { limit: 100 }).open()?;
/// # drop(endpoint);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnRefusal {
    /// The initiator closes the connection when the operation has failed, as `fi_domain(3)` says of
    /// resource management errors: its other operations fail with [`ErrorKind::Canceled`], and both
    /// sides get a Shutdown event.
    #[default]
    Disconnect,
    /// The connection stays open, if both sides chose this. If `limit` operations within a minute
    /// are refused for an unknown key, a range out of bounds or a missing right, the target closes
    /// the connection, because its peer is guessing. Refusals because a region was revoked,
    /// recently deregistered or quiesced do not count. The errors and Shutdown events of both sides
    /// report how many refusals there were, and in which time.
    Continue {
        /// 1 to 4,096; larger values count as 4,096. The smaller limit of the two sides applies.
        limit: u32,
    },
}

impl OnRefusal {
    /// Returns the limit in the form that is offered to the peer; 0: the first refusal ends the
    /// connection.
    pub(super) fn refusals_max(self) -> Result<u32> {
        match self {
            OnRefusal::Disconnect => Ok(0),
            OnRefusal::Continue { limit: 0 } => Err(Error::new(
                ErrorKind::InvalidArgument,
                "on_refusal continues after 0 refusals, it may be 1 or more",
            )),
            OnRefusal::Continue { limit } => Ok(limit.min(REFUSALS_MAX)),
        }
    }
}
