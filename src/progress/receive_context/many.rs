//! Buffers that take many messages (`FI_MULTI_RECV`).
//!
//! A buffer takes the next message once there is a place for that message's completion. Without one
//! it takes no part in matching: what comes is kept, or given to other receives, until there is.

use std::sync::{Arc, Mutex, PoisonError};

use crate::buf::{BufferCursor, Payload};
use crate::cq::{Completion, CompletionError, CompletionFlags, CompletionQueue, CqSlot};
use crate::error::{Error, OperationKind};
use crate::id::UserContext;
use crate::progress::publish::CompletionContext;
use crate::progress::report::Report;
use crate::proto::{Armed, End, OpKey, WithdrawnReceive};
use crate::sync::WakeList;

use super::due::Due;
use super::{Op, Sought, State};

/// A buffer for many messages, as all its pieces know it. The last one to let go of it tells its
/// end.
#[derive(Debug)]
pub(crate) struct ManyReceive {
    pub(super) queue: CompletionQueue,
    context: UserContext,
    kind: CompletionFlags,
    end: Mutex<ManyEnd>,
}

#[derive(Debug)]
struct ManyEnd {
    slot: Option<CqSlot>,
    result: Result<(), Error>,
    buffer: Payload,
}

impl ManyReceive {
    pub(super) fn new(
        queue: CompletionQueue,
        context: UserContext,
        kind: CompletionFlags,
        slot: CqSlot,
    ) -> Arc<Self> {
        Arc::new(ManyReceive {
            queue,
            context,
            kind,
            end: Mutex::new(ManyEnd {
                slot: Some(slot),
                result: Ok(()),
                buffer: Payload::empty(),
            }),
        })
    }

    /// Tells of one message's end.
    pub(in crate::progress) fn tell_piece(
        self: Arc<Self>,
        slot: CqSlot,
        end: &mut End,
        completion_context: &CompletionContext<'_>,
        wakes: &mut WakeList,
    ) {
        let completion = completion_context.completion(self.context, self.kind, end);
        slot.fill(completion, wakes);
        self.let_go(completion_context, wakes);
    }

    /// The buffer takes no more messages, and ends so once its last message has.
    pub(super) fn finish(
        self: Arc<Self>,
        result: Result<(), Error>,
        carving: BufferCursor,
        completion_context: &CompletionContext<'_>,
        wakes: &mut WakeList,
    ) {
        {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.result = result;
            end.buffer = carving.into_payload();
        }
        self.let_go(completion_context, wakes);
    }

    /// One holder less; the last one tells the buffer's end.
    pub(super) fn let_go(
        self: Arc<Self>,
        completion_context: &CompletionContext<'_>,
        wakes: &mut WakeList,
    ) {
        let Some(many) = Arc::into_inner(self) else {
            return;
        };
        let end = many.end.into_inner();
        let end = end.unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = end.slot else { return };
        let flags = CompletionFlags::MULTI_RECV;
        let operation = OperationKind::Receive;
        let mut completion =
            Completion::new(completion_context.endpoint, many.context, operation, flags)
                .with_buffers(end.buffer.into_buffers());
        if let Err(error) = end.result {
            completion = completion.with_error(CompletionError::new(error));
        }
        slot.fill(completion, wakes);
    }
}

impl State {
    pub(super) fn accept_many(
        &mut self,
        key: OpKey,
        sought: Sought,
        carving: BufferCursor,
        report: Report,
        due: &mut Due,
    ) {
        let report = match report {
            Report::Timed(timed) => timed.take(),
            report => Some(report),
        };
        let Some(Report::Queue {
            queue,
            context,
            kind,
            slot: Some(slot),
            ..
        }) = report
        else {
            unreachable!("such a buffer reports to a queue, and has its place")
        };
        let receive = self
            .matcher
            .post_many(carving, sought.wanted, sought.source, key);
        if let Some(op) = self.ops.get_mut(key) {
            *op = Op::Many(receive, ManyReceive::new(queue, context, kind, slot));
        }
        self.arm(key, due);
    }

    /// Lets a buffer take messages: those that are there, and the next one.
    pub(super) fn arm(&mut self, key: OpKey, due: &mut Due) {
        while let Some(Op::Many(receive, many)) = self.ops.get(key) {
            let (receive, many) = (*receive, Arc::clone(many));
            let Some(slot) = self.reserve_place(&many.queue) else {
                self.starved.push(key);
                return;
            };
            match self.matcher.arm(receive, Report::Piece { many, slot }) {
                Armed::Nothing => return,
                Armed::Early(part, early) => due.delivered.push((part, early)),
                Armed::Announced(part, announcement) => self.clear(part, announcement, due),
                Armed::Consumed(unused) => {
                    due.put_away(unused);
                    self.end_many(key, Ok(()), due);
                    return;
                }
            }
        }
    }

    /// Buffers that lacked a place for a completion look again.
    pub(super) fn feed_starved(&mut self, due: &mut Due) {
        for key in std::mem::take(&mut self.starved) {
            self.arm(key, due);
        }
    }

    /// A buffer takes no more messages.
    pub(super) fn end_many(&mut self, key: OpKey, result: Result<(), Error>, due: &mut Due) {
        let Some(Op::Many(receive, many)) = self.ops.remove(key) else {
            return;
        };
        if let Some(WithdrawnReceive::Carved(carving, unused)) = self.matcher.withdraw(receive) {
            if let Some(unused) = unused {
                due.put_away(unused);
            }
            due.ended_many.push((many, result, carving));
        }
    }
}
