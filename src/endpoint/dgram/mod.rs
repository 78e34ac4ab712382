//! Datagram endpoints (`FI_EP_DGRAM`; `fi_endpoint(3)`, `fi_udp(7)`).

mod builder;
mod msg;
mod multicast;
mod posting;

use std::net::SocketAddr;
use std::sync::Arc;

use super::common::Common;
use super::target::cancel_named;
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
/// each message one datagram.
///
/// Delivery is unreliable: a datagram may be lost, duplicated or reordered, without an error. A
/// send succeeds when the datagram has been passed to the kernel, not when it has arrived. Messages
/// are plain UDP payloads, so any program that uses UDP can be a peer.
///
/// A datagram is received by the oldest receive that matches. If no receive matches, the datagram
/// is buffered up to a budget ([`DgramEndpointBuilder::unexpected_bytes`]); beyond it the datagram
/// is dropped, and counted by [`dropped`](Self::dropped). If the datagram is longer than the
/// receive's buffers, the receive fails with [`Truncated`](crate::ErrorKind::Truncated).
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
    /// Returns whether the endpoint is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.port.is_closed()
    }
}

impl DgramEndpoint {
    /// The id of this endpoint in completions.
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

    /// The size in bytes of the largest message (`max_msg_size`): what fits into one packet of the
    /// interface.
    pub fn max_message_size(&self) -> usize {
        self.inner.port.message_max()
    }

    /// The queue for this endpoint's receive completions. An endpoint that was opened without one
    /// has a queue of its own.
    pub fn receive_queue(&self) -> &CompletionQueue {
        &self.inner.common.receive_queue
    }

    /// Bytes of datagrams that currently wait for a receive, each with 128 bytes for bookkeeping.
    pub fn unexpected_bytes(&self) -> usize {
        self.inner.port.unexpected_bytes()
    }

    /// The number of datagrams that arrived and were dropped: by the endpoint, because no receive
    /// was posted and there was no room to keep them, or because the memory of their receive did
    /// not exist; or by the system, because its buffer was full.
    pub fn dropped(&self) -> u64 {
        self.inner.port.dropped()
    }

    /// Statistics: completed and outstanding operations.
    pub fn stats(&self) -> DgramStats {
        self.inner.port.stats()
    }

    /// Requests cancellation of a queued operation (`fi_cancel`). Returns `true` if the operation
    /// had not started; its completion then has the error Canceled. Returns `false` if it has
    /// completed.
    pub fn cancel(&self, operation: OperationId) -> bool {
        cancel_named(&*self.inner, operation)
    }

    /// Closes the endpoint (`fi_close`): queued sends are sent if there is room for them within a
    /// second, and everything else fails with Canceled.
    ///
    /// # Errors
    /// None. Each operation reports its own result.
    ///
    /// # Cancel safety
    /// Once the future has been polled, the endpoint closes even if the future is dropped.
    pub async fn shutdown(&self) -> Result<()> {
        self.inner.port.begin_close();
        let progress = self.domain().progress_by_hand();
        await_driving(progress, self.inner.port.closed()).await;
        Ok(())
    }
}

debug_fields!(DgramEndpoint, self => id: self.id(), local_addr: self.local_addr());
