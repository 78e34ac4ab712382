//! Messages without a receive, indexed by the criteria of receives: O(1) by tag, by sender, by
//! both, or for any message; linear in the candidates if the receive has a mask, or takes the
//! messages of all peers of an authorization key.

use crate::slab::Key;

use super::multi_list::{ListName, Listed, MultiList};
use super::{Announcement, Arrival, MatchCriteria, MessageKind, ReceivedMessage};
use crate::proto::peers::{ConnectionId, SourceId};

/// The key of a list of messages. A message is in at most one list per slot; [`Listed::list`] of
/// [`MessageEntry`] assigns the keys to the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListKey {
    Untagged,
    Tagged,
    UntaggedOf(SourceId),
    TaggedOf(SourceId),
    Tag(u64),
    TagOf(u64, SourceId),
    /// The announcements of a connection.
    Announced(ConnectionId),
    /// Messages stalled within the promise of their connection, until any bytes are released.
    StalledOnPromise,
    /// Messages stalled beyond the promise, until uncommitted bytes are released.
    StalledOnTotal,
    /// Messages stalled until bytes of the same sender are released.
    StalledOnQuota(SourceId),
}

impl ListName for ListKey {
    fn words(&self) -> [u64; 2] {
        let (kind, name, tag) = match *self {
            ListKey::Untagged => (0, 0, 0),
            ListKey::Tagged => (1, 0, 0),
            ListKey::UntaggedOf(source) => (2, source.0, 0),
            ListKey::TaggedOf(source) => (3, source.0, 0),
            ListKey::Tag(tag) => (4, 0, tag),
            ListKey::TagOf(tag, source) => (5, source.0, tag),
            ListKey::Announced(of) => (6, of.endpoint.number(), of.number),
            ListKey::StalledOnPromise => (7, 0, 0),
            ListKey::StalledOnTotal => (8, 0, 0),
            ListKey::StalledOnQuota(source) => (9, source.0, 0),
        };
        [name << 4 | kind, tag]
    }
}

const SLOTS: usize = 5;

/// The location of a message's payload.
#[derive(Debug)]
pub(super) enum MessageBody {
    /// The payload is in the store, complete.
    Buffered(ReceivedMessage),
    /// The payload is with the sender, who has announced the message.
    Announced(Announcement),
    /// The payload is in its connection's socket, which is not read meanwhile. Holds the list in
    /// which the message waits; `None` if the message is too large ever to be admitted.
    Stalled(Option<ListKey>),
}

#[derive(Debug)]
pub(super) struct MessageEntry {
    pub(super) arrival: Arrival,
    /// The bytes that admission control charges for the message.
    pub(super) cost: u64,
    pub(super) body: MessageBody,
}

impl Listed for MessageEntry {
    type Name = ListKey;

    fn list(&self, slot: usize) -> Option<ListKey> {
        let source = self.arrival.source;
        match (slot, self.arrival.kind) {
            (0, MessageKind::Message) => Some(ListKey::Untagged),
            (0, MessageKind::Tagged { .. }) => Some(ListKey::Tagged),
            (1, MessageKind::Message) => Some(ListKey::UntaggedOf(source)),
            (1, MessageKind::Tagged { .. }) => Some(ListKey::TaggedOf(source)),
            (2, kind) => kind.tag().map(ListKey::Tag),
            (3, kind) => kind.tag().map(|tag| ListKey::TagOf(tag, source)),
            _ => match self.body {
                MessageBody::Buffered(_) => None,
                MessageBody::Announced(_) => Some(ListKey::Announced(self.arrival.connection)),
                MessageBody::Stalled(list) => list,
            },
        }
    }
}

/// Messages in the order in which they came.
#[derive(Debug)]
pub(super) struct MessageIndex {
    lists: MultiList<MessageEntry, SLOTS>,
}

impl MessageIndex {
    pub(super) fn new() -> Self {
        MessageIndex {
            lists: MultiList::new(),
        }
    }

    pub(super) fn insert(&mut self, order: u64, entry: MessageEntry) -> Key {
        self.lists.insert(order, entry)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<(u64, MessageEntry)> {
        self.lists.remove(key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&MessageEntry> {
        self.lists.get(key)
    }

    /// Returns the oldest message that a receive with these criteria takes.
    pub(super) fn find(&self, wanted: MatchCriteria, source: Option<SourceId>) -> Option<Key> {
        if self.lists.len() == 0 {
            return None;
        }
        // The peers of one key have no lists of their own, so the lists of all peers are searched.
        let of_key = source.filter(|source| source.is_all());
        let (all, slot) = match (wanted, source.filter(|source| !source.is_all())) {
            (MatchCriteria::Message, None) => (ListKey::Untagged, 0),
            (MatchCriteria::Message, Some(source)) => (ListKey::UntaggedOf(source), 1),
            (MatchCriteria::Tagged { tag, ignore: 0 }, None) => (ListKey::Tag(tag), 2),
            (MatchCriteria::Tagged { tag, ignore: 0 }, Some(source)) => {
                (ListKey::TagOf(tag, source), 3)
            }
            (MatchCriteria::Tagged { .. }, None) => (ListKey::Tagged, 0),
            (MatchCriteria::Tagged { .. }, Some(source)) => (ListKey::TaggedOf(source), 1),
        };
        let mut list = self.lists.walk(all, slot);
        let found = list.find(|(_, entry)| {
            let Arrival { kind, source, .. } = entry.arrival;
            wanted.takes(kind) && of_key.is_none_or(|all| source.all_alike() == all)
        });
        found.map(|(key, _)| key)
    }

    /// Returns the announcement of this connection with this sequence number.
    pub(super) fn announced(&self, connection: ConnectionId, order: u64) -> Option<Key> {
        let mut list = self.lists.walk(ListKey::Announced(connection), SLOTS - 1);
        let found = list.find(|(_, entry)| entry.arrival.order == order);
        found.map(|(key, _)| key)
    }

    pub(super) fn first_announced(&self, connection: ConnectionId) -> Option<Key> {
        self.lists.first(ListKey::Announced(connection))
    }

    /// Returns the message that has waited longest in this list.
    pub(super) fn first_stalled(&self, list: ListKey) -> Option<Key> {
        self.lists.first(list)
    }

    /// Moves a stalled message to another list.
    pub(super) fn stall_in(&mut self, key: Key, list: Option<ListKey>) {
        self.lists
            .change(key, |entry| entry.body = MessageBody::Stalled(list));
    }

    /// The sequence number of a message in the index.
    pub(super) fn order(&self, key: Key) -> u64 {
        self.lists.order(key)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &MessageEntry)> {
        self.lists.iter()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.lists.iter().map(|(key, _)| key).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn shrink(&mut self) {
        self.lists.shrink();
    }

    #[cfg(test)]
    pub(super) fn lists_kept(&self) -> usize {
        self.lists.lists_kept()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.lists.check();
    }
}
