//! Whose receives the messages of a connection are for: the one thing in which the connections of
//! connected and of connectionless endpoints differ. Chosen when the connection is made.
//!
//! Two variants, and no type parameter: one of the connection would be one of its port, its driver
//! and their tests too, for a dozen of some two hundred functions.

use crate::proto::matching::first_come::Matcher;

use super::peering::RdmBinding;
use super::{Connection, ContextQueue};

#[derive(Debug)]
pub(super) enum ReceiveSide {
    /// Of a connected endpoint (`FI_EP_MSG`): its own, first come first matched.
    Own(OwnReceives),
    /// Of a connectionless endpoint (`FI_EP_RDM`): those that all its connections share
    /// ([`Receives`](crate::proto::Receives)).
    Shared(Box<RdmBinding>),
}

/// The receives of a connected endpoint.
#[derive(Debug)]
pub(super) struct OwnReceives {
    pub(super) context: ContextQueue,
    pub(super) matcher: Matcher,
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

    /// What binds the connection to its connectionless endpoint; `None` of a connected one's.
    #[inline]
    pub(super) fn binding(&self) -> Option<&RdmBinding> {
        match &self.side {
            ReceiveSide::Own(_) => None,
            ReceiveSide::Shared(binding) => Some(binding),
        }
    }

    #[inline]
    pub(super) fn binding_mut(&mut self) -> Option<&mut RdmBinding> {
        match &mut self.side {
            ReceiveSide::Own(_) => None,
            ReceiveSide::Shared(binding) => Some(binding),
        }
    }

    /// True of a connectionless endpoint's connection.
    #[inline]
    pub(super) fn shares_receives(&self) -> bool {
        matches!(self.side, ReceiveSide::Shared(_))
    }

    /// The context that operations take places of. Receives that are shared take none here.
    #[inline]
    pub(super) fn context(&mut self, receive: bool) -> Option<&mut ContextQueue> {
        match (receive, &mut self.side) {
            (false, _) => Some(&mut self.transmit),
            (true, ReceiveSide::Own(own)) => Some(&mut own.context),
            (true, ReceiveSide::Shared(_)) => None,
        }
    }
}
