//! Receives shared by connections: those of a connectionless endpoint, or of connected endpoints
//! that were opened with a shared receive context ([`shared`]).
//!
//! A posted receive stays here until a message is matched with it ([`op_state`] has the drawing). A
//! stored message completes it at once; otherwise the connection that brings the message takes the
//! receive over as an operation of its own, and completes it. [`SharedMatcher`] decides which
//! message goes to which receive; the context adds the lock around it, the backlog of receives that
//! wait for room, and the completion slots, deadlines and wakers of receives.
//!
//! Messages of one sender are reported in the order in which it sent them. Stored messages are
//! reported under the lock, and a connection stores a message only after it has reported the
//! earlier ones ([`port`]). Waking tasks and dropping the user's memory is [`deferred`] until the
//! lock is released. The lock is taken after a port's, and before those of completion queues.

#![allow(
    clippy::result_large_err,
    reason = "a receive that is not taken goes back whole, and by no allocation"
)]

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
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use crate::buf::{BufferCursor, Payload};
use crate::cntr::Counter;
use crate::cq::Sources;
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::EndpointId;
use crate::proto::{
    ClaimKey, ConnIds, ConnectionId, LongMessages, MatchCriteria, OpKey, SharedMatcher, SourceId,
    UnexpectedBudget, Withdrawn,
};
use crate::stats::{OperationCounts, ReceiveContextStats, ReceiveStats};
use crate::sync::{Lock, MutexGuard};

use super::deadlines::Deadlines;
use super::port::{Port, PostedOp};
use super::rdm::SourceAddresses;
use super::report::{AwaitedOp, OpRecord};
pub(super) use deferred::message_of;
use deferred::{DeferredWork, UnlockedWork};
pub(crate) use multi::MultiReceive;
use op_state::{ReceiveOpState, ReceiveTable};
pub(super) use port::PortReceives;
pub(crate) use shared::{SharedContext, SharedContextConfig};
use state::{AttachedPort, ClearToSendQueue, ContextState, PendingReceive};
use trim::TrimState;

/// Configuration of a receive context.
#[derive(Clone)]
pub(crate) struct ReceiveConfig {
    /// The endpoint that completions name, unless `names_connections` is set.
    pub(crate) endpoint: EndpointId,
    /// True if completions of messages name the connection's endpoint instead: connections are
    /// numbered by their endpoints.
    pub(crate) names_connections: bool,
    /// Number of receives that may be posted at a time.
    pub(crate) size: usize,
    /// Bytes of unexpected messages that are stored at most, of all peers together.
    pub(crate) unexpected_bytes: usize,
    /// Bytes of unexpected messages that are stored at most, of one peer.
    pub(crate) unexpected_bytes_per_peer: usize,
    /// The addresses of senders.
    pub(crate) addresses: Arc<SourceAddresses>,
    /// Counts receives.
    pub(crate) counter: Option<Counter>,
    /// Names the senders in completions, if they are to be named (`FI_SOURCE`).
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

    /// Registers the waker that asks for a call of [`ReceiveContext::expire`] earlier than the time
    /// that it returned last. To be called before `expire`.
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
        self.post_any(PendingReceive::Single(selector, record))
    }

    /// Posts a multi-receive buffer: it takes one message after the other until fewer than
    /// `free_min` bytes are left (`FI_MULTI_RECV`). Each message is a completion of the context's
    /// queue; a last one, with the flag alone, follows when the buffer is released.
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
        self.post_any(PendingReceive::Multi(selector, cursor, record))
    }

    fn post_any(&self, pending: PendingReceive) -> Result<PostedOp, (Error, Payload)> {
        let posted = self.with_state("post", |state, deferred| state.post(pending, deferred));
        posted.map_err(|(error, refused)| {
            let error = error.with_operation(OperationKind::Receive);
            (error, refused.into_record().take_payload())
        })
    }

    /// Returns the phase of a receive that has not completed.
    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        match self.lock("phase").receives.get(key) {
            Some(ReceiveOpState::Backlogged) => Phase::Waiting,
            Some(ReceiveOpState::Posted(_) | ReceiveOpState::Multi(..)) => Phase::Queued,
            Some(
                ReceiveOpState::Matched | ReceiveOpState::MatchedCanceled | ReceiveOpState::Claimed,
            )
            | None => Phase::Moving,
        }
    }

    /// Cancels a receive that no message was matched with. A matched receive continues, and is not
    /// posted again if its message does not come.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        self.with_state("cancel", |state, deferred| {
            state.cancel(key, Error::new(ErrorKind::Canceled, ""), deferred)
        })
    }

    /// Withdraws a receive whose future is dropped (ruling 4): cancels the receive, or requeues its
    /// message.
    ///
    /// Returns true if a connection has the receive: the caller then detaches it there, and the
    /// message is requeued once it is complete.
    pub(crate) fn withdraw(&self, key: OpKey, awaited: AwaitedOp) -> bool {
        let Some(op) = awaited.abandon() else {
            return self.cancel(key) != Withdrawn::Ended;
        };
        if op.is_message_received()
            && let Some(message) = message_of(&op)
        {
            self.with_state("requeue a message", |state, deferred| {
                state.requeue_message(message, deferred)
            });
        }
        false
    }

    /// Withdraws a queued receive, whose acceptance is no longer awaited since that future is
    /// dropped: cancels the receive if it is still in the backlog.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
        self.with_state("withdraw", |state, deferred| {
            if let Some(ReceiveOpState::Backlogged) = state.receives.get(key)
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
            let waiting = state.backlog.iter_mut().map(|(_, it)| &*it.record());
            let records = state.matcher.posted_records().chain(waiting);
            records.for_each(|record| record.wake(wakes));
        });
    }

    /// Ends receives whose time limit has passed, and retries buffers that lack completion slots.
    /// Returns when to be called next, if not woken before.
    ///
    /// `detach` detaches a receive from its record at the connection that has the receive, in one
    /// step, and returns the record, which has ended with this error. Called with no lock held.
    pub(crate) fn expire(
        &self,
        now: Instant,
        detach: impl Fn(OpKey, &Error) -> Option<OpRecord>,
    ) -> Option<Instant> {
        let (receiving, next) = self.with_state("expire", |state, deferred| {
            let mut receiving = Vec::new();
            let ContextState {
                deadlines,
                receives,
                ..
            } = state;
            deadlines.start(now, |key, ()| receives.get(key).is_some());
            while let Some((key, ())) = state.deadlines.pop_due(now) {
                let peer = (state.source_of(key)).and_then(|it| self.config.addresses.get(it));
                let error = timed_out(peer.map(|peer| peer.socket));
                if state.cancel(key, error.clone(), deferred) != Withdrawn::Running {
                    continue;
                }
                // A message was matched with it: it ends without that message.
                match state.part_with(key, &error) {
                    Some(record) => deferred.completions.push(record),
                    None => receiving.push((key, error)),
                }
            }
            state.rearm_starved(deferred);
            let next = [state.deadlines.first(), state.trim_when_quiet(now)];
            (receiving, next)
        });
        for (key, error) in receiving {
            // The message is being received, and is requeued once it is complete.
            if let Some(record) = detach(key, &error) {
                self.with_state("time out", |_, deferred| {
                    deferred.completions.push(record);
                });
            }
        }
        next.into_iter().flatten().min()
    }

    /// Attaches a connection; returns its view of the receives, and the number of bytes of the
    /// store that it is promised. `waker` is woken when the connection may read on, owes credit, or
    /// must ask for announced messages, if its peer announces `long` ones.
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
            port: Weak::new(),
            clear_to_send: clear_to_send.clone(),
        };
        state.ports.insert(connection, port);
        let promised = state.matcher.attach(connection, source);
        drop(state);
        let receives = PortReceives::new(Arc::clone(self), ids, clear_to_send);
        (receives, promised)
    }

    /// Sets the port of an attached connection, which is asked for receives that it has.
    fn set_port(&self, connection: ConnectionId, port: &Arc<Port>) {
        let mut state = self.lock("set a port");
        if let Some(attached) = state.ports.get_mut(&connection) {
            attached.port = Arc::downgrade(port);
        }
    }

    /// Returns the ports that were [set](Self::set_port).
    fn ports(&self) -> Vec<Arc<Port>> {
        let state = self.lock("find ports");
        (state.ports.values())
            .filter_map(|attached| attached.port.upgrade())
            .collect()
    }

    /// Closes the context: ends all receives with this error, and drops all messages. Later posts
    /// are refused with it too.
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
    /// receives that have ended here rather than in a connection.
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

/// Makes the error of a receive whose time limit has passed, with its peer if that is known.
fn timed_out(peer: Option<SocketAddr>) -> Error {
    let error = Error::new(ErrorKind::TimedOut, "");
    match peer {
        Some(peer) => error.with_peer(peer),
        None => error,
    }
}

debug_fields!(ReceiveContext, self => endpoint: self.config.endpoint);
