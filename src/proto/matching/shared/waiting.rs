//! Messages that there is no room for: each waits in its connection, and is woken for a receive or
//! for room.

use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::Key;

use super::super::budget::Room;
use super::super::early::List;
use super::super::{Arrival, PostedReceive};
use super::{ReceiveKey, SharedMatcher};

/// A connection that was told to wait and has not asked again since.
#[derive(Debug)]
pub(super) enum Stall<T> {
    /// Its message is in the list of those that wait.
    Waiting(Key),
    /// It was woken, for this receive or for room. This was its place.
    Woken(u64, Option<ReceiveKey>),
    /// Its message is claimed.
    Claimed,
    /// Its message was claimed, and is for this receive.
    Given(PostedReceive<T>),
}

impl<T> SharedMatcher<T> {
    /// A connection that may read on, or tell of room, since something changed for it.
    pub(crate) fn poll_wake(&mut self) -> Option<ConnectionId> {
        self.wakes.pop_front()
    }

    /// What a connection was promised does not wait for those who were there first.
    pub(super) fn look_again(&mut self, connection: ConnectionId) {
        if let Some(Stall::Waiting(key)) = self.stalls.get(&connection)
            && let Some(early) = self.waiting.get(*key)
        {
            match self.accounts.room(&early.arrival, early.cost, true) {
                Room::Yes => self.wake(connection, None),
                room => {
                    let list = list_of(room, &early.arrival);
                    self.waiting.wait_in(*key, list);
                }
            }
        }
    }

    /// A receive is there for one of those that wait.
    pub(super) fn wake_for(&mut self, receive: ReceiveKey) {
        if let Some((wanted, source)) = self.posted.takes(receive)
            && let Some(at) = self.waiting.find(wanted, source)
            && let Some(early) = self.waiting.get(at)
        {
            self.wake(early.arrival.connection, Some(receive));
        }
    }

    /// Bytes came free, of this sender or in general.
    pub(super) fn wake_for_room(&mut self, source: Option<SourceId>) {
        let of_source = source.map(List::WaitingForShare);
        let of_all = [List::WaitingForPromised, List::WaitingForTotal];
        for list in of_source.into_iter().chain(of_all) {
            // What those will take who are woken here and have not asked again yet.
            let mut taken = 0;
            while let Some(key) = self.waiting.first_waiting(list)
                && let Some(early) = self.waiting.get(key)
            {
                let (arrival, cost) = (early.arrival, early.cost);
                let waits_in = match self.accounts.room(&arrival, cost, false) {
                    Room::Yes if self.accounts.is_free(taken + cost) => {
                        taken += cost;
                        self.wake(arrival.connection, None);
                        continue;
                    }
                    Room::Yes if list == List::WaitingForPromised => break,
                    Room::Yes => Some(List::WaitingForTotal),
                    room => list_of(room, &arrival),
                };
                if waits_in == Some(list) {
                    break;
                }
                self.waiting.wait_in(key, waits_in);
            }
        }
    }

    /// Wakes a connection whose message waits.
    pub(super) fn wake(&mut self, connection: ConnectionId, receive: Option<ReceiveKey>) {
        if let Some(stall) = self.stalls.get_mut(&connection)
            && let Stall::Waiting(key) = *stall
            && let Some((order, _)) = self.waiting.remove(key)
        {
            *stall = Stall::Woken(order, receive);
            self.wakes.push_back(connection);
        }
    }
}

/// Where a message waits that there is no room for.
pub(super) fn list_of(room: Room, arrival: &Arrival) -> Option<List> {
    match room {
        Room::Yes | Room::Never => None,
        Room::OwnShare => Some(List::WaitingForShare(arrival.source)),
        Room::Overbooked => Some(List::WaitingForPromised),
        Room::Total => Some(List::WaitingForTotal),
    }
}
