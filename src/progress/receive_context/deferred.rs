//! Work that a step of the receive context defers: receives to be completed before the context's
//! lock is released, tasks to be woken and memory to be dropped after it.
//!
//! A stored message is copied to its receive and reported under the lock: otherwise a thread that
//! posts a receive could report one message of a connection after the connection itself has
//! reported the next one.

use std::sync::Arc;
use std::task::Waker;

use crate::buf::{BufferCursor, Payload};
use crate::cq::CqSlot;
use crate::error::{Error, ErrorKind, Phase};
use crate::progress::completing::{CompletionContext, Undelivered};
use crate::progress::report::{OpRecord, Report};
use crate::proto::{
    Announcement, Arrival, ClearToSend, MatchResult, MessageKind, MessageOrigin, OpKey, Operation,
    PostedReceive, UnexpectedMessage, truncated,
};
use crate::stats::OperationStats;
use crate::sync::WakeList;

use super::ReceiveContext;
use super::multi::MultiReceive;
use super::op_state::ReceiveOpState;
use super::state::{AttachedPort, ContextState, lock_queue};

/// The work that the calls of one step have collected.
#[derive(Debug)]
pub(super) struct DeferredWork<'a> {
    // Under the lock, when the step ends.
    pub(super) deliveries: Vec<(PostedReceive<Report>, UnexpectedMessage)>,
    pub(super) completions: Vec<OpRecord>,
    pub(super) multi_completions: Vec<(Arc<MultiReceive>, Result<(), Error>, BufferCursor)>,
    pub(super) unlocked: &'a mut UnlockedWork,
}

/// What steps have collected to be dropped with no lock held: dropping it wakes tasks, and may run
/// the user's code.
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

    /// Frees the slot of a part of a multi-receive buffer that no message took.
    pub(super) fn release_slot(&mut self, unused: Report) {
        match unused {
            Report::Piece { slot, .. } => self.unlocked.drops.push(DeferredDrop::Slot(slot)),
            other => debug_assert!(false, "not the token of a part: {other:?}"),
        }
    }

    /// Ends a receive that no message was placed in.
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

/// Returns the message of a completed receive of a context, to be requeued. It is a copy, since a
/// region's owner may write to it or revoke it, and since the user's memory is not dropped under a
/// lock. `None`: its region is revoked already, and the message is lost with it.
pub(in crate::progress) fn message_of(op: &Operation<Report>) -> Option<UnexpectedMessage> {
    let end = &op.end;
    let Some(MessageOrigin::Peer { source, connection }) = end.origin else {
        return None;
    };
    let payload = op.payload.as_ref()?.copy_front(end.len).ok()?;
    let arrival = Arrival {
        source,
        connection,
        kind: MessageKind::of(end.tag),
        len: (end.len as u64).saturating_add(end.overflow as u64),
        data: end.data,
        order: end.order,
    };
    Some(UnexpectedMessage {
        arrival,
        payload,
        len: end.len,
        overflow: end.overflow,
    })
}

/// Copies a message to its receive, and ends the receive.
fn deliver(receive: PostedReceive<Report>, message: UnexpectedMessage) -> OpRecord {
    let PostedReceive { mut record, .. } = receive;
    let arrival = message.arrival;
    let mut payload = record.take_payload();
    let taken = payload.take_message(message.payload, message.len);
    let len = *taken.as_ref().unwrap_or(&0);
    let overflow = message.overflow + (message.len - len);
    let result = match taken {
        Err(denied) => Err(denied.error("a message was copied to it")),
        Ok(_) if overflow == 0 => Ok(()),
        Ok(_) => Err(truncated(len, overflow)),
    };
    record.phase = Phase::Moving;
    record.payload = Some(payload);
    record.set_end(result, len);
    let end = &mut record.end;
    end.overflow = overflow;
    end.data = arrival.data;
    end.tag = arrival.kind.tag();
    end.origin = Some(arrival.origin());
    end.order = arrival.order;
    record
}

impl ReceiveContext {
    /// Returns the context in which receives complete here. `stats` counts them.
    pub(super) fn completion_context<'a>(
        &'a self,
        stats: &'a mut OperationStats,
    ) -> CompletionContext<'a> {
        CompletionContext {
            endpoint: self.config.endpoint,
            counter: self.config.counter.as_ref(),
            stats,
            sources: self.config.sources.as_ref(),
            names_connections: self.config.names_connections,
            sender: None,
            // Receives that end here have left their queues before (`ContextState::cancel`).
            waker: Waker::noop(),
        }
    }

    /// Delivers messages and completes receives. The caller drops the rest, wakers and memory, with
    /// no lock held.
    pub(super) fn complete_all(&self, state: &mut ContextState, deferred: &mut DeferredWork<'_>) {
        while !deferred.is_done() {
            self.deliver_all(state, deferred);
        }
    }

    fn deliver_all(&self, state: &mut ContextState, deferred: &mut DeferredWork<'_>) {
        let mut ended = OperationStats::default();
        let mut completion_context = self.completion_context(&mut ended);
        // 1. Copy messages to their receives.
        for (receive, message) in std::mem::take(&mut deferred.deliveries) {
            deferred.completions.push(deliver(receive, message));
        }
        // 2. Complete receives. A receive whose owner is gone returns its message, which may be
        // matched again: hence the loop in `complete_all`.
        for record in std::mem::take(&mut deferred.completions) {
            match completion_context.deliver(record, &mut deferred.unlocked.wakes) {
                Undelivered::Nothing => {}
                Undelivered::Memory(payload) => deferred.drop_memory(payload),
                Undelivered::Message(mut op) => {
                    if let Some(message) = message_of(&op) {
                        state.requeue_message(message, deferred);
                        state.admit_and_wake(deferred);
                    }
                    deferred.drop_memory(op.take_payload());
                }
            }
        }
        // Counts messages that were stored, and receives that ended without one. A message that
        // goes directly from its connection to a receive is counted by the connection.
        state.ended.add(&ended.receives);
        // 3. Complete multi-receive buffers that take no more messages.
        for (multi, result, cursor) in std::mem::take(&mut deferred.multi_completions) {
            multi.finish(result, cursor, &mut deferred.unlocked.wakes);
        }
    }
}

impl ContextState {
    /// Requeues a message whose receive was dropped (ruling 4).
    pub(super) fn requeue_message(
        &mut self,
        message: UnexpectedMessage,
        deferred: &mut DeferredWork<'_>,
    ) {
        if self.closed.is_some() {
            deferred.drop_memory(message.payload);
        } else if let Some((receive, message)) = self.matcher.requeue_message(message) {
            self.complete_match(receive.key, deferred);
            deferred.deliveries.push((receive, message));
        }
    }

    /// Completes the match of a receive, or of a part of a multi-receive buffer, with a stored
    /// message.
    pub(super) fn complete_match(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        match self.receives.get(key) {
            Some(ReceiveOpState::Multi(..)) => self.arm(key, deferred),
            _ => drop(self.receives.remove(key)),
        }
    }

    /// Removes a matched receive that its connection has completed.
    pub(super) fn receive_ended(&mut self, key: OpKey) {
        use ReceiveOpState::{Claimed, Matched, MatchedCanceled};
        if let Some(Matched | MatchedCanceled | Claimed) = self.receives.get(key) {
            self.receives.remove(key);
        }
    }

    /// Requeues a matched receive whose message does not come: posts it again, or ends it if it was
    /// canceled, the context is closed, or its message was claimed.
    pub(super) fn requeue_receive(
        &mut self,
        receive: PostedReceive<Report>,
        deferred: &mut DeferredWork<'_>,
        gone: Error,
    ) {
        let key = receive.key;
        let error = match (&receive.record.token, self.receives.get(key), &self.closed) {
            (Report::Piece { .. }, ..) => {
                let mut record = receive.record;
                let payload = record.take_payload();
                if let Report::Piece { multi, slot } =
                    std::mem::replace(&mut record.token, Report::Counted)
                {
                    deferred.unlocked.drops.push(DeferredDrop::Slot(slot));
                    let unused = match self.receives.get(key) {
                        Some(ReceiveOpState::Multi(receive, _)) => {
                            self.matcher.return_part(*receive, payload)
                        }
                        _ => Some(payload),
                    };
                    unused.into_iter().for_each(|it| deferred.drop_memory(it));
                    multi.release(&mut deferred.unlocked.wakes);
                }
                return;
            }
            // The receive of a claimed or discarded message.
            (_, None | Some(ReceiveOpState::Claimed), _) => gone,
            (_, _, Some(error)) => error.clone(),
            (_, Some(ReceiveOpState::MatchedCanceled), _) => Error::new(ErrorKind::Canceled, ""),
            _ => {
                // What its future drives may have changed.
                receive.record.wake(&mut deferred.unlocked.wakes);
                let result = self.matcher.requeue_receive(receive);
                self.apply_match(key, result, deferred);
                return;
            }
        };
        self.receives.remove(key);
        deferred.end_unmatched(receive.record, error, Phase::Queued);
    }

    /// Queues a receive for the connection of the announced message that it was matched with, and
    /// wakes that connection, which asks for the message in its next turn.
    pub(super) fn queue_clear_to_send(
        &mut self,
        receive: PostedReceive<Report>,
        announcement: Announcement,
        deferred: &mut DeferredWork<'_>,
    ) {
        let port = self.ports.get(&announcement.arrival.connection);
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

    /// Applies what the matcher did with a receive.
    pub(super) fn apply_match(
        &mut self,
        key: OpKey,
        result: MatchResult<Report>,
        deferred: &mut DeferredWork<'_>,
    ) {
        let state = match result {
            MatchResult::Posted(receive) => ReceiveOpState::Posted(receive),
            MatchResult::Announced(receive, announcement) => {
                self.queue_clear_to_send(receive, announcement, deferred);
                ReceiveOpState::Matched
            }
            MatchResult::Unexpected(receive, message) => {
                deferred.deliveries.push((receive, message));
                self.receives.remove(key);
                return;
            }
        };
        self.receives.set(key, state);
    }
}
