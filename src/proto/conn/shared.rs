//! Messages whose receives are shared with other connections: a receive that matches becomes the
//! connection's own operation, and a message that none matches is kept among the shared ones.

use crate::buf::Payload;
use crate::error::{Error, Phase};
use crate::proto::Host;
use crate::proto::matching::{Arrival, Arrived, Kind, PostedReceive, Wanted};
use crate::proto::op::{OpKey, OpKind, Operation, PostOptions};
use crate::proto::peers::SourceId;
use crate::wire::FrameHeader;

use super::Connection;
use super::receive::zeroed;
use super::rx::{Landing, Rx, Target};

/// A receive that is the connection's until its message has come: all that it takes to post it
/// again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) op: OpKey,
    wanted: Wanted,
    /// It takes messages of this peer only.
    pub(super) source: Option<SourceId>,
    order: u64,
    /// Its name among the shared receives.
    pub(super) key: OpKey,
}

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
                let (taken, payload) = self.adopt(receive, Phase::Moving);
                let op = taken.op;
                self.set_landing(Some(taken));
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
                    self.rx.go(Rx::AwaitReceive { header });
                    return;
                }
            },
            Arrived::NoRoom => {
                self.rx.go(Rx::AwaitReceive { header });
                return;
            }
        };
        self.receive_credit.arrive(len);
        self.rx.go(Rx::Payload(Landing {
            target,
            capacity: payload.len() as u64,
            payload: Some(payload),
            len,
            done: 0,
            ack: header.wants_ack(),
        }));
    }

    /// A receive that was matched to a message of this connection becomes an operation of it; gives
    /// its names and its buffer.
    pub(super) fn adopt(&mut self, receive: PostedReceive<T>, phase: Phase) -> (Taken, Payload) {
        let PostedReceive {
            token,
            payload,
            wanted,
            source,
            order,
            key,
        } = receive;
        let mut op = Operation::new(OpKind::Receive, payload, token, PostOptions::default());
        op.phase = phase;
        let payload = op.take_payload();
        let op = self.ops.insert(op);
        let taken = Taken {
            op,
            wanted,
            source,
            order,
            key,
        };
        (taken, payload)
    }

    /// All receives that the connection has taken, and that have not ended.
    pub(super) fn take_taken(&mut self) -> Vec<Taken> {
        let landing = self.take_landing_receive();
        let awaiting = (self.binding().into_iter()).flat_map(|it| it.incoming.awaiting());
        awaiting.chain(landing).collect()
    }

    /// A receive does not get the message that it was matched with: it is posted again, in its
    /// place, or ends for this reason if it was for that message alone.
    pub(super) fn put_back(
        &mut self,
        taken: Taken,
        payload: Payload,
        gone: Error,
        host: &mut impl Host<T>,
    ) {
        let (Some(op), Some(shared)) = (self.ops.remove(taken.op), host.shared()) else {
            debug_assert!(false, "a receive that is taken is an operation");
            return;
        };
        let receive = PostedReceive {
            token: op.token,
            payload,
            wanted: taken.wanted,
            source: taken.source,
            order: taken.order,
            key: taken.key,
        };
        shared.put_back(receive, gone);
    }
}
