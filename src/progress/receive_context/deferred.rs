//! Work that a step of the receive context defers: receives to be completed before the context's
//! lock is released, tasks to be woken and memory to be dropped after it.
//!
//! A stored message is copied to its receive and reported under the lock: otherwise a thread that
//! posts a receive could report one message of a connection after the connection itself has
//! reported the next one.

use std::sync::Arc;
use std::task::Waker;

use crate::buf::{AccessError, BufferCursor, Payload};
use crate::cq::CqSlot;
use crate::error::{Error, ErrorKind, Phase};
use crate::progress::completing::{CompletionContext, Undelivered};
use crate::progress::report::OpRecord;
use crate::proto::{
    Announcement, ClearToSend, ConnectionId, MatchResult, MatchedReceive, OpKey, ReceivedMessage,
};
use crate::stats::OperationCounts;
use crate::sync::WakeList;

use super::ReceiveContext;
use super::multi::MultiReceive;
use super::op_state::{ReceiveEntry, ReceiveOpState};
use super::state::{AttachedPort, ContextState, lock_queue};

/// The work that the calls of one step have collected.
#[derive(Debug)]
pub(super) struct DeferredWork<'a> {
    // The first three lists are processed under the lock, when the step ends.
    pub(super) deliveries: Vec<(OpRecord, ReceivedMessage)>,
    pub(super) completions: Vec<OpRecord>,
    pub(super) multi_completions: Vec<(Arc<MultiReceive>, Result<(), Error>, BufferCursor)>,
    pub(super) unlocked: &'a mut UnlockedWork,
}

/// Objects to be dropped with no lock held: their drop wakes tasks, and may run the user's code.
#[derive(Debug, Default)]
pub(super) struct UnlockedWork {
    pub(super) wakes: WakeList,
    pub(super) drops: Vec<DeferredDrop>,
}

/// An object that is dropped with no lock held.
#[derive(Debug)]
#[allow(dead_code, reason = "held until it is dropped")]
pub(super) enum DeferredDrop {
    Memory(Payload),
    /// A completion slot that is not needed: freeing it wakes tasks.
    Slot(CqSlot),
    /// A connection that has detached, with its waker.
    Port(AttachedPort),
}

impl UnlockedWork {
    pub(super) fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.drops.is_empty()
    }
}

impl<'a> DeferredWork<'a> {
    pub(super) fn new(unlocked: &'a mut UnlockedWork) -> Self {
        DeferredWork {
            deliveries: Vec::new(),
            completions: Vec::new(),
            multi_completions: Vec::new(),
            unlocked,
        }
    }

    pub(super) fn wake(&mut self, waker: Waker) {
        self.unlocked.wakes.push(waker);
    }

    pub(super) fn drop_memory(&mut self, payload: Payload) {
        self.unlocked.drops.push(DeferredDrop::Memory(payload));
    }

    /// Ends a receive whose buffer has no message.
    pub(super) fn end_unmatched(&mut self, mut record: OpRecord, error: Error, phase: Phase) {
        record.phase = phase;
        record.set_end(Err(error), 0);
        self.completions.push(record);
    }

    fn is_done(&self) -> bool {
        self.deliveries.is_empty()
            && self.completions.is_empty()
            && self.multi_completions.is_empty()
    }
}

impl ReceiveContext {
    /// Returns the context for completing receives, which `stats` counts.
    pub(super) fn completion_context<'a>(
        &'a self,
        stats: &'a mut OperationCounts,
    ) -> CompletionContext<'a> {
        CompletionContext {
            endpoint: self.config.endpoint,
            counter: self.config.counter.as_ref(),
            stats: Some(stats),
            sources: self.config.sources.as_ref(),
            sender: None,
            // Receives that end here have left their queues before (`ContextState::cancel`).
            waker: Waker::noop(),
        }
    }

    /// Delivers messages and completes receives. The caller drops the wakers and the memory with no
    /// lock held.
    pub(super) fn complete_all(&self, state: &mut ContextState, deferred: &mut DeferredWork<'_>) {
        while !deferred.is_done() {
            self.deliver_all(state, deferred);
        }
    }

    fn deliver_all(&self, state: &mut ContextState, deferred: &mut DeferredWork<'_>) {
        // 1. Copy messages to their receives.
        for (mut record, message) in std::mem::take(&mut deferred.deliveries) {
            record.end_with_message(message);
            deferred.completions.push(record);
        }
        // 2. Complete receives. A receive whose owner is gone returns its message, which may be
        // matched again: hence the loop in `complete_all`.
        for record in std::mem::take(&mut deferred.completions) {
            self.complete(state, record, deferred);
        }
        // 3. Complete multi-receive buffers that take no more messages.
        for (multi, result, cursor) in std::mem::take(&mut deferred.multi_completions) {
            multi.finish(result, cursor, &mut deferred.unlocked.wakes);
        }
    }

    /// Reports a receive that has ended. The connection that brought its message counts it.
    pub(super) fn complete(
        &self,
        state: &mut ContextState,
        mut record: OpRecord,
        deferred: &mut DeferredWork<'_>,
    ) {
        let connection = record.end.connection();
        let port = connection.and_then(|it| state.ports.get_mut(&it));
        let stats = match port {
            Some(port) => {
                if let (Err(error), Some(peer)) = (&mut record.end.result, port.peer) {
                    *error = error.clone().with_peer(peer);
                }
                &mut port.ended
            }
            None => &mut state.ended,
        };
        let mut context = self.completion_context(stats);
        let undelivered = context.deliver(record, &mut deferred.unlocked.wakes);
        match undelivered {
            Undelivered::Nothing => {}
            Undelivered::Memory(payload) => deferred.drop_memory(payload),
            Undelivered::Message(mut op) => {
                if let Some(message) = ReceivedMessage::of_receive(&op) {
                    state.requeue_message(message, deferred);
                    state.admit_and_wake(deferred);
                }
                deferred.drop_memory(op.take_payload());
            }
        }
    }
}

impl ContextState {
    /// Requeues a message whose receive was dropped (ruling 4).
    pub(super) fn requeue_message(
        &mut self,
        message: ReceivedMessage,
        deferred: &mut DeferredWork<'_>,
    ) {
        if self.closed.is_some() {
            deferred.drop_memory(message.payload);
        } else if let Some((matched, message)) = self.matcher.requeue_message(message) {
            let key = matched.receive.key;
            self.give(matched, message, deferred);
            self.arm_next(key, deferred);
        }
    }

    /// Gives a stored message to the receive, or to the part of a multi-receive buffer, that it was
    /// matched with. The caller arms the rest of the buffer.
    pub(super) fn give(
        &mut self,
        matched: MatchedReceive,
        message: ReceivedMessage,
        deferred: &mut DeferredWork<'_>,
    ) {
        let record = self.take_record(matched);
        deferred.deliveries.push((record, message));
    }

    /// Takes the record of a matched receive, or makes the record of a matched part of a buffer.
    pub(super) fn take_record(&mut self, matched: MatchedReceive) -> OpRecord {
        let key = matched.receive.key;
        let record = match matched.part {
            None => self.receives.remove(key).map(|it| it.record),
            Some(part) => self.part_record(key, part),
        };
        record.expect("a receive is in the table until it ends")
    }

    /// Enters the match of a receive, or of a part of a multi-receive buffer, with a message that
    /// has not come yet; returns the key of the receive or of the part. The caller arms the rest of
    /// the buffer.
    pub(super) fn enter_match(
        &mut self,
        matched: MatchedReceive,
        sender: ConnectionId,
        phase: Phase,
    ) -> OpKey {
        let MatchedReceive { receive, part } = matched;
        let key = match part {
            None => receive.key,
            Some(part) => {
                let record = self.part_record(receive.key, part);
                let record = record.expect("a part is of a buffer that is posted");
                let state = ReceiveOpState::Part(receive.key, receive.source);
                self.receives.insert(record, state)
            }
        };
        let entered = self.receives.get_mut(key);
        let entered = entered.expect("a receive is in the table until it ends");
        entered.sender = Some(sender);
        entered.record.phase = phase;
        if let ReceiveOpState::Backlogged(..)
        | ReceiveOpState::Posted(_)
        | ReceiveOpState::Matched(_) = entered.state
        {
            self.receives.set(key, ReceiveOpState::Matched(receive));
        }
        key
    }

    /// Takes the buffer of a matched receive, for bytes that are received into it now.
    pub(super) fn take_buffer(&mut self, key: OpKey) -> Payload {
        let record = self.receives.record_mut(key);
        let record = record.expect("a matched receive is in the table until its message has come");
        record.phase = Phase::Moving;
        record.take_payload()
    }

    /// Ends a matched receive, whose message is in its buffer.
    pub(super) fn end_receive(
        &mut self,
        key: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
        deferred: &mut DeferredWork<'_>,
    ) {
        let Some(ReceiveEntry { mut record, .. }) = self.receives.remove(key) else {
            return;
        };
        if !record.detached {
            record.end_with_placed(message, failed);
            deferred.completions.push(record);
            return;
        }
        // The receive's owner is gone, or has been given the time-out error. The message is
        // requeued at once, so that no later message is matched before it.
        let copy = message.payload.copy_front(message.len);
        record.payload = Some(message.payload);
        deferred.end_unmatched(record, Error::new(ErrorKind::Canceled, ""), Phase::Moving);
        if let Ok(payload) = copy {
            let message = ReceivedMessage { payload, ..message };
            self.requeue_message(message, deferred);
        }
    }

    /// Ends matched receives with their connection, or posts them again, the oldest first.
    pub(super) fn fail_receives(
        &mut self,
        receives: Vec<(OpKey, Option<Payload>)>,
        error: &Error,
        deferred: &mut DeferredWork<'_>,
    ) {
        let mut receives = receives;
        receives.sort_by_key(|(key, _)| self.receives.order(*key));
        for (key, buffer) in receives {
            self.fail_receive(key, buffer, error, deferred);
        }
    }

    fn fail_receive(
        &mut self,
        key: OpKey,
        buffer: Option<Payload>,
        error: &Error,
        deferred: &mut DeferredWork<'_>,
    ) {
        let error = self.about_sender(key, error.clone());
        let Some(ReceiveEntry { record, state, .. }) = self.receives.get_mut(key) else {
            return;
        };
        if let Some(buffer) = buffer {
            record.payload = Some(buffer);
        }
        let (has_buffer, phase) = (record.payload.is_some(), record.phase);
        let source = match *state {
            ReceiveOpState::Matched(receive) | ReceiveOpState::MatchedCanceled(receive) => {
                receive.source
            }
            ReceiveOpState::Part(_, source) => source,
            _ => None,
        };
        let is_for_one_peer = source.is_some_and(|source| !source.is_all());
        if has_buffer && !is_for_one_peer {
            return self.requeue_receive(key, None, error, deferred);
        }
        if let Some(ReceiveEntry { mut record, .. }) = self.receives.remove(key) {
            record.payload.get_or_insert_with(Payload::empty);
            deferred.end_unmatched(record, error, phase);
        }
    }

    /// Adds the peer that sends the message of a matched receive to the error.
    fn about_sender(&self, key: OpKey, error: Error) -> Error {
        let sender = self.receives.get(key).and_then(|it| it.sender);
        match sender {
            Some(connection) => self.about_peer(connection, error),
            None => error,
        }
    }

    /// Requeues a matched receive whose message does not come: posts it again, or ends it if it was
    /// canceled, the context is closed, or its message was claimed. Returns a part of a
    /// multi-receive buffer to that buffer.
    pub(super) fn requeue_receive(
        &mut self,
        key: OpKey,
        buffer: Option<Payload>,
        gone: Error,
        deferred: &mut DeferredWork<'_>,
    ) {
        let gone = self.about_sender(key, gone);
        let Some(ReceiveEntry { record, state, .. }) = self.receives.get_mut(key) else {
            return;
        };
        if let Some(buffer) = buffer {
            record.payload = Some(buffer);
        }
        let error = match (state, &self.closed) {
            (&mut ReceiveOpState::Part(buffer, _), _) => {
                return self.return_part(key, buffer, deferred);
            }
            (ReceiveOpState::Claimed, _) => gone,
            (_, Some(error)) => error.clone(),
            (&mut ReceiveOpState::Matched(receive), None) => {
                // The progress that the receive's future drives may have changed.
                record.wake(&mut deferred.unlocked.wakes);
                let result = self.matcher.requeue_receive(receive);
                return self.apply_match(key, result, deferred);
            }
            _ => Error::new(ErrorKind::Canceled, ""),
        };
        if let Some(ReceiveEntry { record, .. }) = self.receives.remove(key) {
            deferred.end_unmatched(record, error, Phase::Queued);
        }
    }

    /// Queues a receive that was matched with an announced message for the connection of the
    /// message, and wakes that connection: it asks for the message in its next turn.
    pub(super) fn queue_clear_to_send(
        &mut self,
        matched: MatchedReceive,
        announcement: Announcement,
        deferred: &mut DeferredWork<'_>,
    ) {
        let connection = announcement.arrival.connection;
        let receive = self.enter_match(matched, connection, Phase::AwaitingPeer);
        let port = self.ports.get(&connection);
        // A detaching connection's announcements are removed under the same lock.
        let port = port.expect("the connection of a stored announcement is attached");
        let queue = port.clear_to_send.as_ref();
        let queue = queue.expect("only a peer that may announce messages has one stored");
        lock_queue(queue).push_back(ClearToSend {
            receive,
            announcement,
        });
        deferred.wake(port.waker.clone());
    }

    /// Applies the matcher's result for a receive.
    pub(super) fn apply_match(
        &mut self,
        key: OpKey,
        result: MatchResult,
        deferred: &mut DeferredWork<'_>,
    ) {
        match result {
            MatchResult::Posted(receive) => {
                self.receives.set(key, ReceiveOpState::Posted(receive));
            }
            MatchResult::Announced(receive, announcement) => {
                self.queue_clear_to_send(receive.into(), announcement, deferred);
            }
            MatchResult::Unexpected(message) => {
                let record = self.receives.remove(key).map(|it| it.record);
                let record = record.expect("a receive is in the table until it ends");
                deferred.deliveries.push((record, message));
            }
        }
    }
}
