//! What a refused operation does to its connection.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::REFUSALS_MAX;

/// What happens to a connection when one RMA operation on it was refused: by the peer, or here, of
/// the peer's ([`EndpointBuilder::on_refusal`](super::EndpointBuilder::on_refusal)).
///
/// Whatever is chosen, the operation itself ends with [`ErrorKind::AccessDenied`] (or
/// [`ErrorKind::BadAddress`], if no memory is there) and its [reason](Error::refusal), and other
/// connections know nothing of it.
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
    /// The initiator's connection is torn down once the operation has ended, as `fi_domain(3)` says
    /// of resource management errors: its other operations end as [`ErrorKind::Canceled`], and both
    /// sides get their Shutdown.
    #[default]
    Disconnect,
    /// The connection lives, if both sides chose this. After `limit` operations within a minute
    /// that were refused for an unknown key, a range outside or a missing right, the target ends
    /// it: its peer is guessing. Regions that were revoked, deregistered lately or quiesced do not
    /// count. Both sides' errors, and their Shutdown, say how many there were, and in how long.
    Continue {
        /// 1 to 4,096, which is also what more than that means; the smaller of both sides' holds.
        limit: u32,
    },
}

impl OnRefusal {
    /// As it is offered to the peer; 0: the first one ends the connection.
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
