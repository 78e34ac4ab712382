//! Posting to a datagram endpoint, and taking back what was posted.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Phase, Result};
use crate::limits::DATAGRAMS_PER_CALL;
use crate::progress::PostedOp;
use crate::progress::budget::Budget;
use crate::progress::completing::{CompletionContext, Undelivered};
use crate::progress::posting::check_ip_version;
use crate::progress::report::{OpCell, Report};
use crate::proto::{Dgram, OpKey, OpResult, Operation, RefusedPost, Withdrawn};
use crate::transport::too_long;

use super::{DgramPort, State, closed};

impl DgramPort {
    /// Posts an operation. The first send since the driver ran is sent within this call; others
    /// are gathered, until one call takes them all (ruling 5).
    pub(crate) fn post(
        &self,
        operation: Operation<Report>,
        peer: Option<SocketAddr>,
    ) -> Result<PostedOp, Box<RefusedPost<Report>>> {
        if let Err(error) = self.check(&operation, peer) {
            return Err(RefusedPost::new(error, operation));
        }
        let mut guard = self.lock("post");
        let state = &mut *guard;
        // An endpoint that has ended refuses by its own reason.
        if state.shutdown.is_closing() {
            return Err(RefusedPost::new(closed(), operation));
        }
        tracing::trace!(operation = ?operation.operation(), len = operation.len, "posted");
        let (is_receive, options) = (operation.is_receive(), operation.options);
        let idle = !state.machine.has_queued();
        let State {
            machine, deferred, ..
        } = state;
        let reserve = |report: &mut Report| report.reserve(&self.waker, &mut deferred.wakes);
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
        let mut cell = None;
        if state.machine.phase(key) == Some(Phase::Waiting)
            && let Some(Report::Queue { waiting, .. }) = state.machine.token_mut(key)
        {
            cell = Some(Arc::clone(waiting.insert(OpCell::new())));
        }
        self.publish_and_wake(state);
        Ok(PostedOp { key, waiting: cell })
    }

    /// What can be said of a post without the lock.
    fn check(&self, operation: &Operation<Report>, peer: Option<SocketAddr>) -> Result<()> {
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

    /// The future of an operation is dropped (ruling 4).
    pub(crate) fn withdraw(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        if state.machine.cancel(key) == Withdrawn::Gone
            && let Some(result) = cell.take()
        {
            let State {
                machine, deferred, ..
            } = &mut *state;
            give_back(machine, &mut deferred.drops, result);
        }
        self.publish_and_wake(&mut state);
    }

    /// The future that awaits the acceptance of a queued operation is dropped: the operation is
    /// cancelled if it still waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        if state.machine.phase(key) == Some(Phase::Waiting) && !cell.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Those behind it may have all they wait for.
        }
        self.publish_and_wake(&mut state);
    }

    /// Delivers what has ended, and leaves it to the driver to admit what waits for room.
    fn publish_and_wake(&self, state: &mut State) {
        if self.publish(state) && state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
    }

    /// Delivers all that has ended. True if there was anything.
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
        let mut deliver = |report: &mut Report, result: &mut OpResult| {
            let mut context = CompletionContext {
                endpoint: self.id,
                counter: counters.of(result.operation),
                stats: &mut *operations,
                sources: None,
                names_connections: false,
                sender: (result.sender_address())
                    .map(|it| SourceName::new(it, vector.find(it.into()))),
            };
            context.deliver(report, result, &mut deferred.wakes)
        };
        while let Some(undelivered) = machine.deliver_next(&mut deliver) {
            any = true;
            match undelivered {
                Undelivered::Nothing => {}
                Undelivered::Memory(payload) => deferred.drops.push(payload),
                Undelivered::Message(result) => give_back(machine, &mut deferred.drops, *result),
            }
        }
        any
    }
}

/// A datagram whose receive was dropped after it had ended is not lost.
fn give_back(machine: &mut Dgram<Report>, drops: &mut Vec<Payload>, result: OpResult) {
    let from = result.sender_address().filter(|_| result.is_message());
    if let Some(from) = from {
        machine.give_back(&result.payload, result.len, result.overflow, from);
    }
    drops.push(result.payload);
}
