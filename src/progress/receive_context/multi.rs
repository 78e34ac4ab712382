//! Multi-receive buffers (`FI_MULTI_RECV`).
//!
//! A buffer is armed for its next message only when a completion slot for that message is reserved.
//! A buffer without one is *starved* and takes no part in matching.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use crate::buf::{BufferCursor, Payload};
use crate::cq::{Completion, CompletionError, CompletionFlags, CompletionQueue, CqSlot};
use crate::error::{Error, OperationKind};
use crate::id::{EndpointId, UserContext};
use crate::progress::completing::CompletionContext;
use crate::progress::report::{OpRecord, Report};
use crate::proto::{ArmOutcome, CanceledReceive, OpKey, Operation};
use crate::sync::WakeList;

use super::ReceiveSelector;
use super::deferred::DeferredWork;
use super::op_state::ReceiveOpState;
use super::state::{ContextState, reserve_slot};

/// A multi-receive buffer, shared by the context and by all messages in it. The release of the last
/// reference completes the buffer.
#[derive(Debug)]
pub(crate) struct MultiReceive {
    pub(super) queue: CompletionQueue,
    /// The endpoint that the buffer's own completion names.
    endpoint: EndpointId,
    context: UserContext,
    flags: CompletionFlags,
    /// Address at which the buffer begins.
    begin: usize,
    end: Mutex<MultiCompletion>,
}

#[derive(Debug)]
struct MultiCompletion {
    slot: Option<CqSlot>,
    result: Result<(), Error>,
    buffer: Payload,
}

impl MultiReceive {
    pub(super) fn new(
        queue: CompletionQueue,
        endpoint: EndpointId,
        context: UserContext,
        flags: CompletionFlags,
        begin: usize,
        slot: CqSlot,
    ) -> Arc<Self> {
        Arc::new(MultiReceive {
            queue,
            endpoint,
            context,
            flags,
            begin,
            end: Mutex::new(MultiCompletion {
                slot: Some(slot),
                result: Ok(()),
                buffer: Payload::empty(),
            }),
        })
    }

    /// Completes one message.
    pub(in crate::progress) fn complete_piece(
        self: Arc<Self>,
        slot: CqSlot,
        op: &mut Operation<Report>,
        completion_context: &CompletionContext<'_>,
        wakes: &mut WakeList,
    ) {
        let begin = op.payload.as_ref().and_then(Payload::begin);
        let mut completion = completion_context.completion(self.context, self.flags, op);
        completion.offset = begin.map_or(0, |begin| begin - self.begin);
        slot.fill(completion, wakes);
        self.release(wakes);
    }

    /// Ends a buffer that takes no more messages: its completion follows its last message's.
    pub(super) fn finish(
        self: Arc<Self>,
        result: Result<(), Error>,
        cursor: BufferCursor,
        wakes: &mut WakeList,
    ) {
        {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.result = result;
            end.buffer = cursor.into_payload();
        }
        self.release(wakes);
    }

    /// Releases one reference; the last one completes the buffer.
    pub(super) fn release(self: Arc<Self>, wakes: &mut WakeList) {
        let Some(multi) = Arc::into_inner(self) else {
            return;
        };
        let end = multi.end.into_inner();
        let end = end.unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = end.slot else { return };
        let flags = CompletionFlags::MULTI_RECV;
        let operation = OperationKind::Receive;
        let mut completion = Completion::new(multi.endpoint, multi.context, operation, flags)
            .with_buffers(end.buffer.into_buffers());
        if let Err(error) = end.result {
            completion = completion.with_error(CompletionError::new(error));
        }
        slot.fill(completion, wakes);
    }
}

/// Makes the token for the next message of a multi-receive buffer, with a slot of its own.
pub(super) fn next_part(token: &Report, driver: Option<&Waker>) -> Option<Report> {
    let Report::Piece { multi, .. } = token else {
        return None;
    };
    let slot = reserve_slot(driver, &multi.queue)?;
    let multi = Arc::clone(multi);
    Some(Report::Piece { multi, slot })
}

impl ContextState {
    pub(super) fn admit_multi(
        &mut self,
        key: OpKey,
        selector: ReceiveSelector,
        cursor: BufferCursor,
        mut record: OpRecord,
        deferred: &mut DeferredWork<'_>,
    ) {
        let Report::Queue {
            queue,
            context,
            flags,
            slot: Some(slot),
            ..
        } = std::mem::replace(&mut record.token, Report::Counted)
        else {
            unreachable!("a multi-receive buffer reports to a queue, and has its slot")
        };
        let begin = cursor.begin();
        let receive = self
            .matcher
            .post_multi(cursor, selector.wanted, selector.source, key);
        let multi = MultiReceive::new(queue, self.endpoint, context, flags, begin, slot);
        self.receives
            .set(key, ReceiveOpState::Multi(receive, multi));
        self.arm(key, deferred);
    }

    /// Arms a buffer: it takes the stored messages that match, and then waits for the next one.
    pub(super) fn arm(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        while let Some(ReceiveOpState::Multi(receive, multi)) = self.receives.get(key) {
            let (receive, multi) = (*receive, Arc::clone(multi));
            let Some(slot) = self.reserve_slot(&multi.queue) else {
                self.starved.push(key);
                return;
            };
            match self.matcher.arm(receive, Report::Piece { multi, slot }) {
                ArmOutcome::Posted => return,
                ArmOutcome::Unexpected(part, message) => deferred.deliveries.push((part, message)),
                ArmOutcome::Announced(part, announcement) => {
                    self.queue_clear_to_send(part, announcement, deferred)
                }
                ArmOutcome::Consumed(unused) => {
                    deferred.release_slot(unused);
                    self.end_multi(key, Ok(()), deferred);
                    return;
                }
            }
        }
    }

    /// Arms the buffers that lacked a completion slot.
    pub(super) fn rearm_starved(&mut self, deferred: &mut DeferredWork<'_>) {
        for key in std::mem::take(&mut self.starved) {
            self.arm(key, deferred);
        }
    }

    /// Ends a buffer, which takes no more messages.
    pub(super) fn end_multi(
        &mut self,
        key: OpKey,
        result: Result<(), Error>,
        deferred: &mut DeferredWork<'_>,
    ) {
        let Some(ReceiveOpState::Multi(receive, multi)) = self.receives.remove(key) else {
            return;
        };
        if let Some(CanceledReceive::Multi(cursor, unused)) = self.matcher.cancel(receive) {
            match (unused, &self.driver) {
                (Some(unused), _) => deferred.release_slot(unused),
                // The buffer waited for a slot of its queue, and others may.
                (None, Some(driver)) if multi.queue.withdraw(driver) => {
                    self.wake_driver(deferred);
                }
                (None, _) => {}
            }
            deferred.multi_completions.push((multi, result, cursor));
        }
    }
}
