//! Posting to a datagram endpoint, and withdrawing posted operations.

use std::net::SocketAddr;

use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Phase, Result};
use crate::limits::DATAGRAMS_PER_CALL;
use crate::progress::PostedOp;
use crate::progress::budget::Budget;
use crate::progress::completing::{CompletionContext, Undelivered};
use crate::progress::posting::check_ip_version;
use crate::progress::report::{AwaitedOp, OpRecord, Report};
use crate::proto::{Dgram, OpKey, RefusedPost, Withdrawn};
use crate::transport::too_long;

use super::{DgramPort, State, closed};

impl DgramPort {
    /// Posts an operation. The first send since the driver ran is sent within this call; later ones
    /// are gathered, until one call sends them all (ruling 5).
    pub(crate) fn post(
        &self,
        operation: OpRecord,
        peer: Option<SocketAddr>,
    ) -> Result<PostedOp, Box<RefusedPost<Report>>> {
        if let Err(error) = self.check(&operation, peer) {
            return Err(RefusedPost::new(error, operation));
        }
        let mut guard = self.lock("post");
        let state = &mut *guard;
        // An endpoint that has ended refuses posts with its own reason.
        if state.shutdown.is_closing() {
            return Err(RefusedPost::new(closed(), operation));
        }
        tracing::trace!(operation = ?operation.operation(), len = operation.len, "posted");
        let (is_receive, options) = (operation.is_receive(), operation.options);
        let idle = !state.machine.has_queued();
        let State {
            machine, deferred, ..
        } = state;
        let reserve = |record: &mut OpRecord| {
            let wakes = &mut deferred.wakes;
            Report::reserve(record, wakes, Some(&self.waker))
        };
        let key = machine.post(operation, peer, reserve)?;
        if let Some(timeout) = options.timeout {
            state.timers.deadlines.add(key, timeout, ());
            self.waker.wake_by_ref();
        }
        if !is_receive {
            let is_first = idle && !options.more && state.inline_send.take();
            if is_first || state.machine.queued() >= DATAGRAMS_PER_CALL {
                self.transmit(state, &mut Budget::of_call());
            } else {
                self.waker.wake_by_ref();
            }
        }
        let mut waiting = None;
        if let Some(op) = state.machine.record_mut(key)
            && op.phase == Phase::Waiting
            && matches!(op.token, Report::Queue { .. })
        {
            waiting = Some(op.await_acceptance());
        }
        self.publish_and_wake(state);
        Ok(PostedOp { key, waiting })
    }

    /// Checks the length and the peer of a post, without the lock.
    fn check(&self, operation: &OpRecord, peer: Option<SocketAddr>) -> Result<()> {
        if !operation.is_receive() && operation.len > self.message_max {
            return Err(too_long(operation.len, self.message_max));
        }
        peer.map_or(Ok(()), |peer| check_ip_version(self.local, peer))
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.publish_and_wake(&mut state);
        withdrawn
    }

    /// Withdraws an operation whose future is dropped (ruling 4).
    pub(crate) fn withdraw(&self, key: OpKey, awaited: AwaitedOp) {
        let _after; // Declared before the guard, and so dropped after it.
        let mut state = self.lock("withdraw");
        _after = match state.machine.cancel(key) {
            Withdrawn::Gone => {
                if let Some(op) = awaited.detach() {
                    let State {
                        machine, deferred, ..
                    } = &mut *state;
                    give_back(machine, &mut deferred.drops, op);
                }
                None
            }
            _ => Some(awaited),
        };
        self.publish_and_wake(&mut state);
    }

    /// Cancels an operation if it still waits for room. Called when the future of its acceptance is
    /// dropped.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
        let mut state = self.lock("withdraw");
        if state.machine.phase(key) == Some(Phase::Waiting) && !awaited.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Posts behind it may have room now.
        }
        self.publish_and_wake(&mut state);
    }

    /// Delivers completed operations, and wakes the driver if posts that wait can be admitted.
    fn publish_and_wake(&self, state: &mut State) {
        if self.publish(state) && state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
    }

    /// Delivers all completed operations. Returns true if there were any.
    pub(super) fn publish(&self, state: &mut State) -> bool {
        let mut any = false;
        let State {
            machine,
            vector,
            counters,
            deferred,
            operations,
            ..
        } = state;
        while let Some(op) = machine.pop_completed() {
            any = true;
            let mut context = CompletionContext {
                endpoint: self.id,
                counter: counters.of(op.operation()),
                stats: operations.of(op.operation()),
                sources: None,
                sender: (op.end.sender_address())
                    .map(|it| SourceName::new(it, vector.find(it.into()))),
                waker: &self.waker,
            };
            match context.deliver(op, &mut deferred.wakes) {
                Undelivered::Nothing => {}
                Undelivered::Memory(payload) => deferred.drops.push(payload),
                Undelivered::Message(op) => give_back(machine, &mut deferred.drops, op),
            }
        }
        any
    }
}

/// Requeues the datagram of an ended receive whose future was dropped, so that it is not lost.
fn give_back(machine: &mut Dgram<Report>, drops: &mut Vec<Payload>, mut op: OpRecord) {
    let from = op.end.sender_address().filter(|_| op.is_message_received());
    let payload = op.take_payload();
    if let Some(from) = from {
        machine.give_back(&payload, op.end.len, op.end.overflow, from);
    }
    drops.push(payload);
}
