//! The receives and early messages of all connections of one endpoint, matched as fi_tagged(3) and
//! fi_msg(3) say: a message goes to the oldest receive that takes it, a receive gets the oldest
//! message that it takes, and what one sender sends stays in order.
//!
//! A message that there is no room for waits in its connection, which reads nothing meanwhile. It
//! is woken ([`SharedMatcher::poll_wake`]) when a receive takes the message, or when there is room,
//! and asks again. Those that wait for room get it in turn, before others that come later and ask
//! for more than they were promised.
//!
//! Invariants: no message that is kept fits a posted receive. One that waits fits a posted receive
//! only while a connection that was woken has not asked again.

mod claims;
mod waiting;

use std::collections::{HashMap, VecDeque};

use crate::buf::{BufferCursor, Payload};
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::op::OpKey;
use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::{Key, Slab};

use super::budget::{Accounts, Budget, Room};
use super::early::{Body, Early, EarlyMessages, List};
use super::posted::{PostedReceives, Withdrawn};
use super::{Announcement, Arrival, Arrived, EarlyMessage, PostedReceive, Wanted};
use claims::Claim;
pub(crate) use claims::{ClaimKey, Fetched};
use waiting::{Stall, list_of};

/// Names a posted receive.
pub(crate) type ReceiveKey = Key;

/// What a receive finds.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// Nothing yet; it is posted.
    Nothing(ReceiveKey),
    /// This message, which has come.
    Early(PostedReceive<T>, EarlyMessage),
    /// This message, which its sender has yet to be asked for.
    Announced(PostedReceive<T>, Announcement),
}

/// What the next part of a buffer for many messages finds.
#[derive(Debug)]
pub(crate) enum Armed<T> {
    /// Nothing yet.
    Nothing,
    Early(PostedReceive<T>, EarlyMessage),
    Announced(PostedReceive<T>, Announcement),
    /// The buffer is consumed, and is to be withdrawn.
    Consumed(T),
}

/// What a connection that leaves takes along.
#[derive(Debug)]
pub(crate) struct Gone<T> {
    /// The receive of a claimed message that was to come.
    pub(crate) receive: Option<PostedReceive<T>>,
}

/// The matcher of all connections of one endpoint.
#[derive(Debug)]
pub(crate) struct SharedMatcher<T> {
    posted: PostedReceives<T>,
    early: EarlyMessages,
    /// Messages that wait in their connections.
    waiting: EarlyMessages,
    stalls: HashMap<ConnectionId, Stall<T>>,
    claims: Slab<Claim>,
    accounts: Accounts,
    receives: u64,
    arrivals: u64,
    wakes: VecDeque<ConnectionId>,
}

impl<T> SharedMatcher<T> {
    pub(crate) fn new(budget: Budget) -> Self {
        SharedMatcher {
            posted: PostedReceives::new(),
            early: EarlyMessages::new(),
            waiting: EarlyMessages::new(),
            stalls: HashMap::new(),
            claims: Slab::new(),
            accounts: Accounts::new(budget),
            receives: 0,
            arrivals: 0,
            wakes: VecDeque::new(),
        }
    }

    // Getters.

    /// Messages of this connection that are kept, announcements and those that are landing
    /// included.
    pub(crate) fn held_of(&self, connection: ConnectionId) -> u64 {
        self.accounts.messages_of(connection)
    }

    /// Bytes that are kept, each message with its overhead.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.accounts.held()
    }

    /// Grows with every receive and every message.
    pub(crate) fn activity(&self) -> u64 {
        self.receives + self.arrivals
    }

    /// Receives that are posted.
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// The first message that such a receive would take (`FI_PEEK`).
    pub(crate) fn peek(&self, wanted: Wanted, source: Option<SourceId>) -> Option<Arrival> {
        let kept =
            |early: &EarlyMessages| early.get(early.find(wanted, source)?).map(|it| it.arrival);
        kept(&self.early).or_else(|| kept(&self.waiting))
    }

    // The application's.

    /// Posts a receive, whose order is given to it here, unless a message that it takes is there.
    pub(crate) fn post(&mut self, mut receive: PostedReceive<T>) -> Found<T> {
        receive.order = self.next_receive();
        self.give_back_receive(receive)
    }

    /// A receive whose message turned out not to be there is posted again, in its place.
    pub(crate) fn give_back_receive(&mut self, receive: PostedReceive<T>) -> Found<T> {
        let (wanted, source) = (receive.wanted, receive.source);
        match self.take_early(wanted, source) {
            Some(Body::Here(early)) => Found::Early(receive, early),
            Some(Body::Announced(announcement)) => Found::Announced(receive, announcement),
            Some(Body::Waiting(_)) => unreachable!("none that waits is kept"),
            None => {
                let key = self.posted.insert(receive);
                self.wake_for(key);
                Found::Nothing(key)
            }
        }
    }

    /// Posts a buffer for many messages. It takes the first once it is armed.
    pub(crate) fn post_many(
        &mut self,
        carving: BufferCursor,
        wanted: Wanted,
        source: Option<SourceId>,
        key: OpKey,
    ) -> ReceiveKey {
        let order = self.next_receive();
        self.posted.insert_many(carving, wanted, source, order, key)
    }

    /// Lets a buffer for many messages take the next one, which gets this token.
    pub(crate) fn arm(&mut self, receive: ReceiveKey, token: T) -> Armed<T> {
        let (wanted, source) = match self.posted.arm(receive, token) {
            Ok(takes) => takes,
            Err(token) => return Armed::Consumed(token),
        };
        match self.take_early(wanted, source) {
            Some(Body::Here(early)) => {
                Armed::Early(self.posted.take(receive, early.len as u64), early)
            }
            Some(Body::Announced(announcement)) => {
                let part = self.posted.take(receive, announcement.arrival.len);
                Armed::Announced(part, announcement)
            }
            Some(Body::Waiting(_)) => unreachable!("none that waits is kept"),
            None => {
                self.wake_for(receive);
                Armed::Nothing
            }
        }
    }

    /// A part of a buffer for many messages is not used after all: the next message may have it,
    /// unless another has what follows it. Then it comes back.
    pub(crate) fn put_part_back(&mut self, receive: ReceiveKey, part: Payload) -> Option<Payload> {
        self.posted.put_part_back(receive, part)
    }

    /// The sender whose messages alone a posted receive takes.
    pub(crate) fn source_of(&self, receive: ReceiveKey) -> Option<SourceId> {
        self.posted.source_of(receive)
    }

    /// Withdraws a posted receive.
    pub(crate) fn withdraw(&mut self, receive: ReceiveKey) -> Option<Withdrawn<T>> {
        self.posted.withdraw(receive)
    }

    /// Drops all messages that are here: nobody will ask for them any more.
    pub(crate) fn clear(&mut self) -> Vec<EarlyMessage> {
        let kept = self.early.keys().into_iter();
        let kept: Vec<_> = kept.filter_map(|key| self.early.remove(key)).collect();
        let claims = self.claims.keys().into_iter();
        let claims: Vec<_> = claims.filter_map(|key| self.claims.remove(key)).collect();
        let claims = claims.into_iter().map(|claim| claim.early);
        let mut here = Vec::new();
        for early in kept.into_iter().map(|(_, early)| early).chain(claims) {
            match early.body {
                Body::Here(message) => here.push(message),
                Body::Announced(_) => {}
                Body::Waiting(_) => continue,
            }
            self.accounts.free(&early.arrival, early.cost);
        }
        here
    }

    /// Gives the memory back that is kept for what may come.
    pub(crate) fn shrink(&mut self) {
        self.posted.shrink();
        self.early.shrink();
        self.waiting.shrink();
        self.stalls.shrink_to_fit();
        self.claims.shrink();
        self.accounts.shrink();
        self.wakes.shrink_to_fit();
    }

    // What comes from connections.

    /// A connection joins; so many bytes of its messages are kept for sure.
    pub(crate) fn join(&mut self, connection: ConnectionId, source: SourceId) -> u64 {
        self.accounts.join(connection, source)
    }

    /// A connection has gone: what it announced is forgotten, what came in full stays.
    pub(crate) fn leave(&mut self, connection: ConnectionId) -> Gone<T> {
        self.forget_announcements(connection);
        self.accounts.leave(connection);
        let mut gone = Gone { receive: None };
        match self.stalls.remove(&connection) {
            Some(Stall::Waiting(key)) => drop(self.waiting.remove(key)),
            // Others may want what it was woken for.
            Some(Stall::Woken(_, Some(receive))) => self.wake_for(receive),
            Some(Stall::Woken(_, None)) => {}
            Some(Stall::Claimed) => self.forget_claims(connection),
            Some(Stall::Given(receive)) => gone.receive = Some(receive),
            None => {}
        }
        self.wake_for_room(None);
        gone
    }

    /// A message begins. Its place is given to it here.
    pub(crate) fn arrive(&mut self, arrival: &mut Arrival) -> Arrived<T> {
        self.take_in(arrival, cost_of(arrival.len))
    }

    /// A message is announced. Its place is given to it here.
    pub(crate) fn announce(&mut self, announcement: &mut Announcement) -> Arrived<T> {
        let arrived = self.take_in(&mut announcement.arrival, cost_of(0));
        if let Arrived::Store = arrived {
            let early = Early {
                arrival: announcement.arrival,
                cost: cost_of(0),
                body: Body::Announced(*announcement),
            };
            self.early.insert(announcement.arrival.order, early);
        }
        arrived
    }

    fn take_in(&mut self, arrival: &mut Arrival, cost: u64) -> Arrived<T> {
        let connection = arrival.connection;
        let mut woken_for = None;
        // Mostly nobody waits, and a look for whom takes a hash.
        let stall = match self.stalls.is_empty() {
            true => None,
            false => self.stalls.remove(&connection),
        };
        let place = match stall {
            None => None,
            Some(Stall::Waiting(key)) => self.waiting.remove(key).map(|(order, _)| order),
            Some(Stall::Woken(order, receive)) => {
                woken_for = receive;
                Some(order)
            }
            Some(Stall::Given(receive)) => {
                arrival.order = self.next_arrival();
                return Arrived::Receive(receive);
            }
            Some(Stall::Claimed) => {
                self.stalls.insert(connection, Stall::Claimed);
                return Arrived::NoRoom;
            }
        };
        if let Some(at) = self.posted.find(arrival) {
            arrival.order = self.next_arrival();
            let receive = self.posted.take(at, arrival.len);
            // Others may want what it was woken for.
            if place.is_some() {
                self.wake_for_room(None);
            }
            if let Some(woken_for) = woken_for.filter(|key| *key != at) {
                self.wake_for(woken_for);
            }
            return Arrived::Receive(receive);
        }
        let first = self.waiting.first_waiting(List::WaitingForTotal);
        let first = first.map(|key| self.waiting.order(key));
        let queued = first.is_some_and(|first| place.is_none_or(|place| first < place));
        let list = match self.accounts.room(arrival, cost, queued) {
            Room::Yes => {
                arrival.order = self.next_arrival();
                self.accounts.keep(arrival, cost);
                return Arrived::Store;
            }
            room => list_of(room, arrival),
        };
        let place = place.unwrap_or_else(|| self.next_arrival());
        let early = Early {
            arrival: *arrival,
            cost,
            body: Body::Waiting(list),
        };
        let key = self.waiting.insert(place, early);
        self.stalls.insert(connection, Stall::Waiting(key));
        Arrived::NoRoom
    }

    /// A message that was to be stored has come in full. If a receive was posted meanwhile that
    /// takes it, the two are returned.
    pub(crate) fn landed(
        &mut self,
        message: EarlyMessage,
    ) -> Option<(PostedReceive<T>, EarlyMessage)> {
        let arrival = message.arrival;
        let cost = cost_of(arrival.len);
        if let Some(at) = self.posted.find(&arrival) {
            self.free(&arrival, cost);
            return Some((self.posted.take(at, message.len as u64), message));
        }
        self.insert(message, cost);
        None
    }

    /// A message that was to be stored never will come in full.
    pub(crate) fn abandoned(&mut self, arrival: &Arrival) {
        self.free(arrival, cost_of(arrival.len));
    }

    /// This announcement is withdrawn, if no receive has been matched with it.
    pub(crate) fn withdraw_announcement(&mut self, arrival: &Arrival) {
        let found = self.early.announced(arrival.connection, arrival.order);
        let early = match found.and_then(|at| self.early.remove(at)) {
            Some((_, early)) => Some(early),
            None => self.take_claim_of(arrival),
        };
        if let Some(early) = early {
            self.free(&early.arrival, early.cost);
        }
    }

    /// What this connection has announced will not be answered any more.
    pub(crate) fn forget_announcements(&mut self, connection: ConnectionId) {
        while let Some(at) = self.early.first_announced(connection)
            && let Some((_, early)) = self.early.remove(at)
        {
            self.free(&early.arrival, early.cost);
        }
        self.forget_claims(connection);
    }

    /// A message whose receive was dropped is kept again, in its place and whatever the budget
    /// says, or matched anew.
    pub(crate) fn give_back(
        &mut self,
        message: EarlyMessage,
    ) -> Option<(PostedReceive<T>, EarlyMessage)> {
        if let Some(at) = self.posted.find(&message.arrival) {
            return Some((self.posted.take(at, message.len as u64), message));
        }
        let cost = cost_of(message.len as u64);
        self.accounts.keep(&message.arrival, cost);
        self.insert(message, cost);
        None
    }

    /// The peer of this connection holds a message back until it is told of room.
    pub(crate) fn awaits_credit(&mut self, connection: ConnectionId) {
        self.accounts.awaits_credit(connection);
    }

    // Helpers.

    fn next_receive(&mut self) -> u64 {
        self.receives += 1;
        self.receives
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn insert(&mut self, message: EarlyMessage, cost: u64) {
        let arrival = message.arrival;
        let early = Early {
            arrival,
            cost,
            body: Body::Here(message),
        };
        self.early.insert(arrival.order, early);
    }

    /// The first kept message that such a receive takes.
    fn take_early(&mut self, wanted: Wanted, source: Option<SourceId>) -> Option<Body> {
        let (_, early) = self.early.remove(self.early.find(wanted, source)?)?;
        self.free(&early.arrival, early.cost);
        Some(early.body)
    }

    /// A message is kept no more.
    fn free(&mut self, arrival: &Arrival, cost: u64) {
        if self.accounts.free(arrival, cost) {
            self.wakes.push_back(arrival.connection);
        }
        self.look_again(arrival.connection);
        self.wake_for_room(Some(arrival.source));
    }

    /// Lists of messages that there is memory for.
    #[cfg(test)]
    pub(crate) fn lists_kept(&self) -> usize {
        self.early.lists_kept()
    }

    /// All that must hold between two calls.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.posted.check();
        self.early.check();
        self.waiting.check();
        self.accounts.check();
        for (_, early) in self.early.iter() {
            assert_eq!(
                self.posted.find(&early.arrival),
                None,
                "what fits is matched"
            );
        }
        let asks = |stall: &Stall<T>| matches!(stall, Stall::Woken(..));
        if !self.stalls.values().any(asks) {
            for (_, early) in self.waiting.iter() {
                let found = self.posted.find(&early.arrival);
                assert_eq!(found, None, "what waits for a receive is woken by it");
            }
        }
        let waits = |stall: &Stall<T>| matches!(stall, Stall::Waiting(_));
        let waiting = self.stalls.values().filter(|stall| waits(stall)).count();
        assert_eq!(waiting, self.waiting.len(), "who waits is known to wait");
        let kept = self.early.iter().map(|(_, early)| early.cost);
        assert!(
            kept.sum::<u64>() <= self.accounts.held(),
            "all that is kept is counted"
        );
    }
}

/// What a message of this length counts for.
fn cost_of(len: u64) -> u64 {
    len.saturating_add(UNEXPECTED_OVERHEAD as u64)
}
