//! Operations that end when their time has passed. The protocol has no clock, so the times are kept
//! here; an operation without one costs nothing.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, Instant};

use crate::buf::Payload;
use crate::error::{Error, ErrorKind};
use crate::proto::{End, OpKey, Withdrawn};

use super::port::{Port, PortState};
use super::report::Report;

/// Until so many are kept, nobody looks which of them have ended long since.
const KEPT_MIN: usize = 64;

/// The times of one port's operations; nothing, until one has a time. An operation that ends leaves
/// its time behind; those are dropped when they make up half of what is kept, so each costs a
/// constant on average.
#[derive(Debug, Default)]
pub(super) struct Deadlines(Option<Box<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// Posted since the driver last ran, which alone has the backend's clock (ruling 12).
    fresh: Vec<(OpKey, Duration)>,
    kept: BTreeSet<(Instant, OpKey)>,
    kept_max: usize,
}

impl Deadlines {
    pub(super) fn add(&mut self, op: OpKey, timeout: Duration) {
        let times = self.0.get_or_insert_default();
        times.fresh.push((op, timeout));
    }

    /// The times of what was posted begin now.
    pub(super) fn start(&mut self, now: Instant, is_there: impl Fn(OpKey) -> bool) {
        let Some(times) = self.0.as_deref_mut() else {
            return;
        };
        if times.fresh.is_empty() {
            return;
        }
        for (op, timeout) in times.fresh.drain(..) {
            // A time beyond what the clock can count never comes.
            let at = now.checked_add(timeout);
            times.kept.extend(at.map(|at| (at, op)));
        }
        if times.kept.len() > times.kept_max {
            times.kept.retain(|(_, op)| is_there(*op));
            times.kept_max = KEPT_MIN.max(2 * times.kept.len());
        }
    }

    /// The earliest.
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.as_ref()?.kept.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(super) fn kept_len(&self) -> usize {
        let times = self.0.as_ref();
        times.map_or(0, |times| times.kept.len() + times.fresh.len())
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<OpKey> {
        if self.first()? > now {
            return None;
        }
        self.0.as_mut()?.kept.pop_first().map(|(_, op)| op)
    }
}

impl Port {
    /// Ends the operations whose time has passed.
    pub(super) fn expire(&self, state: &mut PortState, now: Instant) {
        let mut any = false;
        while let Some(op) = state.deadlines.pop_due(now) {
            any = true;
            if state.machine.expire(op) == Withdrawn::Running {
                self.publish(state); // What has ended before is told before.
                self.tell_timed_out(state, op);
            }
        }
        if any {
            self.settle(state);
        }
    }

    /// Bytes of the operation move right now, so its memory stays here; its owner is told without.
    fn tell_timed_out(&self, state: &mut PortState, op: OpKey) {
        let (Some(operation), Some(phase)) = (state.machine.operation(op), state.machine.phase(op))
        else {
            return;
        };
        let why = match state.machine.is_announced(op) {
            true => {
                "it was announced, and the peer lets nothing be withdrawn: it may still ask for it"
            }
            false => "while its bytes were moving",
        };
        let mut report = match state.machine.token_mut(op) {
            None | Some(Report::Nowhere | Report::Counted) => return,
            Some(report) => mem::replace(report, Report::Counted),
        };
        let error = Error::new(ErrorKind::TimedOut, why);
        let mut end = End {
            operation,
            result: Err(error.with_operation(operation).with_phase(phase)),
            len: 0,
            overflow: 0,
            data: None,
            tag: None,
            source: None,
            connection: None,
            order: 0,
            from: None,
            payload: Payload::empty(),
        };
        self.operation_ended(state, &mut report, &mut end);
    }
}
