//! Who the senders are whose messages the endpoint's receives got (`FI_SOURCE`).

use std::sync::{Arc, OnceLock, Weak};

use crate::av::AddressVector;
use crate::cq::{SourceName, Sources};
use crate::progress::Rdm;
use crate::proto::SourceId;

/// Weak toward the endpoint: completions that nobody reads do not keep it open.
pub(super) struct Book {
    rdm: OnceLock<Weak<Rdm>>,
    vector: AddressVector,
}

impl Book {
    /// Of an endpoint that is being opened with this vector.
    pub(super) fn new(vector: AddressVector) -> Arc<Self> {
        Arc::new(Book {
            rdm: OnceLock::new(),
            vector,
        })
    }

    /// The endpoint is open.
    pub(super) fn open(&self, rdm: &Arc<Rdm>) {
        let set = self.rdm.set(Arc::downgrade(rdm));
        debug_assert!(set.is_ok(), "an endpoint is opened once");
    }
}

impl Sources for Book {
    fn name(&self, number: u64) -> SourceName {
        let rdm = self.rdm.get().and_then(Weak::upgrade);
        let Some(address) = rdm.and_then(|rdm| rdm.address_of(SourceId(number))) else {
            return SourceName::default();
        };
        let found = self.vector.find(address);
        SourceName {
            address: Some(address),
            fabric: found.map(|(addr, _)| addr),
            user_id: found.and_then(|(_, user_id)| user_id),
        }
    }
}
