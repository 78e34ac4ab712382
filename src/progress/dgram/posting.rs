//! Posting to a datagram endpoint, and taking back what was posted.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::av::AddressVector;
use crate::buf::Payload;
use crate::cq::SourceName;
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::progress::Posted;
use crate::progress::budget::Budget;
use crate::progress::publish::{CompletionContext, Undelivered};
use crate::progress::report::{OpCell, Report};
use crate::proto::{DgramPost, End, OpKey, PostOptions, Withdrawn};
use crate::transport::{DATAGRAMS_PER_CALL, too_long};

use super::{DgramPort, State, closed};

impl DgramPort {
    /// Posts an operation. The first send since the driver ran is sent within this call; others
    /// are gathered, until one call takes them all (ruling 5).
    pub(crate) fn post(
        &self,
        post: DgramPost,
        report: Report,
        options: PostOptions,
    ) -> Result<Posted, (Error, Payload)> {
        if let Err(error) = self.check(&post) {
            let error = error.with_operation(post.operation());
            return Err((error, post.into_payload()));
        }
        let mut guard = self.lock("post");
        let state = &mut *guard;
        // One that has ended has its own reason to tell.
        if state.closing && !state.end.has_ended() {
            let error = closed().with_operation(post.operation());
            return Err((error, post.into_payload()));
        }
        let is_receive = post.operation() == OperationKind::Receive;
        let idle = !state.machine.has_queued();
        let State { machine, wakes, .. } = state;
        let key = machine.post(post, report, options.wait, |report| {
            report.reserve(&self.waker, wakes)
        })?;
        if let Some(timeout) = options.timeout {
            state.deadlines.add(key, timeout);
            self.waker.wake_by_ref();
        }
        if is_receive {
            // What has come is kept already, and a readable socket wakes the driver.
        } else if idle && !state.inline_spent && !options.more {
            state.inline_spent = true;
            self.transmit(state, &mut Budget::of_call());
        } else if state.machine.queued() >= DATAGRAMS_PER_CALL {
            self.transmit(state, &mut Budget::of_call());
        } else {
            self.waker.wake_by_ref();
        }
        let mut cell = None;
        if state.machine.phase(key) == Some(Phase::Waiting)
            && let Some(Report::Queue { waiting, .. }) = state.machine.token_mut(key)
        {
            cell = Some(Arc::clone(waiting.insert(OpCell::new())));
        }
        self.settle(state);
        Ok(Posted { key, waiting: cell })
    }

    /// What can be said of a post without the lock.
    fn check(&self, post: &DgramPost) -> Result<()> {
        let peer = match post {
            DgramPost::Send { payload, .. } if payload.len() > self.message_max => {
                return Err(too_long(payload.len(), self.message_max));
            }
            DgramPost::Send { to, .. } => Some(*to),
            DgramPost::Receive { from, .. } => *from,
        };
        match peer {
            Some(peer) if peer.is_ipv4() != self.local.is_ipv4() => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{peer} is of another family than {}", self.local),
            )),
            _ => Ok(()),
        }
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.settle(&mut state);
        withdrawn
    }

    /// The future of an operation is dropped (ruling 4).
    pub(crate) fn withdraw(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        if state.machine.cancel(key) == Withdrawn::Gone
            && let Some(end) = cell.take()
        {
            give_back(&mut state, end);
        }
        self.settle(&mut state);
    }

    /// Whoever waited for the acceptance of a queued operation goes away: it is withdrawn if it
    /// still waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        if state.machine.phase(key) == Some(Phase::Waiting) && !cell.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Those behind it may have all they wait for.
        }
        self.settle(&mut state);
    }

    /// Tells of what has ended, and leaves to the driver to let others in.
    fn settle(&self, state: &mut State) {
        if self.publish(state) && state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
    }

    /// Tells of all that has ended. True if there was anything.
    pub(super) fn publish(&self, state: &mut State) -> bool {
        let mut any = false;
        while let Some((mut report, mut end)) = state.machine.poll_ended() {
            any = true;
            let completion_context = CompletionContext {
                endpoint: self.id,
                counter: state.counters.of(end.operation),
                sources: None,
                sender: end.from.map(|from| name_of(&state.vector, from)),
            };
            match completion_context.deliver(&mut report, &mut end, &mut state.wakes) {
                Undelivered::Nothing => {}
                Undelivered::Memory => state.leftovers.push(end.payload),
                Undelivered::Message => give_back(state, end),
            }
        }
        any
    }
}

/// What is known of the sender of a datagram.
pub(crate) fn name_of(vector: &AddressVector, from: SocketAddr) -> SourceName {
    let found = vector.find(from);
    SourceName {
        address: Some(from),
        fabric: found.map(|(addr, _)| addr),
        user_id: found.and_then(|(_, user_id)| user_id),
    }
}

/// A datagram whose receive was dropped after it had ended is not lost.
fn give_back(state: &mut State, end: End) {
    let End {
        result,
        len,
        overflow,
        from,
        payload,
        ..
    } = end;
    let arrived = result.map_or_else(|error| error.kind() == ErrorKind::Truncated, |()| true);
    match from.filter(|_| arrived) {
        Some(from) => state.machine.give_back(payload, len, overflow, from),
        None => state.leftovers.push(payload),
    }
}
