//! The sender of a message that a connectionless endpoint received (`FI_SOURCE`; `fi_cq_readfrom`
//! of `fi_cq(3)`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::id::FabricAddr;

/// The known names of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceName {
    /// The address at which the sender listens.
    pub(crate) address: Option<SocketAddr>,
    /// The sender's name in the endpoint's address vector, if it is there.
    pub(crate) fabric: Option<FabricAddr>,
    /// The application's identifier of the sender (`FI_AV_USER_ID`).
    pub(crate) user_id: Option<u64>,
}

impl SourceName {
    /// Creates the names of the sender at this address from its entry in the endpoint's address
    /// vector.
    pub(crate) fn new(
        address: SocketAddr,
        found: Option<(Option<FabricAddr>, Option<u64>)>,
    ) -> Self {
        SourceName {
            address: Some(address),
            fabric: found.and_then(|(addr, _)| addr),
            user_id: found.and_then(|(_, user_id)| user_id),
        }
    }
}

/// Finds the names of one endpoint's senders by their numbers.
pub(crate) trait Sources: Send + Sync {
    /// Returns the names of this sender that are known now.
    fn name(&self, number: u64) -> SourceName;
}

/// A sender, by its names or by its number.
#[derive(Clone)]
pub(crate) enum Source {
    /// The sender's names when its message arrived.
    Named(SourceName),
    /// The sender's number. The names are looked up on request, so that a message costs no look-up
    /// if the application does not ask for its sender.
    Numbered(u64, Arc<dyn Sources>),
}

impl Source {
    pub(crate) fn name(&self) -> SourceName {
        match self {
            Source::Named(name) => *name,
            Source::Numbered(number, sources) => sources.name(*number),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Named(name) => name.fmt(f),
            Source::Numbered(number, _) => write!(f, "Source({number})"),
        }
    }
}
