//! The peer's answers to operations of this side: acks, refusals, and the bytes of reads. Answers
//! carry no id: each answers the oldest operation of its kind.
//!
//! ```text
//!   handed out --> awaited_acks  --> ACK, ACKS, REFUSED ----------------> complete
//!              --> awaited_reads --> READ_DATA ... READ_DATA --> READ_END --> complete
//! ```
//! (A plain peer's answer to a read is one frame, `receive/access.rs`.)

use crate::buf::Payload;
use crate::error::{Error, Phase, Refusal};
use crate::limits::READ_DATA_MAX;
use crate::proto::op::{OpKey, OpKind};

use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use super::{Connection, violation};

/// A read whose answer is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedRead {
    pub(super) op: OpKey,
    /// Bytes asked for.
    pub(super) len: u64,
    /// Bytes that have come.
    pub(super) done: u64,
}

impl AwaitedRead {
    pub(super) fn new(op: OpKey, len: usize) -> Self {
        AwaitedRead {
            op,
            len: len as u64,
            done: 0,
        }
    }
}

impl<T> Connection<T> {
    /// Handles the answer to the oldest frame that awaits one. An operation that ended before its
    /// answer came still has its place in the queue, since answers carry no id.
    pub(super) fn handle_answer(&mut self, answer: Result<(), Refusal>) -> Result<(), Error> {
        let Some(key) = self.awaited_acks.pop_front() else {
            return Err(violation("an acknowledgement that nothing awaits"));
        };
        let Some(op) = self.ops.get_mut(key) else {
            self.free_abandoned_place();
            self.handle_refused(answer);
            return Ok(());
        };
        let is_refusable = matches!(op.kind, OpKind::Write { .. } | OpKind::Atomic(_));
        if answer.is_err() && !is_refusable {
            self.awaited_acks.push_front(key);
            return Err(violation("a message that was refused"));
        }
        match op.phase {
            Phase::AwaitingPeer if op.payload.is_some() => self.complete_answered(key, answer),
            _ => op.answer = Some(answer),
        }
        Ok(())
    }

    /// Handles an acknowledgement of the `count` oldest frames that await an answer.
    pub(super) fn handle_acks(&mut self, count: u64) -> Result<(), Error> {
        if count == 0 || count > self.awaited_acks.len() as u64 {
            return Err(violation(
                "acknowledgements of none or of more than await one",
            ));
        }
        for _ in 0..count {
            self.handle_answer(Ok(()))?;
        }
        Ok(())
    }

    /// Ends an operation that has its answer and has its memory back.
    pub(super) fn complete_answered(&mut self, key: OpKey, answer: Result<(), Refusal>) {
        let len = match answer {
            Ok(()) => self.ops.get(key).map_or(0, |op| op.len),
            Err(_) => 0,
        };
        self.complete(key, answer.map_err(Error::refused), len);
        self.handle_refused(answer);
    }

    /// Begins to receive a frame with bytes of the oldest read.
    pub(super) fn begin_read_data(&mut self, len: u64) -> Result<(), Error> {
        let Some(&AwaitedRead {
            op,
            len: asked,
            done,
        }) = self.awaited_reads.front()
        else {
            return Err(violation("bytes of a read that nothing awaits"));
        };
        if len == 0 || len > READ_DATA_MAX as u64 || len > asked - done {
            return Err(violation("more bytes of a read than may come"));
        }
        let end = done + len;
        // The bytes of a read that has already ended are dropped.
        let mut has_failed = false;
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::AwaitingPeer;
            has_failed = entry.failed.is_some();
            entry.payload.take()
        });
        let is_wanted = payload.is_some() && !has_failed;
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target: PayloadTarget::ReadData { op },
            capacity: if is_wanted { end } else { 0 },
            payload: Some(payload.unwrap_or_else(Payload::empty)),
            len: end,
            done,
            ack: false,
        }));
        Ok(())
    }

    /// Notes that the bytes of the oldest read have landed up to `done`, and returns the memory to
    /// the operation's record.
    pub(super) fn read_data_landed(&mut self, key: OpKey, done: u64, payload: Payload) {
        if let Some(read) = self.awaited_reads.front_mut() {
            debug_assert_eq!(read.op, key, "reads are answered in order");
            read.done = done;
        }
        if let Some(op) = self.ops.get_mut(key) {
            op.payload = Some(payload);
        }
    }

    /// Handles the end of the answer to the oldest read.
    pub(super) fn handle_read_end(&mut self, refused: Option<Refusal>) -> Result<(), Error> {
        let Some(&read) = self.awaited_reads.front() else {
            return Err(violation("the end of a read that nothing awaits"));
        };
        if refused.is_none() && read.done != read.len {
            return Err(violation("the end of a read before its last byte"));
        }
        self.awaited_reads.pop_front();
        let answer = refused.map_or(Ok(()), Err);
        let Some(op) = self.ops.get_mut(read.op) else {
            self.free_abandoned_place();
            self.handle_refused(answer);
            return Ok(());
        };
        op.phase = Phase::AwaitingPeer;
        debug_assert!(op.payload.is_some(), "its destination, between two frames");
        self.complete_answered(read.op, answer);
        Ok(())
    }
}
