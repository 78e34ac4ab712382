//! The targets that operations are posted to, and their owners until they end: each kind of
//! endpoint posts by [`PostEndpoint`], and an [`OpOwner`] owns posted operations.

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

use crate::sync::{ProgressList, ProgressWaiter};

use super::common::Common;
use super::peek::ClaimGuard;

/// A posted operation, and the port that owns it (`None`: the endpoint owns it); or the error and
/// the operation's memory.
pub(super) type PostResult = Result<(PostedOp, Option<Arc<Port>>), (Error, Payload)>;

/// An owner of posted operations until they end.
pub(super) trait OpOwner: Send + Sync {
    /// Returns how far an operation has got.
    fn phase(&self, key: OpKey) -> Phase;

    /// Asks an operation to end early.
    fn cancel(&self, key: OpKey) -> Withdrawn;

    /// Handles the drop of an operation's future (ruling 4).
    fn withdraw(&self, key: OpKey, awaited: AwaitedOp);

    /// Handles the drop of a future that waits for an operation's acceptance.
    fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp);
}

/// Makes a port or a receive context the owner of its operations, by its methods of the same names.
macro_rules! owns_operations {
    ($owner:ty) => {
        impl OpOwner for $owner {
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
owns_operations!(Port);
owns_operations!(DgramPort);
owns_operations!(ReceiveContext);

/// The operations of a kind of endpoint as a target of posts. If a connectionless endpoint posts an
/// operation to a peer, the peer's port owns it.
pub(super) trait PostEndpoint: Send + Sync {
    /// Returns the part that endpoints of every kind have.
    fn common(&self) -> &Common;

    /// Returns the owner of all other operations.
    fn own_operations(&self) -> &dyn OpOwner;

    /// Returns the port that copies small messages; only a connected endpoint has one.
    fn copying_port(&self) -> Option<&Port> {
        None
    }

    /// Returns the port to a peer, by the number that operation ids contain for it.
    fn port_named(&self, _name: u64) -> Option<Arc<Port>> {
        None
    }

    /// Posts an operation that has been checked.
    fn post(&self, scope: Scope, operation: OpRecord) -> PostResult;

    /// Returns the progress that tasks drive while they await the endpoint's operations, if it is
    /// more than that of its domain.
    fn readers_drive(&self) -> Option<&ProgressList> {
        None
    }

    /// Returns whether messages come from several peers, so that a receive reports its sender.
    fn names_sources(&self) -> bool {
        false
    }

    /// Returns the endpoint whose connection brought a message, if several share receives.
    fn endpoint_of(&self, _end: &OpEnd) -> Option<EndpointId> {
        None
    }

    /// Returns the known names of the sender of a message that was received here.
    fn source_name(&self, _end: &OpEnd) -> Option<SourceName> {
        None
    }
}

/// The peer or peers that an operation of an endpoint concerns.
pub(super) enum Scope {
    /// The one peer of a connected endpoint.
    Connection,
    /// The destination of a send, or the target of an RMA or atomic operation.
    Peer(FabricAddr),
    /// All peers or one, for a receive.
    Receives(Selector),
    /// A claimed message, which arrived before its receive.
    Claimed(ClaimGuard),
}

/// Criteria for the messages that a receive takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selector {
    pub(super) wanted: MatchCriteria,
    /// Takes messages from this peer only.
    pub(super) source: Option<FabricAddr>,
    /// Takes messages from the peers of this key only.
    pub(super) key: Option<AuthKeyAddr>,
    /// Takes several messages into the buffer, until fewer bytes than this are free.
    pub(super) free_min: Option<usize>,
}

impl Selector {
    /// Creates a selector for messages from any peer.
    pub(super) fn any(wanted: MatchCriteria) -> Self {
        Selector {
            wanted,
            source: None,
            key: None,
            free_min: None,
        }
    }

    /// Returns the capabilities that a receive with this selector needs. A source or a key is never
    /// ignored, although fi_msg(3) requires that without `FI_DIRECTED_RECV`: the receive would get
    /// another peer's message.
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

    /// Ignores these bits of the tag.
    pub(super) fn ignore(&mut self, mask: u64) {
        if let MatchCriteria::Tagged { ignore, .. } = &mut self.wanted {
            *ignore = mask;
        }
    }
}

/// The endpoint and the scope that an operation is posted to.
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

    /// Changes the criteria of a receive.
    pub(super) fn select(&mut self, select: impl FnOnce(&mut Selector)) {
        if let Scope::Receives(selector) = &mut self.scope {
            select(selector);
        }
    }

    pub(super) fn common(&self) -> &Common {
        self.endpoint.common()
    }

    /// Posts a copy of a small message that is awaited, and returns its number. `None`: the
    /// endpoint copies no messages, or has no room for one now, so the message is posted as an
    /// operation.
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

    /// Returns the handle by which the future of a copied message finds its end.
    pub(super) fn into_copied_send(self, number: u64) -> CopiedSend {
        let PostTarget { endpoint, .. } = self;
        CopiedSend { endpoint, number }
    }

    /// Returns the capabilities that an operation needs that is posted to this target.
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

    /// Returns the interface that an operation belongs to, as the flags of its completion name it
    /// in addition to the direction.
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

    /// Posts the operation, and returns the handle to ask about it.
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

/// A posted operation, by its key and its owner.
pub(super) struct OpHandle {
    endpoint: Arc<dyn PostEndpoint>,
    /// The owner, if a connectionless endpoint posted the operation to a peer.
    port: Option<Arc<Port>>,
    key: OpKey,
}

impl OpHandle {
    /// Returns the operation's id within its endpoint.
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

    /// Requests cancellation; returns whether that ended the operation.
    pub(super) fn cancel(&self) -> bool {
        self.owner().cancel(self.key) == Withdrawn::Ended
    }

    /// Handles the drop of the operation's future (ruling 4).
    pub(super) fn withdraw(&self, awaited: AwaitedOp) {
        self.owner().withdraw(self.key, awaited);
    }

    /// Handles the drop of a future that waits for the operation's acceptance.
    pub(super) fn withdraw_waiting(&self, awaited: &AwaitedOp) {
        self.owner().withdraw_waiting(self.key, awaited);
    }

    /// Returns whether a receive reports the sender of its message.
    pub(super) fn names_sources(&self) -> bool {
        self.endpoint.names_sources()
    }

    /// Creates the waiter of the operation's future.
    #[inline]
    pub(super) fn waiter(&self) -> ProgressWaiter {
        match self.readers_drive() {
            None => ProgressWaiter::new(self.endpoint.common().domain.progress_by_hand()),
            Some(_) => ProgressWaiter::default(),
        }
    }

    /// See [`PostEndpoint::readers_drive`].
    #[inline]
    pub(super) fn readers_drive(&self) -> Option<&ProgressList> {
        self.endpoint.readers_drive()
    }

    pub(super) fn source_name(&self, end: &OpEnd) -> Option<SourceName> {
        self.endpoint.source_name(end)
    }

    pub(super) fn endpoint_of(&self, end: &OpEnd) -> Option<EndpointId> {
        self.endpoint.endpoint_of(end)
    }
}

/// A small message that was copied when it was posted. It has ended when the connection's count has
/// passed its number.
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

    /// Creates the waiter of the message's future.
    pub(super) fn waiter(&self) -> ProgressWaiter {
        ProgressWaiter::new(self.endpoint.common().domain.progress_by_hand())
    }

    pub(super) fn phase(&self) -> Phase {
        self.port().sent_phase(self.number)
    }

    /// Requests cancellation; returns whether that ended the message.
    pub(super) fn cancel(&self) -> bool {
        self.port().cancel_sent(self.number) == Withdrawn::Ended
    }

    #[inline]
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<()>> {
        self.port().poll_sent(self.number, waker)
    }

    /// Handles the drop of the message's future (ruling 4), or its end with a failure.
    pub(super) fn forget(&self, ended: bool) {
        self.port().forget_sent(self.number, ended);
    }
}

/// Posts a receive, or a buffer for several messages, to receives that several connections share.
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

/// Returns the number of bytes that a buffer for several messages keeps free; `None` for a receive
/// of one message. The default flags make receives of messages such buffers, but not a receive with
/// a future, which ends with its message. `default` is the number of the endpoint or the context.
pub(super) fn free_min(
    common: &Common,
    selector: &Selector,
    operation: &OpRecord,
    default: usize,
) -> Option<usize> {
    let memory = operation.payload.as_ref();
    let takes_many = common.defaults.multi_recv
        && matches!(selector.wanted, MatchCriteria::Message)
        && matches!(operation.token, Report::Queue { .. })
        && !memory.is_some_and(Payload::is_on_arrival);
    selector.free_min.or(takes_many.then_some(default))
}

/// Posts the receive of a claimed message.
pub(super) fn post_claimed(
    receives: &ReceiveContext,
    claim: ClaimGuard,
    operation: OpRecord,
) -> PostResult {
    Ok((receives.receive_claimed(claim.take(), operation)?, None))
}

/// Returns the capabilities that a fence needs in addition.
#[inline]
pub(super) fn fence_caps(options: &PostOptions) -> Caps {
    match options.fence {
        true => Caps::FENCE,
        false => Caps::empty(),
    }
}

/// Returns the capabilities that an atomic operation needs here: the directions in which it moves
/// numbers.
pub(super) fn atomic_caps(call: AtomicCall) -> Caps {
    let only_reads = call.operation == AtomicOp::Read.to_number();
    Caps::ATOMIC
        | match call.form {
            AtomicForm::Update => Caps::WRITE,
            AtomicForm::Fetch if only_reads => Caps::READ,
            AtomicForm::Fetch | AtomicForm::Compare => Caps::READ | Caps::WRITE,
        }
}

/// Cancels the operation with this id, which the endpoint or one of its ports owns. Returns whether
/// that ended the operation.
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
