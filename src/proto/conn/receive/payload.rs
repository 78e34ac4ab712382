//! What a payload belongs to ends when it is whole.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind};
use crate::proto::conn::rx::{Rx, Target};
use crate::proto::conn::{Connection, Received};
use crate::proto::event::Event;
use crate::proto::matching::EarlyMessage;
use crate::proto::matching::first_come::Early;
use crate::proto::op::OpKey;
use crate::proto::{Host, Receives};

impl<T> Connection<T> {
    /// If the landing payload is whole, ends what it belongs to and looks for the next header.
    pub(super) fn finish_landing(&mut self, host: &mut impl Host<T>) {
        match &self.rx {
            Rx::Payload(landing) if landing.is_done() && landing.payload.is_some() => {}
            _ => return,
        }
        let Rx::Payload(landing) = self.rx.go(Rx::Header) else {
            return;
        };
        let payload = landing.payload.expect("checked above");
        let len = usize::try_from(landing.len.min(landing.capacity)).expect("fits the buffer");
        let overflow = usize::try_from(landing.len).unwrap_or(usize::MAX) - len;
        if let Target::Refused { reason, reserved } = landing.target {
            if reserved {
                self.events.push(Event::RemoteDataVoid);
            }
            self.answer_refused(reason);
            return;
        }
        if landing.ack {
            // The payload is in memory, also when it waits for its receive or was cut.
            self.tx.push_ack(self.has_refusals());
        }
        match landing.target {
            Target::Receive {
                op,
                data,
                tag,
                order,
            } => {
                let received = Received {
                    len,
                    overflow,
                    data,
                    tag,
                    order,
                };
                self.message_landed(op, payload, received, host.shared());
            }
            Target::Stored { arrival } => {
                if let Some(shared) = host.shared() {
                    shared.landed(EarlyMessage {
                        arrival,
                        payload,
                        len,
                        overflow,
                    });
                }
            }
            Target::Early { data, order } => {
                let early = Early {
                    payload,
                    len,
                    overflow,
                    data,
                    order,
                };
                if let Some(own) = self.own_mut()
                    && let Some((op, early)) = own.matcher.finish_early(early)
                {
                    self.deliver_early(op, early);
                }
            }
            Target::Region { data, commit: true } => {
                self.rx.go(Rx::AwaitCommit {
                    data,
                    memory: Some(payload),
                });
            }
            Target::Region { data, .. } => {
                self.events.push(Event::RemoteAccess {
                    operation: OperationKind::RemoteWrite,
                    data,
                    memory: payload,
                });
            }
            Target::Read { op } if self.ops.get(op).is_none() => self.place_answered(),
            Target::Read { op } => self.end_op(op, Ok(()), len, payload),
            Target::ReadData { op } => self.read_data_landed(op, landing.len, payload),
            Target::Atomic(asked) => self.atomic_landed(*asked, payload),
            Target::Refused { .. } => {} // Told above.
        }
    }

    pub(super) fn message_landed(
        &mut self,
        key: OpKey,
        payload: Payload,
        received: Received,
        shared: Option<&mut dyn Receives<T>>,
    ) {
        let Received {
            len,
            overflow,
            data,
            order,
            ..
        } = received;
        let mut shared = shared;
        if let (Some(shared), Some(taken)) = (&mut shared, self.take_landing_receive()) {
            shared.finished(taken.key);
        }
        if self.ops.get(key).is_some_and(|op| op.orphaned) {
            // Its owner went away: the message goes back, the receive ends as withdrawn.
            let error = Error::new(ErrorKind::Canceled, "");
            self.end_op(key, Err(error), 0, Payload::empty());
            match (self.identity(), shared) {
                (Some(identity), Some(shared)) => {
                    // At once: messages behind it are not to be matched before.
                    if let Ok(payload) = payload.apart_from_regions(len) {
                        shared.give_back(received.as_early(identity, payload));
                    }
                }
                _ => self.give_back(payload, len, overflow, data, order),
            }
            return;
        }
        self.end_receive(key, received.result(), received, payload);
    }
}
