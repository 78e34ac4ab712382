//! The last step of an operation: its record, which has its result, goes to the future that awaits
//! it; or a completion is made of it, for the slot that was reserved when it was posted.
//!
//! When a frame has gone that awaits no answer, or its ack has come (`proto/conn/acks.rs`), the
//! machine writes the end into the record and gives it out with an event. `publish.rs` takes the
//! events in order, under the connection's lock. Wakers run after the lock is released.

use std::sync::Arc;
use std::task::Waker;

use crate::buf::Payload;
use crate::cntr::Counter;
use crate::cq::{Completion, CompletionError, CompletionFlags, Source, SourceName, Sources};
use crate::error::OperationKind;
use crate::id::{EndpointId, UserContext};
use crate::proto::{OpKind, Operation};
use crate::stats::OperationStats;
use crate::sync::{Unawaited, WakeList};

use super::report::{OpRecord, Report};

/// With what completions are delivered: those of a port, or of receives that ports share.
pub(super) struct CompletionContext<'a> {
    pub(super) endpoint: EndpointId,
    /// Messages are of the endpoint whose connection brought them, which has its number: of
    /// receives that connected endpoints share.
    pub(super) names_connections: bool,
    /// Counts operations of this kind.
    pub(super) counter: Option<&'a Counter>,
    /// Counts them all.
    pub(super) stats: &'a mut OperationStats,
    /// Resolves the number of a message's sender, if completions are to name it.
    pub(super) sources: Option<&'a Arc<dyn Sources>>,
    /// The sender of a datagram that was received.
    pub(super) sender: Option<SourceName>,
    /// Waits for room in queues, for those that were not accepted.
    pub(super) waker: &'a Waker,
}

/// What of an operation no future and no queue has taken.
#[must_use = "memory is dropped with no lock held, a message goes to the next receive"]
pub(super) enum Undelivered {
    Nothing,
    /// The user's memory: it is dropped with no lock held.
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
            // What was injected is a copy of our own.
            Some(payload) if !matches!(op.kind, OpKind::Inject { .. }) => {
                Undelivered::Memory(payload)
            }
            _ => Undelivered::Nothing,
        }
    }
}

impl CompletionContext<'_> {
    /// Delivers an operation that has ended to where it reports.
    #[inline]
    pub(super) fn deliver(&mut self, mut op: OpRecord, wakes: &mut WakeList) -> Undelivered {
        // 1. Its regions are free before its completion can be seen, and whether or not anything
        // fetches that.
        let len = op.end.len;
        if let Some(payload) = &mut op.payload {
            payload.end(len);
        }
        if let Report::Counted = op.token {
            return Undelivered::memory_of(op);
        }
        // 2. The one place where it reports.
        let succeeded = op.end.result.is_ok();
        self.stats.count(op.operation(), &op.end.result, len);
        let undelivered = self.deliver_uncounted(op, wakes);
        // 3. The endpoint's counter; a message that goes back was not received.
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
                // Bound selectively, and not asked for: what ends well is counted only.
                Some(slot) if errors_only && op.end.result.is_ok() => {
                    slot.free(wakes);
                    Undelivered::memory_of(op)
                }
                Some(slot) => {
                    slot.fill(self.completion(context, flags, &mut op), wakes);
                    Undelivered::Nothing
                }
                // Never accepted: the future of its acceptance gets the result, not the queue.
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

    /// The completion of a posted operation; `flags` say of which interface it is.
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
        let connection = op.end.connection().filter(|_| self.names_connections);
        let endpoint = connection.and_then(|it| EndpointId::of_number(it.0));
        let endpoint = endpoint.unwrap_or(self.endpoint);
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
