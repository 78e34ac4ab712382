//! Where operations are posted, and what owns them until they end: each kind of endpoint posts by
//! [`PostEndpoint`], and what owns posted operations is an [`OpOwner`].

use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Error, Phase, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr, OperationId};
use crate::info::Caps;
use crate::progress::{
    DgramPort, OpCell, Port, PostOptions, PostedOp, ReceiveContext, ReceiveSelector, Report,
};
use crate::proto::{MatchCriteria, OpKey, OpKind, OpResult, Operation, Withdrawn};

use crate::sync::ProgressWaiter;

use super::common::Common;
use super::peek::ClaimGuard;
use super::post::OpSpec;

/// A post, and the port that has the operation, if that is not the endpoint's own; or why not, and
/// the memory.
pub(super) type PostResult = Result<(PostedOp, Option<Arc<Port>>), (Error, Payload)>;

/// Owns posted operations until they end.
pub(super) trait OpOwner: Send + Sync {
    /// How far an operation has come.
    fn phase(&self, key: OpKey) -> Phase;

    /// Asks an operation to end early.
    fn cancel(&self, key: OpKey) -> Withdrawn;

    /// The future of an operation is dropped (ruling 4).
    fn withdraw(&self, key: OpKey, cell: &OpCell);

    /// The waiter for the acceptance of an operation goes away.
    fn withdraw_waiting(&self, key: OpKey, cell: &OpCell);
}

/// A port owns its operations: the kinds of port do the same by the same names.
macro_rules! port_owns_operations {
    ($port:ty) => {
        impl OpOwner for $port {
            fn phase(&self, key: OpKey) -> Phase {
                self.phase(key)
            }

            fn cancel(&self, key: OpKey) -> Withdrawn {
                self.cancel(key)
            }

            fn withdraw(&self, key: OpKey, cell: &OpCell) {
                self.withdraw(key, cell);
            }

            fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
                self.withdraw_waiting(key, cell);
            }
        }
    };
}
port_owns_operations!(Port);
port_owns_operations!(DgramPort);

/// What a kind of endpoint does with what is posted to it. Operations that a connectionless
/// endpoint posts to a peer are owned by the peer's port.
pub(super) trait PostEndpoint: Send + Sync {
    /// What endpoints of every kind have.
    fn common(&self) -> &Common;

    /// The owner of all other operations.
    fn own_operations(&self) -> &dyn OpOwner;

    /// The port that copies small messages: a connected endpoint's.
    fn copying_port(&self) -> Option<&Port> {
        None
    }

    /// The port to a peer by the name that operation names have of it.
    fn port_named(&self, _name: u64) -> Option<Arc<Port>> {
        None
    }

    /// Posts what is to be done with this memory.
    fn post(
        &self,
        scope: Scope,
        spec: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> PostResult;

    /// True if messages come from several peers, so that a receive reports from which.
    fn names_sources(&self) -> bool {
        false
    }

    /// The endpoint whose connection brought a message, where several share receives.
    fn endpoint_of(&self, _end: &OpResult) -> Option<EndpointId> {
        None
    }

    /// What is known of the sender of a message that was received here.
    fn source_name(&self, _end: &OpResult) -> Option<SourceName> {
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
    Claimed(ClaimGuard),
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selector {
    pub(super) wanted: MatchCriteria,
    /// Of this peer only.
    pub(super) source: Option<FabricAddr>,
    /// Of the peers of this key only.
    pub(super) key: Option<AuthKeyAddr>,
}

impl Selector {
    /// Of any peer.
    pub(super) fn any(wanted: MatchCriteria) -> Self {
        Selector {
            wanted,
            source: None,
            key: None,
        }
    }

    /// The capabilities that receiving these takes. Directed at one peer or key it is never
    /// ignored, as fi_msg(3) has it without `FI_DIRECTED_RECV`: that would deliver another peer's
    /// message.
    #[inline]
    pub(super) fn caps(&self) -> Caps {
        let message = match self.wanted {
            MatchCriteria::Message => Caps::MSG,
            MatchCriteria::Tagged { .. } => Caps::TAGGED,
        };
        let directed = match (self.source, self.key) {
            (None, None) => Caps::empty(),
            _ => Caps::DIRECTED_RECV,
        };
        message | Caps::RECV | directed
    }

    /// These bits of the tag do not matter.
    pub(super) fn ignore(&mut self, mask: u64) {
        if let MatchCriteria::Tagged { ignore, .. } = &mut self.wanted {
            *ignore = mask;
        }
    }
}

/// What an operation is to be posted to.
pub(super) struct PostTarget {
    endpoint: Arc<dyn PostEndpoint>,
    scope: Scope,
}

impl PostTarget {
    #[inline]
    pub(super) fn new(endpoint: &Arc<impl PostEndpoint + 'static>, scope: Scope) -> Self {
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

    /// Narrows what is received to the peers of one authorization key.
    pub(super) fn select_key(&mut self, key: AuthKeyAddr) {
        if let Scope::Receives(selector) = &mut self.scope {
            selector.key = Some(key);
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

    /// Posts a small message that is copied, and awaited. `None`: it is an operation, here or now.
    #[inline]
    pub(super) fn post_copied(
        &self,
        bytes: &[u8],
        data: Option<u64>,
        more: bool,
    ) -> Result<Option<CopiedSend>> {
        let Some(port) = self.endpoint.copying_port() else {
            return Ok(None);
        };
        let number = port.send_copied(bytes, data, more)?;
        Ok(number.map(|number| CopiedSend {
            endpoint: Arc::clone(&self.endpoint),
            number,
        }))
    }

    /// The capabilities that a receive takes which is posted to it.
    #[inline]
    pub(super) fn receive_caps(&self) -> Caps {
        match &self.scope {
            Scope::Receives(selector) => selector.caps(),
            Scope::Claimed(_) => Caps::TAGGED | Caps::RECV,
            Scope::Connection | Scope::Peer(_) => Caps::MSG | Caps::RECV,
        }
    }

    /// Posts, and says where to ask after the operation.
    #[inline]
    pub(super) fn post(
        self,
        spec: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> Result<(OpHandle, PostedOp), (Error, Payload)> {
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

    /// Posts what has been copied, which takes these capabilities: its end is only counted, and it
    /// never waits.
    pub(super) fn post_injected(self, need: Caps, spec: OpSpec, payload: Payload) -> Result<()> {
        self.common().caps.check(need)?;
        let posted = self.post(spec, payload, Report::Nowhere, PostOptions::default());
        posted.map(drop).map_err(|(error, _)| error)
    }
}

/// An operation that was posted, and where to find its owner.
pub(super) struct OpHandle {
    endpoint: Arc<dyn PostEndpoint>,
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

    fn owner(&self) -> &dyn OpOwner {
        match &self.port {
            None => self.endpoint.own_operations(),
            Some(port) => &**port,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.owner().phase(self.key)
    }

    /// True if the operation has ended by this.
    pub(super) fn cancel(&self) -> bool {
        self.owner().cancel(self.key) == Withdrawn::Ended
    }

    /// The operation's future is dropped (ruling 4).
    pub(super) fn withdraw(&self, cell: &OpCell) {
        self.owner().withdraw(self.key, cell);
    }

    /// The waiter for its acceptance goes away.
    pub(super) fn withdraw_waiting(&self, cell: &OpCell) {
        self.owner().withdraw_waiting(self.key, cell);
    }

    /// True if a receive reports who sent its message.
    pub(super) fn names_sources(&self) -> bool {
        self.endpoint.names_sources()
    }

    /// Of who awaits it.
    #[inline]
    pub(super) fn waiter(&self) -> ProgressWaiter {
        ProgressWaiter::new(self.endpoint.common().domain.progress_by_hand())
    }

    pub(super) fn source_name(&self, end: &OpResult) -> Option<SourceName> {
        self.endpoint.source_name(end)
    }

    pub(super) fn endpoint_of(&self, end: &OpResult) -> Option<EndpointId> {
        self.endpoint.endpoint_of(end)
    }
}

/// A small message that was copied when it was posted: its end is a number that its connection
/// passes.
pub(super) struct CopiedSend {
    endpoint: Arc<dyn PostEndpoint>,
    number: u64,
}

impl CopiedSend {
    fn port(&self) -> &Port {
        let port = self.endpoint.copying_port();
        port.expect("the endpoint that has copied it has a port")
    }

    pub(super) fn name(&self) -> OperationId {
        OperationId::copied(self.number)
    }

    /// Of who awaits it.
    pub(super) fn waiter(&self) -> ProgressWaiter {
        ProgressWaiter::new(self.endpoint.common().domain.progress_by_hand())
    }

    pub(super) fn phase(&self) -> Phase {
        self.port().sent_phase(self.number)
    }

    /// True if it has ended by this.
    pub(super) fn cancel(&self) -> bool {
        self.port().cancel_sent(self.number) == Withdrawn::Ended
    }

    #[inline]
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        self.port().poll_sent(self.number, waker)
    }

    /// Its future is dropped (ruling 4), or has ended with a failure.
    pub(super) fn forget(&self, ended: bool) {
        self.port().forget_sent(self.number, ended);
    }
}

/// Posts a receive, or a buffer for several messages, to receives that connections share.
pub(super) fn post_receive(
    receives: &ReceiveContext,
    selector: ReceiveSelector,
    spec: &OpSpec,
    payload: Payload,
    report: Report,
    options: PostOptions,
) -> PostResult {
    let posted = match *spec {
        OpSpec::ReceiveMany { free_min } => {
            let Report::Queue { context, .. } = report else {
                unreachable!("a buffer for several messages is posted through a queue");
            };
            receives.post_multi(selector, payload, context, free_min, options)?
        }
        _ => receives.post(selector, payload, report, options)?,
    };
    Ok((posted, None))
}

/// Cancels the operation of this name, which the endpoint or one of its ports owns. True if it has
/// ended by that.
pub(super) fn cancel_named(endpoint: &impl PostEndpoint, operation: OperationId) -> bool {
    let key = OpKey::from_bits(operation.key());
    if let Some(number) = operation.copied_number() {
        let port = endpoint.copying_port();
        return port.is_some_and(|it| it.cancel_sent(number) == Withdrawn::Ended);
    }
    let withdrawn = match operation.port() {
        None => endpoint.own_operations().cancel(key),
        Some(name) => match endpoint.port_named(name) {
            Some(port) => port.cancel(key),
            None => Withdrawn::Gone,
        },
    };
    withdrawn == Withdrawn::Ended
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
