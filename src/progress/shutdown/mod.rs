//! How a port's connection ends: [`machine`] decides, this file does what it says. What is accepted
//! goes out, both sides agree where they can, everything is taken back from the link, operations
//! end, and the stream with them.

mod machine;

use std::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::proto::Lifecycle;
use crate::transport::Receive;

use super::arming::RecvState;
use super::budget::Budget;
use super::port::{Port, PortState};
use machine::{Action, Facts};
pub(super) use machine::{Shutdown, ShutdownState};

impl PortState {
    /// True while the link has a receive or a batch of ours.
    pub(super) fn is_link_busy(&self) -> bool {
        self.recv.is_armed() || self.machine.is_transmit_out()
    }

    fn facts(&self) -> Facts {
        let machine = &self.machine;
        let lifecycle = machine.lifecycle();
        Facts {
            is_up: lifecycle == Lifecycle::Connected,
            is_attempt: matches!(lifecycle, Lifecycle::Connecting | Lifecycle::Accepting),
            has_fault: machine.fault().is_some(),
            knows_close: machine.knows_end(),
            is_drained: machine.is_transmit_drained(),
            is_close_exchanged: machine.is_end_agreed(),
            is_eof_in_order: machine.is_end_done(),
            is_limit_exceeded: machine.has_had_enough(),
            has_carry_over: machine.has_carried_over(),
            is_link_busy: self.is_link_busy(),
            is_receive_armed: self.recv.is_armed(),
            has_link: self.link.is_some(),
            work: machine.work(),
        }
    }
}

impl Port {
    /// Moves the end of the connection on as far as it goes.
    pub(super) fn shut_down(&self, state: &mut PortState, now: Instant) {
        if state.shutdown.is_open()
            && state.machine.is_peer_closing()
            && !state.machine.has_carried_over()
        {
            self.moves(state);
        }
        loop {
            let facts = state.facts();
            match state.shutdown.on_tick(now, &facts) {
                Action::None => return,
                Action::FailConnect => {
                    let what = "the peer did not answer the connection request in time";
                    self.fail(state, Error::new(ErrorKind::TimedOut, what));
                }
                Action::FailEof => {
                    let what = "it did not end its stream in time";
                    self.fail(state, Error::new(ErrorKind::PeerClosed, what));
                }
                Action::GiveUpAttempt => self.retract_failed(state),
                Action::Reconnect => self.reconnect(state),
                Action::BeginAgain => self.begin_again(state),
                Action::TakeBack => self.take_all_back(state),
                Action::FinishStream => finish_stream(state),
                Action::EndOperations { finish_stream: end } => {
                    let (machine, mut host) = state.machine_and_host(self);
                    machine.handle_closed(&mut host);
                    if end {
                        finish_stream(state);
                    }
                }
                Action::Discard => {
                    if let Some(link) = &mut state.link {
                        link.receive(Receive::Stage);
                        state.recv.go(RecvState::Armed { region: false });
                    }
                    self.waker.wake_by_ref();
                }
                Action::Close => {
                    if let (true, Some(link)) = (state.liveness.machine.is_dead(), &mut state.link)
                    {
                        link.reset();
                    }
                    state.link = None;
                }
            }
        }
    }

    /// Ends the connection now: everything is taken back, then operations end.
    pub(super) fn begin_draining(&self, state: &mut PortState) {
        if state.shutdown.abort() {
            self.take_all_back(state);
        }
    }

    fn take_all_back(&self, state: &mut PortState) {
        self.moves(state);
        state.stage = None;
        state.cancel_submitted();
        // What was taken back shows at once with readiness, later with a ring; either way the
        // link's waker tells.
        self.harvest(state, &mut Budget::of_call());
    }

    /// The driver is going away: everything ends here and now.
    pub(super) fn driver_gone(&self) {
        let mut guard = self.lock("driver gone");
        let state = &mut *guard;
        state.machine.fail(self.engine.why_gone());
        let state_now = state.shutdown.state();
        if !matches!(state_now, ShutdownState::Lingering | ShutdownState::Closed) {
            self.begin_draining(state);
            // What the link does not give back now it never will: nobody is left to be told.
            // Dropping it ends what was submitted before its memory is freed.
            state.link = None;
            state.machine.forget_submitted();
            let (machine, mut host) = state.machine_and_host(self);
            machine.handle_closed(&mut host);
        }
        state.shutdown.on_driver_gone();
        state.link = None;
        self.publish(state);
    }
}

impl PortState {
    /// Asks the link for everything that was submitted.
    pub(super) fn cancel_submitted(&mut self) {
        if let Some(link) = &mut self.link {
            link.cancel_receive();
            link.cancel_send();
        }
    }
}

fn finish_stream(state: &mut PortState) {
    if let Some(link) = &mut state.link {
        link.finish();
    }
}
