//! The channel of a TLS link: a session, the link that carries its records, and their state.
//!
//! ```text
//!   outer batch ─▶ sealed ─▶ records ─▶ link                 phase  Dialing ─▶ Shaking ─▶ Open
//!   outer receive ◀─ opened ◀─ session ◀─ stage ◀── link               └─────────┴──────┴─▶ Failed
//! ```
//! Records are sealed once: bytes sealed from a batch are sent in full before anything else is
//! sealed, even if the batch is taken back meanwhile. Nothing is read unless the outer link has a
//! receive, so the bytes held are bounded by one staging buffer and one record. `outgoing.rs`
//! implements the upper line of the drawing, `incoming.rs` the lower line.

mod incoming;
mod outgoing;

use crate::edges::{check_edge, state_machine};
use crate::error::Error;
use crate::transport::stream::Submissions;
use crate::transport::{Link, Outcome, RawLink, Received};

use super::session::Session;

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum ChannelPhase {
    /// The link is not connected yet.
    Dialing,
    /// The handshake is under way.
    Shaking,
    Open,
    /// Only the alert with the reason is still sent, and nothing is received.
    Failed,
}

state_machine! { ChannelPhase {
    Dialing => [Shaking, Failed],
    Shaking => [Open, Failed],
    Open => [Failed],
    Failed => [],
}}

/// The receive that is submitted to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkReceive {
    Idle,
    Armed,
    Watching,
}

/// The state of the end of this side's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Open,
    /// The end is sealed, and the sealed record is being sent.
    Sealed,
    /// The link's stream has ended too.
    Finished,
}

/// The reason why no more bytes come from the link.
enum LinkLoss {
    /// The link's stream has ended. That proves nothing: anyone between the peers can cause it.
    Cut,
    /// The link broke, or the session did.
    Broken(Error),
}

/// The parts that move with a connection from one runtime to another.
pub(super) struct ChannelParts {
    session: Session,
    phase: ChannelPhase,
}

impl ChannelParts {
    pub(super) fn connecting(session: Session) -> Self {
        ChannelParts {
            session,
            phase: ChannelPhase::Dialing,
        }
    }

    pub(super) fn accepted(session: Session) -> Self {
        ChannelParts {
            session,
            phase: ChannelPhase::Shaking,
        }
    }
}

/// A TLS session over a link.
pub(super) struct Channel {
    pub(super) link: Box<dyn Link>,
    pub(super) session: Session,
    pub(super) phase: ChannelPhase,
    recv: LinkReceive,
    /// True while the link has records of ours.
    is_sending: bool,
    /// Number of bytes of the outer batch that are sealed in records of ours that the link has.
    sealed: usize,
    end: StreamEnd,
    /// The reason why the link brings no more bytes. The session knows of a `close_notify`.
    loss: Option<LinkLoss>,
    /// The reason why nothing more is sent.
    fault: Option<Error>,
}

impl Channel {
    pub(super) fn new(link: Box<dyn Link>, parts: ChannelParts) -> Self {
        let ChannelParts { session, phase } = parts;
        Channel {
            link,
            session,
            phase,
            recv: LinkReceive::Idle,
            is_sending: false,
            sealed: 0,
            end: StreamEnd::Open,
            loss: None,
            fault: None,
        }
    }

    fn set_phase(&mut self, to: ChannelPhase) {
        check_edge(&self.phase, &to);
        self.phase = to;
    }

    /// Moves bytes until a submission has ended, or the link has no outcome and has registered the
    /// waker. `serves`: whether the outer link's submissions are served.
    pub(super) fn pump(&mut self, io: &mut Submissions, serves: bool) {
        loop {
            self.step(io, serves);
            if io.has_ended() {
                return;
            }
            let Some(outcome) = self.link.poll_outcome() else {
                return;
            };
            self.handle_outcome(outcome, io);
        }
    }

    fn step(&mut self, io: &mut Submissions, serves: bool) {
        if self.phase == ChannelPhase::Shaking {
            self.shake_hands();
        }
        self.flush();
        if serves {
            self.open_into(io);
            self.seal_from(io);
            self.end_watch(io);
        }
        self.arm_link(io);
        self.finish_link();
    }

    /// Handles an outcome of the link.
    fn handle_outcome(&mut self, outcome: Outcome, io: &mut Submissions) {
        match outcome {
            Outcome::Connected => self.set_phase(ChannelPhase::Shaking),
            Outcome::Failed(error) => self.break_off(error),
            Outcome::Sent { batch, result } => self.handle_sent(batch, result, io),
            Outcome::Received(received) => {
                self.recv = LinkReceive::Idle;
                match received {
                    Received::Stage(stage) => self.session.give(stage),
                    Received::End { .. } => self.loss = Some(LinkLoss::Cut),
                    Received::Failed { error, .. } => self.loss = Some(LinkLoss::Broken(error)),
                    Received::Cancelled { .. } | Received::Direct { .. } => {}
                }
            }
            Outcome::PeerGone(error) => {
                self.recv = LinkReceive::Idle;
                if io.is_watching() {
                    io.end_watch(error);
                }
            }
        }
    }

    // The session.

    fn shake_hands(&mut self) {
        self.take_in();
        if self.phase == ChannelPhase::Failed {
            return;
        }
        if self.session.is_handshaking() {
            if let Some(error) = self.lost() {
                self.break_off(error);
            }
        } else if !self.is_sending && !self.session.has_records() {
            self.set_phase(ChannelPhase::Open);
        }
    }

    /// Makes the session process received bytes.
    fn take_in(&mut self) {
        if let Err(error) = self.session.take_in() {
            self.refuse(error);
        }
    }

    /// Refuses the peer and closes the session; its alert, if any, is the last record.
    fn refuse(&mut self, error: Error) {
        self.break_off(error);
        self.session.close();
        self.end = StreamEnd::Sealed;
    }

    /// Stops receiving and sending.
    fn break_off(&mut self, error: Error) {
        if self.phase != ChannelPhase::Failed {
            self.set_phase(ChannelPhase::Failed);
        }
        self.loss = Some(LinkLoss::Broken(error.clone()));
        self.fault = Some(error);
    }

    /// Returns why the handshake failed.
    pub(super) fn failure(&self) -> Option<&Error> {
        let is_failed = self.phase == ChannelPhase::Failed;
        self.fault.as_ref().filter(|_| is_failed)
    }

    /// Returns true if no bytes are submitted to the link, and the session is open both ways.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_sending
            && self.recv != LinkReceive::Armed
            && self.phase == ChannelPhase::Open
            && self.end == StreamEnd::Open
            && self.loss.is_none()
            && self.fault.is_none()
    }

    /// Takes the connection out of its link.
    pub(super) fn into_raw(mut self) -> Option<(RawLink, ChannelParts)> {
        self.link.cancel_receive();
        let raw = self.link.take_raw()?;
        let Channel { session, phase, .. } = self;
        Some((raw, ChannelParts { session, phase }))
    }
}
