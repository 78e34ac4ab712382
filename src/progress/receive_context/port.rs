//! The receives of a context as one port's connection sees them.

use std::fmt;
use std::sync::Arc;

use crate::buf::Payload;
use crate::error::Error;
use crate::progress::report::Report;
use crate::proto::{
    Announcement, Arrival, Arrived, ClearToSend, EarlyMessage, Identity, OpKey, PostedReceive,
    Receives,
};
use crate::sync::WakeList;

use super::due::Due;
use super::{ClearedQueue, ReceiveContext, lock_cleared};

/// The receives of a context as one port's connection sees them, under the port's lock. Whom to
/// wake, and memory to drop, is kept until that is released ([`PortReceives::take_aftermath`]).
pub(crate) struct PortReceives {
    pub(super) context: Arc<ReceiveContext>,
    identity: Identity,
    wakes: WakeList,
    leftovers: Vec<Payload>,
    /// Receives that have ended, of which the context is told once for all of a turn.
    finished: Vec<OpKey>,
    cleared: ClearedQueue,
    has_left: bool,
}

impl PortReceives {
    pub(super) fn new(
        context: Arc<ReceiveContext>,
        identity: Identity,
        cleared: ClearedQueue,
    ) -> Self {
        PortReceives {
            context,
            identity,
            wakes: WakeList::new(),
            leftovers: Vec::new(),
            finished: Vec::new(),
            cleared,
            has_left: false,
        }
    }

    /// Whom to wake and what to drop, once the port's lock is released.
    pub(crate) fn take_aftermath(&mut self) -> (WakeList, Vec<Payload>) {
        if !self.finished.is_empty() {
            let mut state = self.context.lock("finished");
            let finished = std::mem::take(&mut self.finished);
            finished.into_iter().for_each(|it| state.finished(it));
        }
        let wakes = std::mem::take(&mut self.wakes);
        (wakes, std::mem::take(&mut self.leftovers))
    }

    /// The connection has gone: what it announced is forgotten, what came in full stays.
    pub(crate) fn leave(&mut self) {
        self.has_left = true;
        let mut due = Due::default();
        let mut state = self.context.lock("leave");
        let connection = self.identity.connection;
        state.leave(connection, &self.context.completion_context(), &mut due);
        drop(state);
        self.carry_out(due);
    }

    fn carry_out(&mut self, due: Due) {
        let mut due = self.context.carry_out(due);
        self.wakes.append(&mut due.wakes);
        self.leftovers.append(&mut due.leftovers);
    }

    fn arrived(
        &mut self,
        arrive: impl FnOnce(&mut super::State, &mut Due) -> Arrived<Report>,
    ) -> Arrived<Report> {
        let mut due = Due::default();
        let mut state = self.context.lock("arrive");
        let arrived = arrive(&mut state, &mut due);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        arrived
    }
}

impl Receives<Report> for PortReceives {
    fn arrive(&mut self, arrival: &mut Arrival) -> Arrived<Report> {
        self.arrived(|state, due| {
            let arrived = state.matcher.arrive(arrival);
            if let Arrived::Receive(PostedReceive { key, .. }) = &arrived {
                state.take(*key, due);
            }
            arrived
        })
    }

    fn landed(&mut self, early: EarlyMessage) {
        let mut due = Due::default();
        let mut state = self.context.lock("landed");
        if state.closed.is_some() {
            state.matcher.abandoned(&early.arrival);
            due.leftovers.push(early.payload);
        } else if let Some((receive, early)) = state.matcher.landed(early) {
            state.matched(receive.key, &mut due);
            due.delivered.push((receive, early));
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    fn abandoned(&mut self, arrival: &Arrival) {
        let mut due = Due::default();
        let mut state = self.context.lock("abandoned");
        state.matcher.abandoned(arrival);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    fn announced(&mut self, announcement: &mut Announcement) -> Arrived<Report> {
        self.arrived(|state, due| {
            let arrived = state.matcher.announce(announcement);
            if let Arrived::Receive(PostedReceive { key, .. }) = &arrived {
                state.take(*key, due);
            }
            arrived
        })
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<Report>> {
        lock_cleared(&self.cleared).pop_front()
    }

    fn withdrawn(&mut self, announcement: &Announcement) {
        let mut due = Due::default();
        let mut state = self.context.lock("withdrawn");
        state.matcher.withdraw_announcement(&announcement.arrival);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    fn finished(&mut self, receive: OpKey) {
        self.finished.push(receive);
    }

    fn put_back(&mut self, receive: PostedReceive<Report>, gone: Error) {
        let mut due = Due::default();
        let mut state = self.context.lock("put back");
        state.put_back(receive, &mut due, &self.context.completion_context(), gone);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    fn forget_announcements(&mut self) {
        let mut due = Due::default();
        let connection = self.identity.connection;
        let mut state = self.context.lock("forget announcements");
        state.matcher.forget_announcements(connection);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    fn give_back(&mut self, early: EarlyMessage) {
        let mut due = Due::default();
        self.context.keep_again(early, &mut due);
        self.carry_out(due);
    }

    fn held(&self) -> u64 {
        let state = self.context.lock("held");
        state.matcher.held_of(self.identity.connection)
    }

    fn awaits_credit(&mut self) {
        let mut state = self.context.lock("awaits credit");
        state.matcher.awaits_credit(self.identity.connection);
    }
}

impl Drop for PortReceives {
    /// A connection that never came to be leaves here.
    fn drop(&mut self) {
        if !self.has_left {
            self.leave();
        }
    }
}

impl fmt::Debug for PortReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortReceives")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
