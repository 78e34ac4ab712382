//! Messages that came before their receives, found by what a receive wants: at once by a tag, by a
//! sender, by both, or if any will do; by looking through them for what a mask leaves open.

use std::hash::{Hash, Hasher};

use crate::slab::Key;

use super::lists::{Filed, Lists, hash_words};
use super::{Announcement, Arrival, EarlyMessage, Kind, Wanted};
use crate::proto::peers::{ConnectionId, SourceId};

/// A list of early messages. Those in one line are of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Untagged,
    Tagged,
    UntaggedOf(SourceId),
    TaggedOf(SourceId),
    Tag(u64),
    TagOf(u64, SourceId),
    /// Announcements of a connection.
    Announced(ConnectionId),
    /// Those that wait in their connections: until anybody's bytes are gone, with a promise
    WaitingForPromised,
    /// or without,
    WaitingForTotal,
    /// or until bytes of the same sender are gone.
    WaitingForShare(SourceId),
}

impl Hash for List {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let words = match *self {
            List::Untagged => [0, 0, 0],
            List::Tagged => [1, 0, 0],
            List::UntaggedOf(source) => [2, source.0, 0],
            List::TaggedOf(source) => [3, source.0, 0],
            List::Tag(tag) => [4, 0, tag],
            List::TagOf(tag, source) => [5, source.0, tag],
            List::Announced(connection) => [6, connection.0, 0],
            List::WaitingForPromised => [7, 0, 0],
            List::WaitingForTotal => [8, 0, 0],
            List::WaitingForShare(source) => [9, source.0, 0],
        };
        hash_words(words, state);
    }
}

const SLOTS: usize = 5;

/// Where an early message is.
#[derive(Debug)]
pub(super) enum Body {
    Here(EarlyMessage),
    /// With its sender, who has announced it.
    Announced(Announcement),
    /// In its connection, which does not read on. The list it waits in, if there ever will be room.
    Waiting(Option<List>),
}

#[derive(Debug)]
pub(super) struct Early {
    pub(super) arrival: Arrival,
    /// Bytes it counts for.
    pub(super) cost: u64,
    pub(super) body: Body,
}

impl Filed for Early {
    type List = List;

    fn list(&self, slot: usize) -> Option<List> {
        let source = self.arrival.source;
        match (slot, self.arrival.kind) {
            (0, Kind::Message) => Some(List::Untagged),
            (0, Kind::Tagged { .. }) => Some(List::Tagged),
            (1, Kind::Message) => Some(List::UntaggedOf(source)),
            (1, Kind::Tagged { .. }) => Some(List::TaggedOf(source)),
            (2, kind) => kind.tag().map(List::Tag),
            (3, kind) => kind.tag().map(|tag| List::TagOf(tag, source)),
            _ => match self.body {
                Body::Here(_) => None,
                Body::Announced(_) => Some(List::Announced(self.arrival.connection)),
                Body::Waiting(list) => list,
            },
        }
    }
}

/// Early messages in the order in which they came.
#[derive(Debug)]
pub(super) struct EarlyMessages {
    lists: Lists<Early, SLOTS>,
}

impl EarlyMessages {
    pub(super) fn new() -> Self {
        EarlyMessages {
            lists: Lists::new(),
        }
    }

    pub(super) fn insert(&mut self, order: u64, early: Early) -> Key {
        self.lists.insert(order, early)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<(u64, Early)> {
        self.lists.remove(key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Early> {
        self.lists.get(key)
    }

    /// The first that such a receive takes.
    pub(super) fn find(&self, wanted: Wanted, source: Option<SourceId>) -> Option<Key> {
        let (all, slot) = match (wanted, source) {
            (Wanted::Message, None) => (List::Untagged, 0),
            (Wanted::Message, Some(source)) => (List::UntaggedOf(source), 1),
            (Wanted::Tagged { tag, ignore: 0 }, None) => (List::Tag(tag), 2),
            (Wanted::Tagged { tag, ignore: 0 }, Some(source)) => (List::TagOf(tag, source), 3),
            (Wanted::Tagged { .. }, None) => (List::Tagged, 0),
            (Wanted::Tagged { .. }, Some(source)) => (List::TaggedOf(source), 1),
        };
        let mut list = self.lists.walk(all, slot);
        let found = list.find(|(_, early)| wanted.takes(early.arrival.kind));
        found.map(|(key, _)| key)
    }

    /// The announcement of this connection with this place.
    pub(super) fn announced(&self, connection: ConnectionId, order: u64) -> Option<Key> {
        let mut list = self.lists.walk(List::Announced(connection), SLOTS - 1);
        let found = list.find(|(_, early)| early.arrival.order == order);
        found.map(|(key, _)| key)
    }

    pub(super) fn first_announced(&self, connection: ConnectionId) -> Option<Key> {
        self.lists.first(List::Announced(connection))
    }

    /// The one that waits longest in this list.
    pub(super) fn first_waiting(&self, list: List) -> Option<Key> {
        self.lists.first(list)
    }

    /// One that waits does so in this list from now on.
    pub(super) fn wait_in(&mut self, key: Key, list: Option<List>) {
        self.lists
            .change(key, |early| early.body = Body::Waiting(list));
    }

    /// The place of a message that is there.
    pub(super) fn order(&self, key: Key) -> u64 {
        self.lists.order(key)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Early)> {
        self.lists.iter()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.lists.iter().map(|(key, _)| key).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn shrink(&mut self) {
        self.lists.shrink();
    }

    #[cfg(test)]
    pub(super) fn lists_kept(&self) -> usize {
        self.lists.ends_kept()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.lists.check();
    }
}
