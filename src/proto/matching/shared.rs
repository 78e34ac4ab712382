//! The receives and early messages of all connections of one endpoint.

use std::collections::VecDeque;
use std::marker::PhantomData;

use crate::slab::Key;

use super::super::peers::{ConnectionId, SourceId};
use super::{Announcement, Arrival, Arrived, EarlyMessage, PostedReceive, Wanted};

/// Names a posted receive.
pub(crate) type ReceiveKey = Key;

/// Names a claimed message.
pub(crate) type ClaimKey = Key;

/// How many bytes of early messages are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Of all peers together.
    pub(crate) total_bytes: u64,
    /// Of one peer.
    pub(crate) peer_bytes: u64,
}

/// What a fresh receive finds.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// Nothing yet; it is posted.
    Nothing(ReceiveKey),
    /// This message, which has come.
    Early(PostedReceive<T>, EarlyMessage),
    /// This message, which its sender has yet to be asked for.
    Announced(PostedReceive<T>, Announcement),
}

/// The matcher of all connections of one endpoint.
#[derive(Debug)]
pub(crate) struct SharedMatcher<T> {
    wakes: VecDeque<ConnectionId>,
    tokens: PhantomData<T>,
}

impl<T> SharedMatcher<T> {
    pub(crate) fn new(budget: Budget) -> Self {
        let _ = budget;
        todo!()
    }

    /// A connection joins; so many bytes of its messages are kept for sure.
    pub(crate) fn join(&mut self, connection: ConnectionId, source: SourceId) -> u64 {
        let _ = (connection, source);
        todo!()
    }

    /// A connection has gone: what it announced is forgotten, what came in full stays.
    pub(crate) fn leave(&mut self, connection: ConnectionId) {
        let _ = connection;
        todo!()
    }

    /// Posts a receive, whose order is given to it here, unless a message that it takes is there.
    pub(crate) fn post(&mut self, receive: PostedReceive<T>) -> Found<T> {
        let _ = receive;
        todo!()
    }

    /// A message begins. Its place is given to it here.
    pub(crate) fn arrive(&mut self, arrival: &mut Arrival) -> Arrived<T> {
        let _ = arrival;
        todo!()
    }

    /// A message that was to be stored has come in full. If a receive was posted meanwhile that
    /// takes it, the two are returned.
    pub(crate) fn landed(
        &mut self,
        early: EarlyMessage,
    ) -> Option<(PostedReceive<T>, EarlyMessage)> {
        let _ = early;
        todo!()
    }

    /// A message that was to be stored never will come in full.
    pub(crate) fn abandoned(&mut self, arrival: &Arrival) {
        let _ = arrival;
        todo!()
    }

    /// A message is announced.
    pub(crate) fn announce(&mut self, announcement: &mut Announcement) -> Arrived<T> {
        let _ = announcement;
        todo!()
    }

    /// What this connection has announced will not be answered any more.
    pub(crate) fn forget_announcements(&mut self, connection: ConnectionId) {
        let _ = connection;
        todo!()
    }

    /// A receive whose message turned out not to be there is posted again, in its place.
    pub(crate) fn give_back_receive(&mut self, receive: PostedReceive<T>) -> Found<T> {
        let _ = receive;
        todo!()
    }

    /// A message whose receive was dropped is kept again, in its place, or matched anew.
    pub(crate) fn give_back(
        &mut self,
        early: EarlyMessage,
    ) -> Option<(PostedReceive<T>, EarlyMessage)> {
        let _ = early;
        todo!()
    }

    /// Withdraws a posted receive.
    pub(crate) fn withdraw(&mut self, receive: ReceiveKey) -> Option<PostedReceive<T>> {
        let _ = receive;
        todo!()
    }

    /// The first message that such a receive would take (`FI_PEEK`).
    pub(crate) fn peek(&self, wanted: Wanted, source: Option<SourceId>) -> Option<Arrival> {
        let _ = (wanted, source);
        todo!()
    }

    /// The same, and from now on only this claim gets it (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(
        &mut self,
        wanted: Wanted,
        source: Option<SourceId>,
    ) -> Option<(ClaimKey, Arrival)> {
        let _ = (wanted, source);
        todo!()
    }

    /// A connection that may read on, or tell of room, since something changed for it.
    pub(crate) fn poll_wake(&mut self) -> Option<ConnectionId> {
        self.wakes.pop_front()
    }

    /// Messages of this connection that are kept, announcements and those that are landing
    /// included.
    pub(crate) fn held_of(&self, connection: ConnectionId) -> u64 {
        let _ = connection;
        todo!()
    }

    /// Bytes that are kept, each message with its overhead.
    pub(crate) fn held_bytes(&self) -> u64 {
        todo!()
    }
}
