//! The receives of a context as one port's connection sees them.

use std::sync::Arc;

use crate::buf::Payload;
use crate::error::Error;
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, OpKey, PostedReceive, Receives,
    SharedMatcher, UnexpectedMessage,
};
use crate::sync::WakeList;

use super::ReceiveContext;
use super::deferred::DeferredWork;
use super::state::{ClearToSendQueue, ContextState, lock_queue};

/// The receives of a context as one port's connection sees them, under the port's lock. Wakers and
/// memory to drop are collected until that lock is released ([`PortReceives::take_deferred`]).
pub(crate) struct PortReceives {
    pub(super) context: Arc<ReceiveContext>,
    ids: ConnIds,
    wakes: WakeList,
    drops: Vec<Payload>,
    /// Receives that have ended. The context learns of them once per turn, under one lock.
    ended: Vec<OpKey>,
    clear_to_send: ClearToSendQueue,
    is_detached: bool,
}

impl PortReceives {
    pub(super) fn new(
        context: Arc<ReceiveContext>,
        ids: ConnIds,
        clear_to_send: ClearToSendQueue,
    ) -> Self {
        PortReceives {
            context,
            ids,
            wakes: WakeList::new(),
            drops: Vec::new(),
            ended: Vec::new(),
            clear_to_send,
            is_detached: false,
        }
    }

    /// The wakers to wake and the memory to drop, once the port's lock is released.
    pub(crate) fn take_deferred(&mut self) -> (WakeList, Vec<Payload>) {
        if !self.ended.is_empty() {
            let mut state = self.context.lock("receives ended");
            let ended = std::mem::take(&mut self.ended);
            ended.into_iter().for_each(|it| state.receive_ended(it));
        }
        let wakes = std::mem::take(&mut self.wakes);
        (wakes, std::mem::take(&mut self.drops))
    }

    /// Detaches the connection: its announcements are void, its messages that have come in full
    /// stay.
    pub(crate) fn detach(&mut self) {
        self.is_detached = true;
        let connection = self.ids.connection;
        self.with_state("detach", |state, deferred| {
            state.detach(connection, deferred);
        });
    }

    /// Takes a step under the context's lock, and keeps the wakers and the memory that it deferred.
    fn with_state<R>(
        &mut self,
        purpose: &'static str,
        step: impl FnOnce(&mut ContextState, &mut DeferredWork) -> R,
    ) -> R {
        let (result, mut deferred) = self.context.take_step(purpose, step);
        self.wakes.append(&mut deferred.wakes);
        self.drops.append(&mut deferred.drops);
        result
    }

    fn match_message(
        &mut self,
        begin: impl FnOnce(&mut SharedMatcher<Report>) -> ArrivalOutcome<Report>,
    ) -> ArrivalOutcome<Report> {
        self.with_state("begin a message", |state, deferred| {
            let outcome = begin(&mut state.matcher);
            if let ArrivalOutcome::Matched(PostedReceive { key, .. }) = &outcome {
                state.mark_matched(*key, deferred);
            }
            outcome
        })
    }
}

impl Receives<Report> for PortReceives {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<Report> {
        self.match_message(|matcher| matcher.begin_message(arrival))
    }

    fn store_message(&mut self, message: UnexpectedMessage) {
        self.with_state("store a message", |state, deferred| {
            if state.closed.is_some() {
                state.matcher.abort_message(&message.arrival);
                deferred.drops.push(message.payload);
            } else if let Some((receive, message)) = state.matcher.store_message(message) {
                state.complete_match(receive.key, deferred);
                deferred.deliveries.push((receive, message));
            }
        });
    }

    fn abort_message(&mut self, arrival: &Arrival) {
        self.with_state("abort a message", |state, _| {
            state.matcher.abort_message(arrival);
        });
    }

    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<Report> {
        self.match_message(|matcher| matcher.begin_announcement(announcement))
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<Report>> {
        lock_queue(&self.clear_to_send).pop_front()
    }

    fn withdraw_announcement(&mut self, announcement: &Announcement) {
        self.with_state("withdraw an announcement", |state, _| {
            state.matcher.withdraw_announcement(&announcement.arrival);
        });
    }

    fn receive_ended(&mut self, receive: OpKey) {
        self.ended.push(receive);
    }

    fn requeue_receive(&mut self, receive: PostedReceive<Report>, gone: Error) {
        self.with_state("requeue a receive", |state, deferred| {
            state.requeue_receive(receive, deferred, gone);
        });
    }

    fn forget_announcements(&mut self) {
        let connection = self.ids.connection;
        self.with_state("forget announcements", |state, _| {
            state.matcher.forget_announcements(connection);
        });
    }

    fn requeue_message(&mut self, message: UnexpectedMessage) {
        self.with_state("requeue a message", |state, deferred| {
            state.requeue_message(message, deferred);
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
        if !self.is_detached {
            self.detach();
        }
    }
}

debug_fields!(PortReceives, self => identity: self.ids);
