//! Where operations are posted, and where they are asked after.

use std::sync::Arc;

use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Error, Phase, Result};
use crate::id::{FabricAddr, OperationId};
use crate::progress::{OpCell, Port, PostOptions, Posted, Report, name_of};
use crate::proto::{End, OpKey, OpKind, Operation, Wanted, Withdrawn};

use super::common::Common;
use super::peek::Claim;
use super::post::Shape;
use super::{DgramEndpoint, Endpoint, RdmEndpoint};

/// What an operation is to be posted to.
pub(super) enum To {
    /// The one peer of a connected endpoint; receives too.
    Connection(Endpoint),
    /// A peer of a connectionless endpoint.
    Peer(RdmEndpoint, FabricAddr),
    /// All peers of a connectionless endpoint, or one: what is received.
    Receives(RdmEndpoint, Selector),
    /// The same, for several messages.
    Many(RdmEndpoint, Selector),
    /// A message that came before.
    Claimed(Claim),
    /// Datagrams: to this peer; or of any, or of this one only.
    Datagrams(DgramEndpoint, Option<FabricAddr>),
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selector {
    pub(super) wanted: Wanted,
    /// Of this peer only.
    pub(super) source: Option<FabricAddr>,
}

impl Selector {
    /// Of any peer.
    pub(super) fn any(wanted: Wanted) -> Self {
        Selector {
            wanted,
            source: None,
        }
    }

    /// These bits of the tag do not matter.
    pub(super) fn ignore(&mut self, mask: u64) {
        if let Wanted::Tagged { ignore, .. } = &mut self.wanted {
            *ignore = mask;
        }
    }
}

impl To {
    /// Narrows what is received to one peer.
    pub(super) fn select_source(&mut self, peer: FabricAddr) {
        match self {
            To::Receives(_, selector) | To::Many(_, selector) => selector.source = Some(peer),
            To::Datagrams(_, from) => *from = Some(peer),
            To::Connection(_) | To::Peer(..) | To::Claimed(_) => {}
        }
    }

    /// Widens what is received to all tags that differ in these bits.
    pub(super) fn select_mask(&mut self, mask: u64) {
        if let To::Receives(_, selector) = self {
            selector.ignore(mask);
        }
    }

    pub(super) fn common(&self) -> &Common {
        match self {
            To::Connection(endpoint) => &endpoint.inner.common,
            To::Peer(endpoint, _) | To::Receives(endpoint, _) | To::Many(endpoint, _) => {
                &endpoint.inner.common
            }
            To::Claimed(claim) => &claim.endpoint.inner.common,
            To::Datagrams(endpoint, _) => &endpoint.inner.common,
        }
    }

    /// Posts what has been copied: its end is told to nobody, and it never waits.
    pub(super) fn post_injected(&self, kind: OpKind, payload: Payload) -> Result<()> {
        let options = PostOptions::default();
        let operation = Operation::new(kind, payload, Report::Nowhere, options);
        match self {
            To::Connection(endpoint) => {
                let posted = endpoint.inner.port.post(operation);
                posted.map(drop).map_err(|refused| refused.error)
            }
            To::Peer(endpoint, peer) => {
                let posted = endpoint.post_to(*peer, operation);
                posted.map(drop).map_err(|(error, _)| error)
            }
            _ => unreachable!("what is injected goes to a peer"),
        }
    }

    /// Posts, and says where to ask after the operation.
    #[inline]
    pub(super) fn post(
        self,
        shape: Shape,
        payload: Payload,
        report: impl FnOnce(&Common) -> Report,
        options: PostOptions,
    ) -> Result<(Place, Posted), (Error, Payload)> {
        match self {
            To::Connection(endpoint) => {
                let kind = match shape.into_kind(payload.len(), endpoint.domain()) {
                    Ok(kind) => kind,
                    Err(error) => return Err((error, payload)),
                };
                let report = report(&endpoint.inner.common);
                let operation = Operation::new(kind, payload, report, options);
                let posted = endpoint.inner.port.post(operation);
                let posted = posted.map_err(|refused| refused.into_parts())?;
                Ok((Place::Connection(endpoint), posted))
            }
            To::Peer(endpoint, peer) => {
                let kind = match shape.into_kind(payload.len(), endpoint.domain()) {
                    Ok(kind) => kind,
                    Err(error) => return Err((error, payload)),
                };
                let report = report(&endpoint.inner.common);
                let operation = Operation::new(kind, payload, report, options);
                let (port, posted) = endpoint.post_to(peer, operation)?;
                Ok((Place::Peer(endpoint, port), posted))
            }
            To::Receives(endpoint, selector) => {
                let posted = endpoint.post_receive(
                    selector,
                    payload,
                    report(&endpoint.inner.common),
                    options,
                )?;
                Ok((Place::Receives(endpoint), posted))
            }
            To::Many(endpoint, selector) => {
                let posted = endpoint.post_many(
                    selector,
                    shape,
                    payload,
                    report(&endpoint.inner.common),
                    options,
                )?;
                Ok((Place::Receives(endpoint), posted))
            }
            To::Claimed(claim) => {
                let (endpoint, claimed) = claim.take();
                let receives = &endpoint.inner.receives;
                let report = report(&endpoint.inner.common);
                let posted = receives.receive_claimed(claimed, payload, report, options.timeout)?;
                Ok((Place::Receives(endpoint), posted))
            }
            To::Datagrams(endpoint, peer) => {
                let posted = endpoint.post(
                    shape,
                    peer,
                    payload,
                    report(&endpoint.inner.common),
                    options,
                )?;
                Ok((Place::Datagrams(endpoint), posted))
            }
        }
    }
}

/// What has an operation that was posted, until it ends.
pub(super) enum Place {
    Connection(Endpoint),
    Peer(RdmEndpoint, Arc<Port>),
    Receives(RdmEndpoint),
    Datagrams(DgramEndpoint),
}

impl Place {
    /// The operation's name within its endpoint.
    pub(super) fn name(&self, key: OpKey) -> OperationId {
        match self {
            Place::Connection(_) | Place::Receives(_) | Place::Datagrams(_) => {
                OperationId::own(key.to_bits())
            }
            Place::Peer(_, port) => OperationId::of_port(port.key().to_bits(), key.to_bits()),
        }
    }

    pub(super) fn phase(&self, key: OpKey) -> Phase {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.phase(key),
            Place::Peer(_, port) => port.phase(key),
            Place::Receives(endpoint) => endpoint.inner.receives.phase(key),
            Place::Datagrams(endpoint) => endpoint.inner.port.phase(key),
        }
    }

    /// True if the operation has ended by this.
    pub(super) fn cancel(&self, key: OpKey) -> bool {
        let withdrawn = match self {
            Place::Connection(endpoint) => endpoint.inner.port.cancel(key),
            Place::Peer(_, port) => port.cancel(key),
            Place::Receives(endpoint) => endpoint.inner.receives.cancel(key),
            Place::Datagrams(endpoint) => endpoint.inner.port.cancel(key),
        };
        withdrawn == Withdrawn::Ended
    }

    /// Cancels the operation of this name, if the endpoint itself has it.
    pub(super) fn cancel_named(&self, operation: OperationId) -> bool {
        operation.port().is_none() && self.cancel(OpKey::from_bits(operation.key()))
    }

    /// What is known of whoever sent a message that was received here.
    pub(super) fn source_name(&self, end: &End) -> Option<SourceName> {
        match self {
            Place::Connection(_) => None,
            Place::Peer(endpoint, _) | Place::Receives(endpoint) => {
                end.source.map(|source| endpoint.source_name(source.0))
            }
            Place::Datagrams(endpoint) => {
                end.from.map(|from| name_of(&endpoint.inner.vector, from))
            }
        }
    }

    /// The operation's future is dropped (ruling 4).
    pub(super) fn withdraw(&self, key: OpKey, cell: &OpCell) {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.withdraw(key, cell),
            Place::Peer(_, port) => port.withdraw(key, cell),
            Place::Receives(endpoint) => endpoint.withdraw_receive(key, cell),
            Place::Datagrams(endpoint) => endpoint.inner.port.withdraw(key, cell),
        }
    }

    /// Whoever waited for the operation's acceptance goes away.
    pub(super) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        match self {
            Place::Connection(endpoint) => endpoint.inner.port.withdraw_waiting(key, cell),
            Place::Peer(_, port) => port.withdraw_waiting(key, cell),
            Place::Receives(endpoint) => endpoint.inner.receives.withdraw_waiting(key, cell),
            Place::Datagrams(endpoint) => endpoint.inner.port.withdraw_waiting(key, cell),
        }
    }
}
