//! Who sent a message that a connectionless endpoint received (`FI_SOURCE`; `fi_cq_readfrom` of
//! `fi_cq(3)`).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::id::FabricAddr;

/// What is known of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceName {
    /// Where it listens.
    pub(crate) address: Option<SocketAddr>,
    /// What names it in the endpoint's address vector, if it is there.
    pub(crate) fabric: Option<FabricAddr>,
    /// What the application calls it (`FI_AV_USER_ID`).
    pub(crate) user_id: Option<u64>,
}

impl SourceName {
    /// The sender at this address, and what the endpoint's address vector has of it.
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

/// Knows the senders of one endpoint by their numbers.
pub(crate) trait Sources: Send + Sync {
    /// What is known of this sender now.
    fn name(&self, number: u64) -> SourceName;
}

/// A sender.
#[derive(Clone)]
pub(crate) enum Source {
    /// As it was known when its message came.
    Named(SourceName),
    /// By its number. It is looked up when it is asked for, so that a message whose sender is
    /// not asked for costs no look-up.
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
