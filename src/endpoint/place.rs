//! Where operations are asked after.

use std::net::SocketAddr;

use crate::cq::SourceName;
use crate::error::Phase;
use crate::progress::{OpCell, name_of};
use crate::proto::{OpKey, Withdrawn};

use super::{DgramEndpoint, Endpoint};

/// What has an operation that was posted, until it ends.
pub(super) enum Place {
    Connection(Endpoint),
    Datagrams(DgramEndpoint),
}

impl Place {
    pub(super) fn phase(&self, key: OpKey) -> Phase {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.phase(key),
            Place::Datagrams(endpoint) => endpoint.inner.port.phase(key),
        }
    }

    /// True if the operation has ended by this.
    pub(super) fn cancel(&self, key: OpKey) -> bool {
        let withdrawn = match self {
            Place::Connection(endpoint) => endpoint.inner.port.cancel(key),
            Place::Datagrams(endpoint) => endpoint.inner.port.cancel(key),
        };
        withdrawn == Withdrawn::Ended
    }

    /// The operation's future is dropped (ruling 4).
    pub(super) fn detach(&self, key: OpKey, cell: &OpCell) {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.detach(key, cell),
            Place::Datagrams(endpoint) => endpoint.inner.port.detach(key, cell),
        }
    }

    /// Whoever waited for the operation's acceptance goes away.
    pub(super) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.withdraw_waiting(key, cell),
            Place::Datagrams(endpoint) => endpoint.inner.port.withdraw_waiting(key, cell),
        }
    }

    /// Who has this address.
    pub(super) fn name_of(&self, from: SocketAddr) -> SourceName {
        match self {
            Place::Connection(_) => SourceName::default(),
            Place::Datagrams(endpoint) => name_of(&endpoint.inner.vector, from),
        }
    }
}
