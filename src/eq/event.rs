//! The events of an event queue (`fi_eq(3)`, "fi_eq_read").

use std::fmt;

use bytes::Bytes;

use super::ConnRequest;
use crate::error::{Error, Result};
use crate::id::{EndpointId, FabricAddr, UserContext};
use crate::identity::PeerCertificates;
use crate::limits::ERR_DATA_SIZE_MAX;
use crate::mr::{MemoryRegion, ReadOnlyRegion};

/// An event of an [`EventQueue`](crate::EventQueue): a connection request, a connection that was
/// established or closed, a completed registration or insertion, or a failure (`fi_eq(3)`).
///
/// ```
/// use tokio_fabric::{Domain, Event, EventQueue};
///
/// async fn serve(events: EventQueue, domain: Domain) {
///     while let Some(event) = events.next().await {
///         match event {
///             Event::ConnRequest(request) => {
///                 let Ok(endpoint) = request.accept(&domain).await else { continue };
///                 tokio::spawn(async move { endpoint.recv(vec![0; 64]).await });
///             }
///             Event::Error(error) => eprintln!("{error:?}"), // One failed; the server goes on.
///             other => println!("{other:?}"),
///         }
///     }
/// }
/// ```
#[non_exhaustive]
pub enum Event {
    /// A peer asks a passive endpoint for a connection (`FI_CONNREQ`). Accept or reject it;
    /// dropping it rejects.
    ConnRequest(ConnRequest),
    /// A connection is established (`FI_CONNECTED`), on either side. It precedes every completion
    /// of its endpoint.
    Connected {
        /// The endpoint that is connected now.
        endpoint: EndpointId,
        /// The context given with `connect` or `accept`, if any.
        context: Option<UserContext>,
        /// The private data that the accepting side sent; empty on the accepting side itself.
        data: Bytes,
        /// The certificates with which the peer proved its identity. `None` without TLS, and for a
        /// peer that was not asked for any.
        peer_certificates: Option<PeerCertificates>,
    },
    /// A connection has ended, because this side or the peer closed it or it was lost
    /// (`FI_SHUTDOWN`). It is reported once, as the last event of its endpoint, after all
    /// operations of the endpoint have ended.
    Shutdown {
        /// The endpoint that was connected.
        endpoint: EndpointId,
        /// The context the endpoint was opened with, if any.
        context: Option<UserContext>,
        /// The cause, if the connection was lost. `None`: both sides have announced their end and
        /// know that everything they sent has arrived; or this side closed a connection to a peer
        /// without this library's extension. Such a peer cannot announce its end, so its end counts
        /// as a loss ([`ErrorKind::PeerClosed`]).
        ///
        /// [`ErrorKind::PeerClosed`]: crate::ErrorKind::PeerClosed
        error: Option<Error>,
    },
    /// A registration with an event has completed (`FI_MR_COMPLETE`).
    MrComplete {
        /// The context given with the registration.
        context: UserContext,
        /// The region, ready for use.
        region: MemoryRegion,
    },
    /// As `MrComplete`, for a read-only region (`FI_MR_COMPLETE`).
    MrReadOnlyComplete {
        /// The context given with the registration.
        context: UserContext,
        /// The region, ready for use.
        region: ReadOnlyRegion,
    },
    /// An asynchronous insertion into an address vector has completed (`FI_AV_COMPLETE`).
    /// "All error completions for a given call to fi_av_insert will precede" it: one
    /// [`Event::Error`] for each address that failed.
    AvComplete {
        /// The context given with the insertion.
        context: UserContext,
        /// How many addresses were inserted.
        count: usize,
        /// The name of each address, in the order in which they were given, or the error if it
        /// failed.
        addresses: Vec<Result<FabricAddr>>,
    },
    /// An event that the application wrote with [`EventQueue::write`](super::EventQueue::write).
    User {
        /// The application's code.
        code: u32,
        /// The application's bytes.
        data: Bytes,
    },
    /// A control operation or a resource has failed (`fi_eq_err_entry`).
    Error(EventError),
}

/// Private data may be secret, so only its length is shown.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::ConnRequest(request) => f.debug_tuple("ConnRequest").field(request).finish(),
            Event::Connected {
                endpoint,
                context,
                data,
                peer_certificates,
            } => f
                .debug_struct("Connected")
                .field("endpoint", endpoint)
                .field("context", context)
                .field("data_len", &data.len())
                .field("has_certificates", &peer_certificates.is_some())
                .finish(),
            Event::Shutdown {
                endpoint,
                context,
                error,
            } => f
                .debug_struct("Shutdown")
                .field("endpoint", endpoint)
                .field("context", context)
                .field("error", error)
                .finish(),
            Event::MrComplete { context, region } => f
                .debug_struct("MrComplete")
                .field("context", context)
                .field("region", region)
                .finish(),
            Event::MrReadOnlyComplete { context, region } => f
                .debug_struct("MrReadOnlyComplete")
                .field("context", context)
                .field("region", region)
                .finish(),
            Event::AvComplete {
                context,
                count,
                addresses,
            } => f
                .debug_struct("AvComplete")
                .field("context", context)
                .field("count", count)
                .field("failed", &(addresses.len() - count))
                .finish(),
            Event::User { code, data } => f
                .debug_struct("User")
                .field("code", code)
                .field("data_len", &data.len())
                .finish(),
            Event::Error(error) => f.debug_tuple("Error").field(error).finish(),
        }
    }
}

/// The failure of a control operation, with its cause (`fi_eq_err_entry` of `fi_eq(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{ErrorKind, Event};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let listener = server.fabric.passive_endpoint(&server.events).listen()?;
/// let endpoint = client.domain.endpoint().event_queue(&client.events).open()?;
/// let connecting = endpoint.connect(listener.local_addr()).context(7u64);
/// let rejecting = async { drop(server.events.next().await) }; // Dropping a request rejects it.
/// let (_, ()) = tokio::join!(connecting, rejecting);
/// let Some(Event::Error(failed)) = client.events.next().await else { panic!() };
/// assert_eq!(failed.error.kind(), ErrorKind::ConnectionRefused);
/// assert_eq!(failed.context, Some(7u64.into()));
/// # Ok(()) }
/// ```
#[doc(alias("fi_eq_err_entry", "fi_eq_readerr", "fi_eq_strerror"))]
#[derive(Clone)]
#[non_exhaustive]
pub struct EventError {
    /// The reason; `err` is [`Error::fi_errno`].
    pub error: Error,
    /// The context that was given to the operation that failed, if any.
    pub context: Option<UserContext>,
    /// The endpoint concerned, if any.
    pub endpoint: Option<EndpointId>,
    /// The position of an address that could not be inserted, among those that were passed (`data`
    /// of the error entries of `fi_av(3)`: "the index of the failed address").
    pub index: Option<usize>,
    /// `err_data`: data that belongs to the error, such as the private data of a peer that rejected
    /// a connection. At most 256 bytes.
    pub data: Bytes,
}

impl EventError {
    /// Creates the event for this error. Its `err_data` is the error's own, cut at the limit.
    pub(crate) fn new(error: Error) -> Self {
        let mut data = error.data().clone();
        data.truncate(ERR_DATA_SIZE_MAX);
        EventError {
            error,
            context: None,
            endpoint: None,
            index: None,
            data,
        }
    }

    pub(crate) fn with_context(mut self, context: Option<UserContext>) -> Self {
        self.context = context;
        self
    }

    pub(crate) fn with_index(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    pub(crate) fn with_endpoint(mut self, endpoint: EndpointId) -> Self {
        self.endpoint = Some(endpoint);
        self
    }
}

impl From<EventError> for Error {
    fn from(failed: EventError) -> Self {
        failed.error
    }
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if let Some(endpoint) = self.endpoint {
            write!(f, " ({endpoint:?})")?;
        }
        Ok(())
    }
}

debug_fields!(EventError, self =>
    error: self.error, context: self.context, endpoint: self.endpoint, index: self.index,
    data_len: self.data.len()
);

impl std::error::Error for EventError {}
