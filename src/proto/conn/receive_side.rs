//! The receives that a connection's messages match: its own or shared ones. Fixed when the
//! connection is made.
//!
//! An enum, not a type parameter: a type parameter would spread to the connection's port, its
//! driver and their tests, for a dozen of some two hundred functions.

use crate::proto::peers::{ConnectionId, SourceId};

use super::own_receives::OwnReceives;
use super::rdm_binding::RdmBinding;
use super::rendezvous_receiver::IncomingAnnouncements;
use super::{Connection, ContextQueue};

#[derive(Debug)]
pub(super) enum ReceiveSide {
    /// A connected endpoint's own receives (`FI_EP_MSG`), matched in FIFO order.
    Own(Box<OwnReceives>),
    /// Receives that several connections share ([`Receives`](crate::proto::Receives)): those of a
    /// connectionless endpoint (`FI_EP_RDM`), or of connected ones with a shared receive context.
    Shared(Box<SharedBinding>),
}

/// The ids of a connection among those that share receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnIds {
    pub(crate) source: SourceId,
    pub(crate) connection: ConnectionId,
}

/// The parameters of a connection that shares receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedParams {
    pub(crate) ids: ConnIds,
    /// Bytes of unexpected messages that the shared receives have promised to this connection, each
    /// message with its overhead. At least the overhead of one message, since a peer that may not
    /// even announce a message could never send one.
    pub(crate) promised_bytes: u64,
    pub(crate) long_messages: LongMessages,
}

/// How the peer must treat messages that are longer than a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongMessages {
    /// The peer announces them before it sends them. In a connectionless endpoint the limit also
    /// applies to messages to the peer.
    Announced { min: u64 },
    /// The peer must not send them: one ends the connection, and no message is announced. A shorter
    /// message takes a shared receive only when it is complete, and is kept in memory of its
    /// connection until then, so that a peer that stops within a message holds up only its own
    /// messages.
    Refused { max: u64 },
}

impl LongMessages {
    /// Refuses messages longer than `max`, if it is set; else messages longer than `announced_min`
    /// are announced.
    pub(crate) fn new(max: Option<usize>, announced_min: usize) -> Self {
        match max {
            Some(max) => LongMessages::Refused { max: max as u64 },
            None => LongMessages::Announced {
                min: announced_min as u64,
            },
        }
    }
}

/// The binding of a connection to the receives that it shares.
#[derive(Debug)]
pub(super) struct SharedBinding {
    pub(super) params: SharedParams,
    /// Bytes of a message that is being collected, or that is complete and waits for a receive.
    pub(super) collected: Vec<u8>,
    /// The announced messages of the peer.
    pub(super) incoming: IncomingAnnouncements,
    /// Set for a connectionless endpoint's connection.
    pub(super) rdm: Option<Box<RdmBinding>>,
}

impl SharedBinding {
    pub(super) fn new(params: SharedParams, rdm: Option<Box<RdmBinding>>) -> Box<Self> {
        Box::new(SharedBinding {
            params,
            collected: Vec::new(),
            incoming: IncomingAnnouncements::default(),
            rdm,
        })
    }
}

impl<T> Connection<T> {
    /// The connection's own receives; `None` where they are shared.
    #[inline]
    pub(super) fn own(&self) -> Option<&OwnReceives> {
        match &self.side {
            ReceiveSide::Own(own) => Some(own),
            ReceiveSide::Shared(_) => None,
        }
    }

    #[inline]
    pub(super) fn own_mut(&mut self) -> Option<&mut OwnReceives> {
        match &mut self.side {
            ReceiveSide::Own(own) => Some(own),
            ReceiveSide::Shared(_) => None,
        }
    }

    /// The binding to shared receives; `None` if the connection has its own.
    #[inline]
    pub(super) fn binding(&self) -> Option<&SharedBinding> {
        match &self.side {
            ReceiveSide::Own(_) => None,
            ReceiveSide::Shared(binding) => Some(binding),
        }
    }

    #[inline]
    pub(super) fn binding_mut(&mut self) -> Option<&mut SharedBinding> {
        match &mut self.side {
            ReceiveSide::Own(_) => None,
            ReceiveSide::Shared(binding) => Some(binding),
        }
    }

    /// True if the connection shares its receives with others.
    #[inline]
    pub(super) fn shares_receives(&self) -> bool {
        matches!(self.side, ReceiveSide::Shared(_))
    }

    /// The binding to the connectionless endpoint; `None` for a connected endpoint's connection.
    #[inline]
    pub(super) fn rdm(&self) -> Option<&RdmBinding> {
        self.binding()?.rdm.as_deref()
    }

    #[inline]
    pub(super) fn rdm_mut(&mut self) -> Option<&mut RdmBinding> {
        self.binding_mut()?.rdm.as_deref_mut()
    }

    /// True of a connectionless endpoint's connection.
    #[inline]
    pub(super) fn is_connectionless(&self) -> bool {
        self.rdm().is_some()
    }

    /// The ids among connections that share receives; `None` for a connection's own receives.
    #[inline]
    pub(crate) fn ids(&self) -> Option<ConnIds> {
        self.binding().map(|binding| binding.params.ids)
    }

    /// Returns the context that bounds receives or transmit operations; `None` for shared receives,
    /// which are not counted here.
    #[inline]
    pub(super) fn context(&mut self, receive: bool) -> Option<&mut ContextQueue> {
        match (receive, &mut self.side) {
            (false, _) => Some(&mut self.tx_context),
            (true, ReceiveSide::Own(own)) => Some(&mut own.context),
            (true, ReceiveSide::Shared(_)) => None,
        }
    }
}
