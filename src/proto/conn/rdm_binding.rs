//! The binding of a connection to its connectionless endpoint: its ids, its private data in the
//! handshake, posts before it is up, and the reset after a failed attempt.

use std::num::NonZeroU32;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::wire::{
    ByteOrder, Capabilities, CmDecoder, ControlFrame, ControlKind, ExtensionOffer, NamedContexts,
    PeerData,
};

use super::auth::ProvenKey;
use super::close::CloseState;
use super::credit::ReceiveCredit;
use super::handshake::control_frame;
use super::receive_side::{LongMessages, ReceiveSide, SharedBinding, SharedParams};
use super::receive_state::{PartialHeader, ReceiveState};
use super::refusal::Refusals;
use super::rendezvous_sender::{OutgoingAnnouncements, RendezvousPolicy};
use super::tx::QueuedKind;
use super::{Connection, ExtensionParams, Lifecycle, Sizes, violation};

/// The parameters of a connectionless endpoint's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RdmParams {
    pub(crate) shared: SharedParams,
    /// The port at which the endpoint listens.
    pub(crate) listening_port: u16,
    /// A random number that changes when the endpoint is opened anew.
    pub(crate) incarnation: NonZeroU32,
    /// The two contexts, the endpoint's and the peer's, between which the connection is.
    /// [`Capabilities::CONTEXTS`] is offered unless both are the first ones.
    pub(crate) contexts: NamedContexts,
}

/// Makes the error of an attempt that named contexts, to a peer whose answer shows that it knows
/// none.
pub(crate) fn no_contexts() -> Error {
    let what = "the peer knows no contexts: its endpoint is reached from context 0 to context 0";
    Error::new(ErrorKind::Incompatible, what)
}

/// The binding of a connection to its connectionless endpoint.
#[derive(Debug)]
pub(super) struct RdmBinding {
    own: RdmParams,
    theirs: Option<PeerData>,
    /// The versions of both sides support announcements of tagged messages.
    versions_agree: bool,
}

impl RdmBinding {
    /// Returns the private data to send to the peer. It asks for announcements, or agrees to them,
    /// only if this side takes them; otherwise the peer may make none.
    fn announcing(&self, said: PeerData) -> PeerData {
        match self.takes_announcements() {
            true => said,
            false => said.without_announcements(),
        }
    }

    /// True if announcements are agreed on: never if our request asked for none, whatever the
    /// response says.
    fn agrees_to_announcements(&self, response: &PeerData) -> bool {
        self.takes_announcements() && response.agrees_to_announcements()
    }

    fn takes_announcements(&self) -> bool {
        matches!(
            self.own.shared.long_messages,
            LongMessages::Announced { .. }
        )
    }
}

impl<T> Connection<T> {
    /// Creates a connection of a connectionless endpoint. It uses the receives of
    /// [`Host::shared`](crate::proto::Host::shared), so `sizes` applies to the transmit context
    /// only, and it takes posts before it is up.
    pub(crate) fn new_rdm(sizes: Sizes, extension: ExtensionParams, params: RdmParams) -> Self {
        let rdm = Box::new(RdmBinding {
            own: params,
            theirs: None,
            versions_agree: false,
        });
        Connection::with_shared(
            SharedBinding::new(params.shared, Some(rdm)),
            &sizes,
            extension,
        )
    }

    /// Returns the peer's private data, from its request or its response.
    pub(crate) fn peer_data(&self) -> Option<&PeerData> {
        self.rdm().and_then(|rdm| rdm.theirs.as_ref())
    }

    /// Returns the bytes of unexpected messages that are reserved for the peer.
    pub(super) fn budget_bytes(&self) -> u64 {
        match &self.side {
            ReceiveSide::Own(own) => own.matcher.budget_bytes() as u64,
            ReceiveSide::Shared(binding) => {
                (binding.params.promised_bytes).max(UNEXPECTED_OVERHEAD as u64)
            }
        }
    }

    /// Dials the peer: queues the request, and awaits the response.
    pub(crate) fn begin_connect_peer(&mut self) {
        let Some(rdm) = self.rdm() else {
            debug_assert!(false, "an endpoint that is connected has data of its own");
            return;
        };
        let RdmParams {
            listening_port,
            incarnation,
            contexts,
            ..
        } = rdm.own;
        let request = PeerData::request(listening_port, incarnation, self.extension.offer());
        let request = rdm.announcing(request.between(contexts));
        self.lifecycle.go(Lifecycle::Connecting);
        self.handshake = Some(Box::new(CmDecoder::new()));
        let data = request.encode();
        self.tx
            .push_raw(control_frame(ControlKind::Request, &data, None));
    }

    /// Accepts a peer with the request `asked`, in this byte order. `proven`: the listener has
    /// already sent the response, and the peer has proven the key.
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
        let Some(peer) = self.rdm_mut() else {
            debug_assert!(false, "an endpoint that is connected has data of its own");
            return;
        };
        let response = asked.response(peer.own.incarnation, answer);
        let response = peer.announcing(response);
        peer.theirs = Some(*asked);
        peer.versions_agree = peer.agrees_to_announcements(&response);
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

    /// Takes the peer's acceptance, and returns what the peer agrees to; `None`: the peer has no
    /// extension.
    pub(super) fn peer_accepted(
        &mut self,
        frame: &ControlFrame,
    ) -> Result<Option<ExtensionOffer>, Error> {
        let theirs = PeerData::read(frame.data())?;
        if let Some(peer) = self.rdm_mut() {
            peer.theirs = Some(theirs);
            peer.versions_agree = peer.agrees_to_announcements(&theirs);
        }
        let agreed = self.extension.take_answer(theirs.offer())?;
        self.extension.check_key_agreed()?;
        self.check_contexts_agreed(&theirs)?;
        Ok(agreed)
    }

    /// Checks that the peer has accepted the contexts of this connection. A peer that knows no
    /// contexts accepts for its whole endpoint, which means the first ones.
    fn check_contexts_agreed(&self, theirs: &PeerData) -> Result<(), Error> {
        if !self.names_contexts() {
            return Ok(());
        }
        if !self.agreed().contains(Capabilities::CONTEXTS) {
            return Err(no_contexts());
        }
        match theirs.contexts() == self.contexts() {
            true => Ok(()),
            false => Err(violation("a response between other contexts")),
        }
    }

    fn contexts(&self) -> NamedContexts {
        self.rdm()
            .map_or(NamedContexts::FIRST, |it| it.own.contexts)
    }

    /// True unless the connection is between the first contexts of both endpoints.
    pub(crate) fn names_contexts(&self) -> bool {
        self.contexts() != NamedContexts::FIRST
    }

    /// Opens the transmit lanes for the operations that were posted before the connection was up.
    /// Which of them go out follows from the agreed capabilities.
    pub(super) fn open_lanes(&mut self) {
        let policy = self.rendezvous_policy();
        self.tx.announcements = policy.map(|it| Box::new(OutgoingAnnouncements::new(it)));
        if self.is_connectionless() && self.has_refusals() {
            // Every write is answered, so that its completion says whether the peer refused it.
            for key in self.tx.queued_rma() {
                if let Some(op) = self.ops.get_mut(key) {
                    op.want_answer();
                }
            }
        }
        self.end_unsupported_atomics();
        for key in self.tx.drain_unmatchable() {
            self.complete_unsent(key, not_matched());
        }
        self.tx.open();
    }

    /// False if the peer is known not to report when a message of this kind was matched.
    pub(super) fn may_match(&self, kind: QueuedKind) -> bool {
        match self.lifecycle {
            Lifecycle::Connected => {
                let announcements = self.tx.announcements.as_ref();
                announcements.is_some_and(|it| it.takes(kind))
            }
            _ => true,
        }
    }

    /// Returns which messages are announced to the peer; `None`: no messages.
    fn rendezvous_policy(&self) -> Option<RendezvousPolicy> {
        let untagged = self.agreed().contains(Capabilities::RENDEZVOUS);
        let (tagged, min) = match self.rdm() {
            Some(rdm) => match rdm.own.shared.long_messages {
                // C peers misread a clear-to-send in the other byte order.
                LongMessages::Announced { min } => (
                    untagged || rdm.versions_agree && self.byte_order == ByteOrder::Native,
                    min,
                ),
                LongMessages::Refused { .. } => return None,
            },
            // A connected endpoint's peer shares its receives if its HELLO says so.
            None => (false, self.peer_hello()?.announce_min?),
        };
        (tagged || untagged).then(|| RendezvousPolicy {
            tagged,
            untagged,
            withdraws: self.agreed().contains(Capabilities::WITHDRAW),
            min,
        })
    }

    /// True if the peer may announce messages, with a tag or without.
    pub(super) fn takes_announcements(&self, tagged: bool) -> bool {
        self.agreed().contains(Capabilities::RENDEZVOUS)
            || tagged && self.rdm().is_some_and(|it| it.versions_agree)
    }

    /// Resets the connection for its next attempt, and keeps all posted operations. Called after an
    /// attempt that lost a tie, was rejected or could not begin, once the link holds no memory of
    /// it; or after a connection that ended by agreement before all posted operations were sent.
    /// Next come [`begin_connect_peer`](Self::begin_connect_peer),
    /// [`begin_accept_peer`](Self::begin_accept_peer), or the end. A key has to be
    /// [demanded](Self::demand_key) anew, with another nonce; otherwise no attempt succeeds.
    pub(crate) fn reset_attempt(&mut self) {
        debug_assert!(!self.tx.is_out(), "the link has given everything back");
        debug_assert!(!self.awaits_data(), "no receive is left behind");
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
        if let Some(binding) = self.binding_mut() {
            binding.incoming.clear();
            binding.collected = Vec::new();
        }
        if let Some(peer) = self.rdm_mut() {
            peer.theirs = None;
            peer.versions_agree = false;
        }
        self.invariants();
    }

    /// Clears the fault of a failed attempt, or of a connection that was to be followed by another:
    /// the connection ends for another reason.
    pub(crate) fn forget_fault(&mut self) {
        let is_attempt = self.lifecycle != Lifecycle::Connected;
        debug_assert!(
            is_attempt || self.has_carried_over(),
            "nothing is to follow"
        );
        self.fault = None;
    }
}

/// Error of a message that cannot end when it is matched.
#[cold]
pub(super) fn not_matched() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "match_complete: the peer does not say when such a message is matched with a receive: it \
         takes no announcements of it",
    )
}
