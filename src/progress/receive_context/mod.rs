//! Receives shared by connections: those of a connectionless endpoint, or of endpoints that were
//! opened with a shared receive context ([`shared`]).
//!
//! The record of a receive stays here from its post to its end ([`op_state`] has the drawing). A
//! stored message completes the receive at once; otherwise the connection that brings the message
//! borrows the receive's buffer, and reports when the message is in it. [`SharedMatcher`] decides
//! which message goes to which receive; the context adds the lock around it, the backlog of
//! receives that wait for room, and the completion slots, deadlines and wakers of receives.
//!
//! Messages of one sender are reported in the order of its sends, since all are reported under the
//! lock. Waking tasks and dropping the user's memory is [`deferred`] until the lock is released.
//! The lock is taken after a port's, and before those of completion queues.

mod claims;
mod deferred;
#[cfg(loom)]
pub(super) mod models;
mod multi;
mod op_state;
mod port;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod trim;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::buf::{BufferCursor, Payload};
use crate::cntr::Counter;
use crate::cq::Sources;
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::EndpointId;
use crate::proto::{
    ClaimKey, ConnIds, LongMessages, MatchCriteria, OpKey, ReceivedMessage, SharedMatcher,
    SourceId, UnexpectedBudget, Withdrawn,
};
use crate::stats::{OperationCounts, ReceiveContextStats, ReceiveStats};
use crate::sync::{Lock, MutexGuard};

use super::deadlines::Deadlines;
use super::port::PostedOp;
use super::rdm::SourceAddresses;
use super::report::{AwaitedOp, OpRecord};
use deferred::{DeferredWork, UnlockedWork};
pub(crate) use multi::MultiReceive;
use op_state::{ReceiveOpState, ReceiveTable};
pub(super) use port::PortReceives;
pub(crate) use shared::{SharedContext, SharedContextConfig};
use state::{AttachedPort, ClearToSendQueue, ContextState};
use trim::TrimState;

#[derive(Clone)]
pub(crate) struct ReceiveConfig {
    /// The endpoint, or the context that endpoints share. Completions of messages name the endpoint
    /// of the connection.
    pub(crate) endpoint: EndpointId,
    /// Number of receives that may be posted at a time.
    pub(crate) size: usize,
    /// Maximum number of stored bytes of unexpected messages, of all peers together.
    pub(crate) unexpected_bytes: usize,
    /// Maximum number of stored bytes of unexpected messages, of one peer.
    pub(crate) unexpected_bytes_per_peer: usize,
    /// The addresses of senders.
    pub(crate) addresses: Arc<SourceAddresses>,
    /// Counts receives.
    pub(crate) counter: Option<Counter>,
    /// Names the senders in completions (`FI_SOURCE`); `None`: completions name no senders.
    pub(crate) sources: Option<Arc<dyn Sources>>,
}

/// The messages that a receive takes, or that a peek or a claim looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveSelector {
    pub(crate) wanted: MatchCriteria,
    pub(crate) source: Option<SourceId>,
}

/// Identifier of a claimed message within its context (`FI_CLAIM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimId(ClaimKey);

/// Receives that connections share.
pub(crate) struct ReceiveContext {
    config: ReceiveConfig,
    state: Lock<ContextState>,
}

impl ReceiveContext {
    pub(crate) fn new(config: ReceiveConfig) -> Arc<Self> {
        let budget = UnexpectedBudget {
            total_bytes: config.unexpected_bytes as u64,
            peer_bytes: config.unexpected_bytes_per_peer as u64,
        };
        let state = ContextState {
            matcher: SharedMatcher::new(budget),
            endpoint: config.endpoint,
            size: config.size,
            receives: ReceiveTable::new(),
            backlog: VecDeque::new(),
            starved: Vec::new(),
            ports: HashMap::new(),
            driver: None,
            deadlines: Deadlines::default(),
            trim_state: TrimState::default(),
            closed: None,
            ended: OperationCounts::default(),
        };
        Arc::new(ReceiveContext {
            state: Lock::new(state),
            config,
        })
    }

    /// Registers the waker that is woken when [`ReceiveContext::expire`] must be called before the
    /// time that it last returned. Must be called before `expire`.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut state = self.lock("waker");
        if (state.driver.as_ref()).is_some_and(|driver| driver.will_wake(waker)) {
            return;
        }
        let before = state.driver.replace(waker.clone());
        drop(state);
        drop(before);
    }

    /// Posts a receive. If the context or the completion queue is full, the receive joins the
    /// backlog (`options.wait`), or is refused with Again. A matching stored message completes it
    /// at once.
    pub(crate) fn post(
        &self,
        selector: ReceiveSelector,
        record: OpRecord,
    ) -> Result<PostedOp, (Error, Payload)> {
        tracing::trace!(operation = ?OperationKind::Receive, len = record.len, "posted");
        self.post_any(selector, record, None)
    }

    /// Posts a multi-receive buffer: it takes one message after the other until fewer than
    /// `free_min` bytes are left (`FI_MULTI_RECV`). Each message makes a completion in the queue; a
    /// last one, with the flag alone, follows when the buffer is released.
    ///
    /// Refuses a list of buffers, and a `free_min` of 0.
    pub(crate) fn post_multi(
        &self,
        selector: ReceiveSelector,
        mut record: OpRecord,
        free_min: usize,
    ) -> Result<PostedOp, (Error, Payload)> {
        tracing::trace!(operation = ?OperationKind::Receive, len = record.len, "posted");
        let payload = record.take_payload();
        if free_min == 0 {
            let message = "min_free is 0: the buffer would never be released";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err((error.with_operation(OperationKind::Receive), payload));
        }
        let cursor = BufferCursor::new(payload, free_min).map_err(|payload| {
            let message = "a buffer for several messages is one buffer, or one slice of a region";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            (error.with_operation(OperationKind::Receive), payload)
        })?;
        self.post_any(selector, record, Some(cursor))
    }

    fn post_any(
        &self,
        selector: ReceiveSelector,
        record: OpRecord,
        cursor: Option<BufferCursor>,
    ) -> Result<PostedOp, (Error, Payload)> {
        let posted = self.with_state("post", |state, deferred| {
            state.post(selector, record, cursor, deferred)
        });
        posted.map_err(|(error, mut record, cursor)| {
            let error = error.with_operation(OperationKind::Receive);
            let payload = cursor.map(BufferCursor::into_payload);
            (error, payload.unwrap_or_else(|| record.take_payload()))
        })
    }

    /// Returns the phase of a receive that has not completed.
    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        match self.lock("phase").receives.state(key) {
            Some(ReceiveOpState::Backlogged(..)) => Phase::Waiting,
            Some(ReceiveOpState::Posted(_) | ReceiveOpState::Multi(_)) => Phase::Queued,
            _ => Phase::Moving,
        }
    }

    /// Cancels a receive that no message was matched with. A matched receive continues, and is not
    /// posted again if its message does not come.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        self.with_state("cancel", |state, deferred| {
            state.cancel(key, Error::new(ErrorKind::Canceled, ""), deferred)
        })
    }

    /// Withdraws a receive whose future is dropped (ruling 4): cancels the receive, or, if it is
    /// complete, requeues its message.
    pub(crate) fn withdraw(&self, key: OpKey, awaited: AwaitedOp) {
        let Some(op) = awaited.abandon() else {
            return self.with_state("withdraw", |state, deferred| {
                let canceled = Error::new(ErrorKind::Canceled, "");
                if state.cancel(key, canceled, deferred) == Withdrawn::Running
                    && let Some(record) = state.receives.record_mut(key)
                {
                    record.detached = true;
                }
            });
        };
        if op.is_message_received()
            && let Some(message) = ReceivedMessage::of_receive(&op)
        {
            self.with_state("requeue a message", |state, deferred| {
                state.requeue_message(message, deferred)
            });
        }
    }

    /// Cancels a receive if it is still in the backlog. Called when the future of its acceptance is
    /// dropped.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
        self.with_state("withdraw", |state, deferred| {
            if let Some(ReceiveOpState::Backlogged(..)) = state.receives.state(key)
                && !awaited.has_ended()
            {
                state.cancel(key, Error::new(ErrorKind::Canceled, ""), deferred);
            }
        });
    }

    /// Wakes the futures of receives that wait for a message, or for room.
    pub(crate) fn wake_awaited(&self) {
        self.with_state("wake those who wait", |state, deferred| {
            let wakes = &mut deferred.unlocked.wakes;
            state.receives.waiting().for_each(|it| it.wake(wakes));
        });
    }

    /// Ends receives whose time limit has passed, and retries buffers that lack completion slots.
    /// Returns the time of the next call, unless the waker is woken before. If a receive ends while
    /// its message is being received, the message goes to the next receive.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        self.with_state("expire", |state, deferred| {
            let ContextState {
                deadlines,
                receives,
                ..
            } = state;
            deadlines.start(now, |key, ()| receives.state(key).is_some());
            while let Some((key, ())) = state.deadlines.pop_due(now) {
                let error = Error::new(ErrorKind::TimedOut, "");
                let error = match state.peer_of(key, &self.config.addresses) {
                    Some(peer) => error.with_peer(peer),
                    None => error,
                };
                if state.cancel(key, error.clone(), deferred) == Withdrawn::Running {
                    state.part_with(key, error, deferred);
                }
            }
            state.rearm_starved(deferred);
            let next = [state.deadlines.first(), state.trim_when_quiet(now)];
            next.into_iter().flatten().min()
        })
    }

    /// Attaches a connection; returns its view of the receives, and the number of bytes of the
    /// store promised to the connection. `waker` is woken when the connection may read on, owes
    /// credit, or must ask for announced messages, if its peer announces `long` ones.
    pub(super) fn attach(
        self: &Arc<Self>,
        ids: ConnIds,
        long: LongMessages,
        waker: &Waker,
    ) -> (PortReceives, u64) {
        let mut state = self.lock("attach");
        let ConnIds { source, connection } = ids;
        let clear_to_send = match long {
            LongMessages::Announced { .. } => Some(ClearToSendQueue::default()),
            LongMessages::Refused { .. } => None,
        };
        let port = AttachedPort {
            waker: waker.clone(),
            peer: None,
            clear_to_send: clear_to_send.clone(),
            ended: OperationCounts::default(),
        };
        state.ports.insert(connection, port);
        let promised = state.matcher.attach(connection, source);
        drop(state);
        let receives = PortReceives::new(Arc::clone(self), ids, clear_to_send);
        (receives, promised)
    }

    /// Closes the context: ends all receives and refuses later posts with this error, and drops all
    /// messages.
    pub(crate) fn close(&self, error: Error) {
        self.with_state("close", |state, deferred| {
            if state.closed.is_none() {
                state.closed = Some(error.clone());
            }
            for key in state.receives.keys_by_age() {
                state.cancel(key, error.clone(), deferred);
            }
            for message in state.matcher.drain() {
                deferred.drop_memory(message.payload);
            }
        });
    }

    /// Returns the bytes of stored unexpected messages, each with its overhead.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").matcher.held_bytes() as usize
    }

    /// Returns statistics: the posted receives, the messages that wait for receives, and the
    /// receives that have ended, except those that connections count.
    pub(crate) fn stats(&self) -> ReceiveContextStats {
        let state = self.lock("stats");
        let receives = ReceiveStats {
            posted: state.matcher.posted_len(),
            waiting: state.backlog.len(),
            unexpected_messages: state.matcher.held_messages(),
            unexpected_bytes: state.matcher.held_bytes() as usize,
        };
        ReceiveContextStats {
            receives,
            ended: state.ended,
        }
    }

    /// Takes a step under the lock, then carries out what it deferred.
    fn with_state<R>(
        &self,
        purpose: &'static str,
        step: impl FnOnce(&mut ContextState, &mut DeferredWork<'_>) -> R,
    ) -> R {
        self.take_step(purpose, &mut UnlockedWork::default(), step)
    }

    /// Takes a step under the lock; what must be dropped with no lock held is added to `unlocked`.
    fn take_step<R>(
        &self,
        purpose: &'static str,
        unlocked: &mut UnlockedWork,
        step: impl FnOnce(&mut ContextState, &mut DeferredWork<'_>) -> R,
    ) -> R {
        let mut deferred = DeferredWork::new(unlocked);
        let mut state = self.lock(purpose);
        let result = step(&mut state, &mut deferred);
        state.admit_and_wake(&mut deferred);
        self.complete_all(&mut state, &mut deferred);
        result
    }

    fn lock(&self, purpose: &'static str) -> MutexGuard<'_, ContextState> {
        self.state.lock(purpose)
    }
}

debug_fields!(ReceiveContext, self => endpoint: self.config.endpoint);
