//! Where operations are posted, and who has them until they end. Each kind of endpoint says so by
//! one trait, [`OpOwner`].

use std::sync::Arc;

use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Error, Phase, Result};
use crate::id::{FabricAddr, OperationId};
use crate::progress::{OpCell, Port, PostOptions, Posted, Report};
use crate::proto::{End, OpKey, OpKind, Operation, Wanted, Withdrawn};

use super::common::Common;
use super::peek::Claim;
use super::post::OpSpec;

/// A post, and the port that has the operation, if that is not the endpoint's own; or why not, and
/// the memory.
pub(super) type PostResult = Result<(Posted, Option<Arc<Port>>), (Error, Payload)>;

/// What a kind of endpoint does with operations. Those that a connectionless endpoint posts to a
/// peer are the peer's port's; all others are the endpoint's own.
pub(super) trait OpOwner: Send + Sync {
    /// What endpoints of every kind have.
    fn common(&self) -> &Common;

    /// Posts what is to be done with this memory.
    fn post(
        &self,
        scope: Scope,
        spec: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> PostResult;

    /// How far an operation of its own has come.
    fn phase(&self, key: OpKey) -> Phase;

    /// Asks an operation of its own to end early.
    fn cancel(&self, key: OpKey) -> Withdrawn;

    /// The future of an operation of its own is dropped (ruling 4).
    fn withdraw(&self, key: OpKey, cell: &OpCell);

    /// The waiter for the acceptance of an operation of its own goes away.
    fn withdraw_waiting(&self, key: OpKey, cell: &OpCell);

    /// True if messages come from several peers, so that a receive reports from which.
    fn names_sources(&self) -> bool {
        false
    }

    /// What is known of the sender of a message that was received here.
    fn source_name(&self, _end: &End) -> Option<SourceName> {
        None
    }
}

/// Which peer an operation of an endpoint concerns.
pub(super) enum Scope {
    /// The one peer of a connected endpoint.
    Connection,
    /// A peer that is sent to, written to or read from.
    Peer(FabricAddr),
    /// All peers, or one: what is received.
    Receives(Selector),
    /// A message that came before.
    Claimed(Claim),
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

/// What an operation is to be posted to.
pub(super) struct PostTarget {
    endpoint: Arc<dyn OpOwner>,
    scope: Scope,
}

impl PostTarget {
    #[inline]
    pub(super) fn new(endpoint: &Arc<impl OpOwner + 'static>, scope: Scope) -> Self {
        PostTarget {
            endpoint: Arc::clone(endpoint) as _,
            scope,
        }
    }

    /// Narrows what is received to one peer.
    pub(super) fn select_source(&mut self, peer: FabricAddr) {
        if let Scope::Receives(selector) = &mut self.scope {
            selector.source = Some(peer);
        }
    }

    /// Widens what is received to all tags that differ in these bits.
    pub(super) fn select_mask(&mut self, mask: u64) {
        if let Scope::Receives(selector) = &mut self.scope {
            selector.ignore(mask);
        }
    }

    pub(super) fn common(&self) -> &Common {
        self.endpoint.common()
    }

    /// Posts, and says where to ask after the operation.
    #[inline]
    pub(super) fn post(
        self,
        spec: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> Result<(OpHandle, Posted), (Error, Payload)> {
        let PostTarget { endpoint, scope } = self;
        let (posted, port) = endpoint.post(scope, spec, payload, report, options)?;
        let key = posted.key;
        Ok((
            OpHandle {
                endpoint,
                port,
                key,
            },
            posted,
        ))
    }

    /// Posts what has been copied: its end is told to nobody, and it never waits.
    pub(super) fn post_injected(self, spec: OpSpec, payload: Payload) -> Result<()> {
        let posted = self.post(spec, payload, Report::Nowhere, PostOptions::default());
        posted.map(drop).map_err(|(error, _)| error)
    }
}

/// An operation that was posted, and who has it until it ends.
pub(super) struct OpHandle {
    endpoint: Arc<dyn OpOwner>,
    /// Of an operation that a connectionless endpoint posted to a peer.
    port: Option<Arc<Port>>,
    key: OpKey,
}

impl OpHandle {
    /// The operation's name within its endpoint.
    pub(super) fn name(&self) -> OperationId {
        let key = self.key.to_bits();
        match &self.port {
            None => OperationId::own(key),
            Some(port) => OperationId::of_port(port.key().to_bits(), key),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match &self.port {
            None => self.endpoint.phase(self.key),
            Some(port) => port.phase(self.key),
        }
    }

    /// True if the operation has ended by this.
    pub(super) fn cancel(&self) -> bool {
        let withdrawn = match &self.port {
            None => self.endpoint.cancel(self.key),
            Some(port) => port.cancel(self.key),
        };
        withdrawn == Withdrawn::Ended
    }

    /// The operation's future is dropped (ruling 4).
    pub(super) fn withdraw(&self, cell: &OpCell) {
        match &self.port {
            None => self.endpoint.withdraw(self.key, cell),
            Some(port) => port.withdraw(self.key, cell),
        }
    }

    /// The waiter for its acceptance goes away.
    pub(super) fn withdraw_waiting(&self, cell: &OpCell) {
        match &self.port {
            None => self.endpoint.withdraw_waiting(self.key, cell),
            Some(port) => port.withdraw_waiting(self.key, cell),
        }
    }

    /// True if a receive reports who sent its message.
    pub(super) fn names_sources(&self) -> bool {
        self.endpoint.names_sources()
    }

    pub(super) fn source_name(&self, end: &End) -> Option<SourceName> {
        self.endpoint.source_name(end)
    }
}

/// Cancels the operation of this name, if the endpoint itself has it. True if it has ended by that.
pub(super) fn cancel_named(endpoint: &impl OpOwner, operation: OperationId) -> bool {
    let key = OpKey::from_bits(operation.key());
    operation.port().is_none() && endpoint.cancel(key) == Withdrawn::Ended
}

/// Makes the record of an operation, whose kind may depend on its memory's length.
#[inline]
pub(super) fn operation_of(
    kind: Result<OpKind>,
    payload: Payload,
    report: Report,
    options: PostOptions,
) -> Result<Operation<Report>, (Error, Payload)> {
    match kind {
        Ok(kind) => Ok(Operation::new(kind, payload, report, options)),
        Err(error) => Err((error, payload)),
    }
}
