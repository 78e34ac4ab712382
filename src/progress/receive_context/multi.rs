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
use crate::proto::{ArmOutcome, OpKey, OpKind, Operation, PostOptions};
use crate::sync::WakeList;

use super::ReceiveSelector;
use super::deferred::{DeferredDrop, DeferredWork};
use super::op_state::{PostedBuffer, ReceiveEntry, ReceiveOpState, ReceiveTable};
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

    /// Ends a buffer that takes no more messages: its completion follows that of its last message.
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

/// Reserves the slot of the message after the next one of a multi-receive buffer.
pub(super) fn reserve_after(
    receives: &mut ReceiveTable,
    driver: Option<&Waker>,
    key: OpKey,
) -> bool {
    let Some(buffer) = receives.buffer_mut(key) else {
        return false;
    };
    buffer.slot_after = reserve_slot(driver, &buffer.multi.queue);
    buffer.slot_after.is_some()
}

impl ContextState {
    pub(super) fn admit_multi(
        &mut self,
        key: OpKey,
        selector: ReceiveSelector,
        cursor: BufferCursor,
        deferred: &mut DeferredWork<'_>,
    ) {
        let record = self.receives.record_mut(key);
        let record = record.expect("it is admitted");
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
        let buffer = PostedBuffer {
            receive,
            multi: MultiReceive::new(queue, self.endpoint, context, flags, begin, slot),
            slot: None,
            slot_after: None,
        };
        self.receives.set(key, ReceiveOpState::Multi(buffer));
        self.arm(key, deferred);
    }

    /// Makes the record of the part of a buffer that one message gets.
    pub(super) fn part_record(&mut self, key: OpKey, part: Payload) -> Option<OpRecord> {
        let buffer = self.receives.buffer_mut(key)?;
        let after = buffer.slot_after.take();
        let slot = std::mem::replace(&mut buffer.slot, after)?;
        let multi = Arc::clone(&buffer.multi);
        let (report, options) = (Report::Piece { multi, slot }, PostOptions::default());
        let record = Operation::new(OpKind::Receive, part, report, options);
        Some(OpRecord::new(record))
    }

    /// Returns to its buffer a part whose message does not come.
    pub(super) fn return_part(
        &mut self,
        key: OpKey,
        buffer: OpKey,
        deferred: &mut DeferredWork<'_>,
    ) {
        let Some(ReceiveEntry { mut record, .. }) = self.receives.remove(key) else {
            return;
        };
        let part = record.take_payload();
        let unused = match self.receives.buffer_mut(buffer) {
            Some(buffer) => self.matcher.return_part(buffer.receive, part),
            None => Some(part),
        };
        unused.into_iter().for_each(|it| deferred.drop_memory(it));
        if let Report::Piece { multi, slot } = std::mem::replace(&mut record.token, Report::Counted)
        {
            deferred.unlocked.drops.push(DeferredDrop::Slot(slot));
            multi.release(&mut deferred.unlocked.wakes);
        }
    }

    /// Arms a buffer that a message has taken a part of, unless it is armed.
    pub(super) fn arm_next(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        if let Some(buffer) = self.receives.buffer_mut(key)
            && buffer.slot.is_none()
        {
            self.arm(key, deferred);
        }
    }

    /// Arms a buffer: it takes the stored messages that match, and then waits for the next one.
    pub(super) fn arm(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        let driver = self.driver.clone();
        while let Some(buffer) = self.receives.buffer_mut(key) {
            let Some(slot) = reserve_slot(driver.as_ref(), &buffer.multi.queue) else {
                self.starved.push(key);
                return;
            };
            buffer.slot = Some(slot);
            match self.matcher.arm(buffer.receive) {
                ArmOutcome::Posted => return,
                ArmOutcome::Unexpected(part, message) => self.give(part, message, deferred),
                ArmOutcome::Announced(part, announcement) => {
                    self.queue_clear_to_send(part, announcement, deferred)
                }
                ArmOutcome::Consumed => return self.end_multi(key, Ok(()), deferred),
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
        let Some(ReceiveOpState::Multi(buffer)) = self.receives.remove(key).map(|it| it.state)
        else {
            return;
        };
        let PostedBuffer {
            receive,
            multi,
            slot,
            ..
        } = buffer;
        if let Some(cursor) = self.matcher.cancel(receive) {
            match (slot, &self.driver) {
                (Some(slot), _) => deferred.unlocked.drops.push(DeferredDrop::Slot(slot)),
                // The buffer waited for a slot of this queue, and other receives may still wait for
                // one.
                (None, Some(driver)) if multi.queue.withdraw(driver) => {
                    self.wake_driver(deferred);
                }
                (None, _) => {}
            }
            deferred.multi_completions.push((multi, result, cursor));
        }
    }
}
