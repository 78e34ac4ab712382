//! Which receives the messages of a connection match: its own or shared ones. Connections of
//! connected and of connectionless endpoints differ in this alone; it is fixed when a connection is
//! made.
//!
//! An enum, not a type parameter: a parameter of the connection would spread to its port, its
//! driver and their tests, for a dozen of some two hundred functions.

use crate::proto::matching::fifo::FifoMatcher;

use super::rdm_binding::RdmBinding;
use super::{Connection, ContextQueue};

#[derive(Debug)]
pub(super) enum ReceiveSide {
    /// Of a connected endpoint (`FI_EP_MSG`): its own, matched in FIFO order.
    Own(OwnReceives),
    /// Of a connectionless endpoint (`FI_EP_RDM`): those that all its connections share
    /// ([`Receives`](crate::proto::Receives)).
    Shared(Box<RdmBinding>),
}

/// The receives of a connected endpoint.
#[derive(Debug)]
pub(super) struct OwnReceives {
    pub(super) context: ContextQueue,
    pub(super) matcher: FifoMatcher,
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

    /// The context whose size bounds these operations. Shared receives are not counted here.
    #[inline]
    pub(super) fn context(&mut self, receive: bool) -> Option<&mut ContextQueue> {
        match (receive, &mut self.side) {
            (false, _) => Some(&mut self.tx_context),
            (true, ReceiveSide::Own(own)) => Some(&mut own.context),
            (true, ReceiveSide::Shared(_)) => None,
        }
    }
}
