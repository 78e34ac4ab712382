//! From the protocol's events to those who wait: operation futures, completion queues, counters,
//! the event queue. Runs under the port's lock, so that what one connection publishes keeps its
//! order; wakers are collected and woken after the lock is released.

use std::sync::Arc;

use crate::buf::Payload;
use crate::cntr::Counter;
use crate::cq::{Completion, CompletionError, CompletionFlags, Source, SourceName, Sources};
use crate::eq::{Event as ControlEvent, EventError};
use crate::error::{Error, ErrorKind, OperationKind};
use crate::id::{EndpointId, UserContext};
use crate::mr::Access;
use crate::proto::{End, Event, InjectedEnds, Lifecycle, Receives};
use crate::sync::WakeList;

use super::port::{Port, PortKind, PortState};
use super::receive_context::message_of;
use super::report::{Delivery, Report};

impl Port {
    #[inline]
    pub(super) fn publish(&self, state: &mut PortState) {
        if state.machine.has_injected_ends() {
            self.count_injected(state);
        }
        if state.machine.has_events() {
            self.publish_events(state);
        }
    }

    fn count_injected(&self, state: &mut PortState) {
        let InjectedEnds { sent, failed } = state.machine.take_injected_ends();
        let Some(counter) = state.bindings.counter(OperationKind::Inject) else {
            return;
        };
        if sent > 0 {
            counter.add_into(sent as u64, &mut state.wakes);
        }
        if failed > 0 {
            counter.add_error_into(failed as u64, &mut state.wakes);
        }
    }

    fn publish_events(&self, state: &mut PortState) {
        let mut is_new = false;
        while state.machine.has_events() {
            let mut events = state.machine.take_events();
            for event in &mut events {
                is_new |= matches!(event, Event::Connected { .. });
                self.publish_one(state, event);
            }
            state.machine.keep_events(events);
        }
        if is_new {
            state.machine.shrink(); // The handshake is over.
        }
    }

    /// Tells of an event where it lies: the ends of operations are too large to be moved about.
    fn publish_one(&self, state: &mut PortState, event: &mut Event<Report>) {
        match event {
            Event::Ended { token, end } => self.operation_ended(state, token, end),
            Event::Connected { data } => {
                state.shutdown.on_connected();
                // Thousands of connections would each have a turn for nothing.
                state.stale_alarm = state.alarm.take();
                if let Some(slot) = state.bindings.connected.take() {
                    let event = ControlEvent::Connected {
                        endpoint: self.id(),
                        context: state.connect_context,
                        data: data.clone(),
                    };
                    slot.fill(event, &mut state.wakes);
                }
                self.establish(state, Ok(std::mem::take(data)));
                self.begin_liveness(state);
                self.tell_connected(state);
            }
            Event::ConnectFailed { error } => self.connect_failed(state, error.clone()),
            Event::RemoteAccess {
                operation,
                data,
                memory,
            } => self.remote_access(state, *operation, *data, memory.take()),
            Event::RemoteUpdate { memory } => {
                if state.bindings.rma_events {
                    let right = Access::REMOTE_WRITE.bits();
                    memory.count_access(right, &mut state.wakes);
                }
                state.leftovers.push(memory.take());
            }
            Event::RemoteDataVoid => drop(state.unasked.pop_front()),
            Event::Closed { connected, lost } => self.closed(state, *connected, lost.take()),
        }
    }

    fn establish(&self, state: &mut PortState, result: Result<bytes::Bytes, Error>) {
        state.establishing.result = Some(result);
        if let Some(waker) = state.establishing.waker.take() {
            state.wakes.push(waker);
        }
    }

    fn connect_failed(&self, state: &mut PortState, error: Error) {
        let error = state.about_peer(error);
        tracing::debug!(endpoint = ?self.id(), %error, "connection not established");
        if let Some(slot) = state.bindings.connected.take() {
            let event = EventError::new(error.clone())
                .with_context(state.connect_context)
                .with_endpoint(self.id());
            slot.fill(ControlEvent::Error(event), &mut state.wakes);
        }
        self.establish(state, Err(error.clone()));
        if state.machine.lifecycle() == Lifecycle::Closed {
            state.bindings.shutdown = None;
            state.end.set_ended(&mut state.wakes);
            self.tell_closed(state, Some(error));
        }
    }

    pub(super) fn operation_ended(
        &self,
        state: &mut PortState,
        report: &mut Report,
        end: &mut End,
    ) {
        if let (Err(error), Some(peer)) = (&mut end.result, state.peer) {
            *error = error.clone().with_peer(peer);
        }
        let completion_context = CompletionContext {
            endpoint: self.id(),
            counter: state.bindings.counter(end.operation),
            sources: state.bindings.sources.as_ref(),
            sender: None,
        };
        match completion_context.deliver(report, end, &mut state.wakes) {
            Undelivered::Nothing => {}
            Undelivered::Memory => state.leftovers.push(end.payload.take()),
            Undelivered::Message => self.give_message_back(state, end),
        }
    }

    /// The owner of a shared receive has gone while a message landed in it: the message goes back
    /// to the receives it came from (ruling 4).
    fn give_message_back(&self, state: &mut PortState, end: &mut End) {
        // A connected endpoint's receives are withdrawn in the connection itself.
        let PortKind::Rdm(rdm) = &mut state.kind else {
            state.leftovers.push(end.payload.take());
            return;
        };
        match message_of(end.take()) {
            Ok(early) => rdm.receives.give_back(early),
            Err(payload) => state.leftovers.push(payload),
        }
    }

    /// A peer has accessed this memory: the endpoint's counter and those of the regions count one
    /// access each, and CQ data makes a completion.
    fn remote_access(
        &self,
        state: &mut PortState,
        operation: OperationKind,
        data: Option<u64>,
        memory: Payload,
    ) {
        if let Some(counter) = state.bindings.counter(operation) {
            counter.add_into(1, &mut state.wakes);
        }
        if state.bindings.rma_events {
            let right = match operation {
                OperationKind::RemoteRead => Access::REMOTE_READ,
                _ => Access::REMOTE_WRITE,
            };
            memory.count_access(right.bits(), &mut state.wakes);
        }
        let len = memory.len();
        // It may be the last to hold the memory of a region that is gone.
        state.leftovers.push(memory);
        let Some(data) = data else { return };
        let slot = state
            .unasked
            .pop_front()
            .expect("a slot was reserved before the payload came");
        slot.fill(remote_write(self.id(), data, len), &mut state.wakes);
    }

    fn closed(&self, state: &mut PortState, connected: bool, lost: Option<Error>) {
        let lost = lost.map(|error| state.about_peer(error));
        tracing::debug!(endpoint = ?self.id(), ?lost, "connection ended");
        state.ended_in_order = lost.is_none();
        state.unasked.clear();
        state.bindings.connected = None;
        let slot = state.bindings.shutdown.take();
        if let Some(slot) = slot.filter(|_| connected) {
            let event = ControlEvent::Shutdown {
                endpoint: self.id(),
                context: state.bindings.context,
                error: lost.clone(),
            };
            slot.fill(event, &mut state.wakes);
        }
        if state.establishing.result.is_none() {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.establish(state, Err(error));
        }
        state.end.set_ended(&mut state.wakes);
        self.tell_closed(state, lost);
    }
}

/// With what completions are delivered: those of a port, or of receives that ports share.
pub(super) struct CompletionContext<'a> {
    pub(super) endpoint: EndpointId,
    /// Counts operations of the kind that ended.
    pub(super) counter: Option<&'a Counter>,
    /// Knows who sent what was received, if that is to be told.
    pub(super) sources: Option<&'a Arc<dyn Sources>>,
    /// Who sent the datagram that was received.
    pub(super) sender: Option<SourceName>,
}

/// What of an end is left where it lies, when it has been told.
pub(super) enum Undelivered {
    Nothing,
    /// Nobody asks for its memory any more. It is the user's, and is dropped with no lock held.
    Memory,
    /// Whoever awaited this message went away without it.
    Message,
}

impl Undelivered {
    /// All of this end.
    fn all_of(end: &End) -> Self {
        match end.is_message() {
            true => Undelivered::Message,
            false => Undelivered::Memory,
        }
    }
}

impl CompletionContext<'_> {
    /// Delivers a completion to where the operation reports.
    pub(super) fn deliver(
        &self,
        report: &mut Report,
        end: &mut End,
        wakes: &mut WakeList,
    ) -> Undelivered {
        // Before anyone is told, and whether or not anyone ever fetches the result.
        end.payload.end(end.len);
        match report {
            Report::Counted => return Undelivered::Memory,
            Report::Timed(timed) => match timed.take() {
                Some(taken) => *report = taken,
                // The clock was faster, and has told.
                None => return Undelivered::all_of(end),
            },
            _ => {}
        }
        let (counted, succeeded) = (self.counter, end.result.is_ok());
        let undelivered = self.deliver_uncounted(report, end, wakes);
        match (&undelivered, counted) {
            // Nobody has received it.
            (Undelivered::Message, _) | (_, None) => {}
            (_, Some(counter)) if succeeded => counter.add_into(1, wakes),
            (_, Some(counter)) => counter.add_error_into(1, wakes),
        }
        undelivered
    }

    fn deliver_uncounted(
        &self,
        report: &mut Report,
        end: &mut End,
        wakes: &mut WakeList,
    ) -> Undelivered {
        match report {
            Report::Future(cell) => match cell.complete(end, wakes) {
                Delivery::Delivered => Undelivered::Nothing,
                Delivery::Abandoned => Undelivered::all_of(end),
                Delivery::Detached => Undelivered::Memory,
            },
            Report::Queue {
                context,
                kind,
                slot,
                waiting,
                ..
            } => match slot.take() {
                Some(slot) => {
                    slot.fill(self.completion(*context, *kind, end), wakes);
                    Undelivered::Nothing
                }
                // Never accepted: whoever waited for that is told, and the queue is not.
                None => match waiting {
                    Some(cell) if cell.complete(end, wakes) == Delivery::Delivered => {
                        Undelivered::Nothing
                    }
                    _ => Undelivered::Memory,
                },
            },
            Report::Piece { .. } => {
                if let Report::Piece { many, slot } = std::mem::replace(report, Report::Counted) {
                    many.tell_piece(slot, end, self, wakes);
                }
                Undelivered::Nothing
            }
            // What was injected is a copy of our own.
            Report::Nowhere if end.operation == OperationKind::Inject => Undelivered::Nothing,
            Report::Nowhere | Report::Counted | Report::Timed(_) => Undelivered::Memory,
        }
    }

    /// The completion of a posted operation; `kind` says of which interface it is.
    pub(super) fn completion(
        &self,
        context: UserContext,
        kind: CompletionFlags,
        end: &mut End,
    ) -> Completion {
        let direction = match end.operation {
            OperationKind::Send => CompletionFlags::SEND,
            OperationKind::Receive => CompletionFlags::RECV,
            OperationKind::Write | OperationKind::Atomic => CompletionFlags::WRITE,
            OperationKind::Read | OperationKind::FetchAtomic => CompletionFlags::READ,
            _ => CompletionFlags::empty(),
        };
        let mut completion =
            Completion::new(self.endpoint, context, end.operation, direction | kind)
                .with_len(end.len)
                .with_buffers(end.payload.take().into_buffers());
        if let Some(data) = end.data {
            completion = completion.with_data(data);
        }
        if let Some(tag) = end.tag {
            completion = completion.with_tag(tag);
        }
        let numbered = end.source.zip(self.sources);
        let numbered = numbered.map(|(id, all)| Source::Numbered(id.0, Arc::clone(all)));
        if let Some(source) = numbered.or(self.sender.map(Source::Named)) {
            completion = completion.with_source(source);
        }
        if let Err(error) = &end.result {
            let error = CompletionError::new(error.clone()).with_overflow_len(end.overflow);
            completion = completion.with_error(error);
        }
        completion
    }
}

/// The completion of a peer's write that carried CQ data; nobody posted it.
fn remote_write(endpoint: EndpointId, data: u64, len: usize) -> Completion {
    let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
    Completion::new(endpoint, UserContext(0), OperationKind::RemoteWrite, flags)
        .with_len(len)
        .with_data(data)
}
