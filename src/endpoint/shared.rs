//! Receive contexts that endpoints share (`fi_srx_context`; `fi_endpoint(3)`).

mod builder;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::av::AddressVector;
use crate::buf::{IoBufMut, IoBufsMut};
use crate::cntr::Counter;
use crate::cq::{CompletionQueue, SourceName};
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, OperationId};
use crate::progress::{OpRecord, ReceiveSelector, SharedContext};
use crate::proto::{MatchCriteria, OpEnd};
use crate::stats::ReceiveContextStats;
use crate::sync::{Dependence, Dependents, DomainScope, ProgressList};

use super::common::Common;
use super::sources::SourceNames;
use super::target::{
    OpOwner, PostEndpoint, PostResult, PostTarget, Scope, Selector, cancel_named, free_min,
    post_claimed, post_receive,
};
use super::{MultiRecv, RecvFrom, RecvTagged};

pub use builder::SharedReceiveContextBuilder;

/// Receives that endpoints share (`fi_srx_context`, `struct fid_ep`): connected endpoints
/// ([`Domain::receive_context`]) or connectionless ones ([`Domain::rdm_receive_context`]).
///
/// A receive posted to the context takes the next message of any endpoint that was opened with it
/// ([connected](crate::ep::EndpointBuilder::receive_context),
/// [connectionless](crate::rdm::RdmEndpointBuilder::receive_context)). A server with ten thousand
/// mostly idle connections then needs a few hundred posted receives instead of ten thousand; with
/// [`multi_recv`](Self::multi_recv) one post even serves many small messages.
///
/// Messages of one connection are matched in the order in which they were sent, and a receive takes
/// the oldest message that no other has taken. A completion says whose connection brought its
/// message ([`Completion::endpoint`](crate::Completion::endpoint)), and an awaited receive says so
/// in [`Received::endpoint`](crate::op::Received::endpoint). If a connection is lost in the middle
/// of a message, the receive that was being filled is posted again, in its old place.
///
/// Connectionless endpoints of a context have one address vector. A receive can be restricted to
/// one peer ([`from`](crate::op::Posting::from)), whose messages it then takes to whichever
/// endpoint they come, and [`Received::source`](crate::op::Received::source) contains the sender.
///
/// Messages that arrive before a receive are buffered within a
/// [budget](SharedReceiveContextBuilder::unexpected_bytes) for all connections and one for each.
/// Beyond it a peer that uses this library holds its messages back or only announces them, while
/// its RMA and acknowledgements continue. From any other peer the endpoint reads nothing more until
/// a receive is posted; other peers are not affected.
///
/// Receives report to the context's queue and counter. (According to fi_endpoint(3) they report to
/// those of the endpoint whose message they take. Here the slot of a completion is reserved at the
/// post, when that endpoint is not known yet.)
///
/// Clones are handles to the same context. When the last handle and the last endpoint opened with
/// the context have been dropped, the remaining receives fail with Canceled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Event, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new())?;
/// let domain = fabric.domain().open()?;
/// let context = domain.receive_context().open()?;
/// # let events = fabric.event_queue().open()?;
/// # let listener = fabric.passive_endpoint(&events).listen_at(([127, 0, 0, 1], 0).into())?;
/// # let client = domain.endpoint().open()?;
/// # let connecting = tokio::spawn(client.connect(listener.local_addr()).into_future());
/// # let Some(Event::ConnRequest(request)) = events.next().await else { unreachable!() };
/// let server = domain.endpoint().receive_context(&context).open()?;
/// server.accept(request).await?;
/// # connecting.await.unwrap()?;
///
/// let receive = context.recv(vec![0; 64]).post()?; // Of whichever connection.
/// client.send("hello").await?;
/// let (received, bytes) = receive.await?;
/// assert_eq!(&bytes[..received.len], b"hello");
/// assert_eq!(received.endpoint, Some(server.id()));
/// # Ok(()) }
/// ```
#[doc(alias("fi_srx_context", "FI_SHARED_CONTEXT"))]
#[derive(Clone)]
pub struct SharedReceiveContext {
    pub(super) inner: Arc<ContextInner>,
}

pub(super) struct ContextInner {
    context: Arc<SharedContext>,
    dependents: Dependents,
    /// The progress that tasks drive while they await receives of the context.
    driven: ProgressList,
    /// Bytes that a buffer for several messages keeps free for the next one
    /// (`FI_OPT_MIN_MULTI_RECV`).
    free_min: usize,
    receive_counter: Option<Counter>,
    /// The names of the senders; `None` if connected endpoints share the context.
    pub(super) names: Option<Arc<SourceNames>>,
    pub(super) common: Common,
}

impl PostEndpoint for ContextInner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(&self, scope: Scope, mut operation: OpRecord) -> PostResult {
        let receives = self.context.receives();
        match scope {
            Scope::Receives(selector) => match self.resolve_selector(selector) {
                Ok(resolved) => {
                    let free_min = free_min(&self.common, &selector, &operation, self.free_min);
                    post_receive(receives, resolved, free_min, operation)
                }
                Err(error) => Err((error, operation.take_payload())),
            },
            Scope::Claimed(claim) => post_claimed(receives, claim, operation),
            Scope::Connection | Scope::Peer(_) => {
                unreachable!("only receives are posted to a receive context")
            }
        }
    }

    fn own_operations(&self) -> &dyn OpOwner {
        &**self.context.receives()
    }

    fn readers_drive(&self) -> Option<&ProgressList> {
        Some(&self.driven)
    }

    fn names_sources(&self) -> bool {
        true
    }

    fn endpoint_of(&self, end: &OpEnd) -> Option<EndpointId> {
        Some(end.connection()?.endpoint)
    }

    fn source_name(&self, end: &OpEnd) -> Option<SourceName> {
        Some(self.names.as_ref()?.reported_name(end.source()?))
    }
}

impl ContextInner {
    /// Returns whether the context is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.dependents.is_closed()
    }

    /// From now on, reading the receive queue and awaiting receives drive the domain of this scope,
    /// including receives that are awaited already. (An endpoint that shares the context may have
    /// another queue.)
    pub(super) fn drive(&self, scope: &DomainScope) {
        let progress = scope.progress();
        self.common.receive_queue.drive(progress);
        let receives = self.context.receives();
        self.driven.add(progress, || receives.wake_awaited());
    }

    /// Resolves a selector for the receives.
    pub(super) fn resolve_selector(&self, selector: Selector) -> Result<ReceiveSelector> {
        let Selector {
            wanted,
            source,
            key,
            ..
        } = selector;
        if key.is_some() {
            let what = "from_key: endpoints whose peers have keys of their own share no receives";
            return Err(Error::new(ErrorKind::BadFlags, what));
        }
        let source = match (source, &self.names) {
            (None, _) => None,
            (Some(peer), Some(names)) => {
                let vector = &names.vector;
                let peer = vector.peer_addr(peer)?;
                let is_known = |peer| vector.find(peer).is_some();
                Some(self.context.source_of(peer, is_known))
            }
            (Some(_), None) => {
                let what = "from: connected endpoints share the context, not addresses";
                return Err(Error::new(ErrorKind::BadFlags, what));
            }
        };
        Ok(ReceiveSelector { wanted, source })
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        self.context.begin_close();
    }
}

impl SharedReceiveContext {
    /// Statistics: its receives, and the messages that wait for them.
    pub fn stats(&self) -> ReceiveContextStats {
        self.inner.context.receives().stats()
    }

    /// The id of this context in completions that belong to no message: the release of a buffer for
    /// several messages, and a cancelled receive.
    pub fn id(&self) -> EndpointId {
        self.inner.common.id
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        &self.inner.common.domain
    }

    /// The address vector of the connectionless endpoints that share it; `None` if connected
    /// endpoints do.
    pub fn address_vector(&self) -> Option<&AddressVector> {
        Some(&self.names()?.vector)
    }

    /// The queue for the completions of its receives. A context that was opened without one has its
    /// own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of unexpected messages of all connections that are currently kept, each with its
    /// overhead.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.context.receives().unexpected_bytes()
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) of any endpoint that shares the context, into
    /// one buffer, or up to four. Otherwise as [`Endpoint::recv`](crate::Endpoint::recv) or
    /// [`RdmEndpoint::recv`](crate::RdmEndpoint::recv), except that the end of a connection does
    /// not end a receive that is not restricted to its peer.
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> RecvFrom<B> {
        RecvFrom::receive(self.target(MatchCriteria::Message), buffers, None)
    }

    /// Receives one message of at most `max` bytes whose length is unknown (`FI_VARIABLE_MSG`), of
    /// any endpoint that shares the context, as [`Endpoint::recv_any`](crate::Endpoint::recv_any)
    /// does.
    pub fn recv_any(&self, max: usize) -> RecvFrom<Bytes> {
        RecvFrom::receive(self.target(MatchCriteria::Message), Bytes::new(), Some(max))
    }

    /// Posts a buffer that receives messages of any endpoint that shares the context, one after
    /// another (`FI_MULTI_RECV`); see [`RdmEndpoint::multi_recv`](crate::RdmEndpoint::multi_recv).
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn multi_recv<B: IoBufMut>(&self, buffer: B) -> MultiRecv<B> {
        MultiRecv::receive(self.target(MatchCriteria::Message), buffer, None)
            .min_free(self.inner.free_min)
    }

    /// Receives one message with this tag (`fi_trecv`, `fi_trecvv`) of any endpoint that shares the
    /// context. Otherwise as [`RdmEndpoint::recv_tagged`](crate::RdmEndpoint::recv_tagged).
    ///
    /// # Errors
    /// [`ErrorKind::NoCapability`] in a context of connected endpoints, which have no tagged
    /// messages.
    pub fn recv_tagged<B: IoBufsMut>(&self, buffers: B, tag: u64) -> RecvTagged<B> {
        let wanted = MatchCriteria::Tagged { tag, ignore: 0 };
        RecvTagged::receive(self.target(wanted), buffers, None)
    }

    /// Receives one message with this tag of at most `max` bytes whose length is unknown
    /// (`FI_VARIABLE_MSG`); as [`recv_tagged`](Self::recv_tagged) and
    /// [`recv_any`](Self::recv_any).
    pub fn recv_any_tagged(&self, tag: u64, max: usize) -> RecvTagged<Bytes> {
        let wanted = MatchCriteria::Tagged { tag, ignore: 0 };
        RecvTagged::receive(self.target(wanted), Bytes::new(), Some(max))
    }

    fn target(&self, wanted: MatchCriteria) -> PostTarget {
        PostTarget::new(&self.inner, Scope::Receives(Selector::any(wanted)))
    }

    /// Requests cancellation of a queued receive (`fi_cancel`). Returns `true` if no message was
    /// matched to it; its completion then has the error Canceled. Returns `false` if a message was
    /// matched to it, or if it has completed.
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Closes the context (`fi_close`): posted receives fail with Canceled, and unexpected messages
    /// are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while endpoints that were opened with the context are open; the message
    /// names them, and the context continues as before.
    pub fn close(&self) -> Result<()> {
        let closed = self.inner.dependents.close();
        closed.map_err(|names| {
            Error::new(ErrorKind::Busy, format!("the receive context is {names}"))
        })?;
        self.inner.context.begin_close();
        Ok(())
    }

    /// Returns whether the context is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Returns the names of the senders, if connectionless endpoints share the context.
    pub(super) fn names(&self) -> Option<&Arc<SourceNames>> {
        self.inner.names.as_ref()
    }

    /// Returns whether connectionless endpoints share the context.
    pub(super) fn is_connectionless(&self) -> bool {
        self.inner.names.is_some()
    }

    /// Returns the counter of the context's receives.
    pub(super) fn receive_counter(&self) -> Option<&Counter> {
        self.inner.receive_counter.as_ref()
    }

    /// Keeps the context from being closed until the returned value is dropped.
    pub(super) fn depend(&self, scope: &DomainScope, name: Arc<str>) -> Result<Dependence> {
        scope.check("receive context", self.domain().scope().own())?;
        let closed = || Error::new(ErrorKind::BadState, "the receive context is closed");
        let dependence = self.inner.dependents.depend(name).ok_or_else(closed)?;
        self.inner.drive(scope);
        Ok(dependence)
    }

    pub(super) fn context(&self) -> &Arc<SharedContext> {
        &self.inner.context
    }
}

impl fmt::Debug for SharedReceiveContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveContext")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
