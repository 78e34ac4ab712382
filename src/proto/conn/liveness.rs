//! Probes (PING) and their answers (PONG), including unasked answers. The owner, which has a clock,
//! decides when to probe and what silence means; `docs/extension.md`, section 5.

use crate::wire::{Capabilities, FrameHeader};

use super::receive_state::ReceiveState;
use super::{Connection, Lifecycle};

/// The probe and the answer that wait to go out, at most one of each: if several probes await an
/// answer, the answer to the last one is enough. So a peer that probes and does not read makes no
/// queue grow.
#[derive(Debug, Default)]
pub(super) struct ProbeFrames {
    answer: Option<u64>,
    probe: Option<u64>,
}

impl ProbeFrames {
    pub(super) fn answer(&mut self, token: u64) {
        self.answer = Some(token);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answer.is_none() && self.probe.is_none()
    }

    /// Takes the next frame to send, answers first.
    pub(super) fn pop(&mut self) -> Option<FrameHeader> {
        let answer = self.answer.take().map(|token| FrameHeader::Pong { token });
        answer.or_else(|| self.probe.take().map(|token| FrameHeader::Ping { token }))
    }
}

/// The token of an answer without a probe.
const UNASKED: u64 = 0;

impl<T> Connection<T> {
    /// True if both sides answer probes, and the connection is up.
    pub(crate) fn answers_probes(&self) -> bool {
        self.lifecycle == Lifecycle::Connected && self.agreed().contains(Capabilities::LIVENESS)
    }

    /// True while progress depends on the peer: the peer has to take or answer something that this
    /// side sent, or to finish a frame that has begun. A receive without a message does not count.
    pub(crate) fn awaits_peer(&self) -> bool {
        let is_receiving = || match &self.rx {
            ReceiveState::Header if self.is_at_boundary() => false,
            // A collected message takes its receive only when it is complete.
            ReceiveState::Collecting { .. } => true,
            ReceiveState::Payload(transfer) if transfer.is_for_receive() => true,
            _ => self.ops.len() > 0,
        };
        self.is_sending() || is_receiving() || self.awaits_data()
    }

    /// True while an operation that this side transmits has not ended.
    pub(in crate::proto) fn is_sending(&self) -> bool {
        self.tx_context.used > 0 || !self.tx_context.backlog.is_empty()
    }

    /// Queues a probe of the peer.
    pub(crate) fn queue_probe(&mut self, token: u64) {
        debug_assert!(self.answers_probes(), "not of a plain peer");
        self.tx.probe_frames_mut().probe = Some(token);
    }

    /// Queues an answer without a probe, since this side reads no probes of the peer at present.
    pub(crate) fn queue_unasked_answer(&mut self) {
        debug_assert!(self.answers_probes(), "not to a plain peer");
        self.tx.probe_frames_mut().answer.get_or_insert(UNASKED);
    }

    /// Milliseconds of silence after which the peer probes; 0: never. `None`: not stated.
    pub(crate) fn peer_probes_after_ms(&self) -> Option<u32> {
        self.peer_hello().and_then(|hello| hello.probes_after_ms)
    }
}
