//! Messages for receives of the connection's own: first come, first matched.

use crate::buf::Payload;
use crate::error::{Error, Phase};
use crate::limits::READ_REQUESTS_MAX;
use crate::proto::conn::rx::{Landing, Rx, Target};
use crate::proto::conn::side::{OwnReceives, ReceiveSide};
use crate::proto::conn::{Connection, Received};
use crate::proto::matching::first_come::Early;
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

use super::taken_away;

impl<T> Connection<T> {
    /// A message that is there as a whole lands in the oldest posted receive at once, the usual
    /// case of small ones. Gives its bytes; `None`: it goes the longer way, as all other frames do.
    #[inline]
    pub(super) fn take_whole_message(
        &mut self,
        data: Option<u64>,
        ack: bool,
        len: u64,
        input: &[u8],
    ) -> Result<Option<usize>, Error> {
        let bytes = usize::try_from(len).ok().and_then(|len| input.get(..len));
        let Some(bytes) = bytes else { return Ok(None) };
        if self.tx.queued_answers() > READ_REQUESTS_MAX {
            return Ok(None);
        }
        let ReceiveSide::Own(OwnReceives { matcher, .. }) = &mut self.side else {
            return Ok(None);
        };
        let Some(key) = matcher.take_posted() else {
            return Ok(None);
        };
        let order = matcher.next_order();
        let op = self.ops.get_mut(key);
        let op = op.expect("a posted receive is in the table");
        op.phase = Phase::Moving;
        let buffer = op.payload.as_mut();
        let buffer = buffer.expect("a posted receive holds its buffer");
        let fits = bytes.len().min(buffer.len());
        // Refused, it ends with the connection, and has its buffer until then.
        (buffer.copy_in(0, &bytes[..fits])).map_err(|closed| taken_away(closed.into()))?;
        let payload = op.payload.take().unwrap_or_else(Payload::empty);
        self.receive_credit.arrive(len);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        let received = Received {
            len: fits,
            overflow: bytes.len() - fits,
            data,
            tag: None,
            order,
        };
        self.end_receive(key, received.result(), received, payload);
        Ok(Some(bytes.len()))
    }

    /// A message begins that is not there as a whole, or that no receive awaits.
    pub(super) fn begin_message(&mut self, data: Option<u64>, ack: bool, len: u64) {
        // Of one that has to wait a place is left out.
        let ReceiveSide::Own(OwnReceives { matcher, .. }) = &mut self.side else {
            return;
        };
        let order = matcher.next_order();
        let landing = if let Some(op) = matcher.take_posted() {
            let entry = self
                .ops
                .get_mut(op)
                .expect("a posted receive is in the table");
            entry.phase = Phase::Moving;
            let payload = entry
                .payload
                .take()
                .expect("a posted receive holds its buffer");
            let capacity = payload.len() as u64;
            let target = Target::Receive {
                op,
                data,
                tag: None,
                order,
            };
            Landing {
                target,
                payload: Some(payload),
                capacity,
                len,
                done: 0,
                ack,
            }
        } else if matcher.has_room(len) || self.last_bytes.is_some_and(|left| len <= left) {
            let Some(store) = zeroed(len) else {
                self.rx.go(Rx::AwaitReceive {
                    header: FrameHeader::Message { data, ack, len },
                });
                return;
            };
            matcher.begin_early(store.len());
            let payload = Payload::from_vec(store);
            let target = Target::Early { data, order };
            Landing {
                target,
                payload: Some(payload),
                capacity: len,
                len,
                done: 0,
                ack,
            }
        } else {
            self.rx.go(Rx::AwaitReceive {
                header: FrameHeader::Message { data, ack, len },
            });
            return;
        };
        self.receive_credit.arrive(len);
        self.rx.go(Rx::Payload(landing));
    }

    /// Gives an early message to its receive.
    pub(in crate::proto::conn) fn deliver_early(&mut self, key: OpKey, early: Early) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::Moving;
        let mut payload = op
            .payload
            .take()
            .expect("a posted receive holds its buffer");
        let fits = early.len.min(payload.len());
        let overflow = early.overflow + (early.len - fits);
        match payload.copy_from(&early.payload, fits) {
            Ok(()) => {
                let received = Received {
                    len: fits,
                    overflow,
                    data: early.data,
                    order: early.order,
                    ..Received::default()
                };
                self.message_landed(key, payload, received, None);
            }
            Err(denied) => {
                let error = denied.error("a message was copied to it");
                self.end_op(key, Err(error), 0, payload);
            }
        }
    }
}

/// So many zero bytes; `None` if there is no memory for them. The length is a peer's word: within a
/// budget, but the budget is the application's, and may be more than this machine has.
pub(in crate::proto::conn) fn zeroed(len: u64) -> Option<Vec<u8>> {
    /// What is asked for without a second thought.
    const SMALL: usize = 1 << 20;
    let len = usize::try_from(len).ok()?;
    if len > SMALL {
        // Nothing can ask for zeroed memory and hear "no", so this asks first.
        Vec::<u8>::new().try_reserve_exact(len).ok()?;
    }
    Some(vec![0; len])
}
