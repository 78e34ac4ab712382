//! Datagram endpoints (`FI_EP_DGRAM`; `fi_endpoint(3)`, `fi_udp(7)`).

mod builder;
mod msg;
mod multicast;
mod posting;

use std::net::SocketAddr;
use std::sync::Arc;

use super::common::Common;
use super::target::cancel_named;
use super::{Op, Queued, QueuedOp, post};
use crate::av::AddressVector;
use crate::cq::CompletionQueue;
use crate::domain::Domain;
use crate::error::Result;
use crate::id::{EndpointId, OperationId};
use crate::progress::{CloseWatch, DgramPort};
use crate::stats::DgramStats;
use crate::sync::await_driving;

pub use builder::DgramEndpointBuilder;
pub use msg::{RecvDatagram, SendDatagram};
pub use multicast::{Join, MulticastGroup};

/// A datagram endpoint (`FI_EP_DGRAM`; `struct fid_ep`): messages over UDP to and from many peers,
/// each a datagram of its own.
///
/// Nothing is reliable: a datagram may get lost, come twice, or be overtaken, and no error says so.
/// A send has ended well when the datagram has left, not when it has come; the messages of an
/// endpoint are bare UDP payloads, so any program that speaks UDP can be its peer.
///
/// A datagram that comes takes the oldest receive that fits it. One for which no receive is posted
/// is kept up to a budget ([`DgramEndpointBuilder::unexpected_bytes`]); beyond that it is dropped,
/// and counted by [`dropped`](Self::dropped). One that is longer than its receive's buffers is cut
/// off: the receive ends as [`Truncated`](crate::ErrorKind::Truncated).
///
/// Clones are handles to the same endpoint. Dropping the last one closes it (`fi_close`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::net::Ipv4Addr;
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Dgram).interface("lo"))?;
/// let domain = fabric.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let here = (Ipv4Addr::LOCALHOST, 0);
/// let (a, b) = (
///     domain.dgram_endpoint().address_vector(&peers).bind(here.into()).open()?,
///     domain.dgram_endpoint().address_vector(&peers).bind(here.into()).open()?,
/// );
///
/// let to_b = peers.insert(b.local_addr()).now()?;
/// a.send("hello", to_b).await?;
///
/// let (received, bytes) = b.recv(vec![0; 16]).await?;
/// assert_eq!(&bytes[..received.len], b"hello");
/// assert_eq!(received.source_addr, Some(a.local_addr()));
/// # Ok(()) }
/// ```
#[doc(alias = "FI_EP_DGRAM")]
#[derive(Clone)]
pub struct DgramEndpoint {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) port: Arc<DgramPort>,
    pub(super) vector: AddressVector,
    pub(super) common: Common,
    inject_size: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.port.begin_close();
    }
}

impl Inner {
    /// True once it is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.port.is_closed()
    }
}

impl DgramEndpoint {
    /// The name of this endpoint in completions.
    pub fn id(&self) -> EndpointId {
        self.inner.common.id
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        &self.inner.common.domain
    }

    /// The address vector it is bound to.
    pub fn address_vector(&self) -> &AddressVector {
        &self.inner.vector
    }

    /// The address it is bound to, with the port that was chosen (`fi_getname`).
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.port.local_addr()
    }

    /// Bytes of the largest message (`max_msg_size`): what fits one packet of the interface.
    pub fn max_message_size(&self) -> usize {
        self.inner.port.message_max()
    }

    /// The queue that takes this endpoint's receive completions. An endpoint opened without one has
    /// its own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of datagrams that wait for a receive now, each with 128 of bookkeeping.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.port.unexpected_bytes()
    }

    /// Datagrams that came and were dropped: by the endpoint, since no receive was posted and there
    /// was no room to keep them; by the system, since its buffer was full; or since the memory of
    /// their receive was not there.
    pub fn dropped(&self) -> u64 {
        self.inner.port.dropped()
    }

    /// What it has done, and what is under way.
    pub fn stats(&self) -> DgramStats {
        self.inner.port.stats()
    }

    /// Asks a queued operation to end early (`fi_cancel`). `true`: its completion says Canceled.
    /// `false`: it has ended.
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Closes the endpoint (`fi_close`): sends that are queued go out, if there is room for them
    /// within a second, and everything else ends as Canceled.
    ///
    /// # Errors
    /// None. Each operation says by itself how it ended.
    ///
    /// # Cancel safety
    /// The end has begun once this is polled, and goes on if the future is dropped.
    pub async fn shutdown(&self) -> Result<()> {
        self.inner.port.begin_close();
        let progress = self.domain().progress_by_hand();
        await_driving(progress, self.inner.port.closed()).await;
        Ok(())
    }
}

debug_fields!(DgramEndpoint, self => id: self.id(), local_addr: self.local_addr());
