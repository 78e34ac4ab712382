//! The transmit half of a connection: frames handed out, sent, acknowledged.

use std::collections::VecDeque;

use crate::buf::{Frame, Payload};
use crate::error::{Error, OperationKind, Phase};
use crate::proto::event::Event;
use crate::proto::op::OpKey;

use super::{Connection, Lifecycle, Outgoing, violation};

impl<T> Connection<T> {
    /// Frames for the transport, if there are any and it has none of ours.
    pub(crate) fn poll_transmit(&mut self) -> Option<Outgoing> {
        if self.fault.is_some() {
            return None;
        }
        let Connection {
            tx,
            ops,
            acks,
            reads,
            order,
            ..
        } = self;
        let polled = tx.poll(*order, |key| {
            if let Some(op) = ops.get_mut(key) {
                op.phase = Phase::Moving;
                if op.ack {
                    acks.push_back(key);
                }
                if op.operation == OperationKind::Read {
                    reads.push_back(key);
                }
            }
        });
        match polled {
            Ok(outgoing) => outgoing,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// The transport gives a batch back after moving `sent` bytes of it.
    pub(crate) fn handle_sent(&mut self, frames: VecDeque<Frame>, sent: usize) {
        let mut finished = Vec::new();
        self.tx
            .handle_sent(frames, sent, |op, payload| finished.push((op, payload)));
        for (key, payload) in finished {
            match key {
                Some(key) => self.frame_sent(key, payload),
                // Of all frames without an operation only read responses hold memory.
                None if self.lifecycle == Lifecycle::Connected && payload.piece_count() > 0 => {
                    let operation = OperationKind::RemoteRead;
                    self.events.push_back(Event::RemoteAccess { operation });
                }
                None => {}
            }
        }
        self.response_sent_if_all();
        self.invariants();
    }

    fn frame_sent(&mut self, key: OpKey, payload: Payload) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::AwaitingPeer;
        if op.operation == OperationKind::Read {
            return;
        }
        let len = op.len;
        if op.ack && !op.acked {
            op.payload = Some(payload);
        } else {
            self.end_op(key, Ok(()), len, payload);
        }
    }

    pub(super) fn handle_ack(&mut self) -> Result<(), Error> {
        let Some(key) = self.acks.pop_front() else {
            return Err(violation("an acknowledgement that nothing awaits"));
        };
        let Some(op) = self.ops.get_mut(key) else {
            return Ok(());
        };
        match (op.phase, op.payload.take()) {
            (Phase::AwaitingPeer, Some(payload)) => {
                let len = op.len;
                self.end_op(key, Ok(()), len, payload);
            }
            (_, kept) => {
                op.payload = kept;
                op.acked = true;
            }
        }
        Ok(())
    }
}
