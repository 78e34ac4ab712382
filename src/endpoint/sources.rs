//! Names of the senders of received messages (`FI_SOURCE`).

use std::sync::Arc;

use crate::av::AddressVector;
use crate::cq::{Source, SourceName, Sources};
use crate::progress::SourceAddresses;
use crate::proto::SourceId;

/// Names senders by their addresses and by the entries of an address vector. Unread completions
/// hold this instead of the endpoint.
pub(super) struct SourceNames {
    pub(super) addresses: Arc<SourceAddresses>,
    pub(super) vector: AddressVector,
    /// Whether completions of receives name the sender (`FI_SOURCE`).
    pub(super) are_reported: bool,
}

impl SourceNames {
    /// Returns the names for completions, if these name senders.
    pub(super) fn for_completions(self: &Arc<Self>) -> Option<Arc<dyn Sources>> {
        self.are_reported.then(|| Arc::clone(self) as _)
    }

    /// Returns the sender as completions name it, if these name senders.
    pub(super) fn source(self: &Arc<Self>, source: SourceId) -> Option<Source> {
        let names = self.for_completions()?;
        Some(Source::Numbered(source.0, names))
    }

    /// Returns the names of a sender that an awaited receive reports.
    pub(super) fn reported_name(&self, source: SourceId) -> SourceName {
        match self.are_reported {
            true => self.name(source.0),
            false => SourceName::default(),
        }
    }
}

impl Sources for SourceNames {
    fn name(&self, number: u64) -> SourceName {
        let Some(address) = self.addresses.get(SourceId(number)) else {
            return SourceName::default();
        };
        SourceName::new(address.socket, self.vector.find(address))
    }
}
