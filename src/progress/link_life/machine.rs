//! The life of a port's link as a pure machine: time is an argument, the state of the protocol and
//! the link comes as [`LinkInputs`], and the result is a [`LinkAction`]. The owner calls
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
//! Draining and Retracting take everything submitted back from the link. Draining then ends the
//! operations; after Retracting another attempt may follow, for which a connectionless endpoint
//! keeps them.

use std::time::{Duration, Instant};

use crate::edges::{check_edge, state_machine};
use crate::limits::{FLUSH_TIMEOUT, LINGER_BYTES_MAX, LINGER_TIMEOUT};

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::progress) enum LinkState {
    /// No link yet, an attempt, or a connection that is up: the end has not begun.
    Open,
    /// Queued frames are being sent; with a peer that knows CLOSE, its answers and CLOSE follow.
    Flushing,
    /// Both sides have sent CLOSE: the peer's end of stream is awaited.
    AwaitingEof,
    /// An attempt was given up, and everything submitted is being taken back; another will follow.
    Retracting,
    /// Everything submitted is being taken back from the link.
    Draining,
    /// Operations have ended; bytes that the peer still sends are discarded, so that closing does
    /// not reset the connection before the peer has read our last bytes.
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

/// The state of the protocol and the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkInputs {
    /// True if both sides may send.
    pub(super) is_up: bool,
    /// True while the connection is being established: a fault only gives up the attempt.
    pub(super) is_attempt: bool,
    pub(super) has_fault: bool,
    /// True if everything posted for transmission has been sent, to a peer that takes no part in an
    /// exchange of CLOSE.
    pub(super) is_flushed: bool,
    /// True if both CLOSEs have been sent.
    pub(super) is_close_exchanged: bool,
    /// True if the peer has ended its stream after both CLOSEs.
    pub(super) is_eof_in_order: bool,
    /// True if the peer was refused too often: the connection must end.
    pub(super) is_limit_exceeded: bool,
    /// True if the peer has ended its stream, reading is paused before that end, and an operation
    /// waits for the peer.
    pub(super) awaits_ended_peer: bool,
    /// True if messages are left that will be sent over the next connection.
    pub(super) has_carry_over: bool,
    /// True if the link has a receive or a batch of ours.
    pub(super) is_link_busy: bool,
    pub(super) is_receive_armed: bool,
    pub(super) has_link: bool,
    /// Grows as operations come nearer to their ends.
    pub(super) work: u64,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkAction {
    None,
    /// Fail the connection, which was not established in time.
    FailConnect,
    /// Fail the connection: the peer did not end its stream in time.
    FailEof,
    /// Fail the connection: bytes that the peer sent before its end of stream were not taken in
    /// time.
    FailUnread,
    /// Give up the attempt, by [`LinkLife::retract`].
    GiveUpAttempt,
    /// Begin another connection for the messages that are left, by [`LinkLife::retract`].
    Reconnect,
    /// Begin again: the link has returned everything.
    BeginAgain,
    /// End our stream.
    FinishStream,
    /// Take everything submitted back from the link.
    TakeBack,
    /// End all operations, and our stream if there is a peer to linger for.
    EndOperations {
        finish_stream: bool,
    },
    /// Read what the peer still sends, and discard it.
    Discard,
    /// Drop the link.
    Close,
}

#[derive(Debug)]
pub(in crate::progress) struct LinkLife {
    state: LinkState,
    /// Time limit for connecting, which becomes a deadline in the next turn: only the driver has
    /// the backend's clock.
    limit: Option<Duration>,
    /// Deadline of connecting while open, then of each step of the end.
    deadline: Option<Instant>,
    /// Progress of the operations at the last tick while flushing, or while waiting for a peer
    /// whose stream has ended.
    work_seen: u64,
    /// Number of bytes that may still be read and discarded.
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

    /// Returns true while frames may be sent.
    #[inline]
    pub(in crate::progress) fn may_send(&self) -> bool {
        matches!(self.state, Open | Flushing)
    }

    /// Returns true while received bytes are of use.
    #[inline]
    pub(in crate::progress) fn may_receive(&self) -> bool {
        matches!(self.state, Open | Flushing | AwaitingEof)
    }

    /// Returns true while operations are accepted.
    pub(in crate::progress) fn may_post(&self) -> bool {
        matches!(self.state, Open | Retracting)
    }

    /// Returns true once the end of all operations is certain.
    pub(in crate::progress) fn is_final(&self) -> bool {
        matches!(self.state, Draining | Lingering | Closed)
    }

    /// Returns the time at which [`LinkLife::on_tick`] must be called, if nothing happens before.
    pub(in crate::progress) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Limits the time until the connection is up, counted from the next turn.
    pub(in crate::progress) fn limit_connect(&mut self, limit: Duration) {
        self.limit = Some(limit);
    }

    /// Called when a turn begins: a time limit begins to run.
    pub(in crate::progress) fn start_limit(&mut self, now: Instant) {
        if let Some(limit) = self.limit.take() {
            self.deadline = now.checked_add(limit);
        }
    }

    /// Returns true if the next [`LinkLife::on_tick`] judges that the peer was too slow.
    pub(in crate::progress) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Called when the connection is up.
    pub(in crate::progress) fn on_connected(&mut self) {
        self.deadline = None;
    }

    /// Requests the close of this side. Returns true if the link was open: it flushes from now on.
    pub(in crate::progress) fn request_close(&mut self) -> bool {
        let is_new = self.state == Open;
        if is_new {
            self.go(Flushing);
        }
        is_new
    }

    /// Gives up the attempt, or the connection if another follows: everything submitted must be
    /// taken back.
    pub(in crate::progress) fn retract(&mut self) {
        if self.state != Retracting {
            self.go(Retracting);
        }
    }

    /// Ends the connection now. Returns true if [`LinkLife::is_final`] was false: everything
    /// submitted must be taken back.
    pub(super) fn abort(&mut self) -> bool {
        let is_new = !self.is_final();
        if is_new {
            self.go(Draining);
        }
        is_new
    }

    /// Counts bytes that were read and discarded.
    pub(in crate::progress) fn on_discarded(&mut self, len: usize) {
        match self.linger_left.checked_sub(len) {
            Some(left) if left > 0 => self.linger_left = left,
            _ => self.on_peer_gone(),
        }
    }

    /// Called when nothing more comes from the peer while this side lingers.
    pub(in crate::progress) fn on_peer_gone(&mut self) {
        if self.state == Lingering {
            self.go(Closed);
        }
    }

    /// Called when the driver ends, and the link with it: nothing more can be awaited.
    pub(super) fn on_driver_gone(&mut self) {
        if self.state != Closed {
            self.abort();
            self.go(Closed);
        }
    }

    /// Returns what to do next.
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
                // Lingering is also useless after an agreed end.
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
            // A peer whose stream has ended may never read the answers that it asked for. They are
            // flushed within the same time limit as at a close by this side.
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

    /// Returns true if the operations have made no progress for `FLUSH_TIMEOUT`.
    fn is_stuck(&mut self, now: Instant, is_late: bool, work: u64) -> bool {
        let has_moved = self.deadline.is_none() || self.work_seen != work;
        if has_moved {
            self.work_seen = work;
            self.deadline = Some(now + FLUSH_TIMEOUT);
        }
        is_late && !has_moved
    }

    /// Waits until queued frames have been sent; with a peer that knows CLOSE, until CLOSE has been
    /// exchanged.
    fn tick_flushing(&mut self, now: Instant, is_late: bool, inputs: &LinkInputs) -> LinkAction {
        if !inputs.is_up || inputs.is_flushed || inputs.has_fault {
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

    /// Moves along a legal edge, which voids the time limit.
    fn go(&mut self, to: LinkState) {
        check_edge(&self.state, &to);
        self.state = to;
        self.limit = None;
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests;
