//! Attempts to connect a port of a connectionless endpoint. An attempt may be given up, and another
//! may begin; all posted operations are kept.
//!
//! ```text
//!   dial, or a request ──▶ attempt ──▶ up
//!                            │ failed, or replaced by a request
//!                            ▼
//!                         retracting: the link returns what it holds
//!                            │ follow_attempt
//!                            ▼
//!                  the task is notified, or the request is accepted
//! ```

use std::net::SocketAddr;

use crate::eq::AcceptedLink;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::RDM_CLAIM_TIMEOUT;
use crate::proto::{AttemptId, Failure, Lifecycle, no_contexts};
use crate::wire::PeerData;

use super::super::link_life::LinkState;
use super::super::listen::Handover;
use super::super::port::{Port, PortKind, PortState};
use super::attachment::{AcceptedConn, AfterRetract, TakeOverError};

impl Port {
    /// Begins an attempt.
    pub(super) fn dial(&self, attempt: AttemptId, to: SocketAddr, from: Option<SocketAddr>) {
        let mut guard = self.lock("dial");
        let state = &mut *guard;
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return;
        };
        attachment.attempt = Some(attempt);
        if !state.life.is_open() || state.machine.lifecycle() != Lifecycle::Idle {
            let error = Error::new(ErrorKind::Canceled, "the port is in use");
            return attachment.notify_failed(Failure::Passing, error, &mut state.deferred.wakes);
        }
        match self.engine.transport.connect(to, from, self.waker.clone()) {
            Ok(link) => self.begin_attempt(state, link, None, |machine| {
                machine.begin_connect_peer();
            }),
            Err(error) => {
                let (failure, error) = attachment.failure_of(error);
                attachment.notify_failed(failure, error, &mut state.deferred.wakes);
            }
        }
    }

    /// Takes over an accepted connection; an attempt in progress is given up for it.
    pub(super) fn take_over(&self, accepting: AcceptedConn) -> Result<(), TakeOverError> {
        let mut guard = self.lock("take over");
        let state = &mut *guard;
        let retracting = state.life.state() == LinkState::Retracting;
        if !state.life.may_post()
            || state.machine.fault().is_some() && state.machine.lifecycle() == Lifecycle::Connected
        {
            return Err(TakeOverError::Superseded(Box::new(accepting)));
        }
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return Err(TakeOverError::Superseded(Box::new(accepting)));
        };
        match state.machine.lifecycle() {
            Lifecycle::Connected => {
                let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
                return match attachment.attempt {
                    Some(attempt) => Err(TakeOverError::AlreadyUp(attempt, incarnation)),
                    None => Err(TakeOverError::Superseded(Box::new(accepting))),
                };
            }
            Lifecycle::Idle if !retracting => self.accept_now(state, accepting),
            _ => {
                attachment.attempt = accepting.attempt;
                // Submitted bytes may still be sent, and must not complete the handshake.
                let what = "another attempt has taken its place";
                state.machine.fail(Error::new(ErrorKind::Canceled, what));
                self.retract(state, AfterRetract::Accept(accepting));
            }
        }
        Ok(())
    }

    fn accept_now(&self, state: &mut PortState, accepting: AcceptedConn) {
        let AcceptedConn {
            attempt,
            handover: Handover { link, proven },
            asked,
        } = accepting;
        let AcceptedLink {
            raw,
            params,
            timeout,
        } = link;
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return;
        };
        attachment.attempt = attempt;
        match self.engine.transport.adopt(raw, self.waker.clone()) {
            Ok(link) => {
                state.io.local = Some(link.local_addr());
                self.begin_attempt(state, link, Some(timeout), |machine| {
                    machine.begin_accept_peer(&asked, params.order, proven);
                });
            }
            Err(error) => {
                attachment.notify_failed(Failure::Passing, error, &mut state.deferred.wakes)
            }
        }
    }

    /// Called when an attempt begun by an unproven request has run out of time, by the clock of the
    /// endpoint's task. The driver may lag behind, and may not have sent the response yet. So the
    /// peer gets the same time again, from the port's next turn on, and received bytes are read
    /// first.
    pub(super) fn retract_unproven(&self, attempt: AttemptId) {
        let mut state = self.lock("retract a claim");
        let is_it =
            matches!(&state.kind, PortKind::Rdm(attachment) if attachment.attempt == Some(attempt));
        if is_it && state.life.is_open() && state.machine.lifecycle() == Lifecycle::Accepting {
            state.life.limit_connect(RDM_CLAIM_TIMEOUT);
            self.waker.wake_by_ref();
        }
    }

    /// Gives up the attempt in progress.
    fn retract(&self, state: &mut PortState, after: AfterRetract) {
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return;
        };
        attachment.after = Some(after);
        self.take_attempt_back(state);
    }

    /// Notes the error of a failed attempt, which is given up: the task will get the error in a
    /// notice.
    pub(in crate::progress) fn note_failed_attempt(&self, state: &mut PortState) {
        let (PortKind::Rdm(attachment), Some(error)) =
            (&mut state.kind, state.machine.fault().cloned())
        else {
            return;
        };
        let is_dialled = state.machine.lifecycle() == Lifecycle::Connecting;
        let (failure, error) = match error.kind() {
            // The sender of the request has not proven that it is the peer.
            ErrorKind::NotAuthorized if !is_dialled => (Failure::Passing, error),
            ErrorKind::ConnectionRefused if self.differs_in_key(error.data()) => {
                let what = "one of the two has an authorization key, and the other has none";
                (
                    Failure::Final,
                    Error::new(ErrorKind::ConnectionRefused, what),
                )
            }
            ErrorKind::ConnectionRefused if lacks_context(error.data()) => {
                let what = format!("the peer has no context {}", attachment.peer.context);
                (
                    Failure::Final,
                    Error::new(ErrorKind::AddressNotAvailable, what),
                )
            }
            ErrorKind::ConnectionRefused
                if state.machine.names_contexts() && is_plain(error.data()) =>
            {
                (Failure::Final, no_contexts())
            }
            _ => attachment.failure_of(error),
        };
        attachment.after = Some(AfterRetract::Notify(failure, error));
    }

    /// Begins another connection for messages for which the peer had no receive; the last
    /// connection ended in order.
    pub(in crate::progress) fn reconnect(&self, state: &mut PortState) {
        if let PortKind::Rdm(attachment) = &mut state.kind {
            attachment.carries_over = true;
        }
        let error = Error::new(ErrorKind::PeerClosed, "before it had a receive for this");
        self.retract(state, AfterRetract::Notify(Failure::Passing, error));
    }

    /// Returns true if a rejection with this data shows that one side has a key and the other has
    /// none.
    fn differs_in_key(&self, data: &[u8]) -> bool {
        let said = PeerData::read(data).ok().and_then(|said| said.offer());
        said.is_some_and(|offer| offer.proves_key() != self.auth_key().is_some())
    }

    /// Carries out the step after an attempt that was given up, now that its link has returned
    /// everything. `keyed`: whether the port has drawn the random bytes to prove its key.
    pub(in crate::progress) fn follow_attempt(&self, state: &mut PortState, keyed: Result<()>) {
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return;
        };
        let after = attachment.after.take();
        let after = match keyed {
            Ok(()) => after,
            Err(error) => Some(AfterRetract::Notify(Failure::Final, error)),
        };
        match after {
            Some(AfterRetract::Notify(failure, error)) => {
                attachment.notify_failed(failure, error, &mut state.deferred.wakes);
            }
            Some(AfterRetract::Accept(accepting)) => self.accept_now(state, accepting),
            None => {}
        }
        self.waker.wake_by_ref();
    }

    /// Ends the operations that wait for the peer with this error. `Err`: the connection is up, by
    /// this attempt and with this incarnation of the peer.
    pub(super) fn give_up(&self, error: Error) -> Result<(), (AttemptId, u32)> {
        let mut state = self.lock("give up");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        if let (true, PortKind::Rdm(attachment)) = (is_up, &state.kind)
            && let Some(attempt) = attachment.attempt
        {
            let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
            return Err((attempt, incarnation));
        }
        if let PortKind::Rdm(attachment) = &mut state.kind {
            // Not set if the endpoint closes: that says nothing about the peer.
            attachment.presence.is_given_up = error.kind() != ErrorKind::Canceled;
        }
        self.end_with(&mut state, error);
        Ok(())
    }

    /// Ends the connection now, without an exchange with the peer.
    pub(super) fn end_now(&self, error: Error) {
        self.end_with(&mut self.lock("end now"), error);
    }

    fn end_with(&self, state: &mut PortState, error: Error) {
        if state.life.is_final() {
            return;
        }
        if state.life.state() == LinkState::Retracting {
            state.machine.forget_fault();
        }
        self.fail(state, error);
        self.begin_draining(state);
        self.waker.wake_by_ref();
    }
}

/// Returns true if a rejection with this data comes from a plain peer, which speaks libfabric's own
/// protocol only: any other peer answers an offer with an offer.
fn is_plain(data: &[u8]) -> bool {
    PeerData::read(data).is_ok_and(|said| said.offer().is_none())
}

/// Returns true if a rejection with this data shows that the peer lacks the context asked for.
fn lacks_context(data: &[u8]) -> bool {
    PeerData::read(data).is_ok_and(|said| said.names_contexts())
}
