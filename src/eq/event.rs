//! The events of an event queue (`fi_eq(3)`, "fi_eq_read").

use std::fmt;

use bytes::Bytes;

use super::ConnRequest;
use crate::error::{Error, Result};
use crate::id::{EndpointId, FabricAddr, UserContext};
use crate::identity::PeerCertificates;
use crate::limits::ERR_DATA_SIZE_MAX;
use crate::mr::{MemoryRegion, ReadOnlyRegion};

/// Something that happened to the fabric's objects (`fi_eq(3)`).
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
        /// What the accepting side sent along; empty on the accepting side itself.
        data: Bytes,
        /// The certificates that the peer proved itself by. `None` without TLS, and of a peer that
        /// was not asked for any.
        peer_certificates: Option<PeerCertificates>,
    },
    /// A connection has ended, by this side, the peer or a loss (`FI_SHUTDOWN`). It comes once,
    /// last of its endpoint, and after all operations of the endpoint have ended.
    Shutdown {
        /// The endpoint that was connected.
        endpoint: EndpointId,
        /// The context the endpoint was opened with, if any.
        context: Option<UserContext>,
        /// Why, if the connection was lost. `None`: this side closed it, or both sides have said
        /// that they end and know that all they sent has arrived. A peer without this library's
        /// extension cannot say so: its end is a loss ([`ErrorKind::PeerClosed`]).
        ///
        /// [`ErrorKind::PeerClosed`]: crate::ErrorKind::PeerClosed
        error: Option<Error>,
    },
    /// A registration that asked for an event has ended well (`FI_MR_COMPLETE`).
    MrComplete {
        /// The context given with the registration.
        context: UserContext,
        /// The region, ready for use.
        region: MemoryRegion,
    },
    /// The same of a read-only region (`FI_MR_COMPLETE`).
    MrReadOnlyComplete {
        /// The context given with the registration.
        context: UserContext,
        /// The region, ready for use.
        region: ReadOnlyRegion,
    },
    /// An insertion into an address vector that asked for an event has ended (`FI_AV_COMPLETE`).
    /// "All error completions for a given call to fi_av_insert will precede" it: one
    /// [`Event::Error`] for each address that failed.
    AvComplete {
        /// The context given with the insertion.
        context: UserContext,
        /// How many addresses were inserted.
        count: usize,
        /// What names each address, in the order in which they were given, or why it failed.
        addresses: Vec<Result<FabricAddr>>,
    },
    /// What the application wrote by [`EventQueue::write`](super::EventQueue::write).
    User {
        /// The application's code.
        code: u32,
        /// The application's bytes.
        data: Bytes,
    },
    /// A control operation failed, or a resource did on its own (`fi_eq_err_entry`).
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

/// Which control operation failed, and why (`fi_eq_err_entry` of `fi_eq(3)`).
#[doc(alias("fi_eq_err_entry", "fi_eq_readerr", "fi_eq_strerror"))]
#[derive(Clone)]
#[non_exhaustive]
pub struct EventError {
    /// The reason; `err` is [`Error::fi_errno`].
    pub error: Error,
    /// The context given with the operation that failed, if any.
    pub context: Option<UserContext>,
    /// The endpoint concerned, if one is.
    pub endpoint: Option<EndpointId>,
    /// The place of an address that could not be inserted, among those that were given (`data` of
    /// `fi_av(3)`'s error entries: "the index of the failed address").
    pub index: Option<usize>,
    /// `err_data`: what came with the error, as the private data of a peer that rejected a
    /// connection. 256 bytes at most.
    pub data: Bytes,
}

impl EventError {
    /// The event of this error. Its `err_data` is the error's own, cut at the limit.
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
