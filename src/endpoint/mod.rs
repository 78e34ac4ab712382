//! Endpoints: what applications send and receive with (`fi_endpoint(3)`).

#![forbid(unsafe_code)]

mod atomic;
mod binding;
mod builder;
mod cm;
mod common;
mod defaults;
mod dgram;
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
mod tagged;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::buf::Payload;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::Result;
use crate::id::{EndpointId, OperationId};
use crate::progress::{CloseWatch, Port, PostOptions, Report};
use crate::stats::EndpointStats;
use crate::sync::await_driving;

use common::Common;
use post::OpSpec;
use target::{OpOwner, PostEndpoint, PostResult, Scope, cancel_named, operation_of};

pub use atomic::{
    Atomic, AtomicMemory, AtomicResults, AtomicValue, FetchAtomic, NumbersOf, Operands,
    PostedAtomic, PostingAtomic,
};
pub use builder::EndpointBuilder;
pub use cm::{Accept, Connect, Reject};
pub use dgram::{
    DgramEndpoint, DgramEndpointBuilder, Join, MulticastGroup, RecvDatagram, SendDatagram,
};
pub use messages::{Message, Messages};
pub use msg::{Received, Recv, RecvFrom, SendMessage};
pub use multi_recv::MultiRecv;
pub use on_refusal::OnRefusal;
pub use op::{Op, OpOutput, Queued, QueuedOp};
pub use passive::{PassiveEndpoint, PassiveEndpointBuilder};
pub use peek::{ClaimedMessage, MessageInfo, Peek, RecvClaimed};
pub use peers::{PeerEvent, Peers};
pub use rdm::{RdmEndpoint, RdmEndpointBuilder, ScalableEndpoint, ScalableEndpointBuilder};
pub use region::RegionEndpoint;
pub use remote::RemoteRegions;
pub use rma::{RmaRead, RmaWrite};
pub use shared::{SharedReceiveContext, SharedReceiveContextBuilder};
pub use tagged::RecvTagged;

/// Frees the memory of operations that have ended, which is kept for the next: the process's, and
/// this thread's.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    crate::progress::drop_kept();
}

/// A connected endpoint (`FI_EP_MSG`; `struct fid_ep`).
///
/// It is opened idle, then [`connect`](Self::connect)s or [`accept`](Self::accept)s, until it is
/// connected, once. Receives may be posted before that. Posting is synchronous and never blocks;
/// every accepted operation ends exactly once: done, peer gone, cancelled, or refused with a
/// reason.
///
/// Clones are handles to the same endpoint. Dropping the last one closes it (`fi_close`): what was
/// posted for transmission goes out first, within a few seconds, and there is no event for it.
///
/// Messages that come before a receive is posted are kept, up to a budget
/// ([`EndpointBuilder::unexpected_bytes`]). A peer of this library knows what there is room for and
/// holds further messages back at its side: its RMA and acknowledgements pass. From any other peer
/// the endpoint stops reading, RMA and acknowledgements included, until a receive is posted: the
/// protocol itself has no other flow control.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?; // Two that are connected, in this process.
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
    /// Whose receives take its messages; `None`: its own.
    _receives: Option<SharedReceiveContext>,
}

impl PostEndpoint for Inner {
    fn common(&self) -> &Common {
        &self.common
    }

    fn post(
        &self,
        _: Scope,
        spec: OpSpec,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> PostResult {
        let kind = spec.into_op_kind(payload.len(), &self.common.domain);
        let operation = operation_of(kind, payload, report, options)?;
        let posted = self.port.post(operation);
        let posted = posted.map_err(|refused| refused.into_parts())?;
        Ok((posted, None))
    }

    fn own_operations(&self) -> &dyn OpOwner {
        &*self.port
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.port.abandon();
    }
}

impl Endpoint {
    /// The name of this endpoint in events and completions.
    pub fn id(&self) -> EndpointId {
        self.inner.common.id
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        &self.inner.common.domain
    }

    /// The peer's address, once connecting or accepting (`fi_getpeer`).
    #[doc(alias = "fi_getpeer")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.port.peer_addr()
    }

    /// This side's address, once connected (`fi_getname`).
    #[doc(alias = "fi_getname")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.port.local_addr()
    }

    /// Which life of the peer's domain this connection is with: a random number that its domain
    /// drew when it was opened, so that a restarted peer at the same address shows. A domain with
    /// several drivers
    /// ([`DomainBuilder::progress_shards`](crate::domain::DomainBuilder::progress_shards)) draws
    /// one for each. `None` before the connection is up, and with a peer that speaks libfabric's
    /// protocol only.
    pub fn peer_incarnation(&self) -> Option<u64> {
        self.inner.port.peer_hello().map(|hello| hello.incarnation)
    }

    /// True while both sides may send.
    pub fn is_connected(&self) -> bool {
        self.inner.port.lifecycle() == crate::proto::Lifecycle::Connected
    }

    /// The queue that takes this endpoint's receive completions, and those of no post of its own: a
    /// peer's writes with remote CQ data. An endpoint opened without one has its own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of unexpected messages held now, to be compared with the budget.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.port.unexpected_bytes()
    }

    /// What it has done, and what is under way.
    pub fn stats(&self) -> EndpointStats {
        self.inner.port.stats()
    }

    /// The time of one operation in 64, of those for transmission that have ended since the last
    /// call.
    #[cfg(feature = "metrics")]
    pub fn take_latencies(&self) -> Vec<crate::stats::LatencySample> {
        self.inner.port.take_latencies()
    }

    /// Asks a queued operation to end early (`fi_cancel`). `true`: it had not started, and its
    /// completion says Canceled. `false`: it has started and ends as it ends, or has ended.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Ends the connection in order (`fi_shutdown`). Nothing more may be posted for transmission.
    ///
    /// With a peer of this library the end is agreed on: what either side has accepted goes out and
    /// gets its answer first, and posted receives take what still comes; then all that is left ends
    /// as Canceled here and as PeerClosed there. With any other peer what was posted for
    /// transmission goes out, the peer sees the end of the stream, and everything else ends as
    /// Canceled. The endpoint's event queue gets one Shutdown, which says whether the end was an
    /// orderly one.
    ///
    /// A peer that neither reads nor answers is not waited for longer than 5 s.
    ///
    /// # Errors
    /// None. Each operation says by itself how it ended.
    ///
    /// # Cancel safety
    /// The end has begun once this is polled, and goes on if the future is dropped.
    #[doc(alias = "fi_shutdown")]
    pub async fn shutdown(&self) -> Result<()> {
        self.inner.port.begin_close();
        let progress = self.domain().progress_by_hand();
        await_driving(progress, self.inner.port.closed()).await;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn port(&self) -> &Port {
        &self.inner.port
    }
}

debug_fields!(Endpoint, self => id: self.id(), peer: self.peer_addr());
