//! The life of a port's link: [`machine`] decides, this file carries out its actions. A failed
//! attempt is given up. At the end of a connection, accepted operations are sent, both sides agree
//! on the end if they can, everything is taken back from the link, and operations and the stream
//! end.
//!
//! With a peer of this library (`proto/conn/close.rs`) accepted operations are sent and answered,
//! then CLOSE is sent. Once both sides have sent CLOSE, each ends its stream; the peer's end of
//! stream proves that everything has arrived. This may take as long as operations make progress.
//! With a plain peer, queued frames are sent, everything submitted is taken back from the link,
//! operations end as `Canceled`, and the stream is finished. Bytes that the peer still sends are
//! then read and discarded for a short while, so that our last bytes are not lost to a reset. After
//! a loss or a fault everything is taken back, and operations end with the reason. `Shutdown` is
//! reported last, and once.

mod machine;

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::proto::Lifecycle;
use crate::transport::{Receive, Submitted};

use super::budget::Budget;
use super::port::{Port, PortState};
use machine::{LinkAction, LinkInputs};
pub(super) use machine::{LinkLife, LinkState};

impl PortState {
    #[inline]
    fn link_inputs(&self) -> LinkInputs {
        let machine = &self.machine;
        let lifecycle = machine.lifecycle();
        // While the life is open, the inputs about submissions are not used.
        let submitted = match self.life.is_open() {
            true => Submitted::default(),
            false => self.io.submitted(),
        };
        LinkInputs {
            is_up: lifecycle == Lifecycle::Connected,
            is_attempt: matches!(lifecycle, Lifecycle::Connecting | Lifecycle::Accepting),
            has_fault: machine.fault().is_some(),
            is_flushed: !machine.knows_close() && machine.is_transmit_drained(),
            is_close_exchanged: machine.is_close_exchanged(),
            is_eof_in_order: machine.is_closed_in_order(),
            is_limit_exceeded: machine.is_ending_for_cause(),
            awaits_ended_peer: machine.awaits_ended_peer(),
            has_carry_over: machine.has_carried_over(),
            is_link_busy: submitted.receive || submitted.send,
            is_receive_armed: submitted.receive,
            has_link: self.io.link.is_some(),
            work: machine.work(),
        }
    }
}

impl Port {
    /// Advances the link's state as far as possible.
    #[inline]
    pub(super) fn advance_link(&self, state: &mut PortState, now: Instant) {
        if state.life.is_open()
            && state.machine.is_peer_closing()
            && !state.machine.has_carried_over()
        {
            self.supersede(state);
        }
        loop {
            let inputs = state.link_inputs();
            match state.life.on_tick(now, &inputs) {
                LinkAction::None => return,
                LinkAction::FailConnect => {
                    // If this side was late, the bytes that establish the connection may be unread.
                    // They are read now, and the next turn judges again.
                    if self.read_more(state) {
                        state.life.limit_connect(Duration::ZERO);
                        self.waker.wake_by_ref();
                        continue;
                    }
                    let what = match state.io.local {
                        None => {
                            "no answer to the TCP connect in time: the host is down, or a firewall \
                             drops what is sent to it"
                        }
                        Some(_) if state.connect.is_accepting => {
                            "the peer did not do its part of the handshake in time"
                        }
                        Some(_) => {
                            "the TCP connection is made, but nothing answers on it in time: the \
                             peer's program hangs, does not accept, or has no descriptors left"
                        }
                    };
                    self.fail(state, Error::new(ErrorKind::TimedOut, what));
                }
                LinkAction::FailEof => {
                    let what = "it did not end its stream in time";
                    self.fail(state, Error::new(ErrorKind::PeerClosed, what));
                }
                LinkAction::FailUnread => {
                    let what = "its stream has ended, and what it sent before that was not taken \
                                in time, for lack of a receive or of room in a completion queue";
                    self.fail(state, Error::new(ErrorKind::PeerClosed, what));
                }
                LinkAction::GiveUpAttempt => self.give_up_attempt(state),
                LinkAction::Reconnect => self.reconnect(state),
                LinkAction::BeginAgain => self.begin_again(state),
                LinkAction::TakeBack => self.take_all_back(state),
                LinkAction::FinishStream => state.io.finish_stream(),
                LinkAction::EndOperations { finish_stream: end } => {
                    let (machine, mut host) = state.machine_and_host(self);
                    machine.handle_closed(&mut host);
                    if end {
                        state.io.finish_stream();
                    }
                }
                LinkAction::Discard => {
                    if let Some(link) = &mut state.io.link {
                        link.receive(Receive::Stage);
                    }
                    self.waker.wake_by_ref();
                }
                LinkAction::Close => {
                    if let (true, Some(link)) =
                        (state.liveness.machine.is_dead(), &mut state.io.link)
                    {
                        link.reset();
                    }
                    state.io.drop_link();
                }
            }
        }
    }

    /// Ends the connection now: everything is taken back, then operations end.
    pub(super) fn begin_draining(&self, state: &mut PortState) {
        if state.life.abort() {
            self.take_all_back(state);
        }
    }

    fn take_all_back(&self, state: &mut PortState) {
        self.supersede(state);
        state.io.stage = None;
        state.io.cancel_submitted();
        // Readiness transports return submissions at once, rings later; in both cases the link
        // wakes the port.
        self.take_outcomes(state, &mut Budget::of_call());
    }

    /// Ends everything at once: the driver is going away.
    pub(super) fn driver_gone(&self) {
        let mut guard = self.lock("driver gone");
        let state = &mut *guard;
        state.machine.fail(self.engine.why_gone());
        state.machine.end_service();
        let state_now = state.life.state();
        if !matches!(state_now, LinkState::Lingering | LinkState::Closed) {
            self.begin_draining(state);
            // The link has no driver any more, and will return nothing else. Dropping the link ends
            // everything submitted before its memory is freed.
            state.io.drop_link();
            state.machine.forget_submitted();
            let (machine, mut host) = state.machine_and_host(self);
            machine.handle_closed(&mut host);
        }
        state.life.on_driver_gone();
        state.io.drop_link();
        self.publish(state);
        self.end_turns(state);
    }
}
