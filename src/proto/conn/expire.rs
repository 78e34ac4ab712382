//! Ends operations whose time has passed.
//!
//! Answers carry no id, so an operation that ends before its answer leaves its place behind, and
//! the answer is dropped when it comes. Until then the place counts as used, so that no more
//! answers are awaited than the context holds.

use std::borrow::Cow;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::op::{OpKey, Operation};
use crate::sync::OwnedRecord;

use super::receive_state::{PayloadTarget, ReceiveState};
use super::{Connection, Withdrawn};

impl<T> Connection<T> {
    /// Ends an operation whose time has passed, with TimedOut and its memory. If its bytes are
    /// moving now, it runs to its own end, which is no longer reported to its owner; a message that
    /// is landing in a receive survives as if the receive's owner had gone away.
    ///
    /// `attempt`: why the last attempt to connect failed; the operation may have waited for it.
    pub(crate) fn expire(&mut self, key: OpKey, attempt: Option<&Error>) -> Withdrawn {
        let mut why = Cow::from("");
        let payload = match self.take_unstarted(key) {
            Some(payload) => {
                why = match (self.why_unstarted(key), attempt) {
                    ("", Some(error)) => {
                        format!("the last attempt to connect: {}", error.clone().nested()).into()
                    }
                    (why, _) => why.into(),
                };
                payload
            }
            None => {
                let Some(op) = self.ops.get_mut(key) else {
                    return Withdrawn::Gone;
                };
                op.detached = op.is_receive();
                if op.detached {
                    return Withdrawn::Running; // Its message has begun, or was asked for.
                }
                // The memory of an operation that awaits its answer is at rest; an announced or
                // requested message is still to be sent.
                let at_rest = match op.phase {
                    Phase::Moving if !op.is_answered_with_bytes() => None,
                    _ => op.payload.take(),
                };
                let at_rest = at_rest.or_else(|| self.take_read_target(key));
                let Some(payload) = at_rest else {
                    return Withdrawn::Running;
                };
                self.tx_context.used += 1;
                self.tx_context.abandoned += 1;
                payload
            }
        };
        self.put_back(key, payload);
        self.complete(key, Err(Error::new(ErrorKind::TimedOut, why)), 0);
        self.invariants();
        Withdrawn::Ended
    }

    /// Splits the record of an operation that [runs on](Withdrawn::Running) though its time has
    /// passed. The returned record has ended with `error` and has no memory, so that its end can be
    /// reported. The operation goes on in another record, with `token`.
    pub(crate) fn part_with(
        &mut self,
        key: OpKey,
        token: T,
        error: Error,
    ) -> Option<OwnedRecord<Operation<T>>> {
        let op = self.ops.get_mut(key)?;
        Some(Operation::part(op, token, error))
    }

    /// Takes the destination of a read whose answer is landing, unless the transport has it; the
    /// rest of the answer is dropped.
    fn take_read_target(&mut self, key: OpKey) -> Option<Payload> {
        let ReceiveState::Payload(transfer) = &mut self.rx else {
            return None;
        };
        match transfer.target {
            PayloadTarget::Read { op } | PayloadTarget::ReadData { op } if op == key => {}
            _ => return None,
        }
        let payload = transfer.payload.take()?;
        transfer.payload = Some(Payload::empty());
        transfer.capacity = 0;
        Some(payload)
    }

    /// Frees the place that an ended operation has left for its answer, which has come now.
    pub(super) fn free_abandoned_place(&mut self) {
        debug_assert!(
            self.tx_context.abandoned > 0,
            "an answer that no operation awaits"
        );
        self.tx_context.abandoned -= 1;
        self.tx_context.free(1);
    }
}
