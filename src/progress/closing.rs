//! How a port goes out of life, one step per turn: what is accepted goes out, both sides agree
//! where they can, everything is taken back from the link, operations end, and the stream with
//! them.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::proto::Lifecycle;
use crate::transport::Receive;

use super::budget::Budget;
use super::port::{Closing, Port, PortState};

/// How long an orderly close waits while nothing gets on: for queued frames, their answers and the
/// peer's agreement, then for the peer's end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

impl Port {
    /// Moves a port that ends one step on.
    pub(super) fn close_step(&self, state: &mut PortState, now: Instant) {
        let late = state.deadline.is_some_and(|deadline| deadline <= now);
        match state.closing {
            Closing::No => {
                if late {
                    state.deadline = None;
                    let what = "the peer did not answer the connection request in time";
                    if state.machine.lifecycle() != Lifecycle::Connected {
                        self.fail(state, Error::new(ErrorKind::TimedOut, what));
                    }
                }
                if state.machine.is_peer_closing() && !state.machine.has_carried_over() {
                    self.moves(state);
                }
                if state.machine.fault().is_some() {
                    if !self.retract_failed(state) {
                        self.begin_draining(state);
                    }
                } else if state.machine.is_end_agreed() {
                    self.agree(state, now);
                } else if state.machine.has_had_enough() || state.machine.is_end_done() {
                    // A peer whose stream has ended may not take what it has asked for: that waits
                    // no longer than a close of ours would.
                    state.closing = Closing::Flushing;
                    self.waker.wake_by_ref();
                }
            }
            Closing::Flushing => self.flush(state, now, late),
            Closing::Agreed => {
                if late {
                    let what = "it did not end its stream in time";
                    self.fail(state, Error::new(ErrorKind::PeerClosed, what));
                }
                let is_done = state.machine.is_end_done();
                if is_done && state.machine.fault().is_none() && state.machine.has_carried_over() {
                    self.reconnect(state);
                } else if is_done || state.machine.fault().is_some() {
                    self.begin_draining(state);
                }
            }
            Closing::Retracting => self.retract_step(state),
            Closing::Lingering if late => state.closing = Closing::Over,
            Closing::Draining | Closing::Lingering | Closing::Over => {}
        }
        if state.closing == Closing::Draining {
            self.finish_draining(state, now);
        }
        if state.closing == Closing::Lingering
            && !state.receive_armed
            && let Some(link) = &mut state.link
        {
            link.receive(Receive::Stage);
            state.receive_armed = true;
            self.waker.wake_by_ref();
        }
        if state.closing == Closing::Over {
            if let (true, Some(link)) = (state.liveness.machine.is_dead(), &mut state.link) {
                link.reset();
            }
            state.link = None;
            state.deadline = None;
        }
    }

    /// Waits until what is queued has gone out; with a peer that knows an agreed end, for that.
    fn flush(&self, state: &mut PortState, now: Instant, late: bool) {
        let agreeing = state.machine.knows_end();
        let flushed = state.machine.lifecycle() != Lifecycle::Connected
            || !agreeing && state.machine.is_transmit_drained();
        if flushed || late || state.machine.fault().is_some() {
            self.begin_draining(state);
        } else if state.machine.is_end_agreed() {
            self.agree(state, now);
        } else if state.deadline.is_none() || state.work_seen != state.machine.work() {
            state.work_seen = state.machine.work();
            state.deadline = Some(now + FLUSH_TIMEOUT);
        }
    }

    /// Both sides have said CLOSE: ends our stream and awaits the end of the peer's.
    fn agree(&self, state: &mut PortState, now: Instant) {
        state.closing = Closing::Agreed;
        state.deadline = Some(now + FLUSH_TIMEOUT);
        if let Some(link) = &mut state.link {
            link.finish();
        }
    }

    pub(super) fn begin_draining(&self, state: &mut PortState) {
        self.moves(state);
        state.closing = Closing::Draining;
        state.deadline = None;
        state.stage = None;
        if let Some(link) = &mut state.link {
            link.cancel_receive();
            link.cancel_send();
        }
        // What was taken back shows at once with readiness, later with a ring; either way the
        // link's waker tells.
        self.harvest(state, &mut Budget::of_call());
    }

    /// Ends all operations once the link has given everything back.
    fn finish_draining(&self, state: &mut PortState, now: Instant) {
        if state.receive_armed || state.machine.is_transmit_out() {
            return;
        }
        // After an agreed end, too, there is nothing to wait for.
        let orderly = state.machine.fault().is_none() && !state.machine.is_end_done();
        let connected = state.machine.lifecycle() == Lifecycle::Connected;
        let (machine, mut host) = state.machine_and_host(self);
        machine.handle_closed(&mut host);
        if let (true, true, Some(link)) = (orderly, connected, &mut state.link) {
            link.finish();
            state.closing = Closing::Lingering;
            state.deadline = Some(now + LINGER_TIMEOUT);
        } else {
            state.closing = Closing::Over;
        }
    }

    /// The driver is going away: everything ends here and now.
    pub(super) fn driver_gone(&self) {
        let mut guard = self.lock("driver gone");
        let state = &mut *guard;
        state.machine.fail(self.engine.why_gone());
        if state.closing < Closing::Lingering {
            self.begin_draining(state);
            // What the link does not give back now it never will: nobody is left to be told.
            // Dropping it ends what was submitted before its memory is freed.
            state.link = None;
            state.machine.forget_submitted();
            let (machine, mut host) = state.machine_and_host(self);
            machine.handle_closed(&mut host);
        }
        state.closing = Closing::Over;
        state.link = None;
        self.publish(state);
    }
}
