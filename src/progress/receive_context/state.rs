//! What the lock of a receive context guards, and the steps that are taken under it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use crate::buf::{BufferCursor, Payload};
use crate::cq::{CompletionQueue, CqSlot};
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::id::EndpointId;
use crate::progress::deadlines::Deadlines;
use crate::progress::port::{Port, PostedOp};
use crate::progress::report::{OpCell, Report};
use crate::proto::{
    CanceledReceive, ClearToSend, ConnectionId, OpKey, PostOptions, PostedReceive, SharedMatcher,
    SourceId, Withdrawn,
};
use crate::stats::OperationCounts;
use crate::sync::{Mutex, MutexGuard};

use super::deferred::{DeferredDrop, DeferredWork, unmatched_end};
use super::op_state::{ReceiveOpState, ReceiveTable};
use super::trim::TrimState;
use super::{ReceiveSelector, TimedReport};

/// A receive before it is admitted.
#[derive(Debug)]
pub(super) enum PendingReceive {
    Single(ReceiveSelector, Payload, Report),
    Multi(ReceiveSelector, BufferCursor, Report),
}

impl PendingReceive {
    pub(super) fn into_parts(self) -> (Payload, Report) {
        match self {
            PendingReceive::Single(_, payload, report) => (payload, report),
            PendingReceive::Multi(_, cursor, report) => (cursor.into_payload(), report),
        }
    }

    fn selector(&self) -> ReceiveSelector {
        match self {
            PendingReceive::Single(selector, ..) | PendingReceive::Multi(selector, ..) => *selector,
        }
    }

    pub(super) fn report(&mut self) -> &mut Report {
        match self {
            PendingReceive::Single(.., report) | PendingReceive::Multi(.., report) => report,
        }
    }
}

/// A connection that shares the receives.
#[derive(Debug)]
pub(super) struct AttachedPort {
    pub(super) waker: Waker,
    /// Of connected endpoints: a connectionless one finds its ports itself.
    pub(super) port: Weak<Port>,
    /// `None`: its peer announces nothing.
    pub(super) clear_to_send: Option<ClearToSendQueue>,
}

/// The receives that were matched with a connection's announcements, until its next turn. They have
/// a lock of their own, which is taken last, so that the turn of a connection without any does not
/// contend for the context's lock.
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
    /// The endpoint that completions name which are of no message.
    pub(super) endpoint: EndpointId,
    pub(super) size: usize,
    pub(super) receives: ReceiveTable,
    /// Admitted later, in order, for lack of room in the context or in a completion queue.
    pub(super) backlog: VecDeque<(OpKey, PendingReceive)>,
    /// Multi-receive buffers that lack a completion slot for their next message.
    pub(super) starved: Vec<OpKey>,
    pub(super) ports: HashMap<ConnectionId, AttachedPort>,
    pub(super) driver: Option<Waker>,
    pub(super) deadlines: Deadlines<Arc<TimedReport>>,
    pub(super) trim_state: TrimState,
    /// Why no receive is admitted any more.
    pub(super) closed: Option<Error>,
    /// Receives that have ended here, and not in a connection.
    pub(super) ended: OperationCounts,
}

impl ContextState {
    pub(super) fn has_room(&self) -> bool {
        self.matcher.posted_len() < self.size
    }

    /// Posts a receive: matches it with a stored message, enters it, or lets it wait in the backlog
    /// (`options.wait`). `Err`: why not, and the receive.
    pub(super) fn post(
        &mut self,
        mut pending: PendingReceive,
        options: PostOptions,
        deferred: &mut DeferredWork<'_>,
    ) -> Result<PostedOp, (Error, PendingReceive)> {
        // 1. Check that there is room, and reserve where the receive completes.
        if let Some(error) = self.closed.clone() {
            return Err((error, pending));
        }
        let free = self.has_room() && self.backlog.is_empty();
        let is_admitted = free && self.reserve(pending.report(), deferred);
        if !is_admitted && !options.wait {
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
        if !is_admitted && let Report::Queue { waiting: cell, .. } = pending.report() {
            waiting = Some(Arc::clone(cell.insert(OpCell::new())));
        }
        self.start_timeout(key, pending.report(), options.timeout, deferred);
        // 3. Match it with a stored message, post it, or queue it in the backlog.
        if is_admitted {
            self.admit(key, pending, deferred);
        } else {
            self.backlog.push_back((key, pending));
        }
        Ok(PostedOp { key, waiting })
    }

    /// Ends a receive when this has passed; the driver keeps the time.
    pub(super) fn start_timeout(
        &mut self,
        key: OpKey,
        report: &mut Report,
        timeout: Option<Duration>,
        deferred: &mut DeferredWork<'_>,
    ) {
        let Some(timeout) = timeout else {
            return;
        };
        let timed = TimedReport::new(std::mem::replace(report, Report::Nowhere));
        self.deadlines.add(key, timeout, Arc::clone(&timed));
        *report = Report::Timed(timed);
        self.wake_driver(deferred);
    }

    /// The sender that an unmatched receive is directed at.
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

    /// Reserves the slot in which a receive is completed; `false`: there is none now.
    pub(super) fn reserve(&self, report: &mut Report, deferred: &mut DeferredWork<'_>) -> bool {
        match report {
            Report::Queue {
                queue,
                slot: slot @ None,
                waiting,
                ..
            } => {
                *slot = self.reserve_slot(queue);
                if slot.is_none() {
                    return false;
                }
                if let Some(cell) = waiting.take() {
                    cell.accept(&mut deferred.unlocked.wakes);
                }
                true
            }
            Report::Timed(timed) => timed
                .with(|report| self.reserve(report, deferred))
                .unwrap_or(true),
            _ => true,
        }
    }

    /// Admits backlogged receives in order, as far as there is room.
    fn admit_backlog(&mut self, deferred: &mut DeferredWork<'_>) {
        while self.has_room()
            && let Some((key, mut pending)) = self.backlog.pop_front()
        {
            if !self.reserve(pending.report(), deferred) {
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
            PendingReceive::Single(ReceiveSelector { wanted, source }, payload, token) => {
                let result = self.matcher.post(PostedReceive {
                    token,
                    payload,
                    wanted,
                    source,
                    order: 0,
                    key,
                });
                self.apply_match(key, result, deferred);
            }
            PendingReceive::Multi(selector, cursor, report) => {
                self.admit_multi(key, selector, cursor, report, deferred);
            }
        }
    }

    /// Ends a receive that no message was matched with. A matched one runs on to its end, and is
    /// not posted again.
    pub(super) fn cancel(
        &mut self,
        key: OpKey,
        error: Error,
        deferred: &mut DeferredWork<'_>,
    ) -> Withdrawn {
        let (payload, report, phase) = match self.receives.get(key) {
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
                let (payload, report) = pending.into_parts();
                (payload, report, Phase::Waiting)
            }
            Some(ReceiveOpState::Posted(receive)) => {
                let canceled = self.matcher.cancel(*receive);
                let Some(CanceledReceive::Single(payload, report)) = canceled else {
                    unreachable!("a posted receive is with the matcher");
                };
                (payload, report, Phase::Queued)
            }
        };
        self.receives.remove(key);
        let end = unmatched_end(payload, error, phase);
        deferred.completions.push((report, end));
        Withdrawn::Ended
    }

    /// What follows every change: admits backlogged receives, and collects the wakers of the
    /// connections that may go on.
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
            let end = unmatched_end(receive.payload, error(), Phase::Queued);
            deferred.completions.push((receive.token, end));
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
