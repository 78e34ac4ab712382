//! Endpoints: what applications send and receive with (`fi_endpoint(3)`).

#![forbid(unsafe_code)]

mod binding;
mod builder;
mod cm;
mod common;
mod defaults;
mod dgram;
pub mod kind;
mod low_level;
mod messages;
mod msg;
mod multi_recv;
mod on_refusal;
mod op;
mod passive;
mod peek;
mod peers;
mod post;
mod rdm;
mod region;
mod remote;
mod rma;
mod shared;
mod sources;
mod tagged;
mod target;

// The documentation lists methods in the order of the modules; methods for few programs come last.
mod atomic;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::Result;
use crate::id::{EndpointId, OperationId};
use crate::path::Path;
use crate::progress::{CloseWatch, OpRecord, Port};
use crate::stats::EndpointStats;
use crate::sync::await_driving;

use common::Common;
use target::{OpOwner, PostEndpoint, PostResult, Scope, cancel_named};

pub use atomic::{
    Atomic, AtomicMemory, AtomicResults, AtomicValue, FetchAtomic, NumbersOf, Operands,
    PostedAtomic, PostingAtomic,
};
pub use builder::EndpointBuilder;
pub use cm::{Accept, Connect, Reject};
pub use dgram::{
    DgramEndpoint, DgramEndpointBuilder, Join, MulticastGroup, RecvDatagram, SendDatagram,
};
pub use low_level::TcpOps;
pub use messages::{Message, Messages};
pub use msg::{Received, Recv, RecvFrom, SendMessage};
pub use multi_recv::MultiRecv;
pub use on_refusal::OnRefusal;
pub use op::{Op, OpOutput, Queued, QueuedOp};
pub use passive::{PassiveEndpoint, PassiveEndpointBuilder};
pub use peek::{ClaimedMessage, MessageInfo, Peek, RecvClaimed};
pub use peers::{PeerEvent, Peers};
pub use post::{PostFuture, Posting};
pub use rdm::{RdmEndpoint, RdmEndpointBuilder, ScalableEndpoint, ScalableEndpointBuilder};
pub use region::RegionEndpoint;
pub use remote::RemoteRegions;
pub use rma::{RmaRead, RmaWrite};
pub use shared::{SharedReceiveContext, SharedReceiveContextBuilder};
pub use tagged::RecvTagged;

/// Frees the memory of ended operations that the process and this thread keep for later operations.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    crate::progress::drop_kept();
}

/// A connected endpoint (`FI_EP_MSG`; `struct fid_ep`).
///
/// An endpoint is opened without a connection and then connected once, by
/// [`connect`](Self::connect) or [`accept`](Self::accept). Receives may be posted before that.
/// Posting is synchronous and never blocks. Every accepted operation completes exactly once: with
/// its result, or with an error (connection lost, cancelled, or refused by the peer with a reason).
///
/// Clones are handles to the same endpoint. Dropping the last one closes the endpoint (`fi_close`):
/// posted operations are sent first, for at most a few seconds, and no event is reported.
///
/// Messages that arrive before a receive is posted are buffered, up to a budget
/// ([`EndpointBuilder::unexpected_bytes`]). Beyond it a peer that uses this library holds its
/// messages back, while its RMA and acknowledgements continue. From any other peer the endpoint
/// reads nothing more, not even RMA and acknowledgements, until a receive is posted, because the
/// protocol has no other flow control.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?; // Two connected endpoints, in this process.
/// a.send("hello").await?;
/// let (received, buffer) = b.recv(vec![0; 64]).await?;
/// assert_eq!(&buffer[..received.len], b"hello");
/// # Ok(()) }
/// ```
#[doc(alias("FI_EP_MSG", "fid_ep"))]
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    port: Arc<Port>,
    common: Common,
    /// The shared receive context whose receives take its messages; `None`: it has its own
    /// receives.
    _receives: Option<SharedReceiveContext>,
}

impl PostEndpoint for Inner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(&self, _: Scope, operation: OpRecord) -> PostResult {
        let posted = self.port.post(operation);
        let posted = posted.map_err(|refused| refused.into_parts())?;
        Ok((posted, None))
    }

    fn own_operations(&self) -> &dyn OpOwner {
        &*self.port
    }

    fn copying_port(&self) -> Option<&Port> {
        Some(&self.port)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.port.abandon();
    }
}

impl Endpoint {
    /// The id of this endpoint in events and completions.
    pub fn id(&self) -> EndpointId {
        self.inner.common.id
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        &self.inner.common.domain
    }

    /// The peer's address, from the start of connecting or accepting on (`fi_getpeer`).
    #[doc(alias = "fi_getpeer")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.port.peer_addr()
    }

    /// The path of the connection's bytes: through the network, with the reason, or through shared
    /// memory ([`DomainBuilder::local_path`](crate::domain::DomainBuilder::local_path)).
    pub fn path(&self) -> Path {
        self.inner.port.path()
    }

    /// This side's address (`fi_getname`): from the start of accepting on; when connecting, once
    /// the TCP connection exists, or with TLS, once the TLS handshake is complete.
    #[doc(alias = "fi_getname")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.port.local_addr()
    }

    /// The incarnation of the peer's domain that this connection leads to: a random number that the
    /// domain draws when it is opened, which shows whether a peer at the same address has been
    /// restarted. A domain with several drivers
    /// ([`DomainBuilder::progress_shards`](crate::domain::DomainBuilder::progress_shards)) draws
    /// one number for each. `None` before the connection is established, and for a peer that only
    /// supports libfabric's protocol.
    pub fn peer_incarnation(&self) -> Option<u64> {
        self.inner.port.peer_incarnation()
    }

    /// True while both sides can send.
    pub fn is_connected(&self) -> bool {
        self.inner.port.lifecycle() == crate::proto::Lifecycle::Connected
    }

    /// The queue for this endpoint's receive completions and for peers' writes with remote CQ data.
    /// An endpoint that was opened without a receive queue has its own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of unexpected messages that are currently kept, to be compared with the budget.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.port.unexpected_bytes()
    }

    /// Statistics: completed and outstanding operations.
    pub fn stats(&self) -> EndpointStats {
        self.inner.port.stats()
    }

    /// Latencies of one in 64 of the operations for transmission that have completed since the last
    /// call.
    #[cfg(feature = "metrics")]
    pub fn take_latencies(&self) -> Vec<crate::stats::LatencySample> {
        self.inner.port.take_latencies()
    }

    /// Requests cancellation of a queued operation (`fi_cancel`). Returns `true` if the operation
    /// had not started; its completion then has the error Canceled. Returns `false` if the
    /// operation has started, and runs to completion, or has completed.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Closes the connection gracefully (`fi_shutdown`). No more operations for transmission can be
    /// posted.
    ///
    /// If the peer uses this library, both sides first send and acknowledge all accepted
    /// operations, and posted receives take the messages that still arrive. The remaining
    /// operations then fail: with Canceled on this side, with PeerClosed on the other. With any
    /// other peer the posted operations are sent, the peer sees the end of the stream, and all
    /// other operations fail with Canceled. The endpoint's event queue gets one Shutdown event,
    /// which states whether the connection was closed gracefully.
    ///
    /// A peer that neither reads nor answers delays this by at most 5 s.
    ///
    /// # Errors
    /// None. Each operation reports its own result.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the connection closes even if the future is dropped.
    #[doc(alias = "fi_shutdown")]
    pub async fn shutdown(&self) -> Result<()> {
        self.inner.port.begin_close();
        let progress = self.domain().progress_by_hand();
        await_driving(progress, self.inner.port.closed()).await;
        Ok(())
    }

    /// Ends the connection at once, so that the peer sees a loss: its operations fail with
    /// [`ErrorKind::ConnectionReset`](crate::ErrorKind::ConnectionReset), and its
    /// [`messages`](Endpoint::messages) yield that error. Call it before an endpoint is dropped
    /// because something has failed: a drop closes the connection gracefully, and a peer that does
    /// not count messages then assumes that it has received all of them.
    ///
    /// This side's operations fail with Canceled, and its event queue gets one Shutdown event with
    /// that error. Posted operations that have not been sent are not sent any more. Without a
    /// connection nothing happens.
    pub fn abort(&self) {
        self.inner.port.abort();
    }

    #[cfg(test)]
    pub(crate) fn port(&self) -> &Port {
        &self.inner.port
    }
}

debug_fields!(Endpoint, self => id: self.id(), peer: self.peer_addr());
