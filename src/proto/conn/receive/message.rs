//! Messages of a connected endpoint, matched in FIFO order with the connection's own receives.

use tracing::Level;

use crate::buf::{Payload, zeroed};
use crate::error::{Error, Phase};
use crate::limits::READ_REQUESTS_MAX;
use crate::log::{hold_event, is_logged};
use crate::proto::conn::receive_side::ReceiveSide;
use crate::proto::conn::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use crate::proto::conn::{Connection, ReceivedMessage};
use crate::proto::matching::fifo::FifoMessage;
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

impl<T> Connection<T> {
    /// The fast path of a message whose payload is in `input` as a whole, the usual case of small
    /// messages: completes the oldest posted receive. Returns the length of the payload; `None`:
    /// the message is received as any other frame.
    pub(super) fn receive_whole_message(
        &mut self,
        data: Option<u64>,
        ack: bool,
        len: u64,
        input: &[u8],
    ) -> Result<Option<usize>, Error> {
        // 1. The payload is here, and a receive is posted.
        let bytes = usize::try_from(len).ok().and_then(|len| input.get(..len));
        let Some(bytes) = bytes else { return Ok(None) };
        if self.tx.queued_answers() > READ_REQUESTS_MAX {
            return Ok(None);
        }
        let ReceiveSide::Own(own) = &mut self.side else {
            return Ok(None);
        };
        let matcher = &mut own.matcher;
        let Some(key) = matcher.take_posted() else {
            return Ok(self.receive_into_inbox(data, ack, bytes));
        };
        if is_logged(Level::TRACE) {
            hold_event(move || tracing::trace!(len, ?data, ack, "received a message"));
        }
        let order = matcher.next_order();
        // 2. Copy the payload to the buffer.
        let op = self.ops.get_mut(key);
        let op = op.expect("a posted receive is in the table");
        op.phase = Phase::Moving;
        let buffer = op.payload.as_mut();
        let buffer = buffer.expect("a posted receive holds its buffer");
        let fits = buffer.room_for(len);
        // A buffer that refuses ends its receive.
        op.failed = buffer.copy_in(0, &bytes[..fits]).err();
        // 3. Account for it, acknowledge it, and complete the receive.
        self.receive_credit.count_message(len);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        let received = ReceivedMessage {
            len: fits,
            overflow: bytes.len() - fits,
            data,
            order,
        };
        self.complete_receive(key, received);
        Ok(Some(bytes.len()))
    }

    /// Receives a whole message into an inbox, from which a stream takes it. `None`: no inbox has a
    /// place.
    #[inline]
    fn receive_into_inbox(&mut self, data: Option<u64>, ack: bool, bytes: &[u8]) -> Option<usize> {
        let ReceiveSide::Own(own) = &mut self.side else {
            return None;
        };
        if own.inboxes.is_empty() || !own.inboxes.push(bytes, data, own.matcher.next_order()) {
            return None;
        }
        let len = bytes.len();
        if is_logged(Level::TRACE) {
            hold_event(move || tracing::trace!(len, ?data, ack, "received a message"));
        }
        self.receive_credit.count_message(len as u64);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        Some(len)
    }

    /// Begins a message that is not here as a whole, or that no receive is posted for.
    pub(super) fn begin_message(&mut self, data: Option<u64>, ack: bool, len: u64) {
        // A message that stalls skips a sequence number.
        let ReceiveSide::Own(own) = &mut self.side else {
            return;
        };
        let matcher = &mut own.matcher;
        let order = matcher.next_order();
        let transfer = if let Some(op) = matcher.take_posted() {
            let entry = self
                .ops
                .get_mut(op)
                .expect("a posted receive is in the table");
            entry.phase = Phase::Moving;
            let mut payload = entry
                .payload
                .take()
                .expect("a posted receive holds its buffer");
            let capacity = payload.room_for(len) as u64;
            let target = PayloadTarget::Receive { op, data, order };
            PayloadInProgress {
                target,
                payload: Some(payload),
                capacity,
                len,
                done: 0,
                ack,
            }
        } else if let Some((inbox, buffer)) = own.inboxes.begin() {
            PayloadInProgress {
                target: PayloadTarget::Inbox { inbox, data, order },
                capacity: buffer.len() as u64,
                payload: Some(Payload::from_vec(buffer)),
                len,
                done: 0,
                ack,
            }
        } else if matcher.has_room(len) || self.last_bytes.is_some_and(|left| len <= left) {
            let Some(store) = zeroed(len) else {
                self.rx.go(ReceiveState::AwaitReceive {
                    header: FrameHeader::Message { data, ack, len },
                });
                return;
            };
            matcher.begin_unexpected(store.len());
            let payload = Payload::from_vec(store);
            let target = PayloadTarget::Unexpected { data, order };
            PayloadInProgress {
                target,
                payload: Some(payload),
                capacity: len,
                len,
                done: 0,
                ack,
            }
        } else {
            self.rx.go(ReceiveState::AwaitReceive {
                header: FrameHeader::Message { data, ack, len },
            });
            return;
        };
        self.receive_credit.count_message(len);
        self.rx.go(ReceiveState::Payload(transfer));
    }

    /// Copies an unexpected message to its receive, and completes it.
    pub(in crate::proto::conn) fn deliver_unexpected(&mut self, key: OpKey, message: FifoMessage) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::Moving;
        let mut payload = op
            .payload
            .take()
            .expect("a posted receive holds its buffer");
        match payload.take_message(message.payload, message.len) {
            Ok(fits) => {
                let received = ReceivedMessage {
                    len: fits,
                    overflow: message.overflow + (message.len - fits),
                    data: message.data,
                    order: message.order,
                };
                self.complete_message(key, payload, received);
            }
            Err(denied) => {
                let error = denied.error("a message was copied to it");
                self.put_back(key, payload);
                self.complete(key, Err(error), 0);
            }
        }
    }
}
