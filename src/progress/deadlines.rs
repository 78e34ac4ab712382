//! Time limits of operations. The machine has no clock, so the deadlines are kept here, sorted; an
//! operation without a limit costs nothing.
//!
//! An operation whose time limit passes ends and returns its memory; if its bytes are being moved
//! at that moment, it ends without its memory. An announced message is withdrawn, with a frame to
//! the peer (`proto/conn/rendezvous_sender.rs`); a C peer knows no withdrawal, so the message stays
//! until that peer asks for it. If the operation awaited an answer, its place counts as used until
//! the answer has been received and dropped, since answers have no identifiers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::limits::STALE_ENTRIES_MIN;
use crate::proto::{OpKey, Withdrawn};

use super::port::{Port, PortKind, PortState};
use super::report::Report;

/// The deadlines of the operations of one port, or of the receives of one context, each with a
/// value. Nothing is allocated until an operation has a time limit. An operation that ends leaves
/// its deadline behind; stale deadlines are dropped when they make up half of all, so each costs a
/// constant on average.
#[derive(Debug)]
pub(super) struct Deadlines<V = ()>(Option<Box<Times<V>>>);

#[derive(Debug)]
struct Times<V> {
    /// Time limits posted since the driver last ran; only the driver has the backend's clock
    /// (ruling 12).
    fresh: Vec<(OpKey, Duration, V)>,
    kept: BTreeMap<(Instant, OpKey), V>,
    kept_max: usize,
}

impl<V> Default for Deadlines<V> {
    fn default() -> Self {
        Deadlines(None)
    }
}

impl<V> Deadlines<V> {
    pub(super) fn add(&mut self, op: OpKey, timeout: Duration, value: V) {
        let times = self.0.get_or_insert_with(|| {
            Box::new(Times {
                fresh: Vec::new(),
                kept: BTreeMap::new(),
                kept_max: 0,
            })
        });
        times.fresh.push((op, timeout, value));
    }

    /// Turns posted time limits into deadlines: they begin to run now.
    #[inline]
    pub(super) fn start(&mut self, now: Instant, is_there: impl Fn(OpKey, &V) -> bool) {
        let Some(times) = self.0.as_deref_mut() else {
            return;
        };
        if times.fresh.is_empty() {
            return;
        }
        for (op, timeout, value) in times.fresh.drain(..) {
            // A deadline that the clock cannot represent never comes.
            let at = now.checked_add(timeout);
            times.kept.extend(at.map(|at| ((at, op), value)));
        }
        if times.kept.len() > times.kept_max {
            times.kept.retain(|(_, op), value| is_there(*op, value));
            times.kept_max = STALE_ENTRIES_MIN.max(2 * times.kept.len());
        }
    }

    /// The earliest deadline.
    #[inline]
    pub(super) fn first(&self) -> Option<Instant> {
        let first = self.0.as_ref()?.kept.first_key_value();
        first.map(|((at, _), _)| *at)
    }

    #[cfg(test)]
    pub(super) fn kept_len(&self) -> usize {
        let times = self.0.as_ref();
        times.map_or(0, |times| times.kept.len() + times.fresh.len())
    }

    #[inline]
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(OpKey, V)> {
        if self.first()? > now {
            return None;
        }
        let ((_, op), value) = self.0.as_mut()?.kept.pop_first()?;
        Some((op, value))
    }
}

impl Port {
    /// Ends the operations whose deadline has passed.
    pub(super) fn expire(&self, state: &mut PortState, now: Instant) {
        let mut any = false;
        while let Some((op, ())) = state.timers.deadlines.pop_due(now) {
            any = true;
            let attempt = match &state.kind {
                PortKind::Rdm(attachment) => attachment.last_failure(),
                _ => None,
            };
            if state.machine.expire(op, attempt) == Withdrawn::Running {
                self.publish(state); // Earlier ends are delivered first.
                self.deliver_timed_out(state, op);
            }
        }
        if any {
            self.publish_and_wake(state);
        }
    }

    /// Delivers the end of an operation whose bytes are being moved now. Its memory stays here
    /// until the transport returns it.
    fn deliver_timed_out(&self, state: &mut PortState, op: OpKey) {
        let why = match state.machine.is_announced(op) {
            true => {
                "it was announced, and the peer lets nothing be withdrawn: it may still ask for it"
            }
            false => "while its bytes were moving",
        };
        let is_reported = !matches!(
            state.machine.token_mut(op),
            None | Some(Report::Nowhere | Report::Counted)
        );
        let error = Error::new(ErrorKind::TimedOut, why);
        if is_reported && let Some(parted) = state.machine.part_with(op, Report::Counted, error) {
            self.deliver(state, parted);
        }
    }
}
