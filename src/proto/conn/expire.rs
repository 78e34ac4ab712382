//! The end of an operation whose time has passed.
//!
//! Answers carry no id, so an operation that ends while it awaits one leaves its place behind: the
//! answer is swallowed when it comes. Until then the place counts as used, so that no more answers
//! are awaited than the context holds.

use std::borrow::Cow;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::op::{OpKey, Operation};
use crate::sync::OwnedRecord;

use super::receive_state::{PayloadTarget, ReceiveState};
use super::{Connection, Withdrawn};

impl<T> Connection<T> {
    /// Ends an operation whose time has passed, with TimedOut and its memory. If bytes of it are
    /// moving right now, it runs on to its own end instead, which is not reported to its owner any
    /// more; a message that is landing in it survives as if its owner had gone away.
    ///
    /// `attempt`: why the last attempt to connect failed, which the operation may have waited for.
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
                    return Withdrawn::Running; // Its message has begun, or is being asked for.
                }
                // The memory of an operation that awaits its answer is at rest; a message that is
                // announced, or asked for, is still to go out.
                let at_rest = match op.phase {
                    Phase::Moving if !op.is_answered_with_bytes() => None,
                    _ => op.payload.take(),
                };
                let at_rest = at_rest.or_else(|| self.take_read_target(key));
                let Some(payload) = at_rest else {
                    return Withdrawn::Running;
                };
                self.tx_context.used += 1;
                self.tx_context.leaked += 1;
                payload
            }
        };
        self.put_back(key, payload);
        self.complete(key, Err(Error::new(ErrorKind::TimedOut, why)), 0);
        self.invariants();
        Withdrawn::Ended
    }

    /// Returns the record of an operation that [runs on](Withdrawn::Running) though its time has
    /// passed, so that its end can be reported: ended with `error`, without its memory. What is
    /// left of the operation goes on in another record, with this token.
    pub(crate) fn part_with(
        &mut self,
        key: OpKey,
        token: T,
        error: Error,
    ) -> Option<OwnedRecord<Operation<T>>> {
        let op = self.ops.get_mut(key)?;
        Some(Operation::part(op, token, error))
    }

    /// The destination of a read whose answer is landing, if the transport does not have it; the
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

    /// Frees the place that an ended operation has left for its answer, which has come.
    pub(super) fn free_leaked_slot(&mut self) {
        debug_assert!(
            self.tx_context.leaked > 0,
            "an answer that no operation awaits"
        );
        self.tx_context.leaked -= 1;
        self.tx_context.free(1);
    }
}
