//! Where operations are posted, and what owns them until they end: each kind of endpoint posts by
//! [`PostEndpoint`], and what owns posted operations is an [`OpOwner`].

use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::buf::Payload;
use crate::cq::{CompletionFlags, SourceName};
use crate::error::{Error, Phase, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr, OperationId};
use crate::info::{AtomicOp, Caps};
use crate::progress::{
    AwaitedOp, DgramPort, OpRecord, Port, PostOptions, PostedOp, ReceiveContext, ReceiveSelector,
    Report,
};
use crate::proto::{MatchCriteria, OpEnd, OpKey, OpKind, Withdrawn};
use crate::wire::{AtomicCall, AtomicForm};

use crate::sync::ProgressWaiter;

use super::common::Common;
use super::peek::ClaimGuard;

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
    fn withdraw(&self, key: OpKey, awaited: AwaitedOp);

    /// The waiter for the acceptance of an operation goes away.
    fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp);
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

            fn withdraw(&self, key: OpKey, awaited: AwaitedOp) {
                self.withdraw(key, awaited);
            }

            fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
                self.withdraw_waiting(key, awaited);
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

    /// Posts an operation, which was checked.
    fn post(&self, scope: Scope, operation: OpRecord) -> PostResult;

    /// True if messages come from several peers, so that a receive reports from which.
    fn names_sources(&self) -> bool {
        false
    }

    /// The endpoint whose connection brought a message, where several share receives.
    fn endpoint_of(&self, _end: &OpEnd) -> Option<EndpointId> {
        None
    }

    /// What is known of the sender of a message that was received here.
    fn source_name(&self, _end: &OpEnd) -> Option<SourceName> {
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
    /// One after another in the same buffer, until fewer bytes than these are left.
    pub(super) free_min: Option<usize>,
}

impl Selector {
    /// Of any peer.
    pub(super) fn any(wanted: MatchCriteria) -> Self {
        Selector {
            wanted,
            source: None,
            key: None,
            free_min: None,
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
        let many = match self.free_min {
            None => Caps::empty(),
            Some(_) => Caps::MULTI_RECV,
        };
        message | Caps::RECV | directed | many
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

    /// Changes which messages are received.
    pub(super) fn select(&mut self, select: impl FnOnce(&mut Selector)) {
        if let Scope::Receives(selector) = &mut self.scope {
            select(selector);
        }
    }

    pub(super) fn common(&self) -> &Common {
        self.endpoint.common()
    }

    /// Posts a small message that is copied, and awaited, and gives its number. `None`: it is an
    /// operation, here or now.
    #[inline]
    pub(super) fn post_copied(
        &self,
        bytes: &[u8],
        data: Option<u64>,
        more: bool,
    ) -> Result<Option<u64>> {
        match self.endpoint.copying_port() {
            Some(port) => port.send_copied(bytes, data, more),
            None => Ok(None),
        }
    }

    /// Where the future of a copied message looks.
    pub(super) fn into_copied_send(self, number: u64) -> CopiedSend {
        let PostTarget { endpoint, .. } = self;
        CopiedSend { endpoint, number }
    }

    /// The capabilities that an operation takes which is posted to it.
    #[inline]
    pub(super) fn caps(&self, operation: &OpKind, options: &PostOptions) -> Caps {
        fence_caps(options)
            | match operation {
                OpKind::Send { tag, .. } | OpKind::Inject { tag, .. } => match tag {
                    None => Caps::MSG | Caps::SEND,
                    Some(_) => Caps::TAGGED | Caps::SEND,
                },
                OpKind::Receive => self.receive_caps(),
                OpKind::Write { commit: true, .. } => Caps::RMA | Caps::WRITE | Caps::RMA_PMEM,
                OpKind::Write { .. } => Caps::RMA | Caps::WRITE,
                OpKind::Read { .. } => Caps::RMA | Caps::READ,
                OpKind::Atomic(request) => atomic_caps(request.call),
            }
    }

    #[inline]
    fn receive_caps(&self) -> Caps {
        match &self.scope {
            Scope::Receives(selector) => selector.caps(),
            Scope::Claimed(claim) if claim.is_tagged() => Caps::TAGGED | Caps::RECV,
            Scope::Claimed(_) | Scope::Connection | Scope::Peer(_) => Caps::MSG | Caps::RECV,
        }
    }

    /// Of which interface an operation is: what its completion's flags say beside the direction.
    pub(super) fn interface(&self, operation: &OpKind) -> CompletionFlags {
        let message = |is_tagged| match is_tagged {
            true => CompletionFlags::TAGGED,
            false => CompletionFlags::MSG,
        };
        match operation {
            OpKind::Send { tag, .. } | OpKind::Inject { tag, .. } => message(tag.is_some()),
            OpKind::Write { .. } | OpKind::Read { .. } => CompletionFlags::RMA,
            OpKind::Atomic(_) => CompletionFlags::ATOMIC,
            OpKind::Receive => match &self.scope {
                Scope::Claimed(claim) => message(claim.is_tagged()) | CompletionFlags::CLAIM,
                Scope::Receives(selector) => message(selector.wanted != MatchCriteria::Message),
                Scope::Connection | Scope::Peer(_) => CompletionFlags::MSG,
            },
        }
    }

    /// Posts, and says where to ask after the operation.
    #[inline]
    pub(super) fn post(
        self,
        operation: OpRecord,
    ) -> Result<(OpHandle, PostedOp), (Error, Payload)> {
        let PostTarget { endpoint, scope } = self;
        let (posted, port) = endpoint.post(scope, operation)?;
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
    pub(super) fn withdraw(&self, awaited: AwaitedOp) {
        self.owner().withdraw(self.key, awaited);
    }

    /// The waiter for its acceptance goes away.
    pub(super) fn withdraw_waiting(&self, awaited: &AwaitedOp) {
        self.owner().withdraw_waiting(self.key, awaited);
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

    pub(super) fn source_name(&self, end: &OpEnd) -> Option<SourceName> {
        self.endpoint.source_name(end)
    }

    pub(super) fn endpoint_of(&self, end: &OpEnd) -> Option<EndpointId> {
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
    free_min: Option<usize>,
    operation: OpRecord,
) -> PostResult {
    let posted = match (free_min, &operation.token) {
        (Some(free_min), Report::Queue { .. }) => {
            receives.post_multi(selector, operation, free_min)?
        }
        _ => receives.post(selector, operation)?,
    };
    Ok((posted, None))
}

/// Posts the receive of a claimed message.
pub(super) fn post_claimed(
    receives: &ReceiveContext,
    claim: ClaimGuard,
    operation: OpRecord,
) -> PostResult {
    Ok((receives.receive_claimed(claim.take(), operation)?, None))
}

/// What a fence takes besides.
#[inline]
pub(super) fn fence_caps(options: &PostOptions) -> Caps {
    match options.fence {
        true => Caps::FENCE,
        false => Caps::empty(),
    }
}

/// The capabilities that an atomic operation takes here: the directions in which it moves numbers.
pub(super) fn atomic_caps(call: AtomicCall) -> Caps {
    let only_reads = call.operation == AtomicOp::Read.to_number();
    Caps::ATOMIC
        | match call.form {
            AtomicForm::Update => Caps::WRITE,
            AtomicForm::Fetch if only_reads => Caps::READ,
            AtomicForm::Fetch | AtomicForm::Compare => Caps::READ | Caps::WRITE,
        }
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
