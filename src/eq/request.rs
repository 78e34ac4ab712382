//! A peer's request for a connection (`FI_CONNREQ` of `fi_eq(3)`, `fi_cm(3)`), and its acceptance
//! or rejection.
//!
//! The listener's task keeps the connection and waits for the verdict; the request only holds the
//! ticket through which the application gives the verdict. So a request may be kept, moved to other
//! tasks and dropped at will.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::id::EndpointId;
use crate::identity::PeerCertificates;
use crate::sync::{ManualProgress, Ticket, TicketHolder};
use crate::transport::RawLink;
use crate::wire::{ByteOrder, ExtensionOffer};

/// The parameters of a request that the accepting endpoint needs, in addition to the private data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectParams {
    pub(crate) order: ByteOrder,
    pub(crate) offer: Option<ExtensionOffer>,
}

/// An accepted connection on its way from the listener to a domain.
pub(crate) struct AcceptedLink {
    pub(crate) raw: RawLink,
    pub(crate) params: ConnectParams,
    /// How long the remaining handshake may take.
    pub(crate) timeout: Duration,
}

/// A callback that takes over the connection of an accepted request. It runs in the listener's
/// task, so the application need not wait for the connection. Dropping the taker calls it with
/// `None`.
pub(crate) struct LinkTaker(Option<Box<dyn FnOnce(Option<AcceptedLink>) + Send>>);

impl LinkTaker {
    /// `take` is called once, with `None` if the listener has ended or the peer is gone.
    pub(crate) fn new(take: impl FnOnce(Option<AcceptedLink>) + Send + 'static) -> Self {
        LinkTaker(Some(Box::new(take)))
    }

    /// Hands the connection over.
    pub(crate) fn give(mut self, link: AcceptedLink) {
        if let Some(take) = self.0.take() {
            take(Some(link));
        }
    }
}

impl Drop for LinkTaker {
    fn drop(&mut self) {
        if let Some(take) = self.0.take() {
            take(None);
        }
    }
}

/// The decision on a connection request.
pub(crate) enum Verdict {
    /// Accepted: the listener hands the connection to this taker.
    Accept(LinkTaker),
    /// Rejected, with private data for the peer (may be empty).
    Reject(Bytes),
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept(_) => f.write_str("Accept"),
            Verdict::Reject(data) => write!(f, "Reject({} bytes)", data.len()),
        }
    }
}

/// A peer's request for a connection (`FI_CONNREQ`), to be accepted or rejected.
///
/// Dropping it rejects it without data, so that the peer of a forgotten request does not wait.
///
/// ```
/// use tokio_fabric::Event;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let listener = server.fabric.passive_endpoint(&server.events).listen()?;
/// let endpoint = client.domain.endpoint().open()?;
/// let connecting = endpoint.connect(listener.local_addr()).data("hello");
/// let accepting = async {
///     let Some(Event::ConnRequest(request)) = server.events.next().await else { panic!() };
///     assert_eq!(request.data(), "hello");
///     request.accept(&server.domain).data("welcome").await
/// };
/// let (answer, _endpoint) = tokio::try_join!(connecting, accepting)?;
/// assert_eq!(&answer[..], b"welcome");
/// # Ok(()) }
/// ```
#[doc(alias = "FI_CONNREQ")]
pub struct ConnRequest {
    listener: EndpointId,
    peer_addr: SocketAddr,
    local_addr: SocketAddr,
    data: Bytes,
    has_auth_key: bool,
    certificates: Option<PeerCertificates>,
    ticket: Ticket<Verdict>,
    /// The progress of the listener, if it is manual.
    progress: Option<Arc<ManualProgress>>,
}

impl ConnRequest {
    /// Creates a request and the receiver of its verdict (`None` if the request was dropped
    /// undecided).
    pub(crate) fn new(
        listener: EndpointId,
        peer_addr: SocketAddr,
        local_addr: SocketAddr,
        data: Bytes,
        has_auth_key: bool,
    ) -> (ConnRequest, TicketHolder<Verdict>) {
        let (ticket, holder) = Ticket::pair();
        let request = ConnRequest {
            listener,
            peer_addr,
            local_addr,
            data,
            has_auth_key,
            certificates: None,
            ticket,
            progress: None,
        };
        (request, holder)
    }

    /// Adds the progress of a listener with manual progress.
    pub(crate) fn driven_by(self, progress: Option<Arc<ManualProgress>>) -> Self {
        ConnRequest { progress, ..self }
    }

    /// Adds the certificates that the peer has shown.
    pub(crate) fn with_certificates(self, certificates: Option<PeerCertificates>) -> Self {
        ConnRequest {
            certificates,
            ..self
        }
    }

    /// Returns the progress of the listener, if it is manual.
    pub(crate) fn progress(&self) -> Option<&Arc<ManualProgress>> {
        self.progress.as_ref()
    }

    /// The passive endpoint that received the request (the event's `fid`).
    pub fn listener(&self) -> EndpointId {
        self.listener
    }

    /// The address the peer connects from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    /// The address the peer connected to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The private data that the peer passed to `connect`: at most 256 bytes, empty by default.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// True if the peer's endpoint has an authorization key (`auth_key` of `fi_endpoint(3)`). Then
    /// only an endpoint with the same key can accept the request; otherwise only an endpoint
    /// without a key can.
    pub fn has_auth_key(&self) -> bool {
        self.has_auth_key
    }

    /// The certificates by which the peer has proven its identity. `None` without TLS, and if the
    /// peer was not asked for any.
    pub fn peer_certificates(&self) -> Option<&PeerCertificates> {
        self.certificates.as_ref()
    }

    /// True once the peer is gone, or the listener was closed: the request can no longer be
    /// accepted.
    pub fn is_withdrawn(&self) -> bool {
        self.ticket.is_abandoned()
    }

    /// Returns the ticket through which the verdict is given, and drops the rest of the request.
    pub(crate) fn take_ticket(self) -> Ticket<Verdict> {
        self.ticket
    }
}

debug_fields!(ConnRequest, self =>
    listener: self.listener, peer_addr: self.peer_addr, local_addr: self.local_addr,
    data_len: self.data.len(), has_auth_key: self.has_auth_key, withdrawn: self.is_withdrawn()
);
