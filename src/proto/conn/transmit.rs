//! The transmit half of a connection: frames handed out, sent, acknowledged.

use std::collections::VecDeque;

use crate::buf::{Frame, Leases, Payload};
use crate::error::{OperationKind, Phase};
use crate::proto::Host;
use crate::proto::event::Event;
use crate::proto::op::OpKey;

use super::refusal::AwaitedRead;
use super::tx::Gone;
use super::{Connection, Lifecycle, Outgoing};

impl<T> Connection<T> {
    /// Frames for the transport, if there are any and it has none of ours.
    pub(crate) fn poll_transmit(&mut self, host: &mut impl Host<T>) -> Option<Outgoing> {
        if self.fault.is_some() {
            return None;
        }
        self.tell_credit(host);
        self.tell_end(host);
        let Connection {
            tx,
            ops,
            acks,
            reads,
            order,
            ..
        } = self;
        let polled = tx.poll(*order, |key, is_announced| {
            if let Some(op) = ops.get_mut(key) {
                op.phase = Phase::Moving;
                if op.ack && !is_announced {
                    acks.push_back(key);
                }
                if is_answered_with_bytes(op.operation) {
                    reads.push_back(AwaitedRead::new(key, op.len));
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

    /// The transport is done with the memory that these keep open. Their list is used again.
    pub(crate) fn end_leases(&mut self, leases: Vec<Leases>) {
        self.tx.end_leases(leases);
    }

    /// The transport gives a batch back after moving `sent` bytes of it.
    pub(crate) fn handle_sent(&mut self, frames: VecDeque<Frame>, sent: usize) {
        self.tx.handle_sent(frames, sent);
        while let Some(gone) = self.tx.next_gone() {
            match gone {
                Gone::Op(key, payload) => self.frame_sent(key, payload),
                Gone::Answer(memory) if self.lifecycle == Lifecycle::Connected => {
                    let operation = OperationKind::RemoteRead;
                    self.events.push_back(Event::RemoteAccess {
                        operation,
                        data: None,
                        memory,
                    });
                }
                Gone::Answer(_) => {}
                Gone::Injected(count) => self.injected_ended(count),
            }
        }
        self.response_sent_if_all();
        self.refusal_sent_if_all();
        self.invariants();
    }

    /// So many injected messages have ended, which is told by count.
    pub(super) fn injected_ended(&mut self, count: usize) {
        self.ending.work += count as u64;
        self.transmit.used -= count;
        self.transmit.freed = true;
    }

    fn frame_sent(&mut self, key: OpKey, payload: Payload) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::AwaitingPeer;
        if is_answered_with_bytes(op.operation) {
            return; // What of it was in the frame is of no use any more.
        }
        let len = op.len;
        match op.answer {
            Some(answer) => self.end_answered(key, answer, payload),
            None if op.ack => op.payload = Some(payload),
            None => self.end_op(key, Ok(()), len, payload),
        }
    }
}

fn is_answered_with_bytes(operation: OperationKind) -> bool {
    matches!(operation, OperationKind::Read | OperationKind::FetchAtomic)
}
