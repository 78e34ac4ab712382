//! The state guarded by the lock of a receive context, and the steps taken under the lock.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::buf::BufferCursor;
use crate::cq::{CompletionQueue, CqSlot};
use crate::error::{Error, ErrorKind, OperationKind, Phase};
use crate::id::EndpointId;
use crate::progress::deadlines::Deadlines;
use crate::progress::port::PostedOp;
use crate::progress::rdm::SourceAddresses;
use crate::progress::report::{OpRecord, Report};
use crate::proto::{
    ClearToSend, ConnectionId, OpKey, Operation, PostOptions, PostedReceive, SharedMatcher,
    Withdrawn,
};
use crate::stats::OperationCounts;
use crate::sync::{Mutex, MutexGuard};

use super::ReceiveSelector;
use super::deferred::{DeferredDrop, DeferredWork};
use super::op_state::{ReceiveEntry, ReceiveOpState, ReceiveTable};
use super::trim::TrimState;

/// A connection that shares the receives.
#[derive(Debug)]
pub(super) struct AttachedPort {
    pub(super) waker: Waker,
    /// The peer's address, which errors name; set once the port is connected.
    pub(super) peer: Option<SocketAddr>,
    /// `None`: the peer announces no messages.
    pub(super) clear_to_send: Option<ClearToSendQueue>,
    /// Counts the receives that have got its messages.
    pub(super) ended: OperationCounts,
}

/// The receives matched with a connection's announcements, until its next turn. They have a lock of
/// their own, which is taken last, so that the turn of a connection without any does not contend
/// for the context's lock.
pub(super) type ClearToSendQueue = Arc<Mutex<VecDeque<ClearToSend>>>;

pub(super) fn lock_queue(queue: &ClearToSendQueue) -> MutexGuard<'_, VecDeque<ClearToSend>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn reserve_slot(driver: Option<&Waker>, queue: &CompletionQueue) -> Option<CqSlot> {
    match driver {
        Some(driver) => queue.reserve_or_wake(driver),
        None => queue.try_reserve(),
    }
}

/// Reserves the slot in which a receive completes. Returns false if there is no slot now.
pub(super) fn reserve(
    driver: Option<&Waker>,
    record: &mut OpRecord,
    deferred: &mut DeferredWork<'_>,
) -> bool {
    Report::reserve(record, &mut deferred.unlocked.wakes, driver)
}

/// Everything that the lock guards.
#[derive(Debug)]
pub(super) struct ContextState {
    pub(super) matcher: SharedMatcher,
    /// The endpoint named by completions that belong to no message.
    pub(super) endpoint: EndpointId,
    pub(super) size: usize,
    pub(super) receives: ReceiveTable,
    /// Receives that wait for room in the context or in a completion queue, in the order of their
    /// posts.
    pub(super) backlog: VecDeque<OpKey>,
    /// Multi-receive buffers that lack a completion slot for their next message.
    pub(super) starved: Vec<OpKey>,
    pub(super) ports: HashMap<ConnectionId, AttachedPort>,
    pub(super) driver: Option<Waker>,
    pub(super) deadlines: Deadlines,
    pub(super) trim_state: TrimState,
    /// The reason why no receive is admitted any more.
    pub(super) closed: Option<Error>,
    /// Counts the receives that have ended without a message, or with a message of a detached
    /// connection.
    pub(super) ended: OperationCounts,
}

impl ContextState {
    pub(super) fn has_room(&self) -> bool {
        self.matcher.posted_len() < self.size
    }

    /// Posts a receive, or, with a cursor, a multi-receive buffer: matches it with a stored
    /// message, enters it, or lets it wait in the backlog (`options.wait`). `Err`: the reason, and
    /// the receive.
    pub(super) fn post(
        &mut self,
        selector: ReceiveSelector,
        mut record: OpRecord,
        cursor: Option<BufferCursor>,
        deferred: &mut DeferredWork<'_>,
    ) -> Result<PostedOp, (Error, OpRecord, Option<BufferCursor>)> {
        let PostOptions { wait, timeout, .. } = record.options;
        // 1. Check that there is room, and reserve the slot in which the receive completes.
        if let Some(error) = self.closed.clone() {
            return Err((error, record, cursor));
        }
        let free = self.has_room() && self.backlog.is_empty();
        let is_admitted = free && reserve(self.driver.as_ref(), &mut record, deferred);
        if !is_admitted && !wait {
            let what = match free {
                true => "the completion queue that the receive reports to is full".to_owned(),
                false => format!(
                    "the endpoint's receive context is full: {} of {} receives are posted, and {} \
                     wait; await one, or open the endpoint with a larger receive_size (a shared \
                     context: size)",
                    self.matcher.posted_len(),
                    self.size,
                    self.backlog.len()
                ),
            };
            return Err((Error::new(ErrorKind::Again, what), record, cursor));
        }
        // 2. Enter it, and start its time limit.
        let mut waiting = None;
        if !is_admitted && let Report::Queue { .. } = record.token {
            waiting = Some(record.await_acceptance());
        }
        let state = ReceiveOpState::Backlogged(selector, cursor);
        let key = self.receives.insert(record, state);
        self.start_timeout(key, timeout, deferred);
        // 3. Match it with a stored message, post it, or queue it in the backlog.
        if is_admitted {
            self.admit(key, deferred);
        } else {
            self.backlog.push_back(key);
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

    /// Returns the address of the peer that a receive waits for: the sender of its message, or the
    /// only peer from which it receives.
    pub(super) fn peer_of(&self, key: OpKey, addresses: &SourceAddresses) -> Option<SocketAddr> {
        let receive = self.receives.get(key)?;
        let source = match &receive.state {
            ReceiveOpState::Posted(receive) => self.matcher.source_of(*receive),
            ReceiveOpState::Multi(buffer) => self.matcher.source_of(buffer.receive),
            ReceiveOpState::Backlogged(selector, _) => selector.source,
            _ => return self.ports.get(&receive.sender?)?.peer,
        };
        addresses.get(source?).map(|peer| peer.socket)
    }

    /// Admits backlogged receives in order, as far as there is room.
    fn admit_backlog(&mut self, deferred: &mut DeferredWork<'_>) {
        while self.has_room()
            && let Some(&key) = self.backlog.front()
        {
            let record = self.receives.record_mut(key);
            let record = record.expect("a backlogged receive is in the table");
            if !reserve(self.driver.as_ref(), record, deferred) {
                return;
            }
            self.backlog.pop_front();
            self.admit(key, deferred);
        }
    }

    /// Hands a receive to the matcher.
    fn admit(&mut self, key: OpKey, deferred: &mut DeferredWork<'_>) {
        let (selector, cursor) = self.receives.take_backlogged(key);
        let ReceiveSelector { wanted, source } = selector;
        match cursor {
            Some(cursor) => self.admit_multi(key, selector, cursor, deferred),
            None => {
                let result = self.matcher.post(PostedReceive {
                    wanted,
                    source,
                    order: 0,
                    key,
                });
                self.apply_match(key, result, deferred);
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
        let phase = match self.receives.state(key) {
            None => return Withdrawn::Gone,
            Some(
                ReceiveOpState::Claimed
                | ReceiveOpState::Part(..)
                | ReceiveOpState::MatchedCanceled(_),
            ) => return Withdrawn::Running,
            Some(&ReceiveOpState::Matched(receive)) => {
                let canceled = ReceiveOpState::MatchedCanceled(receive);
                self.receives.set(key, canceled);
                return Withdrawn::Running;
            }
            Some(ReceiveOpState::Multi(_)) => {
                let error = error.with_operation(OperationKind::Receive);
                self.end_multi(key, Err(error), deferred);
                return Withdrawn::Ended;
            }
            Some(ReceiveOpState::Backlogged(..)) => {
                let at = self.backlog.iter().position(|waiting| *waiting == key);
                let at = at.expect("a backlogged receive is in the backlog");
                self.backlog.remove(at);
                Phase::Waiting
            }
            Some(&ReceiveOpState::Posted(receive)) => {
                self.matcher.cancel(receive);
                Phase::Queued
            }
        };
        let receive = self.receives.remove(key).expect("just seen");
        let mut record = receive.record;
        if let ReceiveOpState::Backlogged(_, cursor) = receive.state {
            if let Some(cursor) = cursor {
                record.payload = Some(cursor.into_payload());
            }
            if let Some(driver) = &self.driver {
                (record.token).give_up_waiting(driver, &mut deferred.unlocked.wakes);
            }
        }
        deferred.end_unmatched(record, error, phase);
        Withdrawn::Ended
    }

    /// Ends a matched receive for its owner when its time limit has passed. A second record
    /// continues the reception, and the message goes to the next receive.
    pub(super) fn part_with(&mut self, key: OpKey, error: Error, deferred: &mut DeferredWork<'_>) {
        if let Some(record) = self.receives.record_mut(key)
            && !matches!(record.token, Report::Counted)
        {
            record.phase = Phase::Moving;
            (deferred.completions).push(Operation::part(record, Report::Counted, error));
        }
    }

    /// Called after every change: admits backlogged receives, and collects the wakers of
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
    /// requeued. Returns the counts of the receives that have got its messages.
    pub(super) fn detach(
        &mut self,
        connection: ConnectionId,
        deferred: &mut DeferredWork<'_>,
    ) -> OperationCounts {
        let mut ended = OperationCounts::default();
        let error = Error::new(ErrorKind::PeerClosed, "before it had sent the message");
        let error = self.about_peer(connection, error);
        if let Some(receive) = self.matcher.detach(connection)
            && let Some(ReceiveEntry { record, .. }) = self.receives.remove(receive.key)
        {
            deferred.end_unmatched(record, error.clone(), Phase::Queued);
        }
        if let Some(port) = self.ports.remove(&connection) {
            let queue = port.clear_to_send.as_ref();
            let matched = queue.map(|it| std::mem::take(&mut *lock_queue(it)));
            let mut matched: Vec<ClearToSend> = matched.into_iter().flatten().collect();
            matched.sort_by_key(|it| self.receives.order(it.receive));
            for ClearToSend { receive, .. } in matched {
                self.requeue_receive(receive, None, error.clone(), deferred);
            }
            ended = port.ended;
            (deferred.unlocked.drops).push(DeferredDrop::Port(port));
        }
        ended
    }

    /// Adds the peer of a connection to the error.
    pub(super) fn about_peer(&self, connection: ConnectionId, error: Error) -> Error {
        match self.ports.get(&connection).and_then(|port| port.peer) {
            Some(peer) => error.with_peer(peer),
            None => error,
        }
    }

    pub(super) fn wake_driver(&self, deferred: &mut DeferredWork<'_>) {
        if let Some(driver) = &self.driver {
            deferred.wake(driver.clone());
        }
    }
}
