//! From the protocol's events to those who wait: operation futures, completion queues, counters,
//! the event queue. Runs under the port's lock, so that what one connection publishes keeps its
//! order; wakers are collected and woken after the lock is released.

use crate::buf::Payload;
use crate::cq::{Completion, CompletionError, CompletionFlags, SourceName};
use crate::eq::{Event as ControlEvent, EventError};
use crate::error::{Error, ErrorKind, OperationKind};
use crate::id::{Context, EndpointId};
use crate::mr::Access;
use crate::proto::{End, Event};
use crate::sync::WakeList;

use super::port::{CounterSet, Port, PortState};
use super::report::Report;

impl Port {
    pub(super) fn publish(&self, state: &mut PortState) {
        while let Some(event) = state.machine.poll_event() {
            match event {
                Event::Connected { data } => {
                    state.deadline = None;
                    if let Some(slot) = state.bindings.connected.take() {
                        let event = ControlEvent::Connected {
                            endpoint: self.id(),
                            context: state.connect_context,
                            data: data.clone(),
                        };
                        slot.fill(event, &mut state.wakes);
                    }
                    self.establish(state, Ok(data));
                    self.begin_life(state);
                }
                Event::ConnectFailed { error } => self.connect_failed(state, error),
                Event::Ended { token, end } => self.operation_ended(state, token, end),
                Event::RemoteAccess {
                    operation,
                    data,
                    memory,
                } => self.remote_access(state, operation, data, memory),
                Event::RemoteDataVoid => drop(state.unasked.pop_front()),
                Event::Closed { connected, lost } => self.closed(state, connected, lost),
            }
        }
    }

    fn establish(&self, state: &mut PortState, result: Result<bytes::Bytes, Error>) {
        state.establishing.result = Some(result);
        if let Some(waker) = state.establishing.waker.take() {
            state.wakes.push(waker);
        }
    }

    fn connect_failed(&self, state: &mut PortState, error: Error) {
        let error = match state.peer {
            Some(peer) => error.with_peer(peer),
            None => error,
        };
        tracing::debug!(endpoint = ?self.id(), %error, "connection not established");
        if let Some(slot) = state.bindings.connected.take() {
            let event = EventError::new(error.clone())
                .with_context(state.connect_context)
                .with_endpoint(self.id());
            slot.fill(ControlEvent::Error(event), &mut state.wakes);
        }
        state.bindings.shutdown = None;
        self.establish(state, Err(error));
        self.mark_ended(state);
    }

    pub(super) fn operation_ended(&self, state: &mut PortState, report: Report, mut end: End) {
        if let Some(peer) = state.peer {
            end.result = end.result.map_err(|error| error.with_peer(peer));
        }
        let PortState {
            bindings,
            wakes,
            leftovers,
            ..
        } = state;
        let counters = &bindings.counters;
        tell(self.id(), report, end, None, counters, wakes, leftovers);
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
        if let Some(counter) = state.bindings.counters.of(operation) {
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
        tracing::debug!(endpoint = ?self.id(), ?lost, "connection ended");
        state.unasked.clear();
        state.bindings.connected = None;
        let slot = state.bindings.shutdown.take();
        if let Some(slot) = slot.filter(|_| connected) {
            let event = ControlEvent::Shutdown {
                endpoint: self.id(),
                context: state.bindings.context,
                error: lost,
            };
            slot.fill(event, &mut state.wakes);
        }
        if state.establishing.result.is_none() {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.establish(state, Err(error));
        }
        self.mark_ended(state);
    }

    fn mark_ended(&self, state: &mut PortState) {
        state.ended = true;
        let PortState {
            end_wakers, wakes, ..
        } = state;
        for waker in end_wakers.drain(..) {
            wakes.push(waker);
        }
    }
}

/// Tells of the end of an operation where it reports, and counts it. `source`: who sent what was
/// received.
pub(super) fn tell(
    endpoint: EndpointId,
    report: Report,
    mut end: End,
    source: Option<SourceName>,
    counters: &CounterSet,
    wakes: &mut WakeList,
    leftovers: &mut Vec<Payload>,
) {
    // Before anyone is told, and whether or not anyone ever fetches the result.
    end.payload.leave_regions();
    if let Report::Told = report {
        leftovers.push(end.payload);
        return;
    }
    if let Some(counter) = counters.of(end.operation) {
        match &end.result {
            Ok(()) => counter.add_into(1, wakes),
            Err(_) => counter.add_error_into(1, wakes),
        }
    }
    match report {
        Report::Future(cell) => cell.complete(end, wakes),
        Report::Queue {
            context,
            slot: Some(slot),
            ..
        } => {
            let completion = completion_of(endpoint, context, end);
            slot.fill(completion.with_source(source), wakes);
        }
        // Never accepted: whoever waited for that is told, and the queue is not.
        Report::Queue {
            slot: None,
            waiting,
            ..
        } => {
            if let Some(cell) = waiting {
                cell.complete(end, wakes);
            }
        }
        // What was injected is a copy of our own.
        Report::Nowhere if end.operation == OperationKind::Inject => {}
        Report::Nowhere | Report::Told => leftovers.push(end.payload),
    }
}

/// The completion of a posted operation.
fn completion_of(endpoint: EndpointId, context: Context, end: End) -> Completion {
    let flags = match end.operation {
        OperationKind::Send => CompletionFlags::SEND | CompletionFlags::MSG,
        OperationKind::Receive => CompletionFlags::RECV | CompletionFlags::MSG,
        OperationKind::Write => CompletionFlags::WRITE | CompletionFlags::RMA,
        OperationKind::Read => CompletionFlags::READ | CompletionFlags::RMA,
        _ => CompletionFlags::empty(),
    };
    let mut completion = Completion::new(endpoint, context, end.operation, flags)
        .with_len(end.len)
        .with_buffers(end.payload.into_buffers());
    if let Some(data) = end.data {
        completion = completion.with_data(data);
    }
    if let Err(error) = end.result {
        completion =
            completion.with_error(CompletionError::new(error).with_overflow_len(end.overflow));
    }
    completion
}

/// The completion of a peer's write that carried CQ data; nobody posted it.
fn remote_write(endpoint: EndpointId, data: u64, len: usize) -> Completion {
    let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
    Completion::new(endpoint, Context(0), OperationKind::RemoteWrite, flags)
        .with_len(len)
        .with_data(data)
}
