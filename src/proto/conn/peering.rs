//! What makes a connection one of a connectionless endpoint's: its names, its part of the private
//! data of the handshake, posts before it is up, and beginning again when an attempt is given up.

use std::num::NonZeroU32;

use bytes::Bytes;

use crate::error::Error;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::peers::{ConnectionId, SourceId};
use crate::wire::{ByteOrder, Capabilities, CmDecoder, ControlFrame, ControlKind, Offer, PeerData};

use super::announce::{Announcements, Announcing};
use super::auth::ProvenKey;
use super::credit::ReceiveCredit;
use super::handshake::control_frame;
use super::refusal::Refusals;
use super::rendezvous::Incoming;
use super::rx::{PartialHeader, Rx};
use super::shared::Taken;
use super::side::ReceiveSide;
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
    /// connection, each message with its overhead. Less than one message's overhead counts as
    /// that: a peer that may not even announce could never send.
    pub(crate) promised_bytes: u64,
    /// Where the endpoint listens.
    pub(crate) listening_port: u16,
    /// Tells one life of the endpoint from the next.
    pub(crate) incarnation: NonZeroU32,
    /// Messages longer than this are announced before they are sent.
    pub(crate) rendezvous_min: u64,
}

/// What binds a connection to its connectionless endpoint, and what the peer has said.
#[derive(Debug)]
pub(super) struct RdmBinding {
    own: Peering,
    theirs: Option<PeerData>,
    /// The versions of both sides have announcements of tagged messages.
    versions_agree: bool,
    /// The receive that a message is landing in.
    landing: Option<Taken>,
    /// What the peer has announced.
    pub(super) incoming: Incoming,
}

impl<T> Connection<T> {
    /// A connection of a connectionless endpoint: its receives are those of
    /// [`Host::shared`](crate::proto::Host::shared), so of the sizes only the transmit context's
    /// counts, and it takes posts before it is up.
    pub(crate) fn of_peer(sizes: Sizes, terms: Terms, peering: Peering) -> Self {
        let binding = Box::new(RdmBinding {
            own: peering,
            theirs: None,
            versions_agree: false,
            landing: None,
            incoming: Incoming::default(),
        });
        Connection::with_side(ReceiveSide::Shared(binding), &sizes, terms.of_peer())
    }

    /// The names among connections that share receives.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.binding().map(|binding| binding.own.identity)
    }

    /// A message is landing in this receive.
    pub(super) fn set_landing(&mut self, receive: Option<Taken>) {
        if let Some(binding) = self.binding_mut() {
            binding.landing = receive;
        }
    }

    /// The receive that a message is landing in, no more.
    pub(super) fn take_landing_receive(&mut self) -> Option<Taken> {
        self.binding_mut()
            .and_then(|binding| binding.landing.take())
    }

    /// What the peer's private data said: in its request, or in its response.
    pub(crate) fn peer_data(&self) -> Option<&PeerData> {
        self.binding().and_then(|binding| binding.theirs.as_ref())
    }

    /// Bytes of early messages that are kept for the peer.
    pub(super) fn budget_bytes(&self) -> u64 {
        match &self.side {
            ReceiveSide::Own(own) => own.matcher.budget_bytes() as u64,
            ReceiveSide::Shared(binding) => {
                binding.own.promised_bytes.max(UNEXPECTED_OVERHEAD as u64)
            }
        }
    }

    /// The endpoint dials the peer: the request goes out first, its response is awaited.
    pub(crate) fn begin_connect_peer(&mut self) {
        let Some(binding) = self.binding() else {
            debug_assert!(false, "an endpoint that is connected has data of its own");
            return;
        };
        let Peering {
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

    /// The endpoint accepts a peer whose request said `asked`, in this order. `proven`: it has been
    /// answered already, and has proven the key.
    pub(crate) fn begin_accept_peer(
        &mut self,
        asked: &PeerData,
        order: ByteOrder,
        proven: Option<ProvenKey>,
    ) {
        self.lifecycle.go(Lifecycle::Accepting);
        self.order = order;
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

    /// The peer has accepted, and agrees on this; `None`: it is a plain one.
    pub(super) fn peer_accepted(&mut self, frame: &ControlFrame) -> Result<Option<Offer>, Error> {
        let theirs = PeerData::read(frame.data())?;
        if let Some(peer) = self.binding_mut() {
            peer.theirs = Some(theirs);
            peer.versions_agree = theirs.agrees_to_announcements();
        }
        let agreed = self.extension.take_answer(theirs.offer())?;
        self.extension.check_key_agreed()?;
        Ok(agreed)
    }

    /// The connection is up: what was posted before goes out, by what is known of the peer now.
    pub(super) fn open_lanes(&mut self) {
        if let ReceiveSide::Shared(peer) = &self.side {
            let untagged = self.agreed().contains(Capabilities::RENDEZVOUS);
            // C peers mistake a clear-to-send where the byte orders differ.
            let tagged = untagged || peer.versions_agree && self.order == ByteOrder::Native;
            if tagged {
                self.tx.announcements = Some(Announcements::new(Announcing {
                    tagged,
                    untagged,
                    withdraws: self.agreed().contains(Capabilities::WITHDRAW),
                    min: peer.own.rendezvous_min,
                }));
            }
            if self.has_refusals() {
                // Every write is answered: so its end is the peer's verdict.
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

    /// The attempt is given up: it lost a tie, was rejected or could not be begun, and the link
    /// holds nothing of it any more; or the connection has ended by agreement, but not all that was
    /// posted has been sent. Everything posted is kept; what follows is
    /// [`begin_connect_peer`](Self::begin_connect_peer) or
    /// [`begin_accept_peer`](Self::begin_accept_peer), or the end. A key has to be
    /// [demanded](Self::demand_key) anew, with another nonce; without that no attempt succeeds.
    pub(crate) fn begin_again(&mut self) {
        debug_assert!(!self.tx.is_out(), "the link has given everything back");
        if self.lifecycle != Lifecycle::Idle {
            self.lifecycle.go(Lifecycle::Idle);
        }
        self.fault = None;
        self.handshake = None;
        self.order = ByteOrder::Native;
        self.extension.reset();
        self.tx.forget_attempt();
        self.rx = Rx::Header;
        self.partial = PartialHeader::new();
        self.receive_credit = ReceiveCredit::default();
        self.last_bytes = None;
        self.refusals = Refusals::default();
        self.ending.begin_again();
        if let Some(peer) = self.binding_mut() {
            peer.theirs = None;
            peer.versions_agree = false;
            peer.incoming.clear();
        }
        self.invariants();
    }

    /// The attempt is given up for another reason than it failed by.
    pub(crate) fn forget_fault(&mut self) {
        debug_assert!(self.lifecycle != Lifecycle::Connected, "an attempt only");
        self.fault = None;
    }
}
