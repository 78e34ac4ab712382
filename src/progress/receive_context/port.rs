//! The receives of a context, as seen by the connection of one port.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::buf::{AccessError, Payload, try_copied};
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, ConnectionId, MatchedReceive,
    OpKey, ReceivedMessage, Receives, SharedMatcher,
};
use crate::stats::OperationCounts;

use super::ReceiveContext;
use super::deferred::{DeferredWork, UnlockedWork};
use super::multi::reserve_after;
use super::state::{ClearToSendQueue, ContextState, lock_queue};

/// The receives of a context, as seen by the connection of one port, under the port's lock. Wakers
/// and memory that must be dropped without that lock are collected
/// ([`PortReceives::take_deferred`]).
pub(crate) struct PortReceives {
    context: Arc<ReceiveContext>,
    ids: ConnIds,
    unlocked: UnlockedWork,
    clear_to_send: Option<ClearToSendQueue>,
    /// Set once the connection is detached: the counts of the receives that have got its messages.
    detached: Option<OperationCounts>,
    /// Number of its messages that receives have got directly.
    delivered: u64,
}

impl PortReceives {
    pub(super) fn new(
        context: Arc<ReceiveContext>,
        ids: ConnIds,
        clear_to_send: Option<ClearToSendQueue>,
    ) -> Self {
        PortReceives {
            context,
            ids,
            unlocked: UnlockedWork::default(),
            clear_to_send,
            detached: None,
            delivered: 0,
        }
    }

    /// Returns true if [`PortReceives::take_deferred`] has anything to take.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.unlocked.is_empty()
    }

    /// Takes the wakers and memory that must be dropped after the port's lock is released.
    pub(crate) fn take_deferred(&mut self) -> impl Sized + use<> {
        std::mem::take(&mut self.unlocked)
    }

    /// Sets the peer's address, which errors name in receives that get this connection's messages.
    pub(crate) fn set_peer(&mut self, peer: Option<SocketAddr>) {
        let mut state = self.context.lock("set the peer");
        if let Some(port) = state.ports.get_mut(&self.ids.connection) {
            port.peer = peer;
        }
    }

    /// Returns the number of this connection's messages that receives have got directly.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the counts of the receives that have got this connection's messages.
    pub(crate) fn ended(&self) -> OperationCounts {
        let of_port = || {
            let state = self.context.lock("counts");
            let port = state.ports.get(&self.ids.connection);
            port.map(|port| port.ended).unwrap_or_default()
        };
        self.detached.unwrap_or_else(of_port)
    }

    /// Detaches the connection: its announcements are void, its complete messages stay.
    pub(crate) fn detach(&mut self) {
        let connection = self.ids.connection;
        let ended = self.with_state("detach", |state, deferred| {
            state.detach(connection, deferred)
        });
        self.detached.get_or_insert(ended);
    }

    /// Takes a step under the context's lock, and keeps what it deferred.
    fn with_state<R>(
        &mut self,
        purpose: &'static str,
        step: impl FnOnce(&mut ContextState, &mut DeferredWork<'_>) -> R,
    ) -> R {
        self.context.take_step(purpose, &mut self.unlocked, step)
    }
}

impl Receives for PortReceives {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<(OpKey, Payload)> {
        self.with_state("begin a message", |state, deferred| {
            let begun = state.begin(|matcher, may_arm| matcher.begin_message(arrival, may_arm));
            let begun = state.enter_begun(begun, arrival.connection, Phase::Moving, deferred);
            begun.map(|key| (key, state.take_buffer(key)))
        })
    }

    fn take_message(&mut self, arrival: &mut Arrival, bytes: &[u8]) -> bool {
        let (context, delivered) = (&self.context, &mut self.delivered);
        context.take_step("take a message", &mut self.unlocked, |state, deferred| {
            let begun = state.begin(|matcher, may_arm| matcher.begin_message(arrival, may_arm));
            match begun {
                ArrivalOutcome::Matched(matched) => {
                    let buffer = matched.receive.key;
                    let mut record = state.take_record(matched);
                    record.end_with_bytes(arrival, bytes);
                    *delivered += 1;
                    context.complete(state, record, deferred);
                    state.arm_next(buffer, deferred);
                }
                ArrivalOutcome::Store => match try_copied(bytes) {
                    Some(payload) => {
                        let message = ReceivedMessage {
                            arrival: *arrival,
                            payload,
                            len: bytes.len(),
                            overflow: 0,
                        };
                        state.store_message(message, deferred);
                    }
                    None => {
                        state.matcher.abort_message(arrival);
                        return false;
                    }
                },
                ArrivalOutcome::Stalled => return false,
            }
            true
        })
    }

    fn store_message(&mut self, message: ReceivedMessage) {
        self.with_state("store a message", |state, deferred| {
            state.store_message(message, deferred);
        });
    }

    fn abort_message(&mut self, arrival: &Arrival) {
        self.with_state("abort a message", |state, _| {
            state.matcher.abort_message(arrival);
        });
    }

    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<OpKey> {
        self.with_state("begin an announcement", |state, deferred| {
            let begun =
                state.begin(|matcher, may_arm| matcher.begin_announcement(announcement, may_arm));
            let sender = announcement.arrival.connection;
            state.enter_begun(begun, sender, Phase::AwaitingPeer, deferred)
        })
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend> {
        lock_queue(self.clear_to_send.as_ref()?).pop_front()
    }

    fn withdraw_announcement(&mut self, announcement: &Announcement) {
        self.with_state("withdraw an announcement", |state, _| {
            state.matcher.withdraw_announcement(&announcement.arrival);
        });
    }

    fn take_buffer(&mut self, receive: OpKey) -> Payload {
        self.context.lock("take a buffer").take_buffer(receive)
    }

    fn end_receive(
        &mut self,
        receive: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
    ) {
        self.delivered += 1;
        self.with_state("end a receive", |state, deferred| {
            state.end_receive(receive, message, failed, deferred);
        });
    }

    fn requeue_receive(&mut self, receive: OpKey, buffer: Option<Payload>, gone: Error) {
        self.with_state("requeue a receive", |state, deferred| {
            state.requeue_receive(receive, buffer, gone, deferred);
        });
    }

    fn fail_receives(&mut self, receives: Vec<(OpKey, Option<Payload>)>, error: &Error) {
        if !receives.is_empty() {
            self.with_state("fail receives", |state, deferred| {
                state.fail_receives(receives, error, deferred);
            });
        }
    }

    fn forget_announcements(&mut self) {
        let connection = self.ids.connection;
        self.with_state("forget announcements", |state, _| {
            state.matcher.forget_announcements(connection);
        });
    }

    fn held_messages(&self) -> u64 {
        let state = self.context.lock("held messages");
        state.matcher.held_of(self.ids.connection)
    }

    fn request_credit_wake(&mut self) {
        let mut state = self.context.lock("request credit wake");
        state.matcher.request_credit_wake(self.ids.connection);
    }
}

impl Drop for PortReceives {
    /// Detaches a connection that never came up.
    fn drop(&mut self) {
        if self.detached.is_none() {
            self.detach();
        }
    }
}

impl ContextState {
    /// Begins a message. `begin` gets a function that reserves the completion slot of the next
    /// message of a multi-receive buffer. It returns whether the buffer may be armed again at once.
    fn begin(
        &mut self,
        begin: impl FnOnce(
            &mut SharedMatcher,
            &mut dyn FnMut(OpKey) -> bool,
        ) -> ArrivalOutcome<MatchedReceive>,
    ) -> ArrivalOutcome<MatchedReceive> {
        // A message that no receive can take any more is not taken in: its sender would count it
        // as delivered. (A context that was closed has no endpoint any more.)
        if (self.closed.as_ref()).is_some_and(|it| it.kind() == ErrorKind::DriverGone) {
            return ArrivalOutcome::Stalled;
        }
        let (receives, driver) = (&mut self.receives, self.driver.as_ref());
        begin(&mut self.matcher, &mut |key| {
            reserve_after(receives, driver, key)
        })
    }

    /// Enters the match of a message that has begun.
    fn enter_begun(
        &mut self,
        begun: ArrivalOutcome<MatchedReceive>,
        sender: ConnectionId,
        phase: Phase,
        deferred: &mut DeferredWork<'_>,
    ) -> ArrivalOutcome<OpKey> {
        begun.map(|matched| {
            let buffer = matched.receive.key;
            let key = self.enter_match(matched, sender, phase);
            self.arm_next(buffer, deferred);
            key
        })
    }

    fn store_message(&mut self, message: ReceivedMessage, deferred: &mut DeferredWork<'_>) {
        if self.closed.is_some() {
            self.matcher.abort_message(&message.arrival);
            deferred.drop_memory(message.payload);
        } else if let Some((matched, message)) = self.matcher.store_message(message) {
            let key = matched.receive.key;
            self.give(matched, message, deferred);
            self.arm_next(key, deferred);
        }
    }
}

debug_fields!(PortReceives, self => identity: self.ids);
