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

/// The times of one port's operations. An operation that ends leaves its time behind; those are
/// dropped when they make up half of what is kept, so each costs a constant on average.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Posted since the driver last ran, which alone has the backend's clock (ruling 12).
    fresh: Vec<(OpKey, Duration)>,
    kept: BTreeSet<(Instant, OpKey)>,
    kept_max: usize,
}

impl Deadlines {
    pub(super) fn add(&mut self, op: OpKey, timeout: Duration) {
        self.fresh.push((op, timeout));
    }

    /// The times of what was posted begin now.
    pub(super) fn start(&mut self, now: Instant, is_there: impl Fn(OpKey) -> bool) {
        if self.fresh.is_empty() {
            return;
        }
        for (op, timeout) in self.fresh.drain(..) {
            // A time beyond what the clock can count never comes.
            self.kept
                .extend(now.checked_add(timeout).map(|at| (at, op)));
        }
        if self.kept.len() > self.kept_max {
            self.kept.retain(|(_, op)| is_there(*op));
            self.kept_max = KEPT_MIN.max(2 * self.kept.len());
        }
    }

    /// The earliest.
    pub(super) fn first(&self) -> Option<Instant> {
        self.kept.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(super) fn kept_len(&self) -> usize {
        self.kept.len() + self.fresh.len()
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<OpKey> {
        if self.first()? > now {
            return None;
        }
        self.kept.pop_first().map(|(_, op)| op)
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
        let report = match state.machine.token_mut(op) {
            None | Some(Report::Nowhere | Report::Told) => return,
            Some(report) => mem::replace(report, Report::Told),
        };
        let error = Error::new(ErrorKind::TimedOut, "while its bytes were moving");
        let end = End {
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
        self.operation_ended(state, report, end);
    }
}
