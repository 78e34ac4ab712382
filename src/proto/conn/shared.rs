//! Messages whose receives are shared with other connections: a receive that matches becomes the
//! connection's own operation, and a message that none matches is kept among the shared ones.

use crate::buf::Payload;
use crate::error::{OperationKind, Phase};
use crate::proto::Host;
use crate::proto::matching::{Arrival, Arrived, Kind, PostedReceive};
use crate::proto::op::{Op, OpKey};
use crate::wire::FrameHeader;

use super::Connection;
use super::receive::zeroed;
use super::rx::{Landing, Rx, Target};

impl<T> Connection<T> {
    /// What the shared receives are told of a message.
    pub(super) fn arrival(&self, tag: Option<u64>, len: u64, data: Option<u64>) -> Option<Arrival> {
        self.identity().map(|identity| Arrival {
            source: identity.source,
            connection: identity.connection,
            kind: Kind::of(tag),
            len,
            data,
            order: 0,
        })
    }

    /// A message begins.
    pub(super) fn begin_shared(
        &mut self,
        header: FrameHeader,
        mut arrival: Arrival,
        host: &mut impl Host<T>,
    ) {
        let Arrival {
            kind, len, data, ..
        } = arrival;
        let Some(shared) = host.shared() else {
            debug_assert!(false, "the owner of such a connection shares receives");
            return;
        };
        let (target, payload) = match shared.arrive(&mut arrival) {
            Arrived::Receive(receive) => {
                let (op, payload) = self.adopt(receive, Phase::Moving);
                let (tag, order) = (kind.tag(), arrival.order);
                let target = Target::Receive {
                    op,
                    data,
                    tag,
                    order,
                };
                (target, payload)
            }
            Arrived::Store => match zeroed(len) {
                Some(store) => (Target::Stored { arrival }, Payload::from_vec(store)),
                None => {
                    shared.abandoned(&arrival);
                    self.rx = Rx::AwaitReceive { header };
                    return;
                }
            },
            Arrived::NoRoom => {
                self.rx = Rx::AwaitReceive { header };
                return;
            }
        };
        self.receive_credit.arrive(len);
        self.rx = Rx::Payload(Landing {
            target,
            capacity: payload.len() as u64,
            payload: Some(payload),
            len,
            done: 0,
            ack: header.wants_ack(),
        });
    }

    /// A receive that was matched to a message of this connection becomes an operation of it; gives
    /// its name here and its buffer.
    pub(super) fn adopt(&mut self, receive: PostedReceive<T>, phase: Phase) -> (OpKey, Payload) {
        let PostedReceive { token, payload, .. } = receive;
        self.receive.used += 1;
        let key = self.ops.insert(Op {
            token,
            operation: OperationKind::Receive,
            phase,
            payload: None,
            len: payload.len(),
            ack: false,
            answer: None,
            fence: false,
            number: 0,
            orphaned: false,
        });
        (key, payload)
    }
}
