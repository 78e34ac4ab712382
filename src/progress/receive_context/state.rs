//! The state guarded by the lock of a receive context, and the steps taken under the lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::buf::BufferCursor;
use crate::cq::{CompletionQueue, CqSlot};
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::id::EndpointId;
use crate::progress::deadlines::Deadlines;
use crate::progress::port::{Port, PostedOp};
use crate::progress::report::{OpRecord, Report};
use crate::proto::{
    CanceledReceive, ClearToSend, ConnectionId, OpKey, Operation, PostOptions, PostedReceive,
    SharedMatcher, SourceId, Withdrawn,
};
use crate::stats::OperationCounts;
use crate::sync::{Mutex, MutexGuard};

use super::ReceiveSelector;
use super::deferred::{DeferredDrop, DeferredWork};
use super::op_state::{ReceiveOpState, ReceiveTable};
use super::trim::TrimState;

/// A receive before it is admitted.
#[derive(Debug)]
pub(super) enum PendingReceive {
    Single(ReceiveSelector, OpRecord),
    /// The cursor has the buffer.
    Multi(ReceiveSelector, BufferCursor, OpRecord),
}

impl PendingReceive {
    /// Returns the record, with the buffer.
    pub(super) fn into_record(self) -> OpRecord {
        match self {
            PendingReceive::Single(_, record) => record,
            PendingReceive::Multi(_, cursor, mut record) => {
                record.payload = Some(cursor.into_payload());
                record
            }
        }
    }

    fn selector(&self) -> ReceiveSelector {
        match self {
            PendingReceive::Single(selector, ..) | PendingReceive::Multi(selector, ..) => *selector,
        }
    }

    pub(super) fn record(&mut self) -> &mut OpRecord {
        match self {
            PendingReceive::Single(.., record) | PendingReceive::Multi(.., record) => record,
        }
    }
}

/// A connection that shares the receives.
#[derive(Debug)]
pub(super) struct AttachedPort {
    pub(super) waker: Waker,
    /// Set for connected endpoints; a connectionless one finds its ports itself.
    pub(super) port: Weak<Port>,
    /// `None`: the peer announces no messages.
    pub(super) clear_to_send: Option<ClearToSendQueue>,
}

/// The receives matched with a connection's announcements, until its next turn. They have a lock of
/// their own, which is taken last, so that the turn of a connection without any does not contend
/// for the context's lock.
pub(super) type ClearToSendQueue = Arc<Mutex<VecDeque<ClearToSend<Report>>>>;

pub(super) fn lock_queue(
    queue: &ClearToSendQueue,
) -> MutexGuard<'_, VecDeque<ClearToSend<Report>>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn reserve_slot(driver: Option<&Waker>, queue: &CompletionQueue) -> Option<CqSlot> {
    match driver {
        Some(driver) => queue.reserve_or_wake(driver),
        None => queue.try_reserve(),
    }
}

/// Everything that the lock guards.
#[derive(Debug)]
pub(super) struct ContextState {
    pub(super) matcher: SharedMatcher<Report>,
    /// The endpoint named by completions that belong to no message.
    pub(super) endpoint: EndpointId,
    pub(super) size: usize,
    pub(super) receives: ReceiveTable,
    /// Receives that are admitted later, in order, for lack of room in the context or in a
    /// completion queue.
    pub(super) backlog: VecDeque<(OpKey, PendingReceive)>,
    /// Multi-receive buffers that lack a completion slot for their next message.
    pub(super) starved: Vec<OpKey>,
    pub(super) ports: HashMap<ConnectionId, AttachedPort>,
    pub(super) driver: Option<Waker>,
    pub(super) deadlines: Deadlines,
    pub(super) trim_state: TrimState,
    /// The reason why no receive is admitted any more.
    pub(super) closed: Option<Error>,
    /// Counts of the receives that have ended here rather than in a connection.
    pub(super) ended: OperationCounts,
}

impl ContextState {
    pub(super) fn has_room(&self) -> bool {
        self.matcher.posted_len() < self.size
    }

    /// Posts a receive: matches it with a stored message, enters it, or lets it wait in the backlog
    /// (`options.wait`). `Err`: the reason, and the receive.
    pub(super) fn post(
        &mut self,
        mut pending: PendingReceive,
        deferred: &mut DeferredWork<'_>,
    ) -> Result<PostedOp, (Error, PendingReceive)> {
        let PostOptions { wait, timeout, .. } = pending.record().options;
        // 1. Check that there is room, and reserve the slot in which the receive completes.
        if let Some(error) = self.closed.clone() {
            return Err((error, pending));
        }
        let free = self.has_room() && self.backlog.is_empty();
        let is_admitted = free && self.reserve(pending.record(), deferred);
        if !is_admitted && !wait {
            let what = match free {
                true => "the completion queue that the receive reports to is full".to_owned(),
                false => format!(
                    "the endpoint's receive context is full: {} of {} receives are posted, and {} \
                     wait; await one, or open the endpoint with a larger receive_size",
                    self.matcher.posted_len(),
                    self.size,
                    self.backlog.len()
                ),
            };
            return Err((Error::new(ErrorKind::Again, what), pending));
        }
        // 2. Enter it, and start its time limit.
        let key = self.receives.insert(ReceiveOpState::Backlogged);
        let mut waiting = None;
        if !is_admitted && let Report::Queue { .. } = pending.record().token {
            waiting = Some(pending.record().await_acceptance());
        }
        self.start_timeout(key, timeout, deferred);
        // 3. Match it with a stored message, post it, or queue it in the backlog.
        if is_admitted {
            self.admit(key, pending, deferred);
        } else {
            self.backlog.push_back((key, pending));
        }
        Ok(PostedOp { key, waiting })
    }

    /// Starts a receive's time limit; the driver keeps the time.
    pub(super) fn start_timeout(
        &mut self,
        key: OpKey,
        timeout: Option<Duration>,
        deferred: &mut DeferredWork<'_>,
    ) {
        if let Some(timeout) = timeout {
            self.deadlines.add(key, timeout, ());
            self.wake_driver(deferred);
        }
    }

    /// Returns the sender that an unmatched receive is directed at.
    pub(super) fn source_of(&self, key: OpKey) -> Option<SourceId> {
        match self.receives.get(key)? {
            ReceiveOpState::Posted(receive) | ReceiveOpState::Multi(receive, _) => {
                self.matcher.source_of(*receive)
            }
            ReceiveOpState::Backlogged => {
                let (_, pending) = self.backlog.iter().find(|(waiting, _)| *waiting == key)?;
                pending.selector().source
            }
            ReceiveOpState::Matched | ReceiveOpState::MatchedCanceled | ReceiveOpState::Claimed => {
                None
            }
        }
    }

    /// Reserves a slot of a completion queue; if there is none, the queue wakes the driver once
    /// there is.
    pub(super) fn reserve_slot(&self, queue: &CompletionQueue) -> Option<CqSlot> {
        reserve_slot(self.driver.as_ref(), queue)
    }

    /// Reserves the slot in which a receive completes; `false`: there is none now.
    pub(super) fn reserve(&self, record: &mut OpRecord, deferred: &mut DeferredWork<'_>) -> bool {
        let wakes = &mut deferred.unlocked.wakes;
        Report::reserve(record, wakes, self.driver.as_ref())
    }

    /// Admits backlogged receives in order, as far as there is room.
    fn admit_backlog(&mut self, deferred: &mut DeferredWork<'_>) {
        while self.has_room()
            && let Some((key, mut pending)) = self.backlog.pop_front()
        {
            if !self.reserve(pending.record(), deferred) {
                self.backlog.push_front((key, pending));
                return;
            }
            self.admit(key, pending, deferred);
        }
    }

    /// Hands a receive to the matcher.
    pub(super) fn admit(
        &mut self,
        key: OpKey,
        pending: PendingReceive,
        deferred: &mut DeferredWork<'_>,
    ) {
        match pending {
            PendingReceive::Single(ReceiveSelector { wanted, source }, record) => {
                let result = self.matcher.post(PostedReceive {
                    record,
                    wanted,
                    source,
                    order: 0,
                    key,
                });
                self.apply_match(key, result, deferred);
            }
            PendingReceive::Multi(selector, cursor, record) => {
                self.admit_multi(key, selector, cursor, record, deferred);
            }
        }
    }

    /// Cancels a receive that no message was matched with. A matched receive continues to its end,
    /// and is not posted again.
    pub(super) fn cancel(
        &mut self,
        key: OpKey,
        error: Error,
        deferred: &mut DeferredWork<'_>,
    ) -> Withdrawn {
        let (record, phase) = match self.receives.get(key) {
            None => return Withdrawn::Gone,
            Some(ReceiveOpState::Claimed | ReceiveOpState::MatchedCanceled) => {
                return Withdrawn::Running;
            }
            Some(ReceiveOpState::Matched) => {
                self.receives.set(key, ReceiveOpState::MatchedCanceled);
                return Withdrawn::Running;
            }
            Some(ReceiveOpState::Multi(..)) => {
                let error = error.with_operation(OperationKind::Receive);
                self.end_multi(key, Err(error), deferred);
                return Withdrawn::Ended;
            }
            Some(ReceiveOpState::Backlogged) => {
                let at = self.backlog.iter().position(|(waiting, _)| *waiting == key);
                let (_, pending) = at
                    .and_then(|at| self.backlog.remove(at))
                    .expect("a backlogged receive is in the backlog");
                let record = pending.into_record();
                if let Some(driver) = &self.driver {
                    (record.token).give_up_waiting(driver, &mut deferred.unlocked.wakes);
                }
                (record, Phase::Waiting)
            }
            Some(ReceiveOpState::Posted(receive)) => {
                let canceled = self.matcher.cancel(*receive);
                let Some(CanceledReceive::Single(record)) = canceled else {
                    unreachable!("a posted receive is with the matcher");
                };
                (record, Phase::Queued)
            }
        };
        self.receives.remove(key);
        deferred.end_unmatched(record, error, phase);
        Withdrawn::Ended
    }

    /// Separates a matched receive whose time limit has passed from its record, if no connection
    /// has begun to receive its message; returns the record, which has ended with `error`.
    pub(super) fn part_with(&mut self, key: OpKey, error: &Error) -> Option<OpRecord> {
        let part = |receive: &mut PostedReceive<Report>| {
            let record = &mut receive.record;
            let is_reported = !matches!(record.token, Report::Counted);
            record.phase = Phase::Moving;
            is_reported.then(|| Operation::part(record, Report::Counted, error.clone()))
        };
        if let Some(receive) = self.matcher.assigned_mut(key) {
            return part(receive);
        }
        let queues = self
            .ports
            .values()
            .filter_map(|port| port.clear_to_send.as_ref());
        queues.into_iter().find_map(|queue| {
            let mut queue = lock_queue(queue);
            let found = queue.iter_mut().find(|it| it.receive.key == key);
            found.and_then(|it| part(&mut it.receive))
        })
    }

    /// Follows every change: admits backlogged receives, and collects the wakers of connections
    /// that may go on.
    pub(super) fn admit_and_wake(&mut self, deferred: &mut DeferredWork<'_>) {
        self.admit_backlog(deferred);
        while let Some(connection) = self.matcher.poll_wake() {
            if let Some(port) = self.ports.get(&connection) {
                deferred.wake(port.waker.clone());
            }
        }
        if self.needs_trim_timer() {
            self.wake_driver(deferred);
        }
    }

    /// Detaches a connection: its announcements are void, and the receives matched with them are
    /// requeued.
    pub(super) fn detach(&mut self, connection: ConnectionId, deferred: &mut DeferredWork<'_>) {
        let error = || Error::new(ErrorKind::PeerClosed, "before it had sent the message");
        if let Some(receive) = self.matcher.detach(connection) {
            self.receives.remove(receive.key);
            deferred.end_unmatched(receive.record, error(), Phase::Queued);
        }
        if let Some(port) = self.ports.remove(&connection) {
            let queue = port.clear_to_send.as_ref();
            let matched = queue.map(|it| std::mem::take(&mut *lock_queue(it)));
            for ClearToSend { receive, .. } in matched.into_iter().flatten() {
                self.requeue_receive(receive, deferred, error());
            }
            (deferred.unlocked.drops).push(DeferredDrop::Port(port));
        }
    }

    pub(super) fn wake_driver(&self, deferred: &mut DeferredWork<'_>) {
        if let Some(driver) = &self.driver {
            deferred.wake(driver.clone());
        }
    }
}
