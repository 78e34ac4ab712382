//! Signs of life: asking for them, answering, and giving one unasked. When to ask and what silence
//! means is the owner's to say, who has a clock; `docs/extension.md`, section 5.

use crate::wire::{Capabilities, FrameHeader};

use super::{Connection, Lifecycle};

/// The question and the answer that wait to go out. There is room for one of each: of several
/// questions that wait for their answers the last one's answer is enough, so a peer that asks and
/// does not read makes nothing grow.
#[derive(Debug, Default)]
pub(super) struct Signs {
    answer: Option<u64>,
    question: Option<u64>,
}

impl Signs {
    pub(super) fn answer(&mut self, token: u64) {
        self.answer = Some(token);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answer.is_none() && self.question.is_none()
    }

    /// The next one to go out.
    pub(super) fn pop(&mut self) -> Option<FrameHeader> {
        let answer = self.answer.take().map(|token| FrameHeader::Pong { token });
        answer.or_else(|| {
            self.question
                .take()
                .map(|token| FrameHeader::Ping { token })
        })
    }
}

/// The token of an answer that nobody asked for.
const UNASKED: u64 = 0;

impl<T> Connection<T> {
    /// True if both sides give signs of life, and the connection is up.
    pub(crate) fn gives_signs(&self) -> bool {
        self.lifecycle == Lifecycle::Connected && self.agreed().contains(Capabilities::LIVENESS)
    }

    /// True while anything is outstanding that only the peer can bring on: something of ours is to
    /// be taken or answered, or a frame has begun. A receive that no message has come for is not.
    pub(crate) fn awaits_peer(&self) -> bool {
        let is_sending = self.transmit.used > 0 || !self.transmit.backlog.is_empty();
        let is_receiving = !self.is_at_boundary() || self.awaits_data();
        is_sending || self.ops.len() > 0 && is_receiving
    }

    /// Asks the peer for a sign of life.
    pub(crate) fn ask_for_sign(&mut self, token: u64) {
        debug_assert!(self.gives_signs(), "not of a plain peer");
        self.tx.signs_mut().question = Some(token);
    }

    /// Gives one unasked, since nothing that the peer asks is read at present.
    pub(crate) fn give_sign(&mut self) {
        debug_assert!(self.gives_signs(), "not to a plain peer");
        self.tx.signs_mut().answer.get_or_insert(UNASKED);
    }

    /// Milliseconds of silence that the peer bears before it asks; 0: any. `None`: it did not say.
    pub(crate) fn peer_asks_after_ms(&self) -> Option<u32> {
        self.peer_hello().and_then(|hello| hello.asks_after_ms)
    }
}
