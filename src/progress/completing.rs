//! The last step of an operation: its result goes from its record to where it reports, which is a
//! future's cell or the slot of a completion queue that was reserved when it was posted.
//!
//! When a frame has gone that awaits no answer, or its ack has come (`proto/conn/acks.rs`), the
//! record gets the `OpResult` and loses its key: the event that the machine queues has another key,
//! under which the record is found until its result is delivered. `publish.rs` takes the events in
//! order, under the connection's lock. Wakers run after the lock is released.

use std::sync::Arc;

use crate::buf::Payload;
use crate::cntr::Counter;
use crate::cq::{Completion, CompletionError, CompletionFlags, Source, SourceName, Sources};
use crate::error::OperationKind;
use crate::id::{EndpointId, UserContext};
use crate::proto::OpResult;
use crate::stats::OperationStats;
use crate::sync::WakeList;

use super::report::{Delivery, OpCell, Report};

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
}

/// What of a result no future and no queue has taken.
#[must_use = "memory is dropped with no lock held, a message goes to the next receive"]
pub(super) enum Undelivered {
    Nothing,
    /// The user's memory: it is dropped with no lock held.
    Memory(Payload),
    /// A message that came for a receive whose future was dropped. Boxed, since it is rare, and the
    /// rest is moved with every completion.
    Message(Box<OpResult>),
}

impl Undelivered {
    fn all_of(result: &mut OpResult) -> Self {
        match result.is_message() {
            true => Undelivered::Message(Box::new(result.take())),
            false => Undelivered::memory_of(result),
        }
    }

    fn memory_of(result: &mut OpResult) -> Self {
        Undelivered::Memory(result.payload.take())
    }
}

impl CompletionContext<'_> {
    /// Delivers the result of an operation to where it reports.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        report: &mut Report,
        result: &mut OpResult,
        wakes: &mut WakeList,
    ) -> Undelivered {
        // 1. Its regions are free before its completion can be seen, and whether or not anything
        // fetches that.
        result.payload.end(result.len);
        match report {
            Report::Counted => return Undelivered::memory_of(result),
            Report::Timed(timed) => match timed.take() {
                Some(taken) => *report = taken,
                // Its time had passed, and it was completed by that.
                None => return Undelivered::all_of(result),
            },
            _ => {}
        }
        // 2. The one place where it reports.
        let succeeded = result.result.is_ok();
        self.stats
            .count(result.operation, &result.result, result.len);
        let undelivered = self.deliver_uncounted(report, result, wakes);
        // 3. The endpoint's counter; a message that goes back was not received.
        match (&undelivered, self.counter) {
            (Undelivered::Message(_), _) | (_, None) => {}
            (_, Some(counter)) if succeeded => counter.add_into(1, wakes),
            (_, Some(counter)) => counter.add_error_into(1, wakes),
        }
        undelivered
    }

    fn deliver_uncounted(
        &self,
        report: &mut Report,
        result: &mut OpResult,
        wakes: &mut WakeList,
    ) -> Undelivered {
        match report {
            Report::Future(cell) => match cell.complete(result, wakes) {
                Delivery::Delivered => Undelivered::Nothing,
                Delivery::Abandoned => Undelivered::all_of(result),
                Delivery::Detached => {
                    if let Report::Future(cell) = std::mem::replace(report, Report::Nowhere) {
                        OpCell::recycle(cell);
                    }
                    Undelivered::memory_of(result)
                }
            },
            Report::Queue {
                context,
                flags,
                errors_only,
                slot,
                waiting,
                ..
            } => match slot.take() {
                // Bound selectively, and not asked for: what ends well is counted only.
                Some(slot) if *errors_only && result.result.is_ok() => {
                    slot.free(wakes);
                    Undelivered::memory_of(result)
                }
                Some(slot) => {
                    slot.fill(self.completion(*context, *flags, result), wakes);
                    Undelivered::Nothing
                }
                // Never accepted: the future of its acceptance gets the result, not the queue.
                None => match waiting {
                    Some(cell) if cell.complete(result, wakes) == Delivery::Delivered => {
                        Undelivered::Nothing
                    }
                    _ => Undelivered::memory_of(result),
                },
            },
            Report::Piece { .. } => {
                if let Report::Piece { multi, slot } = std::mem::replace(report, Report::Counted) {
                    multi.complete_piece(slot, result, self, wakes);
                }
                Undelivered::Nothing
            }
            // What was injected is a copy of our own.
            Report::Nowhere if result.operation == OperationKind::Inject => Undelivered::Nothing,
            Report::Nowhere | Report::Counted | Report::Timed(_) => Undelivered::memory_of(result),
        }
    }

    /// The completion of a posted operation; `flags` say of which interface it is.
    pub(super) fn completion(
        &self,
        context: UserContext,
        flags: CompletionFlags,
        result: &mut OpResult,
    ) -> Completion {
        let direction = match result.operation {
            OperationKind::Send => CompletionFlags::SEND,
            OperationKind::Receive => CompletionFlags::RECV,
            OperationKind::Write | OperationKind::Atomic => CompletionFlags::WRITE,
            OperationKind::Read | OperationKind::FetchAtomic => CompletionFlags::READ,
            _ => CompletionFlags::empty(),
        };
        let connection = result.connection().filter(|_| self.names_connections);
        let endpoint = connection.and_then(|it| EndpointId::of_number(it.0));
        let endpoint = endpoint.unwrap_or(self.endpoint);
        let mut completion =
            Completion::new(endpoint, context, result.operation, direction | flags)
                .with_len(result.len)
                .with_buffers(result.payload.take().into_buffers());
        if let Some(data) = result.data {
            completion = completion.with_data(data);
        }
        if let Some(tag) = result.tag {
            completion = completion.with_tag(tag);
        }
        let numbered = result.source().zip(self.sources);
        let numbered = numbered.map(|(id, all)| Source::Numbered(id.0, Arc::clone(all)));
        if let Some(source) = numbered.or(self.sender.map(Source::Named)) {
            completion = completion.with_source(source);
        }
        if let Err(error) = &result.result {
            let error = CompletionError::new(error.clone()).with_overflow_len(result.overflow);
            completion = completion.with_error(error);
        }
        completion
    }
}
