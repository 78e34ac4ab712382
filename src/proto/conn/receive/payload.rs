//! Completion of a payload: ends the receive, the read, the write or the atomic operation that it
//! belongs to.

use crate::proto::Host;
use crate::proto::conn::Connection;
use crate::proto::conn::receive_state::{PayloadTarget, PlacedWrite, ReceiveState};
use crate::proto::matching::ReceivedMessage;

impl<T> Connection<T> {
    /// If the payload in progress is complete, completes its target, and goes on to the next
    /// header.
    pub(super) fn complete_payload(&mut self, host: &mut impl Host<T>) {
        match &self.rx {
            ReceiveState::Payload(transfer) if transfer.is_done() && transfer.payload.is_some() => {
            }
            _ => return,
        }
        let ReceiveState::Payload(transfer) = self.rx.go(ReceiveState::Header) else {
            return;
        };
        let payload = transfer.payload.expect("checked above");
        let len = usize::try_from(transfer.len.min(transfer.capacity)).expect("fits the buffer");
        let overflow = usize::try_from(transfer.len).unwrap_or(usize::MAX) - len;
        match transfer.target {
            PayloadTarget::Refused { reason } => return self.answer_refused(reason),
            PayloadTarget::Region { data, commit } => {
                let write = PlacedWrite {
                    data,
                    commit,
                    ack: transfer.ack,
                    memory: payload,
                };
                return self.finish_write(write, host);
            }
            _ => {}
        }
        if transfer.ack {
            // The payload is placed, even if it was truncated or no receive has taken it.
            self.tx.push_ack(self.has_refusals());
        }
        let message = |arrival, payload| ReceivedMessage {
            arrival,
            payload,
            len,
            overflow,
        };
        match transfer.target {
            PayloadTarget::Receive {
                receive,
                arrival,
                failed,
            } => self.end_receive(receive, message(arrival, payload), failed, host),
            PayloadTarget::Unexpected { arrival } => {
                self.store_message(message(arrival, payload), host)
            }
            PayloadTarget::Inbox { inbox, arrival } => {
                let message = message(arrival, payload);
                if let Some(mut own) = self.own_view() {
                    own.end_in_inbox(inbox, message);
                }
            }
            PayloadTarget::Read { op } if self.ops.get(op).is_none() => self.free_abandoned_place(),
            PayloadTarget::Read { op } => {
                self.put_back(op, payload);
                self.complete(op, Ok(()), len);
            }
            PayloadTarget::ReadData { op } => self.read_data_landed(op, transfer.len, payload),
            PayloadTarget::Atomic(asked) => self.atomic_landed(*asked, payload),
            PayloadTarget::Region { .. } | PayloadTarget::Refused { .. } => {} // Ended above.
        }
    }
}
