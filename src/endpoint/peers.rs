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
    /// The peers that come, go and restart, as a stream, which begins with those that are
    /// connected now. See [`Peers`].
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
    /// // In order: no error.
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

/// What becomes of the peers of a connectionless endpoint, a [`Stream`](futures::Stream); made by
/// [`RdmEndpoint::peers`].
///
/// A peer is up while it has a connection with the endpoint, whichever side made it. The first
/// operation connects, so a peer without any operation is not up, however well it is; and one that
/// has died silently is up until its death is detected: by its system's reset, by
/// [`Liveness`](crate::ep::Liveness) while operations or receives are outstanding, or by the
/// request of its next life. A request that claims to come from a restarted peer counts only when
/// it has proven the endpoint's key, or the peer's address has confirmed it.
///
/// - [`Up`](PeerEventKind::Up) can be read before the first message of the connection can.
/// - [`Restarted`](PeerEventKind::Restarted): another incarnation has taken the place of one that
///   was up, whose operations may still be about to end. A peer that is down when it restarts
///   shows so by the `incarnation` of its next `Up`.
/// - [`Down`](PeerEventKind::Down) comes after all operations of the peer have ended, with the
///   reason that they ended with; messages that came before can still be received. Its error is
///   `None` if the connection ended by agreement, idle connections' too, which the next operation
///   makes anew. When what was posted to a peer ends since the peer could not be reached, that is
///   a `Down` too, whether or not the peer was up.
///
/// **It applies no back-pressure, and its memory is bounded.** Unread events coalesce per peer into
/// one, the last state with its last reason, in the order in which the peers first changed.
/// `Up` and then `Down` unread is `Down`; a restart is not lost: `Down` and then `Up` of another
/// incarnation unread is `Restarted`. Of peers that came and went with nothing of it read at most
/// 16,384 are kept; the host with the most loses its oldest. Each stream sees all events, and
/// without a stream nothing is kept.
///
/// The stream does not keep the endpoint open: it ends with `None` when the endpoint has ended, by
/// [`shutdown`](RdmEndpoint::shutdown), the drop of its last handle, or with its runtime, after a
/// `Down` of every peer that was up. Until then it is a handle of the address vector.
///
/// ```
/// use tokio_fabric::rdm::PeerEventKind;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().rdm_pair()?;
/// let mut peers = b.endpoint.peers();
/// a.endpoint.send("hello", a.other).await?;
/// let event = peers.next().await.expect("the endpoint is open");
/// assert!(matches!(event.kind, PeerEventKind::Up));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// [`next`](Self::next) and polling lose nothing.
#[must_use = "a stream that is not read reports nothing"]
pub struct Peers {
    /// `None`: all is read.
    reader: Option<PeerReader>,
    vector: Option<AddressVector>,
    waiter: ProgressWaiter,
}

/// What became of a peer; an item of [`Peers`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerEvent {
    /// Where the peer listens.
    pub peer: SocketAddr,
    /// Which of the contexts there it is; 0 unless its endpoint is
    /// [scalable](crate::rdm::ScalableEndpoint).
    pub context: usize,
    /// Its name in the endpoint's address vector, if that has it when the event is read.
    pub fabric_addr: Option<FabricAddr>,
    /// What happened.
    pub kind: PeerEventKind,
    /// Which of the lives of the peer's endpoint, distinguished by a number of the peer's choice: a
    /// random one for each endpoint of this library, a process identifier of libfabric's. `None` of
    /// a peer that could not be reached.
    pub incarnation: Option<u32>,
}

impl Peers {
    /// What happened next; `None` once the endpoint has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
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
