//! One peer of a listener, from its TCP connection to the decision on its request.
//!
//! ```text
//!                  request complete          the handler decides later     accepted
//!   ReadingRequest ─────────────▶ Pending ─────────────────────────▶ Deciding ──────▶ Done
//!         │                        ▲ │ │ └─── rejected ───▶ Rejecting ◀─┘ rejected     ▲
//!         │             key proven │ │ │                      ▲   ▲                    │
//!         │                        │ ▼ └── decided at once ───┼───┼────────────────────┘
//!         │                     ProvingKey ─── key refused ───┘   │
//!         └──────────────── no handler any more ──────────────────┘
//! ```
//! *Decided at once*: the handler accepts the request when it comes, or rejects it after its key
//! was proven. In any state, a connection closes if it breaks or sends what the protocol does not
//! allow.

use std::net::IpAddr;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use crate::edges::{check_edge, state_machine};
use crate::eq::{ConnectParams, Verdict};
use crate::error::{Error, ErrorKind};
use crate::limits::{REJECT_TIMEOUT, UNAUTHORIZED_LOGGED_PER_SECOND};
use crate::proto::{Challenge, ChallengeResult, ProvenKey};
use crate::sync::TicketHolder;
use crate::transport::{Link, Outcome, Receive, Received, SendBatch};
use crate::wire::{CmDecoded, CmDecoder, ControlFrame, ControlKind, NO_DESCRIPTORS};

use super::task::ListenTask;
use super::{Handover, IncomingRequest, RequestDecision, RequestHandler};

/// A peer of the listener, from its TCP connection to the verdict on its request.
pub(super) struct IncomingPeer {
    pub(super) id: u64,
    pub(super) host: IpAddr,
    pub(super) link: Box<dyn Link>,
    pub(super) waker: Waker,
    /// Only [`HandshakeDeadlines::set`](super::half_open::HandshakeDeadlines::set) changes it.
    pub(super) deadline: Option<Instant>,
    /// True if the peer's connection has the last descriptor of the process: the peer is refused.
    pub(super) took_spare: bool,
    pub(super) handshake: HandshakeState,
}

pub(super) enum HandshakeState {
    /// The request is being read.
    ReadingRequest(Box<CmDecoder>),
    /// The complete request waits for room at the handler.
    Pending { request: CompleteRequest },
    /// The peer is asked to prove its key; then its request is passed on again.
    ProvingKey {
        challenge: Box<Challenge>,
        request: CompleteRequest,
        /// True once the challenge has been sent.
        is_sent: bool,
    },
    /// The handler has the request, and decides.
    Deciding {
        holder: TicketHolder<Verdict>,
        params: ConnectParams,
    },
    /// The rejection is being sent.
    Rejecting,
    /// The verdict is final, and nothing more is sent to the peer from here.
    Done,
}

state_machine! { HandshakeState {
    ReadingRequest => [Pending, Rejecting],
    Pending => [ProvingKey, Deciding, Rejecting, Done],
    ProvingKey => [Pending, Rejecting],
    Deciding => [Rejecting, Done],
    Rejecting => [],
    Done => [],
}}

impl HandshakeState {
    /// Moves along a legal edge.
    fn go(&mut self, to: HandshakeState) {
        check_edge(self, &to);
        *self = to;
    }
}

pub(super) struct CompleteRequest {
    data: Bytes,
    params: ConnectParams,
    proven: Option<ProvenKey>,
}

/// Makes a batch of one frame.
fn batch_of(frame: Vec<u8>) -> Box<SendBatch> {
    let mut batch = Box::<SendBatch>::default();
    batch.push_bytes(frame, u64::MAX);
    batch
}

impl<H: RequestHandler> ListenTask<H> {
    /// Takes one step of a peer's handshake. Returns false if the peer is done, or its connection
    /// is broken or must close.
    pub(super) fn step(&mut self, peer: &mut IncomingPeer) -> bool {
        while let Some(outcome) = peer.link.poll_outcome() {
            match (outcome, &mut peer.handshake) {
                (
                    Outcome::Received(Received::Stage(bytes)),
                    HandshakeState::ReadingRequest(decoder),
                ) => {
                    match decoder.feed(&bytes) {
                        Err(error) => return self.close_for(peer, &error.into()),
                        Ok(CmDecoded::Need(_)) => peer.link.receive(Receive::Stage),
                        Ok(CmDecoded::Frame {
                            frame,
                            order,
                            consumed,
                        }) => {
                            // The peer may send one request, and nothing more before our answer.
                            if frame.kind() != ControlKind::Request || consumed != bytes.len() {
                                self.shared.lock().stats.invalid += 1;
                                return false;
                            }
                            let params = ConnectParams {
                                order,
                                offer: frame.offer(),
                            };
                            self.complete_request(
                                peer,
                                CompleteRequest {
                                    data: frame.into_data(),
                                    params,
                                    proven: None,
                                },
                            );
                        }
                    }
                }
                (
                    Outcome::Sent { mut batch, result },
                    HandshakeState::ProvingKey { is_sent, .. },
                ) => {
                    let Ok(sent) = result else { return false };
                    batch.drop_sent(sent);
                    match batch.is_empty() {
                        true => *is_sent = true,
                        false => peer.link.send(batch),
                    }
                }
                (
                    Outcome::Received(Received::Stage(bytes)),
                    HandshakeState::ProvingKey {
                        challenge,
                        request,
                        is_sent,
                    },
                ) => match challenge.feed(&bytes) {
                    Err(error) => return self.close_for(peer, &error),
                    Ok(ChallengeResult::Need) => peer.link.receive(Receive::Stage),
                    // A peer that answers before the challenge was sent cannot know what it
                    // answers.
                    Ok(_) if !*is_sent => return false,
                    Ok(ChallengeResult::Refused(frame)) => self.send_last(peer, frame),
                    Ok(ChallengeResult::Proven(key)) => {
                        let request = CompleteRequest {
                            data: std::mem::take(&mut request.data),
                            params: request.params,
                            proven: Some(key),
                        };
                        self.complete_request(peer, request);
                    }
                },
                (Outcome::Sent { mut batch, result }, HandshakeState::Rejecting) => {
                    let Ok(sent) = result else { return false };
                    batch.drop_sent(sent);
                    if batch.is_empty() {
                        // The peer reads the rejection and then our end of stream. This side closes
                        // after the peer's end of stream: an earlier close could reset the
                        // connection before the peer has read the rejection.
                        peer.link.finish();
                        peer.link.receive(Receive::Stage);
                        self.rejected.add(peer.id, peer.host);
                    } else {
                        peer.link.send(batch);
                    }
                }
                // A secure connection that could not be established reports why.
                (Outcome::Received(Received::Failed { error, .. }), _) => {
                    return self.close_for(peer, &error);
                }
                _ => return false,
            }
        }
        self.decide(peer)
    }

    /// Queues a complete request for the handler.
    fn complete_request(&mut self, peer: &mut IncomingPeer, request: CompleteRequest) {
        self.deadlines.set(peer.id, &mut peer.deadline, None);
        // A request whose key was proven comes here a second time, and is counted once.
        self.shared.lock().stats.requests += u64::from(request.proven.is_none());
        if peer.took_spare {
            self.reject(peer, Bytes::from_static(NO_DESCRIPTORS));
            return;
        }
        peer.handshake.go(HandshakeState::Pending { request });
        peer.link.watch();
        self.pending.push_back(peer.id);
    }

    /// Counts and logs an invalid peer, whose connection closes for what it sent.
    fn close_for(&mut self, peer: &IncomingPeer, error: &Error) -> bool {
        let from = peer.link.peer_addr();
        let is_unauthorized = error.kind() == ErrorKind::NotAuthorized;
        {
            let stats = &mut self.shared.lock().stats;
            stats.invalid += 1;
            stats.unauthorized += u64::from(is_unauthorized);
        }
        if is_unauthorized {
            if let Some(left_out) = self
                .unauthorized
                .admit(self.clock.now(), UNAUTHORIZED_LOGGED_PER_SECOND)
            {
                tracing::info!(%from, %error, left_out, "a peer is not authorized");
            }
            return false;
        }
        tracing::debug!(%from, %error, "a connection that is no request is closed");
        false
    }

    /// Carries out the handler's verdict, if there is one.
    fn decide(&mut self, peer: &mut IncomingPeer) -> bool {
        let HandshakeState::Deciding { holder, params } = &mut peer.handshake else {
            return true;
        };
        let params = *params;
        let verdict = match holder.poll_verdict(&mut Context::from_waker(&peer.waker)) {
            Poll::Pending => return true,
            Poll::Ready(verdict) => verdict,
        };
        let data = match verdict {
            Some(Verdict::Accept(taker)) => {
                self.shared.lock().stats.accepted += 1;
                tracing::info!(from = %peer.link.peer_addr(), "request accepted");
                peer.link.cancel_receive();
                if let Some(raw) = peer.link.take_raw() {
                    taker.give(self.config.accepted(raw, params));
                }
                peer.handshake.go(HandshakeState::Done);
                return false;
            }
            Some(Verdict::Reject(data)) => data,
            None => Bytes::new(),
        };
        self.reject(peer, data);
        true
    }

    pub(super) fn reject(&mut self, peer: &mut IncomingPeer, data: Bytes) {
        let frame =
            ControlFrame::new(ControlKind::Reject, data).expect("who decided has checked the data");
        self.shared.lock().stats.rejected += 1;
        tracing::info!(from = %peer.link.peer_addr(), "request rejected");
        self.send_last(peer, frame.encode());
    }

    /// Sends the peer its last frame.
    fn send_last(&mut self, peer: &mut IncomingPeer, frame: Vec<u8>) {
        self.half_open.remove(peer.id, peer.host);
        peer.handshake.go(HandshakeState::Rejecting);
        let deadline = self.clock.now() + REJECT_TIMEOUT;
        self.deadlines
            .set(peer.id, &mut peer.deadline, Some(deadline));
        peer.link.cancel_receive();
        peer.link.send(batch_of(frame));
        peer.waker.wake_by_ref();
    }

    /// Passes the request of one peer on to the handler. Returns false if the handler has no room.
    pub(super) fn pass_on(&mut self, peer: &mut IncomingPeer, cx: &mut Context<'_>) -> bool {
        let HandshakeState::Pending { request } = &mut peer.handshake else {
            return true;
        };
        let (params, now) = (request.params, self.clock.now());
        let identity = peer.link.peer_identity();
        let incoming = IncomingRequest {
            peer: peer.link.peer_addr(),
            local: peer.link.local_addr(),
            data: &request.data,
            params,
            identity: identity.as_ref(),
            proven: request.proven.as_ref().map(ProvenKey::secret),
        };
        let decision = self.handler.on_request(&incoming, now, cx);
        let is_open = matches!(
            decision,
            RequestDecision::NoRoom | RequestDecision::Challenge(..)
        );
        if !is_open && self.half_open.remove(peer.id, peer.host) {
            self.pause.on_decision();
        }
        match decision {
            RequestDecision::NoRoom => return false,
            RequestDecision::Deferred(holder) => {
                peer.handshake
                    .go(HandshakeState::Deciding { holder, params });
                // Wake the task, so that the next step registers for the verdict.
                peer.waker.wake_by_ref();
            }
            RequestDecision::Challenge(challenge, bytes) => {
                let request = CompleteRequest {
                    data: std::mem::take(&mut request.data),
                    params,
                    proven: None,
                };
                peer.handshake.go(HandshakeState::ProvingKey {
                    challenge,
                    request,
                    is_sent: false,
                });
                let deadline = now.checked_add(self.config.handshake_timeout);
                self.deadlines.set(peer.id, &mut peer.deadline, deadline);
                peer.link.send(batch_of(bytes));
                peer.link.receive(Receive::Stage);
                peer.waker.wake_by_ref();
            }
            RequestDecision::Reject(data) if request.proven.is_none() => self.reject(peer, data),
            // Our response has been sent: closing the connection is the only rejection left.
            RequestDecision::Reject(_) => {
                self.shared.lock().stats.rejected += 1;
                peer.handshake.go(HandshakeState::Done);
            }
            RequestDecision::Accept(accepted) => {
                self.shared.lock().stats.accepted += 1;
                tracing::info!(from = %incoming.peer, "request accepted");
                let proven = request.proven.take();
                peer.link.cancel_receive();
                let raw = peer.link.take_raw();
                let handover = raw.map(|raw| Handover {
                    link: self.config.accepted(raw, params),
                    proven,
                });
                self.handler.hand_over(accepted, handover, now);
                peer.handshake.go(HandshakeState::Done);
            }
        }
        true
    }
}
