//! What makes a connection one of a connectionless endpoint's: its names, its part of the private
//! data of the handshake, posts before it is up, and beginning again when an attempt is given up.

use std::num::NonZeroU32;

use crate::proto::peers::{ConnectionId, SourceId};
use crate::wire::{ByteOrder, PeerData};

use super::{Connection, Lifecycle, Sizes, Terms};

/// The names of a connection among those that share receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) source: SourceId,
    pub(crate) connection: ConnectionId,
}

/// What a connection of a connectionless endpoint knows of its endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peering {
    pub(crate) identity: Identity,
    /// Bytes of early messages that the shared receives have promised to keep for this
    /// connection, each message with its overhead. At least one message's overhead, since a peer
    /// that may announce nothing could never send.
    pub(crate) promised_bytes: u64,
    /// Where the endpoint listens.
    pub(crate) listening_port: u16,
    /// Tells one life of the endpoint from the next.
    pub(crate) incarnation: NonZeroU32,
    /// Messages longer than this are announced before they are sent.
    pub(crate) rendezvous_min: u64,
}

impl<T> Connection<T> {
    /// A connection of a connectionless endpoint: its receives are those of
    /// [`Host::shared`](crate::proto::Host::shared), so of the sizes only the transmit context's
    /// counts, and it takes posts before it is up.
    pub(crate) fn of_peer(sizes: Sizes, terms: Terms, peering: Peering) -> Self {
        let sizes = Sizes {
            rx_size: usize::MAX,
            unexpected_bytes: 0,
            ..sizes
        };
        let mut connection = Connection::new(sizes, terms);
        connection.peering = Some(Box::new(peering));
        connection
    }

    /// The names among connections that share receives.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.peering.as_ref().map(|peering| peering.identity)
    }

    /// The endpoint dials the peer: the request goes out first, its response is awaited.
    pub(crate) fn begin_connect_peer(&mut self) {
        todo!()
    }

    /// The endpoint accepts a peer whose request said `order` and `asked`.
    pub(crate) fn begin_accept_peer(&mut self, asked: &PeerData, order: ByteOrder) {
        let _ = (asked, order);
        todo!()
    }

    /// What the peer's private data said: in its request, or in its response.
    pub(crate) fn peer_data(&self) -> Option<&PeerData> {
        None
    }

    /// The attempt is given up: it lost a tie, was rejected or could not be begun, and the link
    /// holds nothing of it any more. Everything posted is kept; what follows is
    /// [`begin_connect_peer`](Self::begin_connect_peer) or
    /// [`begin_accept_peer`](Self::begin_accept_peer), or the end.
    pub(crate) fn begin_again(&mut self) {
        debug_assert!(self.lifecycle != Lifecycle::Connected, "an attempt only");
        todo!()
    }
}
