//! The peers of a connectionless endpoint that come, go and restart, as a stream.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::FusedStream;

use crate::av::AddressVector;
use crate::id::FabricAddr;
use crate::progress::{PeerEventKind, PeerReader};
use crate::sync::ProgressWaiter;

use super::RdmEndpoint;

impl RdmEndpoint {
    /// The peers that connect, disconnect and restart, as a stream, which begins with those that
    /// are connected now. See [`Peers`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::rdm::PeerEventKind;
    /// # let (a, b) = tokio_fabric::testing::Net::loopback().rdm_pair()?;
    /// # let (a, to_b, b) = (a.endpoint, a.other, b.endpoint);
    ///
    /// let mut peers = b.peers();
    /// a.send("hello", to_b).await?;
    /// let event = peers.next().await.expect("b is open");
    /// assert_eq!(event.peer, a.local_addr());
    /// assert!(matches!(event.kind, PeerEventKind::Up));
    ///
    /// a.shutdown().await?;
    /// let event = peers.next().await.expect("b is open");
    /// // It closed gracefully: no error.
    /// assert!(matches!(event.kind, PeerEventKind::Down { error: None }));
    /// # Ok(()) }
    /// ```
    pub fn peers(&self) -> Peers {
        Peers {
            reader: Some(self.read_peers()),
            vector: Some(self.address_vector().clone()),
            waiter: ProgressWaiter::new(self.domain().progress_by_hand()),
        }
    }
}

/// The state changes of a connectionless endpoint's peers, as a [`Stream`].
///
/// You get one from [`RdmEndpoint::peers`].
///
/// A peer is up while it has a connection with the endpoint, whichever side opened it. The first
/// operation opens a connection, so a peer is not up before any operation, even if it is reachable.
/// A peer that dies silently stays up until its death is detected: by a reset from its system, by
/// [`Liveness`](crate::ep::Liveness) while operations or receives are outstanding, or by a
/// connection request of its next incarnation. A request that claims to come from a restarted peer
/// counts only if it has proven the endpoint's key, or if the peer's address has confirmed it.
///
/// - [`Up`](PeerEventKind::Up) can be read before the first message of the connection.
/// - [`Restarted`](PeerEventKind::Restarted): another incarnation has replaced one that was up;
///   operations of the old one may not have completed yet. If a peer is down when it restarts, the
///   `incarnation` of its next `Up` shows the restart.
/// - [`Down`](PeerEventKind::Down) comes after all operations of the peer have completed, with the
///   cause of their failure; messages that arrived before can still be received. Its error is
///   `None` if the connection was closed gracefully, also because it was idle; the next operation
///   opens it again. If operations fail because their peer could not be reached, that is a `Down`
///   too, whether or not the peer was up.
///
/// **The stream applies no back-pressure, and its memory is bounded.** Unread events of one peer
/// are merged into one, which contains the last state with its cause; events of several peers are
/// in the order in which the peers first changed. An unread `Up` followed by `Down` becomes `Down`.
/// A restart is not lost: an unread `Down` followed by the `Up` of another incarnation becomes
/// `Restarted`. At most 16,384 unread events are kept of peers that have come and gone; beyond
/// that, the oldest event of the host with the most events is dropped. Each stream sees all events,
/// and without a stream nothing is stored.
///
/// The stream does not keep the endpoint open: it returns `None` when the endpoint has ended by
/// [`shutdown`](RdmEndpoint::shutdown), by the drop of its last handle, or with its runtime, after
/// a `Down` of every peer that was up. Until then the stream holds a handle of the address vector.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::rdm::PeerEventKind;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// let mut peers = b.endpoint.peers();
/// a.endpoint.send("hello", a.other).await?;
/// let event = peers.next().await.expect("the endpoint is open");
/// assert!(matches!(event.kind, PeerEventKind::Up));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// [`next`](Self::next) and polling lose no event.
#[must_use = "a stream that is not read reports nothing"]
pub struct Peers {
    /// `None`: the stream has ended.
    reader: Option<PeerReader>,
    vector: Option<AddressVector>,
    waiter: ProgressWaiter,
}

/// A state change of a peer; an item of [`Peers`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// let mut peers = b.endpoint.peers();
/// a.endpoint.send("hello", a.other).await?;
/// let event = peers.next().await.expect("the endpoint is open");
/// assert_eq!((event.peer, event.fabric_addr), (a.endpoint.local_addr(), Some(b.other)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerEvent {
    /// The address at which the peer listens.
    pub peer: SocketAddr,
    /// The index of the peer's context; 0 unless the peer's endpoint is
    /// [scalable](crate::rdm::ScalableEndpoint).
    pub context: usize,
    /// The peer's name in the endpoint's address vector, if the vector has the peer when the event
    /// is read. [`AddressVector::user_id`](crate::AddressVector::user_id) returns the user id.
    pub fabric_addr: Option<FabricAddr>,
    /// The kind of the change.
    pub kind: PeerEventKind,
    /// A number of the peer's choice that identifies an incarnation of its endpoint: random for
    /// each endpoint of this library, a process id for libfabric's. `None` for a peer that could
    /// not be reached.
    pub incarnation: Option<u32>,
}

impl Peers {
    /// The next event; `None` once the endpoint has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<PeerEvent> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Peers {
    type Item = PeerEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<PeerEvent>> {
        let this = self.get_mut();
        let (Some(reader), Some(vector)) = (&mut this.reader, &this.vector) else {
            return Poll::Ready(None);
        };
        let waiter = &mut this.waiter;
        let Some(change) = std::task::ready!(waiter.poll(cx, |cx| reader.poll_next(cx))) else {
            (this.reader, this.vector) = (None, None);
            return Poll::Ready(None);
        };
        Poll::Ready(Some(PeerEvent {
            peer: change.peer.socket,
            context: usize::from(change.peer.context),
            fabric_addr: vector.find(change.peer).and_then(|(addr, _)| addr),
            kind: change.kind,
            incarnation: change.incarnation,
        }))
    }
}

impl FusedStream for Peers {
    fn is_terminated(&self) -> bool {
        self.reader.is_none()
    }
}

debug_fields!(Peers, self => ended: self.reader.is_none());
