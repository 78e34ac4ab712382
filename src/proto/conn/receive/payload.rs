//! Completion of a whole payload: of the receive, the read, the write or the atomic operation that
//! it belongs to.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind};
use crate::proto::Host;
use crate::proto::conn::receive_state::{PayloadTarget, PlacedWrite, ReceiveState};
use crate::proto::conn::{Connection, ReceivedMessage};
use crate::proto::matching::UnexpectedMessage;
use crate::proto::matching::fifo::FifoMessage;
use crate::proto::op::OpKey;

impl<T> Connection<T> {
    /// If the payload in progress is whole, completes what it belongs to, and goes on to the next
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
        match transfer.target {
            PayloadTarget::Receive { op, data, order } => {
                let received = ReceivedMessage {
                    len,
                    overflow,
                    data,
                    order,
                };
                self.complete_message(op, payload, received);
            }
            PayloadTarget::SharedReceive {
                receive,
                arrival,
                failed,
            } => {
                let message = UnexpectedMessage {
                    arrival,
                    payload,
                    len,
                    overflow,
                };
                self.work += 1;
                if let Some(shared) = host.shared() {
                    shared.end_receive(receive, message, failed);
                }
            }
            PayloadTarget::SharedUnexpected { arrival } => {
                let message = UnexpectedMessage {
                    arrival,
                    payload,
                    len,
                    overflow,
                };
                if let Some(shared) = host.shared() {
                    shared.store_message(message);
                }
            }
            PayloadTarget::Unexpected { data, order } => {
                let message = FifoMessage {
                    payload,
                    len,
                    overflow,
                    data,
                    order,
                };
                if let Some(own) = self.own_mut()
                    && let Some((op, message)) = own.matcher.complete_unexpected(message)
                {
                    self.deliver_unexpected(op, message);
                }
                self.fill_inboxes();
            }
            PayloadTarget::Inbox { inbox, data, order } => {
                let message = FifoMessage {
                    payload,
                    len,
                    overflow,
                    data,
                    order,
                };
                self.complete_in_inbox(inbox, message);
            }
            PayloadTarget::Read { op } if self.ops.get(op).is_none() => self.free_leaked_slot(),
            PayloadTarget::Read { op } => {
                self.put_back(op, payload);
                self.complete(op, Ok(()), len);
            }
            PayloadTarget::ReadData { op } => self.read_data_landed(op, transfer.len, payload),
            PayloadTarget::Atomic(asked) => self.atomic_landed(*asked, payload),
            PayloadTarget::Region { .. } | PayloadTarget::Refused { .. } => {} // Ended above.
        }
    }

    /// Completes a receive of the connection's own, whose message is placed. If its owner is gone,
    /// requeues the message.
    pub(super) fn complete_message(
        &mut self,
        key: OpKey,
        payload: Payload,
        received: ReceivedMessage,
    ) {
        if self.ops.get(key).is_some_and(|op| op.detached) {
            // The owner is gone: the receive ends as canceled, and the message is requeued at once,
            // so that no later one is matched before it.
            let copy = payload.copy_front(received.len);
            let error = Error::new(ErrorKind::Canceled, "");
            self.put_back(key, payload);
            self.complete(key, Err(error), 0);
            if let Ok(payload) = copy {
                self.requeue_own(FifoMessage {
                    payload,
                    len: received.len,
                    overflow: received.overflow,
                    data: received.data,
                    order: received.order,
                });
            }
            return;
        }
        self.put_back(key, payload);
        self.complete_receive(key, received);
    }
}
