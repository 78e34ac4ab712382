//! One turn of a datagram endpoint: what has come goes to receives, what is queued goes out, until
//! nothing moves or the turn's budget is spent.

use std::time::Instant;

use crate::error::{Error, ErrorKind};
use crate::progress::budget::Budget;
use crate::progress::driven::{Driven, Turned};
use crate::transport::{Clock, DATAGRAMS_PER_CALL, Departing, More, Place};

use super::{DgramPort, FLUSH_TIMEOUT, State, closed};

/// What a call counts as, in bytes: as much as its datagrams mostly have.
const CALL_BYTES: usize = 64 << 10;
/// Staging buffers of one receive, while more comes than is posted for.
const STAGES_MAX: usize = 8;

impl Driven for DgramPort {
    fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> Turned {
        self.wake_state.is_queued_no_more();
        let mut guard = self.lock("turn");
        let state = &mut *guard;
        state.inline_spent = false;
        let machine = &state.machine;
        (state.deadlines).start(now, |op| machine.phase(op).is_some());
        loop {
            let more = self.receive(state);
            left.spend(CALL_BYTES);
            let State { machine, wakes, .. } = state;
            machine.admit(|report| report.reserve(&self.waker, wakes));
            self.transmit(state, left);
            // What has ended made room for those who wait.
            let ended = self.publish(state);
            if !(more || ended && state.machine.wants_admission()) {
                break;
            }
            left.tick(clock.now());
            if left.is_spent() {
                break;
            }
        }
        while let Some(op) = state.deadlines.pop_due(now) {
            state.machine.expire(op);
        }
        if self.publish(state) && state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
        self.close_step(state, now);
        let is_cut = left.is_spent();
        if is_cut {
            self.wake_state.is_queued_again();
        }
        Turned {
            is_over: state.end.has_ended(),
            is_cut,
            alarm: next_alarm(state, now),
            stale: None,
        }
    }

    fn try_link(&self) -> bool {
        let mut guard = self.lock("try the socket");
        let state = &mut *guard;
        match &mut state.socket {
            Some(socket) => socket.look(),
            None => return false,
        }
        let more = self.receive(state);
        more | self.publish(state)
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
    /// Takes in what has come, by one call. True if there may be more.
    fn receive(&self, state: &mut State) -> bool {
        let Some(socket) = &mut state.socket else {
            return false;
        };
        let (machine, places, keys) = (&mut state.machine, &mut state.places, &mut state.keys);
        for (key, payload) in machine.destinations(DATAGRAMS_PER_CALL - 1) {
            keys.push(key);
            places.push(Place::Direct(payload));
        }
        // What finds no receive is kept or dropped, and the sooner it is seen the sooner the
        // socket has room. One more place also tells, without another call, that nothing is left.
        let stages = if state.flowing { STAGES_MAX } else { 1 };
        let stages = stages.min(DATAGRAMS_PER_CALL - places.len());
        places.extend((0..stages).map(|_| Place::Stage(self.engine.transport.stage())));
        let more = socket.receive(places, &mut state.arrived);
        state.flowing = state.arrived.len() == places.len();
        let mut keys = keys.drain(..);
        let mut arrived = state.arrived.drain(..);
        let mut faulted = more == More::Fault;
        for place in places.drain(..) {
            match (place, arrived.next()) {
                (Place::Direct(payload), Some(came)) => {
                    if let Some(key) = keys.next() {
                        machine.landed(key, payload, came.from, came.len);
                    }
                }
                (Place::Stage(stage), Some(came)) => machine.arrived(came.from, &stage),
                (Place::Direct(payload), None) => match keys.next() {
                    Some(key) if std::mem::take(&mut faulted) => machine.faulted(key, payload),
                    Some(key) => machine.put_back(key, payload),
                    None => {}
                },
                (Place::Stage(_), None) => {}
            }
        }
        more != More::No
    }

    /// Sends what is queued, as far as there is room and anything is left, but one batch at least.
    pub(super) fn transmit(&self, state: &mut State, left: &mut Budget) {
        let Some(socket) = &mut state.socket else {
            return;
        };
        loop {
            let next = state.machine.departing(DATAGRAMS_PER_CALL);
            let batch: Vec<Departing<'_>> = next
                .map(|(to, payload)| Departing { to, payload })
                .collect();
            if batch.is_empty() {
                return;
            }
            let count = batch.len();
            socket.send(&batch, &mut state.departed);
            let went = state.departed.len();
            state.machine.departed(state.departed.drain(..));
            if went < count {
                return;
            }
            left.spend(CALL_BYTES);
            if left.is_spent() {
                return self.waker.wake_by_ref();
            }
        }
    }

    /// Moves an endpoint that ends one step on.
    fn close_step(&self, state: &mut State, now: Instant) {
        if !state.closing || state.end.has_ended() {
            return;
        }
        let until = *state.flush_until.get_or_insert(now + FLUSH_TIMEOUT);
        if !state.machine.has_queued() || until <= now {
            let error = Error::new(ErrorKind::Canceled, "the endpoint was closed");
            self.end(state, error, closed());
        }
    }

    /// Ends all operations by `error`; later ones get `later`.
    fn end(&self, state: &mut State, error: Error, later: Error) {
        if let Some(socket) = state.socket.take() {
            state.dropped_before = socket.dropped();
        }
        state.machine.close(error, later);
        self.publish(state);
        state.closing = true;
        state.flush_until = None;
        state.end.set_ended(&mut state.wakes);
    }
}

/// The next deadline, if the driver does not know of one as early.
fn next_alarm(state: &mut State, now: Instant) -> Option<Instant> {
    state.alarm = state.alarm.filter(|at| *at > now);
    let deadlines = state.flush_until.into_iter();
    let next = deadlines.chain(state.deadlines.first()).min()?;
    if state.alarm.is_some_and(|at| at <= next) {
        return None;
    }
    state.alarm = Some(next);
    Some(next)
}
