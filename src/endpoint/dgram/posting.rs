//! From a builder to a posted operation of a datagram endpoint.

use std::net::SocketAddr;

use super::Inner;
use crate::cq::SourceName;
use crate::endpoint::common::Common;
use crate::endpoint::target::{OpOwner, PostEndpoint, PostResult, Scope, Selector};
use crate::error::{Error, ErrorKind, Result};
use crate::info::Caps;
use crate::progress::OpRecord;
use crate::proto::OpEnd;

impl PostEndpoint for Inner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(&self, scope: Scope, mut operation: OpRecord) -> PostResult {
        let peer = match self.peer_of(&scope) {
            Ok(peer) => peer,
            Err(error) => return Err((error, operation.take_payload())),
        };
        let posted = self.port.post(operation, peer);
        let posted = posted.map_err(|refused| refused.into_parts())?;
        Ok((posted, None))
    }

    fn own_operations(&self) -> &dyn OpOwner {
        &*self.port
    }

    fn names_sources(&self) -> bool {
        true
    }

    fn source_name(&self, end: &OpEnd) -> Option<SourceName> {
        end.sender_address()
            .map(|from| SourceName::new(from, self.vector.find(from.into())))
    }
}

impl Inner {
    /// Returns the destination of a datagram, or the only source that a receive takes; `None`: any
    /// source.
    fn peer_of(&self, scope: &Scope) -> Result<Option<SocketAddr>> {
        let peer = match scope {
            Scope::Peer(peer) => Some(*peer),
            Scope::Receives(Selector { source, .. }) => *source,
            Scope::Connection | Scope::Claimed(_) => unreachable!("datagrams have neither"),
        };
        let address = peer.map(|peer| self.vector.socket_addr(peer)).transpose()?;
        if let (Scope::Peer(_), Some(to)) = (scope, address) {
            if to.ip().is_multicast() {
                self.common
                    .caps
                    .check(Caps::MSG | Caps::SEND | Caps::MULTICAST)?;
            } else if self.common.defaults.multicast {
                let what = format!("{to} is no multicast address, as tx.op_flags say it is");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        }
        Ok(address)
    }
}
