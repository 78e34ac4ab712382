//! Connectionless endpoints (`FI_EP_RDM`; `fi_endpoint(3)`).

mod builder;
mod opening;
mod peer_keys;
mod ports;
mod scalable;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::av::{self, AddressVector};
use crate::buf::Payload;
use crate::cq::{CompletionQueue, SourceName};
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr, OperationId, reaches};
use crate::info::Caps;
use crate::limits::RDM_POST_ATTEMPTS;
use crate::path::{NotLocal, Path};
use crate::progress::{
    CloseWatch, OpRecord, PeerReader, Port, PostedOp, Rdm, ReceiveContext, ReceiveSelector,
};
use crate::proto::{OpEnd, SourceId};
use crate::stats::{EndpointStats, ListenerStats};
use crate::sync::await_driving;

use super::SharedReceiveContext;
use super::common::Common;
use super::sources::SourceNames;
use super::target::{
    OpOwner, PostEndpoint, PostResult, Scope, Selector, cancel_named, free_min, post_claimed,
    post_receive,
};
use ports::Ports;

pub use builder::RdmEndpointBuilder;
pub use scalable::{ScalableEndpoint, ScalableEndpointBuilder};

/// A reliable, connectionless endpoint (`FI_EP_RDM`; `struct fid_ep`): it sends to any peer of its
/// address vector, and receives from all.
///
/// The endpoint listens from the moment it is opened. The first operation to a peer opens a
/// connection, which carries both directions; operations that are posted meanwhile wait for the
/// connection. If the peer cannot be reached within a
/// [deadline](RdmEndpointBuilder::connect_deadline), the waiting operations fail with
/// [`Unreachable`](ErrorKind::Unreachable). If a connection is lost, its operations fail with the
/// cause, nothing is sent again automatically, and the next operation reconnects.
///
/// Receives belong to the endpoint: each takes the first message that matches it, from any sender.
/// Messages from one peer are matched in the order in which they were sent; an operation to one
/// peer never waits for another peer. If a receive is dropped or times out after the bytes of a
/// [large](RdmEndpointBuilder::rendezvous_min) message have been requested, the message is buffered
/// for the next receive; smaller messages sent later may have been received by then.
///
/// Messages that arrive before their receive are buffered within a
/// [budget](RdmEndpointBuilder::unexpected_bytes) for all peers and one for each peer. Beyond it a
/// peer that uses this library holds its messages back or only announces them, while its RMA and
/// acknowledgements continue. From any other peer, and from all peers if there is a
/// [limit for messages](RdmEndpointBuilder::max_message_size), the endpoint reads nothing more
/// until a receive is posted; other peers are not affected.
///
/// Clones are handles to the same endpoint. Dropping the last one closes the endpoint (`fi_close`):
/// posted operations are sent first, for at most a few seconds.
///
/// ```
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Rdm))?;
/// let domain = fabric.domain().open()?;
/// let open = || domain.rdm_endpoint().listen_at(([127, 0, 0, 1], 0).into()).open();
/// let (a, b) = (open()?, open()?);
/// let to_b = a.insert(b.local_addr())?;
/// a.send("hello", to_b).await?; // It connects.
/// let (received, _buffer) = b.recv(vec![0; 64]).await?;
/// assert_eq!(received.source_addr, Some(a.local_addr()));
/// # Ok(()) }
/// ```
#[doc(alias("FI_EP_RDM", "FI_PROTO_XNET"))]
#[derive(Clone)]
pub struct RdmEndpoint {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    rdm: Arc<Rdm>,
    pub(super) receives: Arc<ReceiveContext>,
    /// The context that the receives are of, if the endpoint shares one.
    shared: Option<SharedReceiveContext>,
    ports: Ports,
    pub(super) names: Arc<SourceNames>,
    /// The authorization keys of the peers, if peers have keys of their own.
    key_names: Box<[AuthKeyAddr]>,
    /// Bytes that a buffer for several messages keeps free for the next one
    /// (`FI_OPT_MIN_MULTI_RECV`).
    pub(super) free_min: usize,
    pub(super) common: Common,
}

impl PostEndpoint for Inner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(&self, scope: Scope, mut operation: OpRecord) -> PostResult {
        match scope {
            Scope::Peer(peer) => {
                let (port, posted) = self.post_to(peer, operation)?;
                Ok((posted, Some(port)))
            }
            Scope::Receives(selector) => match self.resolve_selector(selector) {
                Ok(resolved) => {
                    let free_min = free_min(&self.common, &selector, &operation, self.free_min);
                    post_receive(&self.receives, resolved, free_min, operation)
                }
                Err(error) => Err((error, operation.take_payload())),
            },
            Scope::Claimed(claim) => post_claimed(&self.receives, claim, operation),
            Scope::Connection => unreachable!("a connectionless endpoint has many peers"),
        }
    }

    fn own_operations(&self) -> &dyn OpOwner {
        &*self.receives
    }

    fn port_named(&self, name: u64) -> Option<Arc<Port>> {
        let port = self.rdm.port_named(name);
        port.filter(|port| port.id() == self.common.id)
    }

    fn names_sources(&self) -> bool {
        true
    }

    fn source_name(&self, end: &OpEnd) -> Option<SourceName> {
        Some(self.names.reported_name(end.source()?))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.rdm.begin_close();
    }
}

impl RdmEndpoint {
    /// The id of this endpoint in completions.
    pub fn id(&self) -> EndpointId {
        self.inner.common.id
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        &self.inner.common.domain
    }

    /// The address at which it listens, with the port that was chosen (`fi_getname`): peers insert
    /// it into their address vectors.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.rdm.local_addr()
    }

    #[cfg(test)]
    pub(crate) fn rdm(&self) -> &Arc<Rdm> {
        &self.inner.rdm
    }

    /// The address vector it is bound to (`fi_ep_bind`).
    pub fn address_vector(&self) -> &AddressVector {
        &self.inner.names.vector
    }

    /// The queue for this endpoint's receive completions and for those without a posted operation:
    /// parts of [`multi_recv`](Self::multi_recv) buffers, and peers' writes with remote CQ data. An
    /// endpoint that was opened without one has its own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of unexpected messages from all peers that are currently kept, each with its overhead;
    /// if the endpoint shares a receive context, those of all its endpoints.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.receives.unexpected_bytes()
    }

    /// Statistics over all connections: completed and outstanding operations. Receives that the
    /// endpoint shares are among the
    /// [context's](crate::ep::SharedReceiveContext::stats) until they have got a message.
    pub fn stats(&self) -> EndpointStats {
        let mut stats = self.inner.rdm.stats();
        if self.inner.shared.is_some() {
            return stats;
        }
        let here = self.inner.receives.stats();
        stats.receives = here.receives;
        stats.operations.receives.add(&here.ended);
        stats
    }

    /// Latencies of one in 64 of the operations for transmission that have completed since the last
    /// call. Latencies of connections that have ended are lost.
    #[cfg(feature = "metrics")]
    pub fn take_latencies(&self) -> Vec<crate::stats::LatencySample> {
        self.inner.rdm.take_latencies()
    }

    /// Statistics of the endpoint's listener; contexts of a [`ScalableEndpoint`] share it.
    pub fn listener_stats(&self) -> ListenerStats {
        self.inner.rdm.listener_stats()
    }

    /// Finds or inserts the peer at this address, a name or number and a port (`host:7471`,
    /// `[fe80::1%eth0]:7471`), in the address vector. A name stands for its first address that the
    /// endpoint can reach: an address of the endpoint's own IP version, or of either version if the
    /// endpoint listens at `[::]`.
    ///
    /// # Errors
    /// [`ErrorKind::NoMatch`] with the message of the system's resolver;
    /// [`ErrorKind::InvalidArgument`] for a text that is not an address with a port; the errors of
    /// [`insert`](Self::insert).
    ///
    /// # Cancel safety
    /// Cancel safe: if the future is dropped before it completes, nothing is inserted.
    pub async fn resolve(&self, node: &str) -> Result<FabricAddr> {
        if let Ok(address) = node.parse() {
            return self.insert(address);
        }
        let named = node.rsplit_once(':');
        let named = named.and_then(|(name, port)| Some((name, port.parse().ok()?)));
        let Some((name, port)) = named else {
            let what = format!("{node:?} is no name or number with a port");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        // The system's resolver also knows the number of a zone that is an interface's name.
        let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let name = bare.unwrap_or(name).to_owned();
        let own = self.local_addr();
        let look = move || av::look_up(&name, |address| reaches(own, address));
        let looking = look_up(self.domain(), look);
        let mut found = await_driving(self.domain().progress_by_hand(), looking).await?;
        found.set_port(port);
        self.insert(found)
    }

    /// Finds or inserts the peer at this address in the address vector.
    ///
    /// # Errors
    /// The errors of [`AddressVector::insert`], for an address that cannot be a peer's and for a
    /// vector that is full, closed, or requires user identifiers; [`ErrorKind::AccessDenied`] for
    /// an address that is not in a vector opened for read-only access.
    #[doc(alias = "fi_av_insert")]
    pub fn insert(&self, address: SocketAddr) -> Result<FabricAddr> {
        use ErrorKind::{AccessDenied, AddressInUse};
        let vector = &self.inner.names.vector;
        match vector.insert(address).now() {
            // The vector may have the address already, even if it is read-only.
            Err(error) if matches!(error.kind(), AddressInUse | AccessDenied) => {
                vector.fabric_addr(address).ok_or(error)
            }
            inserted => inserted,
        }
    }

    /// Requests cancellation of an operation (`fi_cancel`). Returns `true` if the operation had not
    /// started; it fails with Canceled. Returns `false` if the operation has started, and runs to
    /// completion, or has completed.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Requests cancellation of all operations posted to this peer. Those that had not started fail
    /// with Canceled; returns their number. Operations to other peers, and receives, are not
    /// affected.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an address that was removed or belongs to another vector.
    pub fn cancel_all(&self, peer: FabricAddr) -> Result<usize> {
        let peer = self.inner.names.vector.peer_addr(peer)?;
        Ok(match self.inner.rdm.port_of(peer) {
            Some(port) => port.cancel_all(),
            None => 0,
        })
    }

    /// The path of the bytes to and from this peer: through the network, with the reason, or
    /// through shared memory
    /// ([`DomainBuilder::local_path`](crate::domain::DomainBuilder::local_path)).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]: the address vector does not have the peer.
    pub fn path(&self, peer: FabricAddr) -> Result<Path> {
        let peer = self.inner.names.vector.peer_addr(peer)?;
        let port = self.inner.rdm.port_of(peer);
        Ok(port.map_or(Path::Network(NotLocal::NotConnected), |it| it.path()))
    }

    /// Closes the connection with this peer gracefully, if there is one: posted operations are sent
    /// first, as described at [`Endpoint::shutdown`](crate::Endpoint::shutdown). Does not wait. The
    /// next operation in either direction reconnects.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an address that was removed or belongs to another vector.
    pub fn disconnect(&self, peer: FabricAddr) -> Result<()> {
        let peer = self.inner.names.vector.peer_addr(peer)?;
        self.inner.rdm.disconnect(peer);
        Ok(())
    }

    /// Closes the endpoint gracefully: it stops listening and closes each connection as described
    /// at [`Endpoint::shutdown`](crate::Endpoint::shutdown). Posted receives take the messages that
    /// still arrive, and then fail with Canceled; receives that it shares continue.
    ///
    /// A peer that neither reads nor answers delays this by at most 5 s.
    ///
    /// # Errors
    /// None. Each operation reports its own result.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the endpoint closes even if the future is dropped.
    pub async fn shutdown(&self) -> Result<()> {
        let rdm = &self.inner.rdm;
        rdm.begin_close();
        await_driving(self.domain().progress_by_hand(), rdm.closed()).await;
        Ok(())
    }

    pub(super) fn read_peers(&self) -> PeerReader {
        self.inner.rdm.read_peers()
    }

    /// Returns whether the graceful close has begun.
    pub(super) fn is_closing(&self) -> bool {
        self.inner.rdm.is_closing()
    }
}

impl Inner {
    /// Posts to a peer, over the existing connection or a new one. A connection that is just ending
    /// refuses the post without any effect, and the post goes to the next connection.
    fn post_to(
        &self,
        peer: FabricAddr,
        mut operation: OpRecord,
    ) -> Result<(Arc<Port>, PostedOp), (Error, Payload)> {
        let mut tries = RDM_POST_ATTEMPTS;
        loop {
            let port = match self.port_to(peer) {
                Ok(port) => port,
                Err(error) => return Err((error, operation.take_payload())),
            };
            tries -= 1;
            match port.post(operation) {
                Ok(posted) => return Ok((port, posted)),
                Err(refused) if tries > 0 && self.forget_ended(peer, &port) => {
                    operation = refused.operation;
                }
                Err(refused) => return Err(refused.into_parts()),
            }
        }
    }

    /// Resolves a selector for the receives.
    pub(super) fn resolve_selector(&self, selector: Selector) -> Result<ReceiveSelector> {
        let Selector {
            wanted,
            source,
            key,
            ..
        } = selector;
        if self.shared.is_some() {
            let what = "receives are posted to the receive context that the endpoint shares";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let source = match (source, key) {
            (None, None) => None,
            (Some(peer), None) => Some(self.rdm.source_of(self.names.vector.peer_addr(peer)?)?),
            (None, Some(key)) => Some(self.all_of_key(key)?),
            (Some(_), Some(_)) => {
                let what = "from_key: the receive is for one peer already";
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
        };
        Ok(ReceiveSelector { wanted, source })
    }

    /// Returns the source that stands for all peers of one of the endpoint's keys.
    fn all_of_key(&self, key: AuthKeyAddr) -> Result<SourceId> {
        let at = self.key_names.iter().position(|it| *it == key);
        let Some(at) = at else {
            let what = format!("{key:?} is no key that the endpoint was opened with");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        // The number of keys is at most `EP_AUTH_KEY_MAX`.
        Ok(SourceId::all_of_key(at as u16 + 1))
    }

    /// Returns the peer's port, by one table access if there was a post to the peer before.
    fn port_to(&self, peer: FabricAddr) -> Result<Arc<Port>> {
        // Read first: if an address is removed from now on, the next post looks it up again.
        let removals = self.names.vector.removals();
        if let Some(port) = removals.and_then(|removals| self.ports.get(peer, removals)) {
            return Ok(port);
        }
        let address = self.names.vector.peer_addr(peer)?;
        if address.context > 0 {
            self.common.caps.check(Caps::NAMED_RX_CTX)?;
        }
        let port = self.rdm.port_to(address)?;
        if let Some(removals) = removals {
            self.ports.put(peer, removals, &port);
        }
        Ok(port)
    }

    /// Returns whether the endpoint is closed, with all its connections.
    pub(super) fn is_closed(&self) -> bool {
        self.rdm.is_closed()
    }

    /// Returns whether the caller must get another port, because this port's connection is ending.
    fn forget_ended(&self, peer: FabricAddr, port: &Arc<Port>) -> bool {
        let is_known = self.names.vector.peer_addr(peer).is_ok();
        let moved = is_known && port.is_superseded();
        if moved {
            self.ports.forget(peer);
        }
        moved
    }
}

/// Runs a look-up apart from the driver.
async fn look_up<T: Send + 'static>(
    domain: &Domain,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, found) = tokio::sync::oneshot::channel();
    // The receiver is gone if the lookup was dropped.
    domain.run_blocking(move || drop(sender.send(look())));
    let gone = |_| Error::new(ErrorKind::DriverGone, "the runtime ended");
    found.await.map_err(gone)?
}

debug_fields!(RdmEndpoint, self => id: self.id(), local_addr: self.local_addr());
