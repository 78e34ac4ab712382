//! The receives of a context as one port's connection sees them.

use std::sync::Arc;

use crate::error::Error;
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, OpKey, PostedReceive, Receives,
    SharedMatcher, UnexpectedMessage,
};

use super::ReceiveContext;
use super::deferred::DeferredWork;
use super::multi::next_part;
use super::state::{ClearToSendQueue, ContextState, lock_queue};

/// Makes the token of a multi-receive buffer's next message of that of the one before.
type NextPart<'a> = dyn Fn(&Report) -> Option<Report> + 'a;

/// The receives of a context as one port's connection sees them, under the port's lock. What is to
/// be done without it, waking and dropping, is collected ([`PortReceives::take_deferred`]).
pub(crate) struct PortReceives {
    pub(super) context: Arc<ReceiveContext>,
    ids: ConnIds,
    deferred: DeferredWork,
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
            deferred: DeferredWork::default(),
            ended: Vec::new(),
            clear_to_send,
            is_detached: false,
        }
    }

    /// True if there is something to be [taken](Self::take_deferred).
    pub(crate) fn has_deferred(&self) -> bool {
        !self.ended.is_empty() || !self.deferred.is_empty()
    }

    /// What is to be dropped once the port's lock is released, which wakes tasks.
    pub(crate) fn take_deferred(&mut self) -> impl Sized + use<> {
        if !self.ended.is_empty() {
            let mut state = self.context.lock("receives ended");
            let ended = std::mem::take(&mut self.ended);
            ended.into_iter().for_each(|it| state.receive_ended(it));
        }
        std::mem::take(&mut self.deferred)
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

    /// Takes a step under the context's lock, and keeps what it deferred.
    fn with_state<R>(
        &mut self,
        purpose: &'static str,
        step: impl FnOnce(&mut ContextState, &mut DeferredWork) -> R,
    ) -> R {
        self.context.take_step(purpose, &mut self.deferred, step)
    }

    fn match_message(
        &mut self,
        begin: impl FnOnce(&mut SharedMatcher<Report>, &NextPart<'_>) -> ArrivalOutcome<Report>,
    ) -> ArrivalOutcome<Report> {
        self.with_state("begin a message", |state, deferred| {
            let driver = state.driver.as_ref();
            let outcome = begin(&mut state.matcher, &|token| next_part(token, driver));
            if let ArrivalOutcome::Matched(PostedReceive { key, .. }) = &outcome {
                state.mark_matched(*key, deferred);
            }
            outcome
        })
    }
}

impl Receives<Report> for PortReceives {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<Report> {
        self.match_message(|matcher, next| matcher.begin_message(arrival, next))
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
        self.match_message(|matcher, next| matcher.begin_announcement(announcement, next))
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
