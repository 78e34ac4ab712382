//! Decides which objects may be bound to each other: "A domain defines the boundary for associating
//! different resources together" (`fi_domain(3)`), and a peer of another domain shares that
//! domain's objects (`fi_peer(3)`).

use std::sync::Arc;

use super::ManualProgress;
use crate::error::{Error, ErrorKind, Result};
use crate::id::DomainId;

/// The domains whose objects can be bound to those of one domain: itself, and the domain it is a
/// peer of. Reading such an object drives the domain, if its progress is manual.
#[derive(Debug)]
pub(crate) struct DomainScope {
    own: DomainId,
    peer: Option<DomainId>,
    progress: Option<Arc<ManualProgress>>,
}

impl DomainScope {
    pub(crate) fn new(
        own: DomainId,
        peer: Option<DomainId>,
        progress: Option<Arc<ManualProgress>>,
    ) -> Self {
        DomainScope {
            own,
            peer,
            progress,
        }
    }

    /// Makes the scope of a separate domain with automatic progress.
    #[cfg(any(test, loom))]
    pub(crate) fn apart() -> Self {
        DomainScope::new(DomainId::next(), None, None)
    }

    pub(crate) fn own(&self) -> DomainId {
        self.own
    }

    /// Returns the domain's progress, if it is manual.
    pub(crate) fn progress(&self) -> Option<&Arc<ManualProgress>> {
        self.progress.as_ref()
    }

    pub(crate) fn contains(&self, domain: DomainId) -> bool {
        self.own == domain || self.peer == Some(domain)
    }

    /// Checks an object that is to be bound, given its kind and the domain in which it was opened.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an object of any other domain.
    pub(crate) fn check(&self, kind: &str, domain: DomainId) -> Result<()> {
        if self.contains(domain) {
            return Ok(());
        }
        let what = format!(
            "the {kind} belongs to another domain, and this one was not opened as a peer of that \
             (DomainBuilder::peer_of)"
        );
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}
