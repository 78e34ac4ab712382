//! Who the senders are whose messages the endpoint's receives got (`FI_SOURCE`).

use std::sync::Arc;

use crate::av::AddressVector;
use crate::cq::{SourceName, Sources};
use crate::progress::SourceAddresses;
use crate::proto::SourceId;

/// Names senders by their addresses, and by what the endpoint's address vector says of those.
/// Unread completions hold this, but not the endpoint.
pub(super) struct SourceNames {
    pub(super) addresses: Arc<SourceAddresses>,
    pub(super) vector: AddressVector,
}

impl Sources for SourceNames {
    fn name(&self, number: u64) -> SourceName {
        let Some(address) = self.addresses.get(SourceId(number)) else {
            return SourceName::default();
        };
        SourceName::new(address.socket, self.vector.find(address))
    }
}
