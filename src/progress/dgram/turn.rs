//! One turn of a datagram endpoint: received datagrams go to receives and queued ones are sent,
//! until nothing moves or the turn's budget is spent.

use std::time::Instant;

use crate::buf::Stage;
use crate::error::{Error, ErrorKind};
use crate::limits::{DATAGRAM_CALL_BYTES, DATAGRAM_STAGES_MAX, DATAGRAMS_PER_CALL};
use crate::progress::budget::Budget;
use crate::progress::pollable::{NextTurn, Pollable, TurnResult};
use crate::progress::report::Report;
use crate::transport::{Clock, OutgoingDatagram, RecvBuffer, RecvStatus};

use super::{DgramPort, State, closed};

impl Pollable for DgramPort {
    fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> TurnResult {
        self.port_waker.mark_dequeued();
        let mut guard = self.lock("turn");
        let state = &mut *guard;
        state.inline_send.on_turn();
        let ended_before = state.operations.ended();
        let machine = &state.machine;
        (state.timers.deadlines).start(now, |op, _| machine.phase(op).is_some());
        loop {
            let more = self.receive(state);
            left.spend(DATAGRAM_CALL_BYTES);
            let State {
                machine, deferred, ..
            } = state;
            machine.admit_waiting(|record| {
                let wakes = &mut deferred.wakes;
                Report::reserve(record, wakes, Some(&self.waker))
            });
            self.transmit(state, left);
            // Completed operations make room for posts that wait.
            let ended = self.publish(state);
            if !(more || ended && state.machine.wants_admission()) {
                break;
            }
            left.tick(clock.now());
            if left.is_spent() {
                break;
            }
        }
        while let Some((op, ())) = state.timers.deadlines.pop_due(now) {
            state.machine.expire(op);
        }
        if self.publish(state) && state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
        self.close_step(state, now);
        let next = if state.shutdown.is_closed() {
            NextTurn::Never
        } else if left.is_spent() {
            self.port_waker.mark_queued();
            NextTurn::Requeued
        } else {
            NextTurn::WhenWoken
        };
        let alarm = (state.timers).next_alarm(next, now, state.shutdown.deadline());
        TurnResult {
            next,
            alarm,
            stale_alarm: state.timers.stale_alarm.take(),
            completions: state.operations.ended() - ended_before,
        }
    }

    fn try_turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> Option<TurnResult> {
        let mut guard = self.lock("try the socket");
        let state = &mut *guard;
        state.socket.as_mut()?.assume_readable();
        let more = self.receive(state);
        let found = more | self.publish(state);
        drop(guard);
        found.then(|| self.turn(now, clock, left))
    }

    fn begin_close(&self) {
        self.begin_close();
    }

    fn driver_gone(&self) {
        let mut guard = self.lock("driver gone");
        let why = self.engine.why_gone();
        self.end(&mut guard, why.clone(), why);
    }
}

impl DgramPort {
    /// Receives datagrams, by one call. Returns true if there may be more.
    fn receive(&self, state: &mut State) -> bool {
        let Some(socket) = &mut state.socket else {
            return false;
        };
        let (machine, places, keys) = (&mut state.machine, &mut state.places, &mut state.keys);
        for (key, payload) in machine.destinations(DATAGRAMS_PER_CALL - 1) {
            keys.push(key);
            places.push(RecvBuffer::Direct(payload));
        }
        // Datagrams without a receive are kept or dropped: reading them early makes room in the
        // socket. The extra place also shows, without another call, that nothing is left.
        let stages = if state.flowing {
            DATAGRAM_STAGES_MAX
        } else {
            1
        };
        let stages = stages.min(DATAGRAMS_PER_CALL - places.len());
        places.extend((0..stages).map(|_| RecvBuffer::Stage(Stage::take())));
        let more = socket.receive(places, &mut state.arrived);
        state.backend_receives += 1;
        state.flowing = state.arrived.len() == places.len();
        let mut keys = keys.drain(..);
        let mut arrived = state.arrived.drain(..);
        let mut faulted = more == RecvStatus::Fault;
        for place in places.drain(..) {
            match (place, arrived.next()) {
                (RecvBuffer::Direct(payload), Some(came)) => {
                    if let Some(key) = keys.next() {
                        machine.landed(key, payload, came.from, came.len);
                    }
                }
                (RecvBuffer::Stage(stage), Some(came)) => machine.arrived(came.from, &stage),
                (RecvBuffer::Direct(payload), None) => match keys.next() {
                    Some(key) if std::mem::take(&mut faulted) => machine.faulted(key, payload),
                    Some(key) => machine.put_back(key, payload),
                    None => {}
                },
                (RecvBuffer::Stage(_), None) => {}
            }
        }
        more != RecvStatus::Drained
    }

    /// Sends queued datagrams while there is room and the budget lasts, but at least one batch.
    pub(super) fn transmit(&self, state: &mut State, left: &mut Budget) {
        let Some(socket) = &mut state.socket else {
            return;
        };
        loop {
            let next = state.machine.departing(DATAGRAMS_PER_CALL);
            let batch: Vec<OutgoingDatagram<'_>> = next
                .map(|(to, payload)| OutgoingDatagram { to, payload })
                .collect();
            if batch.is_empty() {
                return;
            }
            let count = batch.len();
            socket.send(&batch, &mut state.departed);
            state.backend_sends += 1;
            let went = state.departed.len();
            state.machine.departed(state.departed.drain(..));
            if went < count {
                return;
            }
            left.spend(DATAGRAM_CALL_BYTES);
            if left.is_spent() {
                return self.waker.wake_by_ref();
            }
        }
    }

    /// Advances the end of the endpoint by one step.
    fn close_step(&self, state: &mut State, now: Instant) {
        if state.shutdown.on_tick(now, state.machine.has_queued()) {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.end(state, error, closed());
        }
    }

    /// Ends all operations with `error`; later ones fail with `later`.
    fn end(&self, state: &mut State, error: Error, later: Error) {
        if let Some(socket) = state.socket.take() {
            state.dropped_before = socket.dropped();
        }
        state.machine.close(error, later);
        self.publish(state);
        state.shutdown.close();
        state.close_waiters.take_all(&mut state.deferred.wakes);
    }
}
