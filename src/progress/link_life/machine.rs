//! The life of a port's link as a pure machine: time is an argument, what the protocol and the link
//! say comes as [`LinkInputs`], and what is to be done is a [`LinkAction`]. The owner calls
//! [`LinkLife::on_tick`] in each turn, and again after each action, until there is none.
//!
//! How it begins, until an attempt is up:
//! ```text
//!   Open ── the attempt failed, or is given up ──▶ Retracting ── link empty ──▶ Open
//! ```
//! How it ends, from top to bottom:
//! ```text
//!   Open ────────────────┬────────────────────────────────────┐
//!    │ close requested   │ both CLOSEs out                    │ fault
//!    ▼                   ▼                                    │
//!   Flushing ──────▶ AwaitingEof ── something is left to ─────┼─▶ Retracting
//!    │ both CLOSEs out   │          send, to the next         │       │
//!    │                   │ peer's end of stream,              │       │ close requested
//!    │ all is out, or    │ fault or time                      │       │
//!    │ nothing gets on   │                                    │       │
//!    ▼                   ▼                                    ▼       ▼
//!   Draining ◀───────────┴────────────────────────────────────┴───────┘
//!    │ link empty
//!    ├── after a loss, or an agreed end ──▶ Closed
//!    └── else ──▶ Lingering ── peer's end, bytes or time ──▶ Closed
//! ```
//! Draining and Retracting take everything submitted back from the link. Draining ends the
//! operations; after Retracting another attempt may follow, for which a connectionless endpoint
//! keeps them.

use std::time::{Duration, Instant};

use crate::edges::{check_edge, state_machine};
use crate::limits::{FLUSH_TIMEOUT, LINGER_BYTES_MAX, LINGER_TIMEOUT};

/// Where the link of a port is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::progress) enum LinkState {
    /// Without a link yet, or with an attempt, or up: its end has not begun.
    Open,
    /// What is queued is sent first; with a peer that knows CLOSE, its answers and CLOSE follow.
    Flushing,
    /// Both sides have said CLOSE: the peer's end of stream is awaited.
    AwaitingEof,
    /// An attempt is given up, and everything submitted is being taken back; another will follow.
    Retracting,
    /// Everything submitted is being taken back from the link.
    Draining,
    /// Operations have ended; what the peer still sends is read and dropped, so that closing does
    /// not reset the connection under our last bytes.
    Lingering,
    /// Nothing is left to do.
    Closed,
}

use LinkState::{AwaitingEof, Closed, Draining, Flushing, Lingering, Open, Retracting};

state_machine! { LinkState {
    Open => [Flushing, AwaitingEof, Retracting, Draining],
    Flushing => [AwaitingEof, Draining],
    AwaitingEof => [Retracting, Draining],
    Retracting => [Open, Draining],
    Draining => [Lingering, Closed],
    Lingering => [Closed],
    Closed => [],
}}

/// What the protocol and the link say.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkInputs {
    /// Both sides may send.
    pub(super) is_up: bool,
    /// The connection is being made: a fault gives up the attempt alone.
    pub(super) is_attempt: bool,
    pub(super) has_fault: bool,
    /// The peer takes part in an exchange of CLOSE.
    pub(super) knows_close: bool,
    /// All that was posted for transmission has gone out.
    pub(super) is_drained: bool,
    /// Both CLOSEs are out.
    pub(super) is_close_exchanged: bool,
    /// The peer has ended its stream behind both CLOSEs.
    pub(super) is_eof_in_order: bool,
    /// The peer was refused too often: the connection is to end.
    pub(super) is_limit_exceeded: bool,
    /// The peer has ended its stream, reading is paused before that end, and something waits for
    /// the peer.
    pub(super) awaits_ended_peer: bool,
    /// Messages are left that go over the next connection.
    pub(super) has_carry_over: bool,
    /// The link has a receive or a batch of ours.
    pub(super) is_link_busy: bool,
    pub(super) is_receive_armed: bool,
    pub(super) has_link: bool,
    /// Grows as operations come nearer to their ends.
    pub(super) work: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkAction {
    None,
    /// The connection was not made in time: it is to fail.
    FailConnect,
    /// The peer did not end its stream in time: the connection is to fail.
    FailEof,
    /// What the peer sent before its end was not taken in time: the connection is to fail.
    FailUnread,
    /// Give up the attempt, by [`LinkLife::retract`].
    GiveUpAttempt,
    /// Begin another connection for what is left, by [`LinkLife::retract`].
    Reconnect,
    /// The link has given everything back: begin again.
    BeginAgain,
    /// End our stream.
    FinishStream,
    /// Take everything submitted back from the link.
    TakeBack,
    /// End all operations, and our stream if there is something to linger for.
    EndOperations {
        finish_stream: bool,
    },
    /// Read what the peer still sends, to drop it.
    Discard,
    /// Drop the link.
    Close,
}

/// See the module.
#[derive(Debug)]
pub(in crate::progress) struct LinkLife {
    state: LinkState,
    /// A time limit of the beginning that turns into a deadline with the next turn: only the driver
    /// has the backend's clock.
    limit: Option<Duration>,
    /// Of the beginning while open, then of each step of the end.
    deadline: Option<Instant>,
    /// How far the operations had come at the last tick while flushing, or waiting for a peer whose
    /// stream has ended.
    work_seen: u64,
    /// Bytes that may still be read and dropped.
    linger_left: usize,
}

impl LinkLife {
    pub(in crate::progress) fn new() -> Self {
        LinkLife {
            state: Open,
            limit: None,
            deadline: None,
            work_seen: 0,
            linger_left: LINGER_BYTES_MAX,
        }
    }

    #[inline]
    pub(in crate::progress) fn state(&self) -> LinkState {
        self.state
    }

    #[inline]
    pub(in crate::progress) fn is_open(&self) -> bool {
        self.state == Open
    }

    /// True while frames may go out.
    #[inline]
    pub(in crate::progress) fn may_send(&self) -> bool {
        matches!(self.state, Open | Flushing)
    }

    /// True while what comes is of use.
    #[inline]
    pub(in crate::progress) fn may_receive(&self) -> bool {
        matches!(self.state, Open | Flushing | AwaitingEof)
    }

    /// True while operations are accepted.
    pub(in crate::progress) fn may_post(&self) -> bool {
        matches!(self.state, Open | Retracting)
    }

    /// True once operations end, whatever happens.
    pub(in crate::progress) fn is_final(&self) -> bool {
        matches!(self.state, Draining | Lingering | Closed)
    }

    /// When [`LinkLife::on_tick`] must be called, if nothing happens before.
    pub(in crate::progress) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The connection is to be up within this time, from the next turn on.
    pub(in crate::progress) fn limit_connect(&mut self, limit: Duration) {
        self.limit = Some(limit);
    }

    /// A turn begins.
    pub(in crate::progress) fn start_limit(&mut self, now: Instant) {
        if let Some(limit) = self.limit.take() {
            self.deadline = now.checked_add(limit);
        }
    }

    /// True if the next [`LinkLife::on_tick`] judges that the peer was too slow.
    pub(in crate::progress) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The connection is up.
    pub(in crate::progress) fn on_connected(&mut self) {
        self.deadline = None;
    }

    /// This side wants to end. True if that is new, and it flushes from now on.
    pub(in crate::progress) fn request_close(&mut self) -> bool {
        let is_new = self.state == Open;
        if is_new {
            self.go(Flushing);
        }
        is_new
    }

    /// The attempt is given up, or the connection followed by another: everything submitted is to
    /// be taken back.
    pub(in crate::progress) fn retract(&mut self) {
        if self.state != Retracting {
            self.go(Retracting);
        }
    }

    /// The connection ends now. True if that is new: everything submitted is to be taken back.
    pub(super) fn abort(&mut self) -> bool {
        let is_new = !self.is_final();
        if is_new {
            self.go(Draining);
        }
        is_new
    }

    /// So many bytes were read and dropped.
    pub(in crate::progress) fn on_discarded(&mut self, len: usize) {
        match self.linger_left.checked_sub(len) {
            Some(left) if left > 0 => self.linger_left = left,
            _ => self.on_peer_gone(),
        }
    }

    /// Nothing more comes from the peer while this side lingers.
    pub(in crate::progress) fn on_peer_gone(&mut self) {
        if self.state == Lingering {
            self.go(Closed);
        }
    }

    /// The driver is going away, and with it the link: nothing can be waited for.
    pub(super) fn on_driver_gone(&mut self) {
        if self.state != Closed {
            self.abort();
            self.go(Closed);
        }
    }

    /// What is to be done next.
    pub(super) fn on_tick(&mut self, now: Instant, inputs: &LinkInputs) -> LinkAction {
        let is_late = self.is_overdue(now);
        match self.state {
            Open => self.tick_open(now, is_late, inputs),
            Flushing => self.tick_flushing(now, is_late, inputs),
            AwaitingEof if is_late => {
                self.deadline = None;
                LinkAction::FailEof
            }
            AwaitingEof if inputs.has_fault => self.drain(),
            AwaitingEof if inputs.is_eof_in_order && inputs.has_carry_over => LinkAction::Reconnect,
            AwaitingEof if inputs.is_eof_in_order => self.drain(),
            Retracting if !inputs.is_link_busy => {
                self.go(Open);
                LinkAction::BeginAgain
            }
            Draining if !inputs.is_link_busy => {
                // After an agreed end, too, there is nothing to wait for.
                let is_orderly = !inputs.has_fault && !inputs.is_eof_in_order;
                let finish_stream = is_orderly && inputs.is_up && inputs.has_link;
                if finish_stream {
                    self.go(Lingering);
                    self.deadline = Some(now + LINGER_TIMEOUT);
                } else {
                    self.go(Closed);
                }
                LinkAction::EndOperations { finish_stream }
            }
            Lingering if is_late => {
                self.go(Closed);
                LinkAction::Close
            }
            Lingering if !inputs.is_receive_armed && inputs.has_link => LinkAction::Discard,
            Closed if inputs.has_link => LinkAction::Close,
            AwaitingEof | Retracting | Draining | Lingering | Closed => LinkAction::None,
        }
    }

    fn tick_open(&mut self, now: Instant, is_late: bool, inputs: &LinkInputs) -> LinkAction {
        if is_late && !inputs.awaits_ended_peer {
            self.deadline = None;
            if !inputs.is_up && !inputs.has_fault {
                return LinkAction::FailConnect;
            }
        }
        if inputs.has_fault {
            return match inputs.is_attempt {
                true => LinkAction::GiveUpAttempt,
                false => self.drain(),
            };
        }
        if inputs.is_close_exchanged {
            return self.await_eof(now);
        }
        if inputs.is_limit_exceeded || inputs.is_eof_in_order {
            // A peer whose stream has ended may not take what it has asked for: that waits no
            // longer than a close of ours would.
            self.go(Flushing);
            return self.tick_flushing(now, false, inputs);
        }
        match inputs.awaits_ended_peer {
            true if self.is_stuck(now, is_late, inputs.work) => LinkAction::FailUnread,
            true => LinkAction::None,
            false => {
                if inputs.is_up {
                    self.deadline = None;
                }
                LinkAction::None
            }
        }
    }

    /// True if the operations have not come nearer to their ends for as long as that may take.
    fn is_stuck(&mut self, now: Instant, is_late: bool, work: u64) -> bool {
        let has_moved = self.deadline.is_none() || self.work_seen != work;
        if has_moved {
            self.work_seen = work;
            self.deadline = Some(now + FLUSH_TIMEOUT);
        }
        is_late && !has_moved
    }

    /// Waits until what is queued has gone out; with a peer that knows CLOSE, for that.
    fn tick_flushing(&mut self, now: Instant, is_late: bool, inputs: &LinkInputs) -> LinkAction {
        let is_flushed = !inputs.is_up || !inputs.knows_close && inputs.is_drained;
        if is_flushed || inputs.has_fault {
            return self.drain();
        }
        if inputs.is_close_exchanged {
            return self.await_eof(now);
        }
        match self.is_stuck(now, is_late, inputs.work) {
            true => self.drain(),
            false => LinkAction::None,
        }
    }

    fn await_eof(&mut self, now: Instant) -> LinkAction {
        self.go(AwaitingEof);
        self.deadline = Some(now + FLUSH_TIMEOUT);
        LinkAction::FinishStream
    }

    fn drain(&mut self) -> LinkAction {
        self.go(Draining);
        LinkAction::TakeBack
    }

    /// Moves along a legal edge. The time limit of the state that is left is void.
    fn go(&mut self, to: LinkState) {
        check_edge(&self.state, &to);
        self.state = to;
        self.limit = None;
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests;
