//! The transmit half of a connection: frames handed out, sent, acknowledged.

use tracing::Level;

use crate::buf::{AccessError, BounceBuffer, FrameStep, Payload, SendBatch};
use crate::error::{Error, OperationKind, Phase};
use crate::log::{hold_event, is_logged};
use crate::proto::Host;
use crate::proto::event::ConnEvent;
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

use super::acks::AwaitedRead;
use super::answer::Part;
use super::tx::{Control, FrameOwner, UserFrame, cannot_say};
use super::{Connection, Lifecycle};

fn log_handed_out(header: &FrameHeader) {
    if is_logged(Level::TRACE) {
        let header = header.clone();
        hold_event(move || tracing::trace!(%header, "handed out"));
    }
}

impl<T> Connection<T> {
    /// True if only acks are queued, and few.
    #[inline]
    pub(crate) fn owes_few_acks(&self) -> bool {
        self.tx.owes_few_acks()
    }

    /// Returns frames for the transport, if there are any and the transport has no batch of ours.
    pub(crate) fn poll_transmit(&mut self, host: &mut impl Host<T>) -> Option<Box<SendBatch>> {
        if self.fault.is_some() || self.tx.is_out() {
            return None;
        }
        // 1. Queue the frames that no operation asks for: credit for the peer, our CLOSE.
        self.queue_credit(host);
        self.queue_close_if_due(host);
        if self.tx.is_drained() {
            return None; // The usual result after each batch.
        }
        match self.gather() {
            Ok(outgoing) => outgoing,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Takes frames from the queues, in order, until they fill one system call.
    fn gather(&mut self) -> Result<Option<Box<SendBatch>>, Error> {
        // 2. Frames that were sent in part go first.
        if !self.tx.begin_batch(self.byte_order)? {
            return Ok(None);
        }
        while self.tx.has_queued() && !self.tx.batch_mut().is_full() {
            // 3. Injected messages at the front go together, as one run.
            if self.tx.gather_injected() {
                continue;
            }
            // 4. Probes and answers overtake operations; parts of long answers take turns
            // with them.
            if self.tx.has_control() || self.tx.is_turn_of_answers() {
                self.gather_control()?;
                continue;
            }
            // 5. The oldest operation that may go out. If it was an operation's turn and none may
            // go out, answers go on.
            match self.tx.pop_user() {
                Some(user) => self.gather_user(user, false),
                // A STALLED may have been queued.
                None if self.tx.skip_users_turn() || self.tx.has_control() => {}
                None => break,
            }
        }
        Ok(self.tx.hand_out())
    }

    /// Encodes the frame of an operation from its record. The transport takes over the memory.
    /// `is_fetched`: the first bytes of the operation's device memory have been copied.
    #[inline]
    fn gather_user(&mut self, user: UserFrame, is_fetched: bool) {
        let Some(op) = self.ops.get_mut(user.op()) else {
            debug_assert!(false, "what is queued is in the table");
            return;
        };
        if !is_fetched && op.goes_out_of_device() {
            return self.gather_of_device(user);
        }
        let id = self.tx.take_id();
        op.phase = Phase::Moving;
        let (header, payload, owner) = match user {
            // An announcement completes nothing; its answer is a clear-to-send.
            UserFrame::Announcement(_, index) => (
                op.announcement(index),
                Payload::empty(),
                FrameOwner::Control,
            ),
            UserFrame::Whole(key) | UserFrame::Announced(key, _) => {
                // The peer will answer: the operation joins those that await an answer.
                if op.is_acknowledged() {
                    self.awaited_acks.push_back(key);
                } else if op.is_answered_with_bytes() {
                    self.awaited_reads.push_back(AwaitedRead::new(key, op.len));
                }
                let header = match user {
                    UserFrame::Announced(_, index) => {
                        self.tx.data_handed_out(index);
                        op.announced(index)
                    }
                    _ => {
                        if op.is_message() {
                            self.tx.message_handed_out(op.number);
                        }
                        op.header()
                    }
                };
                // No lease is needed: the operation is inside the gates of its regions already.
                (header, op.take_outgoing(), FrameOwner::Operation(key))
            }
        };
        log_handed_out(&header);
        let batch = self.tx.batch_mut();
        batch.push(&header, self.byte_order, id, payload, owner);
    }

    /// Encodes the frame of an operation on device memory, after its first bytes have been copied.
    /// If the copy fails, the operation ends as if it had not been posted.
    #[cold]
    fn gather_of_device(&mut self, user: UserFrame) {
        let key = user.op();
        let is_announcement = matches!(user, UserFrame::Announcement(..));
        let op = self.ops.get(key).filter(|_| !is_announcement);
        let fetched = match op.and_then(|op| op.payload.as_ref()) {
            Some(payload) => BounceBuffer::first_of(payload),
            None => Ok(None),
        };
        match fetched {
            Ok(bounce) => {
                self.gather_user(user, true);
                if let Some(bounce) = bounce {
                    self.tx.batch_mut().set_bounce(bounce);
                }
            }
            Err(failed) => self.give_up_sending(user, failed.error("it was sent")),
        }
    }

    fn give_up_sending(&mut self, user: UserFrame, error: Error) {
        let key = user.op();
        match user {
            // The peer has matched a receive with the message. After a withdrawal it gives that
            // receive to another message.
            UserFrame::Announced(_, index) if !self.tx.withdraw_requested(index) => {
                self.fail(error.clone());
            }
            UserFrame::Whole(_) => {
                let message = self.ops.get(key).filter(|op| op.is_message());
                let len = message.map(|op| op.len as u64);
                self.tx.message_not_sent(len);
            }
            UserFrame::Announced(..) | UserFrame::Announcement(..) => {}
        }
        if let Some(op) = self.ops.get_mut(key) {
            op.phase = Phase::Moving;
        }
        self.complete_unsent(key, error);
    }

    /// Encodes the next control frame or answer, and leases its regions.
    fn gather_control(&mut self) -> Result<(), Error> {
        let mut bounce = None;
        let (header, payload, owner) = if let Some(control) = self.tx.pop_control() {
            let Control { header, payload } = control;
            let leased = payload.lease().map_err(AccessError::from);
            match leased.and_then(|lease| Ok((lease, BounceBuffer::first_of(&payload)?))) {
                Ok((lease, first)) => {
                    self.tx.batch_mut().push_lease(lease);
                    bounce = first;
                }
                Err(denied) => {
                    self.tx.batch_mut().give_up();
                    return Err(cannot_say(denied.into()));
                }
            }
            (header, payload, FrameOwner::Control)
        } else if let Some(answer) = self.tx.pop_answer() {
            self.tx.batch_mut().push_lease(answer.leases);
            let owner = FrameOwner::Answer(answer.part);
            (answer.header, answer.payload, owner)
        } else {
            return Ok(());
        };
        log_handed_out(&header);
        let id = self.tx.take_id();
        let batch = self.tx.batch_mut();
        batch.push(&header, self.byte_order, id, payload, owner);
        if let Some(bounce) = bounce {
            self.tx.batch_mut().set_bounce(bounce);
        }
        Ok(())
    }

    /// Takes back a batch; the transport has moved `sent` bytes of it.
    pub(crate) fn handle_sent(&mut self, mut batch: Box<SendBatch>, sent: usize) {
        // The transport is done with the memory that the leases keep open.
        batch.leases.clear();
        let mut left = sent;
        // 1. Frames that were sent in full leave the batch.
        while let Some(step) = batch.advance(&mut left) {
            let FrameStep {
                token,
                bytes,
                is_gone,
            } = step;
            let owner = FrameOwner::of(token);
            if let FrameOwner::Operation(_) | FrameOwner::Injected(_) = owner {
                self.tx.work += bytes as u64;
            }
            // Each message of a run ends with its last byte.
            if let FrameOwner::Injected(_) = owner {
                let count = self.tx.injected_gone(bytes);
                self.injected_ended(count);
            }
            if !is_gone {
                break;
            }
            let payload = batch.pop_sent();
            // 2. The operation gets its memory back, and completes if it awaits no answer.
            match owner {
                FrameOwner::Operation(key) => self.frame_sent(key, payload),
                FrameOwner::Answer(Part::Done) => self.answer_sent(payload),
                FrameOwner::Control if payload.buffer_count() > 0 => self.answer_sent(payload),
                FrameOwner::Control
                | FrameOwner::Handshake
                | FrameOwner::Answer(_)
                | FrameOwner::Injected(_) => {}
            }
        }
        debug_assert_eq!(left, 0, "the transport moved more than it had");
        // 3. The rest goes first in the next batch.
        self.tx.take_back(batch);
        self.response_sent_if_all();
        self.refusal_sent_if_all();
        self.invariants();
    }

    /// Reports a peer's read whose answer has been sent in full.
    fn answer_sent(&mut self, memory: Payload) {
        if self.lifecycle == Lifecycle::Connected {
            self.events.push(ConnEvent::RemoteAccess {
                operation: OperationKind::RemoteRead,
                data: None,
                memory,
            });
        }
    }

    /// Accounts for `count` injected messages that have ended.
    pub(super) fn injected_ended(&mut self, count: usize) {
        if count > 0 {
            self.work += count as u64;
            self.tx_context.free(count);
        }
    }

    /// Handles the frame of an operation that has been sent in full.
    fn frame_sent(&mut self, key: OpKey, payload: Payload) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::AwaitingPeer;
        if op.is_answered_with_bytes() {
            return; // Memory that was in the frame is of no use any more.
        }
        op.payload = Some(payload);
        match op.answer {
            Some(answer) => self.complete_answered(key, answer),
            None if op.is_acknowledged() => {}
            None => {
                let len = op.len;
                self.complete(key, Ok(()), len);
            }
        }
    }
}
