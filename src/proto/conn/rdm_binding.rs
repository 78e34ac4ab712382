//! The binding of a connection to its connectionless endpoint: its ids, its part of the private
//! data of the handshake, posts before it is up, and the reset when an attempt is given up.

use std::num::NonZeroU32;

use bytes::Bytes;

use crate::error::Error;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::peers::{ConnectionId, SourceId};
use crate::wire::{
    ByteOrder, Capabilities, CmDecoder, ControlFrame, ControlKind, ExtensionOffer, PeerData,
};

use super::auth::ProvenKey;
use super::close::CloseState;
use super::credit::ReceiveCredit;
use super::handshake::control_frame;
use super::receive_side::ReceiveSide;
use super::receive_state::{PartialHeader, ReceiveState};
use super::refusal::Refusals;
use super::rendezvous_receiver::IncomingAnnouncements;
use super::rendezvous_sender::{OutgoingAnnouncements, RendezvousPolicy};
use super::shared_receive::MatchedReceive;
use super::{Connection, ExtensionParams, Lifecycle, Sizes};

/// The ids of a connection among those that share receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnIds {
    pub(crate) source: SourceId,
    pub(crate) connection: ConnectionId,
}

/// The parameters of a connectionless endpoint's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmParams {
    pub(crate) ids: ConnIds,
    /// Bytes of unexpected messages that the shared receives have promised to this connection, each
    /// message with its overhead. At least one message's overhead, since a peer that may not even
    /// announce could never send.
    pub(crate) promised_bytes: u64,
    /// Where the endpoint listens.
    pub(crate) listening_port: u16,
    /// A random number that changes when the endpoint is opened anew.
    pub(crate) incarnation: NonZeroU32,
    /// Messages longer than this are announced before they are sent.
    pub(crate) rendezvous_min: u64,
}

/// The binding of a connection to its connectionless endpoint.
#[derive(Debug)]
pub(super) struct RdmBinding {
    own: RdmParams,
    theirs: Option<PeerData>,
    /// Both sides' versions have announcements of tagged messages.
    versions_agree: bool,
    /// The receive that a message is being received into.
    receiving: Option<MatchedReceive>,
    /// The announced messages of the peer.
    pub(super) incoming: IncomingAnnouncements,
}

impl<T> Connection<T> {
    /// A connection of a connectionless endpoint: its receives are those of
    /// [`Host::shared`](crate::proto::Host::shared), so of the sizes only the transmit context's
    /// counts, and it takes posts before it is up.
    pub(crate) fn new_rdm(sizes: Sizes, extension: ExtensionParams, params: RdmParams) -> Self {
        let binding = Box::new(RdmBinding {
            own: params,
            theirs: None,
            versions_agree: false,
            receiving: None,
            incoming: IncomingAnnouncements::default(),
        });
        Connection::with_side(ReceiveSide::Shared(binding), &sizes, extension.of_peer())
    }

    /// The ids among connections that share receives; `None` of a connected endpoint.
    pub(crate) fn ids(&self) -> Option<ConnIds> {
        self.binding().map(|binding| binding.own.ids)
    }

    /// A message is being received into this receive.
    pub(super) fn set_matched_receive(&mut self, receive: Option<MatchedReceive>) {
        if let Some(binding) = self.binding_mut() {
            binding.receiving = receive;
        }
    }

    /// Takes the receive that a message is being received into.
    pub(super) fn take_matched_receive(&mut self) -> Option<MatchedReceive> {
        self.binding_mut()
            .and_then(|binding| binding.receiving.take())
    }

    /// The peer's private data, from its request or its response.
    pub(crate) fn peer_data(&self) -> Option<&PeerData> {
        self.binding().and_then(|binding| binding.theirs.as_ref())
    }

    /// Bytes of unexpected messages that are reserved for the peer.
    pub(super) fn budget_bytes(&self) -> u64 {
        match &self.side {
            ReceiveSide::Own(own) => own.matcher.budget_bytes() as u64,
            ReceiveSide::Shared(binding) => {
                binding.own.promised_bytes.max(UNEXPECTED_OVERHEAD as u64)
            }
        }
    }

    /// Dials the peer: queues the request, and awaits the response.
    pub(crate) fn begin_connect_peer(&mut self) {
        let Some(binding) = self.binding() else {
            debug_assert!(false, "an endpoint that is connected has data of its own");
            return;
        };
        let RdmParams {
            listening_port,
            incarnation,
            ..
        } = binding.own;
        let request = PeerData::request(listening_port, incarnation, self.extension.offer());
        self.lifecycle.go(Lifecycle::Connecting);
        self.handshake = Some(Box::new(CmDecoder::new()));
        let data = request.encode();
        self.tx
            .push_raw(control_frame(ControlKind::Request, &data, None));
    }

    /// Accepts a peer whose request was `asked`, in this byte order. `proven`: the listener has
    /// answered it, and the peer has proven the key.
    pub(crate) fn begin_accept_peer(
        &mut self,
        asked: &PeerData,
        order: ByteOrder,
        proven: Option<ProvenKey>,
    ) {
        self.lifecycle.go(Lifecycle::Accepting);
        self.byte_order = order;
        let answer = self.extension.answer(asked.offer());
        if let Err(error) = self.extension.check_key_agreed() {
            return self.fail(error);
        }
        let Some(peer) = self.binding_mut() else {
            debug_assert!(false, "an endpoint that is connected has data of its own");
            return;
        };
        let response = asked.response(peer.own.incarnation, answer);
        peer.theirs = Some(*asked);
        peer.versions_agree = response.agrees_to_announcements();
        if let Some(proven) = proven {
            return self.begin_proven(proven);
        }
        let data = response.encode();
        self.tx
            .push_raw(control_frame(ControlKind::Response, &data, None));
        if let Some(agreed) = answer {
            self.begin_agreed(agreed, Bytes::new());
        }
    }

    /// The peer has accepted: returns what it agrees to; `None`: it has no extension.
    pub(super) fn peer_accepted(
        &mut self,
        frame: &ControlFrame,
    ) -> Result<Option<ExtensionOffer>, Error> {
        let theirs = PeerData::read(frame.data())?;
        if let Some(peer) = self.binding_mut() {
            peer.theirs = Some(theirs);
            peer.versions_agree = theirs.agrees_to_announcements();
        }
        let agreed = self.extension.take_answer(theirs.offer())?;
        self.extension.check_key_agreed()?;
        Ok(agreed)
    }

    /// The connection is up: opens the transmit lanes for what was posted before, by the
    /// capabilities agreed on.
    pub(super) fn open_lanes(&mut self) {
        if let ReceiveSide::Shared(peer) = &self.side {
            let untagged = self.agreed().contains(Capabilities::RENDEZVOUS);
            // C peers misread a clear-to-send of the other byte order.
            let tagged = untagged || peer.versions_agree && self.byte_order == ByteOrder::Native;
            if tagged {
                self.tx.announcements = Some(OutgoingAnnouncements::new(RendezvousPolicy {
                    tagged,
                    untagged,
                    withdraws: self.agreed().contains(Capabilities::WITHDRAW),
                    min: peer.own.rendezvous_min,
                }));
            }
            if self.has_refusals() {
                // Every write is answered, so that its completion says whether the peer refused it.
                for key in self.tx.queued_rma() {
                    if let Some(op) = self.ops.get_mut(key) {
                        op.want_answer();
                    }
                }
            }
        }
        self.end_unsupported_atomics();
        self.tx.open();
    }

    /// True if the peer may announce messages, with a tag or without.
    pub(super) fn takes_announcements(&self, tagged: bool) -> bool {
        self.agreed().contains(Capabilities::RENDEZVOUS)
            || tagged && self.binding().is_some_and(|it| it.versions_agree)
    }

    /// Resets the connection for its next attempt, and keeps everything posted. The attempt lost a
    /// tie, was rejected or could not begin, and the link holds nothing of it; or the connection
    /// has ended by agreement before all that was posted was sent. What follows is
    /// [`begin_connect_peer`](Self::begin_connect_peer),
    /// [`begin_accept_peer`](Self::begin_accept_peer), or the end. A key has to be
    /// [demanded](Self::demand_key) anew, with another nonce; without that no attempt succeeds.
    pub(crate) fn reset_attempt(&mut self) {
        debug_assert!(!self.tx.is_out(), "the link has given everything back");
        if self.lifecycle != Lifecycle::Idle {
            self.lifecycle.go(Lifecycle::Idle);
        }
        self.fault = None;
        self.handshake = None;
        self.byte_order = ByteOrder::Native;
        self.extension.reset();
        self.tx.forget_attempt();
        self.rx = ReceiveState::Header;
        self.partial = PartialHeader::default();
        self.receive_credit = ReceiveCredit::default();
        self.last_bytes = None;
        self.refusals = Refusals::default();
        self.close = CloseState::default();
        if let Some(peer) = self.binding_mut() {
            peer.theirs = None;
            peer.versions_agree = false;
            peer.incoming.clear();
        }
        self.invariants();
    }

    /// Clears the fault of a failed attempt, or of a connection that another was to follow: it ends
    /// for another reason.
    pub(crate) fn forget_fault(&mut self) {
        let is_attempt = self.lifecycle != Lifecycle::Connected;
        debug_assert!(
            is_attempt || self.has_carried_over(),
            "nothing is to follow"
        );
        self.fault = None;
    }
}
