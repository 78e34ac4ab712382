//! How a port handles the outcomes of its link: received bytes, sent frames, the end of the peer's
//! stream, a failure.

use crate::error::{Error, ErrorKind};
use crate::transport::{DirectBuffer, Outcome, Received};

use super::budget::Budget;
use super::host::with_host;
use super::link_life::LinkState;
use super::port::{Port, PortState};

impl Port {
    /// Takes everything that the link has now, even if the reactor has not reported it. Returns
    /// true if there was anything: a turn is due.
    pub(super) fn read_more(&self, state: &mut PortState) -> bool {
        self.take_outcomes(state, &mut Budget::of_call()) || self.try_receive(state)
    }

    /// Polls the link although the reactor has not reported it ready. Returns true if the link had
    /// an outcome.
    pub(super) fn try_receive(&self, state: &mut PortState) -> bool {
        if state.io.stage.is_some() {
            return false;
        }
        let Some(outcome) = state.io.link.as_mut().and_then(|link| link.try_receive()) else {
            return false;
        };
        self.handle_outcome(state, outcome);
        true
    }

    pub(super) fn handle_outcome(&self, state: &mut PortState, outcome: Outcome) {
        match outcome {
            Outcome::Connected => {
                state.io.local = state.io.link.as_ref().map(|link| link.local_addr());
                state.bind_proofs();
            }
            Outcome::Sent { batch, result } => match result {
                Ok(sent) => {
                    state.liveness.sent += sent as u64;
                    state.machine.handle_sent(batch, sent);
                }
                Err(error) => {
                    state.machine.handle_sent(batch, 0);
                    self.fail(state, error);
                }
            },
            Outcome::Received(received) => self.handle_received(state, received),
            Outcome::PeerGone(error) => self.handle_peer_gone(state, error),
            Outcome::Failed(error) => self.fail(state, error),
        }
    }

    fn handle_received(&self, state: &mut PortState, received: Received) {
        if state.life.state() == LinkState::Lingering {
            match received {
                Received::Stage(stage) => state.life.on_discarded(stage.len()),
                // A region was closed, and the receive was cancelled for that: reading goes on.
                Received::Cancelled { .. } => {}
                _ => state.life.on_peer_gone(),
            }
            return;
        }
        match received {
            // The connection is being taken down: the bytes are discarded.
            Received::Stage(_) if !state.life.may_receive() => {}
            Received::Stage(stage) => {
                state.liveness.machine.on_received();
                state.activity += 1;
                state.counts.received(stage.len());
                state.io.stage = Some(stage);
            }
            Received::Direct { direct, len } => {
                let DirectBuffer {
                    payload, leases, ..
                } = direct;
                drop(leases);
                state.liveness.machine.on_received();
                state.activity += 1;
                state.counts.received(len);
                if state.machine.publishes_first() {
                    self.publish(state);
                }
                with_host!(self, state, |machine, host| machine
                    .handle_direct(payload, len, host));
            }
            Received::End { returned } => {
                self.take_back(state, returned);
                state.machine.handle_end();
            }
            Received::Failed {
                error,
                returned: Some(direct),
            } if error.kind() == ErrorKind::BadAddress => {
                drop(direct.leases);
                let refused = with_host!(self, state, |machine, host| machine
                    .handle_fault(direct.payload, host));
                if !refused {
                    self.fail(state, error);
                }
            }
            Received::Failed { error, returned } => {
                self.take_back(state, returned);
                self.fail(state, error);
            }
            Received::Cancelled { returned } => self.take_back(state, returned),
        }
    }

    /// Returns to the machine the memory of a direct receive that received nothing.
    fn take_back(&self, state: &mut PortState, returned: Option<DirectBuffer>) {
        if let Some(DirectBuffer {
            payload, leases, ..
        }) = returned
        {
            drop(leases);
            with_host!(self, state, |machine, host| machine
                .handle_direct(payload, 0, host));
        }
    }

    /// Handles the end of the peer's stream, which the link reports while reading is paused. A
    /// broken connection ends now; after an orderly end the socket may still hold bytes that
    /// operations wait for.
    fn handle_peer_gone(&self, state: &mut PortState, error: Error) {
        if error.kind() != ErrorKind::PeerClosed {
            self.fail(state, error);
            return;
        }
        let staged = state.io.stage.as_ref().map_or(0, |stage| stage.len());
        let unread = state.io.link.as_ref().map_or(0, |link| link.unread_bytes()) + staged;
        with_host!(self, state, |machine, host| machine
            .handle_last_bytes(unread as u64, host));
    }

    /// Records that the connection has failed; the link's machine ends it in this turn or the next.
    pub(super) fn fail(&self, state: &mut PortState, error: Error) {
        let error = state.about_peer(error);
        state.machine.fail(error);
    }
}
