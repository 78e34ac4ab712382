//! The last step of an operation. Its record, which holds the result, goes to the future that
//! awaits it, or becomes a completion in the slot that the post reserved.
//!
//! When the operation's frame has been sent and needs no answer, or when its ack has been received
//! (`proto/conn/acks.rs`), the machine writes the end into the record and returns it with an event.
//! `publish.rs` takes the events in order, under the connection's lock. Wakers run after the lock
//! is released.

use std::sync::Arc;
use std::task::Waker;

use crate::buf::Payload;
use crate::cntr::Counter;
use crate::cq::{Completion, CompletionError, CompletionFlags, Source, SourceName, Sources};
use crate::error::OperationKind;
use crate::id::{EndpointId, UserContext};
use crate::proto::{OpKind, Operation};
use crate::stats::OperationCounts;
use crate::sync::{Unawaited, WakeList};

use super::report::{OpRecord, Report};

/// The context for delivering completions of a port, or of a shared receive context.
pub(super) struct CompletionContext<'a> {
    /// The endpoint that completions name, unless endpoints share the receive that got a message:
    /// the completion then names the endpoint of the connection.
    pub(super) endpoint: EndpointId,
    /// Counts operations of the kind that is delivered.
    pub(super) counter: Option<&'a Counter>,
    /// The statistics of operations of the kind that is delivered.
    pub(super) stats: Option<&'a mut OperationCounts>,
    /// Resolves the number of a message's sender, if completions name senders.
    pub(super) sources: Option<&'a Arc<dyn Sources>>,
    /// Sender of the received datagram.
    pub(super) sender: Option<SourceName>,
    /// The waker that a queue wakes when it has room for an operation that was not accepted.
    pub(super) waker: &'a Waker,
}

/// The part of an operation that neither a future nor a queue has taken.
#[must_use = "memory is dropped with no lock held, a message goes to the next receive"]
pub(super) enum Undelivered {
    Nothing,
    /// The user's memory, to be dropped with no lock held.
    Memory(Payload),
    /// A receive whose future was dropped, and the message that came for it.
    Message(OpRecord),
}

impl Undelivered {
    fn all_of(op: OpRecord) -> Self {
        match op.is_message_received() {
            true => Undelivered::Message(op),
            false => Undelivered::memory_of(op),
        }
    }

    fn memory_of(mut op: OpRecord) -> Self {
        match op.payload.take() {
            // The memory of an injected message is a copy of our own.
            Some(payload) if !matches!(op.kind, OpKind::Inject { .. }) => {
                Undelivered::Memory(payload)
            }
            _ => Undelivered::Nothing,
        }
    }
}

impl CompletionContext<'_> {
    /// Delivers a completed operation to where it reports.
    #[inline]
    pub(super) fn deliver(&mut self, mut op: OpRecord, wakes: &mut WakeList) -> Undelivered {
        // 1. Release its regions before the completion can be seen, and whether or not it is read.
        let len = op.end.len;
        if let Some(payload) = &mut op.payload {
            payload.end(len);
        }
        if let Report::Counted = op.token {
            return Undelivered::memory_of(op);
        }
        // 2. Report it in one place.
        let succeeded = op.end.result.is_ok();
        if let Some(counts) = &mut self.stats {
            counts.count(&op.end.result, len);
        }
        let undelivered = self.deliver_uncounted(op, wakes);
        // 3. Count it in the endpoint's counter; a requeued message was not received.
        match (&undelivered, self.counter) {
            (Undelivered::Message(_), _) | (_, None) => {}
            (_, Some(counter)) if succeeded => counter.add_into(1, wakes),
            (_, Some(counter)) => counter.add_error_into(1, wakes),
        }
        undelivered
    }

    fn deliver_uncounted(&self, mut op: OpRecord, wakes: &mut WakeList) -> Undelivered {
        match &mut op.token {
            Report::Future => match op.hand_over(wakes) {
                Ok(()) => Undelivered::Nothing,
                Err((op, Unawaited::Abandoned)) => Undelivered::all_of(op),
                Err((op, Unawaited::Detached)) => Undelivered::memory_of(op),
            },
            &mut Report::Queue {
                context,
                flags,
                errors_only,
                ref mut slot,
                ..
            } => match slot.take() {
                // With selective completion, the success of an operation that requested no
                // completion is only counted.
                Some(slot) if errors_only && op.end.result.is_ok() => {
                    slot.free(wakes);
                    Undelivered::memory_of(op)
                }
                Some(slot) => {
                    slot.fill(self.completion(context, flags, &mut op), wakes);
                    Undelivered::Nothing
                }
                // The operation was never accepted: the future of its acceptance gets the result,
                // not the queue.
                None => {
                    op.token.give_up_waiting(self.waker, wakes);
                    match op.hand_over(wakes) {
                        Ok(()) => Undelivered::Nothing,
                        Err((op, _)) => Undelivered::memory_of(op),
                    }
                }
            },
            Report::Piece { .. } => {
                let token = std::mem::replace(&mut op.token, Report::Counted);
                if let Report::Piece { multi, slot } = token {
                    multi.complete_piece(slot, &mut op, self, wakes);
                }
                Undelivered::Nothing
            }
            Report::Nowhere | Report::Counted => Undelivered::memory_of(op),
        }
    }

    /// Makes the completion of a posted operation; `flags` name its interface.
    pub(super) fn completion(
        &self,
        context: UserContext,
        flags: CompletionFlags,
        op: &mut Operation<Report>,
    ) -> Completion {
        let operation = op.operation();
        let direction = match operation {
            OperationKind::Send => CompletionFlags::SEND,
            OperationKind::Receive => CompletionFlags::RECV,
            OperationKind::Write | OperationKind::Atomic => CompletionFlags::WRITE,
            OperationKind::Read | OperationKind::FetchAtomic => CompletionFlags::READ,
            _ => CompletionFlags::empty(),
        };
        let connection = op.end.connection();
        let endpoint = connection.map_or(self.endpoint, |it| it.endpoint);
        let mut completion = Completion::new(endpoint, context, operation, direction | flags)
            .with_len(op.end.len)
            .with_buffers(op.take_payload().into_buffers());
        if let Some(data) = op.end.data {
            completion = completion.with_data(data);
        }
        if let Some(tag) = op.end.tag {
            completion = completion.with_tag(tag);
        }
        let numbered = op.end.source().zip(self.sources);
        let numbered = numbered.map(|(id, all)| Source::Numbered(id.0, Arc::clone(all)));
        if let Some(source) = numbered.or(self.sender.map(Source::Named)) {
            completion = completion.with_source(source);
        }
        if let Err(error) = &op.end.result {
            let error = CompletionError::new(error.clone()).with_overflow_len(op.end.overflow);
            completion = completion.with_error(error);
        }
        completion
    }
}
