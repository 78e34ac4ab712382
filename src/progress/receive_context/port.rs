//! The receives of a context, as seen by the connection of one port.
//!
//! A stored message may be taken and reported at once, by any thread that posts a receive. So while
//! a port has yet to report receives that its connection completed in this turn, later messages are
//! held, and the connection reads no further, until the port [releases](PortReceives::release)
//! them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Error;
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, OpKey, PostedReceive, Receives,
    SharedMatcher, UnexpectedMessage,
};

use super::ReceiveContext;
use super::deferred::{DeferredWork, UnlockedWork};
use super::multi::next_part;
use super::state::{ClearToSendQueue, ContextState, lock_queue};

/// Makes the token for the next message of a multi-receive buffer from the token of the one before.
type NextPart<'a> = dyn Fn(&Report) -> Option<Report> + 'a;

/// The receives of a context, as seen by the connection of one port, under the port's lock. Wakers
/// and memory that must be handled without that lock are collected
/// ([`PortReceives::take_deferred`]).
pub(crate) struct PortReceives {
    pub(super) context: Arc<ReceiveContext>,
    ids: ConnIds,
    unlocked: UnlockedWork,
    /// Receives that have ended, and that the port may not have reported yet. The context removes
    /// them once per turn, under one lock; usually they are few.
    ended: SmallVec<[OpKey; 4]>,
    /// Messages that came after those receives, in order.
    held: Vec<HeldMessage>,
    clear_to_send: Option<ClearToSendQueue>,
    is_detached: bool,
}

/// A message that will be stored.
enum HeldMessage {
    /// An admitted message that has been received completely.
    New(UnexpectedMessage),
    /// A message whose receive has lost its owner.
    Requeued(UnexpectedMessage),
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
            ended: SmallVec::new(),
            held: Vec::new(),
            clear_to_send,
            is_detached: false,
        }
    }

    /// Returns true if there is anything to be [taken](Self::take_deferred).
    pub(crate) fn has_deferred(&self) -> bool {
        !self.ended.is_empty() || !self.held.is_empty() || !self.unlocked.is_empty()
    }

    /// Takes what must be dropped once the port's lock is released, which wakes tasks. To be called
    /// when the port has reported all receives that have ended.
    pub(crate) fn take_deferred(&mut self) -> impl Sized + use<> {
        self.release_held();
        std::mem::take(&mut self.unlocked)
    }

    /// Stores the messages that were held, since the port has reported all receives that have
    /// ended. Returns true if there were any, and the connection may read on.
    pub(crate) fn release(&mut self) -> bool {
        let held = self.is_holding();
        if held {
            self.release_held();
        }
        held
    }

    fn release_held(&mut self) {
        if self.ended.is_empty() && self.held.is_empty() {
            return;
        }
        let ended = std::mem::take(&mut self.ended);
        let held = std::mem::take(&mut self.held);
        self.with_state("receives ended", |state, deferred| {
            ended.into_iter().for_each(|it| state.receive_ended(it));
            for message in held {
                state.store(message, deferred);
            }
        });
    }

    /// Stores a message, or holds it behind receives that the port has yet to report.
    fn hold_or_store(&mut self, message: HeldMessage) {
        if self.ended.is_empty() {
            self.with_state("store a message", |state, deferred| {
                state.store(message, deferred);
            });
        } else {
            self.held.push(message);
        }
    }

    /// Detaches the connection: its announcements are void, its complete messages stay.
    pub(crate) fn detach(&mut self) {
        self.release_held();
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
        step: impl FnOnce(&mut ContextState, &mut DeferredWork<'_>) -> R,
    ) -> R {
        self.context.take_step(purpose, &mut self.unlocked, step)
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
        self.hold_or_store(HeldMessage::New(message));
    }

    fn is_holding(&self) -> bool {
        !self.held.is_empty()
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
        lock_queue(self.clear_to_send.as_ref()?).pop_front()
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
        self.hold_or_store(HeldMessage::Requeued(message));
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

impl ContextState {
    fn store(&mut self, message: HeldMessage, deferred: &mut DeferredWork<'_>) {
        let message = match message {
            HeldMessage::Requeued(message) => return self.requeue_message(message, deferred),
            HeldMessage::New(message) => message,
        };
        if self.closed.is_some() {
            self.matcher.abort_message(&message.arrival);
            deferred.drop_memory(message.payload);
        } else if let Some((receive, message)) = self.matcher.store_message(message) {
            self.complete_match(receive.key, deferred);
            deferred.deliveries.push((receive, message));
        }
    }
}

debug_fields!(PortReceives, self => identity: self.ids);
