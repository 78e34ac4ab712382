//! Publishing: delivers the protocol's events to futures, completion queues, counters and the event
//! queue. Runs under the port's lock, so that the events of one connection keep their order; wakers
//! are collected, and woken after the lock is released.

use std::net::SocketAddr;

use tracing::Level;

use crate::buf::Payload;
use crate::cq::{Completion, CompletionFlags};
use crate::eq::{Event, EventError};
use crate::error::{Error, ErrorKind, OperationKind};
use crate::id::{EndpointId, UserContext};
use crate::log::{hold_event, is_logged};
use crate::mr::Access;
use crate::proto::{ConnEvent, InjectedEnds};

use super::completing::{CompletionContext, Undelivered};
use super::port::{Port, PortState};
use super::report::{OpRecord, Report};

impl PortState {
    /// Number of events of the machine, and of shared receives that have got its messages directly.
    pub(super) fn published(&self) -> u64 {
        let receives = self.receives.as_ref();
        self.counts.published + receives.map_or(0, |it| it.delivered())
    }
}

impl Port {
    #[inline]
    pub(super) fn publish(&self, state: &mut PortState) {
        if state.machine.has_injected_ends() {
            self.count_injected(state);
        }
        if state.machine.has_inbox_news() {
            self.publish_messages(state);
        }
        if state.machine.has_events() {
            self.publish_events(state);
        }
    }

    #[inline(never)]
    fn count_injected(&self, state: &mut PortState) {
        let InjectedEnds {
            sent,
            failed,
            bytes,
            awaited,
        } = state.machine.take_injected_ends();
        let sends = &mut state.counts.operations.sends;
        sends.succeeded += sent as u64;
        sends.failed += failed as u64;
        sends.bytes += bytes;
        if awaited {
            self.advance_mark(state);
        }
        let Some(counter) = state.bindings.counter(OperationKind::Inject) else {
            return;
        };
        if sent > 0 {
            counter.add_into(sent as u64, &mut state.deferred.wakes);
        }
        if failed > 0 {
            counter.add_error_into(failed as u64, &mut state.deferred.wakes);
        }
    }

    /// Publishes the ends of awaited messages that were copied.
    fn advance_mark(&self, state: &mut PortState) {
        let mut unsent = state.machine.take_unsent();
        for it in &mut unsent {
            it.error = state.about_peer(it.error.clone());
        }
        let before = state.machine.injected_ended_before();
        self.sent.advance(before, unsent, &mut state.deferred.wakes);
        #[cfg(feature = "metrics")]
        (state.latencies).published_copied(|it| state.machine.injected_phase(it).is_none());
    }

    #[inline(never)]
    fn publish_events(&self, state: &mut PortState) {
        let mut is_new = false;
        while state.machine.has_events() {
            let mut events = state.machine.take_events();
            state.counts.published += events.len() as u64;
            for event in events.drain(..) {
                is_new |= matches!(event, ConnEvent::Connected { .. });
                self.publish_one(state, event);
            }
            state.machine.keep_events(events);
        }
        #[cfg(feature = "metrics")]
        (state.latencies).published(|key| state.machine.phase(key).is_none());
        if is_new {
            state.machine.shrink(); // The handshake is over.
        }
    }

    fn publish_one(&self, state: &mut PortState, event: ConnEvent<Report>) {
        match event {
            ConnEvent::Completed(op) => self.deliver(state, op),
            ConnEvent::Connected { data } => {
                state.life.on_connected();
                state.counts.connects += 1;
                state.io.peer_processor.on_connected();
                self.log_connected(state.io.peer);
                if let Some(receives) = &mut state.receives {
                    receives.set_peer(state.io.peer);
                }
                state.timers.cancel_alarm();
                if let Some(slot) = state.bindings.connected.take() {
                    let link = state.io.link.as_ref();
                    let identity = link.and_then(|link| link.peer_identity());
                    let event = Event::Connected {
                        endpoint: self.id(),
                        context: state.connect.context,
                        data: data.clone(),
                        peer_certificates: identity.and_then(|it| it.certificates),
                    };
                    slot.fill(event, &mut state.deferred.wakes);
                }
                self.establish(state, Ok(data));
                self.begin_liveness(state);
                self.local_connected(state);
                self.report_connected(state);
            }
            ConnEvent::ConnectFailed { error } => self.connect_failed(state, error),
            ConnEvent::RemoteAccess {
                operation,
                data,
                memory,
            } => self.remote_access(state, operation, data, memory),
            ConnEvent::RemoteUpdate { memory } => {
                if state.bindings.rma_events {
                    let right = Access::REMOTE_WRITE.bits();
                    memory.count_access(right, &mut state.deferred.wakes);
                }
                state.deferred.drops.push(memory);
            }
            ConnEvent::RemoteDataVoid => drop(state.remote_slots.pop_front()),
            ConnEvent::Closed { connected, lost } => self.deliver_closed(state, connected, lost),
        }
    }

    fn establish(&self, state: &mut PortState, result: Result<bytes::Bytes, Error>) {
        state.connect.result = Some(result);
        state.connect.is_accepting = false;
        if std::mem::take(&mut state.connect.is_abandoned) && state.life.is_open() {
            self.begin_flushing(state);
            self.waker.wake_by_ref();
        }
        if let Some(waker) = state.connect.waker.take() {
            state.deferred.wakes.push(waker);
        }
    }

    pub(super) fn connect_failed(&self, state: &mut PortState, error: Error) {
        let error = state.about_peer(error);
        state.counts.losses += 1;
        // The caller has the error.
        if is_logged(Level::DEBUG) {
            let (span, endpoint, error) = (self.span.clone(), self.id(), error.clone());
            hold_event(move || {
                tracing::debug!(parent: &span, ?endpoint, %error, "connection not established");
            });
        }
        if let Some(slot) = state.bindings.connected.take() {
            let event = EventError::new(error.clone())
                .with_context(state.connect.context)
                .with_endpoint(self.id());
            slot.fill(Event::Error(event), &mut state.deferred.wakes);
        }
        self.establish(state, Err(error.clone()));
        if state.machine.lifecycle().is_closed() {
            state.bindings.shutdown = None;
            state.close_waiters.take_all(&mut state.deferred.wakes);
            state.wake_readers();
            self.report_closed(state, Some(error));
        }
    }

    /// Delivers a completed operation to where it reports.
    pub(super) fn deliver(&self, state: &mut PortState, mut op: OpRecord) {
        if let (Err(error), Some(peer)) = (&mut op.end.result, state.io.peer) {
            *error = error.clone().with_peer(peer);
        }
        let mut context = CompletionContext {
            endpoint: self.id(),
            stats: state.counts.operations.of(op.operation()),
            counter: state.bindings.counter(op.operation()),
            sources: None,
            sender: None,
            waker: &self.waker,
        };
        // Memory that neither a future nor a queue takes is dropped after the lock is released; a
        // message that neither takes goes to the next receive (ruling 4).
        match context.deliver(op, &mut state.deferred.wakes) {
            Undelivered::Nothing => {}
            Undelivered::Memory(payload) => state.deferred.drops.push(payload),
            // `Port::withdraw` has the machine requeue the messages of the connection's own
            // receives.
            Undelivered::Message(mut op) => state.deferred.drops.push(op.take_payload()),
        }
    }

    /// Publishes a peer's access to this memory: the endpoint's counter and those of the regions
    /// count one access each, and CQ data makes a completion.
    fn remote_access(
        &self,
        state: &mut PortState,
        operation: OperationKind,
        data: Option<u64>,
        memory: Payload,
    ) {
        state.counts.accesses += 1;
        if let Some(counter) = state.bindings.counter(operation) {
            counter.add_into(1, &mut state.deferred.wakes);
        }
        if state.bindings.rma_events {
            let right = match operation {
                OperationKind::RemoteRead => Access::REMOTE_READ,
                _ => Access::REMOTE_WRITE,
            };
            memory.count_access(right.bits(), &mut state.deferred.wakes);
        }
        let len = memory.len();
        // The payload may hold the last reference to a region's memory.
        state.deferred.drops.push(memory);
        let Some(data) = data else { return };
        let slot = state
            .remote_slots
            .pop_front()
            .expect("a slot was reserved before the payload came");
        slot.fill(
            remote_write(self.id(), data, len),
            &mut state.deferred.wakes,
        );
    }

    fn deliver_closed(&self, state: &mut PortState, connected: bool, lost: Option<Error>) {
        let lost = lost.map(|error| state.about_peer(error));
        state.counts.losses += u64::from(lost.is_some());
        self.log_end(connected, lost.clone());
        state.remote_slots.clear();
        state.bindings.connected = None;
        let slot = state.bindings.shutdown.take();
        if let Some(slot) = slot.filter(|_| connected) {
            let event = Event::Shutdown {
                endpoint: self.id(),
                context: state.bindings.context,
                error: lost.clone(),
            };
            slot.fill(event, &mut state.deferred.wakes);
        }
        if state.connect.result.is_none() {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.establish(state, Err(error));
        }
        state.close_waiters.take_all(&mut state.deferred.wakes);
        state.wake_readers();
        self.report_closed(state, lost);
    }
}

impl Port {
    fn log_connected(&self, peer: Option<SocketAddr>) {
        if is_logged(Level::INFO) {
            let (span, endpoint) = (self.span.clone(), self.id());
            hold_event(move || {
                let peer = peer.map(tracing::field::display);
                tracing::info!(parent: &span, ?endpoint, peer, "connected");
            });
        }
    }

    fn log_end(&self, connected: bool, lost: Option<Error>) {
        // The peer's process, or this one, may end normally; any other loss is a fault.
        let is_end = |kind| matches!(kind, ErrorKind::PeerClosed | ErrorKind::DriverGone);
        let level = match &lost {
            None => Level::INFO,
            Some(_) if !connected => Level::DEBUG,
            Some(error) if is_end(error.kind()) => Level::INFO,
            Some(_) => Level::WARN,
        };
        if !is_logged(level) {
            return;
        }
        let (span, endpoint) = (self.span.clone(), self.id());
        hold_event(move || match lost {
            None => tracing::info!(parent: &span, ?endpoint, "connection ended"),
            Some(error) if level == Level::WARN => {
                tracing::warn!(parent: &span, ?endpoint, %error, "connection lost");
            }
            Some(error) if level == Level::INFO => {
                tracing::info!(parent: &span, ?endpoint, %error, "connection lost");
            }
            // Mostly a connection that gave way to another one.
            Some(error) => tracing::debug!(parent: &span, ?endpoint, %error, "connection not used"),
        });
    }
}

/// Makes the completion of a peer's write with CQ data, which was not posted here.
fn remote_write(endpoint: EndpointId, data: u64, len: usize) -> Completion {
    let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE;
    Completion::new(endpoint, UserContext(0), OperationKind::RemoteWrite, flags)
        .with_len(len)
        .with_data(data)
}
