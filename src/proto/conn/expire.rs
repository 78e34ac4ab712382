//! The end of an operation whose time has passed.
//!
//! Answers have no names, so the place of an operation that awaits one stays behind it: the answer
//! is swallowed when it comes. The place counts as used until then, so that never more answers are
//! awaited than the context holds.

use std::borrow::Cow;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::op::{OpKey, Operation};
use crate::sync::OwnedRecord;

use super::receive_state::{PayloadTarget, ReceiveState};
use super::{Connection, Withdrawn};

impl<T> Connection<T> {
    /// The time of an operation has passed. It ends with TimedOut and its memory, unless bytes of
    /// it are moving right now: then it runs on to its own end, of which its owner is to hear no
    /// more, and a message that is landing in it survives as if its owner had gone away.
    ///
    /// `attempt`: why the last attempt at a connection failed, which it may have waited for.
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
                // The memory of what awaits its answer is at rest; a message that is announced, or
                // asked for, is still to go out.
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

    /// The end of an operation that [runs on](Withdrawn::Running) is reported, since its time has
    /// passed: gives its record, which has ended so, without its memory. The rest goes on in
    /// another one, with this token.
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

    /// The answer came that an ended operation left its place for.
    pub(super) fn free_leaked_slot(&mut self) {
        debug_assert!(
            self.tx_context.leaked > 0,
            "an answer that no operation awaits"
        );
        self.tx_context.leaked -= 1;
        self.tx_context.free(1);
    }
}
