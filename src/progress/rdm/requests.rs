//! Requests of peers: which of them are accepted, and to which port their connections go.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::id::PeerAddr;
use crate::limits::RDM_PORT_ATTEMPTS;
use crate::mr::AuthSecret;
use crate::proto::{Answer, AttemptId, Challenge, Failure, Request};
use crate::wire::{ExtensionOffer, PeerData, RXM_REJECT, is_rxm_request};

use super::super::listen::{Handover, IncomingRequest, RequestDecision};
use super::super::port::Port;
use super::attachment::{AcceptedConn, TakeOverError};
use super::peer_keys::RequiredKey;
use super::task::RdmTask;

/// An accepted request, whose connection is about to be handed over.
pub(super) struct AcceptedRequest {
    peer: PeerAddr,
    /// `None`: the accepted side of a connection to ourselves.
    attempt: Option<AttemptId>,
    asked: PeerData,
    /// The key that the peer has proven.
    key: Option<AuthSecret>,
}

/// The decisions about requests to the task's context, for the listener's [`RequestHandler`].
///
/// [`RequestHandler`]: super::super::listen::RequestHandler
impl RdmTask {
    pub(super) fn on_request(
        &mut self,
        incoming: &IncomingRequest<'_>,
        now: Instant,
    ) -> RequestDecision<AcceptedRequest> {
        // Process earlier events before the request.
        self.process_events(now, None);
        if is_rxm_request(incoming.data) {
            return RequestDecision::Reject(Bytes::from_static(&RXM_REJECT));
        }
        let asked = match PeerData::read(incoming.data) {
            Ok(asked) if asked.port() != 0 => asked,
            _ => return RequestDecision::Reject(Bytes::new()),
        };
        let (mut from, mut to) = (incoming.peer, incoming.local);
        from.set_port(asked.port());
        to.set_port(self.rdm.local_addr().port());
        let from = PeerAddr {
            socket: from,
            context: asked.contexts().from,
        };
        let to = PeerAddr {
            socket: to,
            context: self.rdm.context,
        };
        if self.rdm.check_reachable(from).is_err() {
            return RequestDecision::Reject(asked.reject_context(self.rdm.incarnation).into());
        }
        // Endpoints with a key connect only with each other; so do endpoints without one.
        let required = self.rdm.key_required_of(from);
        let proves = asked.offer().is_some_and(ExtensionOffer::proves_key);
        // If the peer's listed key is not one of this endpoint's, the rejection makes the peer give
        // up.
        let has_key = required.as_ref().map_or(!proves, RequiredKey::is_key);
        let reject = asked.reject(self.rdm.incarnation, has_key);
        let Some(required) = required.filter(|_| has_key == proves) else {
            return RequestDecision::Reject(reject.into());
        };
        let request = Request {
            from,
            to,
            incarnation: asked.incarnation(),
            undialable: asked.is_behind_firewall(),
            is_proven: incoming.proven.is_some(),
            is_known: self.rdm.is_known(from),
        };
        if let (RequiredKey::OneOf(keys), None) = (&required, incoming.proven) {
            let challenge = match self.peers.would_count(&request) {
                true => self.challenge(keys.clone(), (from, &asked), incoming),
                false => None,
            };
            return challenge.unwrap_or_else(|| RequestDecision::Reject(reject.into()));
        }
        // The vector may have changed since the challenge.
        if !required.admits(incoming.proven) {
            return RequestDecision::Reject(reject.into());
        }
        let answer = self.peers.handle_request(&request, now);
        tracing::debug!(?request, ?answer, "asked for a connection");
        self.run_commands(now);
        let attempt = match answer {
            Answer::Reject => return RequestDecision::Reject(reject.into()),
            Answer::Accept(attempt) => Some(attempt),
            Answer::AcceptSelf => None,
        };
        RequestDecision::Accept(AcceptedRequest {
            peer: request.from,
            attempt,
            asked,
            key: incoming.proven.cloned(),
        })
    }

    pub(super) fn take_handover(
        &mut self,
        accepted: AcceptedRequest,
        handover: Option<Handover>,
        now: Instant,
    ) {
        let AcceptedRequest {
            peer,
            attempt,
            asked,
            key,
        } = accepted;
        match (handover, attempt) {
            (Some(handover), _) => {
                let accepting = AcceptedConn {
                    attempt,
                    handover,
                    asked,
                };
                self.hand_over(peer, key.as_ref(), accepting, now);
            }
            (None, Some(attempt)) => self.failed(peer, attempt, Failure::Passing, lost(), now),
            (None, None) => {}
        }
        self.run_commands(now);
    }

    /// Makes the challenge that the peer must answer before its request counts. `None`: the peer's
    /// offer of a proof cannot be right, or there are no random bytes.
    fn challenge(
        &self,
        keys: Vec<AuthSecret>,
        (peer, asked): (PeerAddr, &PeerData),
        incoming: &IncomingRequest<'_>,
    ) -> Option<RequestDecision<AcceptedRequest>> {
        let mut nonce = [0; 32];
        let random = &self.rdm.engine.random;
        random
            .fill(&mut nonce, "an endpoint with a key")
            .inspect_err(|error| tracing::warn!(%error, "a request cannot be answered"))
            .ok()?;
        let params = self.rdm.extension_params(peer);
        let params = params.for_messages(self.rdm.config.long_messages);
        let incarnation = self.rdm.incarnation;
        let order = incoming.params.order;
        let once = (nonce, incoming.identity.map(|it| it.binding));
        let (challenge, bytes) = Challenge::new(params, keys, once, incarnation, (asked, order))?;
        Some(RequestDecision::Challenge(Box::new(challenge), bytes))
    }

    /// Hands an accepted connection over to the peer's port.
    fn hand_over(
        &mut self,
        peer: PeerAddr,
        key: Option<&AuthSecret>,
        mut accepting: AcceptedConn,
        now: Instant,
    ) {
        let attempt = accepting.attempt;
        for _ in 0..RDM_PORT_ATTEMPTS {
            let taken = match self.port_for(peer, key.cloned(), attempt) {
                Ok(port) => port.take_over(accepting),
                Err(error) => {
                    tracing::debug!(%peer, %error, "a connection could not be accepted");
                    break;
                }
            };
            match taken {
                Ok(()) => return,
                // Our own attempt had succeeded; the peer's connection is dropped.
                Err(TakeOverError::AlreadyUp(attempt, incarnation)) => {
                    return self.peers.adopt_connection(peer, attempt, incarnation, now);
                }
                Err(TakeOverError::Superseded(back)) => accepting = *back,
            }
        }
        if let Some(attempt) = attempt {
            self.failed(peer, attempt, Failure::Passing, lost(), now);
        }
    }

    fn port_for(
        &self,
        peer: PeerAddr,
        key: Option<AuthSecret>,
        attempt: Option<AttemptId>,
    ) -> Result<Arc<Port>> {
        match attempt {
            Some(_) => self.rdm.current_or_new(peer, key),
            None => self.rdm.unlisted_port(peer, key).map(|(port, _)| port),
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::PeerClosed, "before its request was accepted")
}
