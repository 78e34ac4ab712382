//! Names of the senders of received messages (`FI_SOURCE`).

use std::sync::Arc;

use crate::av::AddressVector;
use crate::cq::{SourceName, Sources};
use crate::progress::SourceAddresses;
use crate::proto::SourceId;

/// Names senders by their addresses and by the entries of the endpoint's address vector. Unread
/// completions hold this instead of the endpoint.
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
