//! Posted receives, indexed by what arrives.
//!
//! Receives form one *mask class* if they have the same mask and are directed alike: at any sender,
//! at one, or at all senders of one authorization key. Receives of a class that want the same tag
//! and sender form one list, whose first entry is the oldest. So a message costs one hash lookup
//! per class; applications use one or two masks.

use std::hash::{Hash, Hasher};

use crate::buf::{BufferCursor, Payload};
use crate::slab::Key;
use crate::sync::OwnedRecord;

use super::multi_list::{Listed, MultiList, hash_words};
use super::{Arrival, MatchCriteria, MessageKind, PostedReceive};
use crate::proto::op::{OpKey, OpKind, Operation, PostOptions};
use crate::proto::peers::SourceId;

/// Properties that receives have in common if one hash lookup can find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MaskClass {
    /// The mask of receives that want a tag.
    ignore: Option<u64>,
    directed: Directed,
}

/// Whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directed {
    Anybodys,
    OnePeers,
    /// All peers' of one authorization key.
    OneKeys,
}

impl Directed {
    fn at(source: Option<SourceId>) -> Self {
        match source {
            None => Directed::Anybodys,
            Some(source) if source.is_all() => Directed::OneKeys,
            Some(_) => Directed::OnePeers,
        }
    }

    /// Returns the source for which a receive is posted, if it takes a message of this sender.
    fn source_of(self, sender: SourceId) -> Option<SourceId> {
        match self {
            Directed::Anybodys => None,
            Directed::OnePeers => Some(sender),
            Directed::OneKeys => Some(sender.all_alike()),
        }
    }
}

/// The hash key of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MatchKey {
    class: MaskClass,
    /// The tag without the ignored bits.
    tag: u64,
    source: Option<SourceId>,
}

impl Hash for MatchKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let MaskClass { ignore, directed } = self.class;
        let class = u64::from(ignore.is_some()) | (directed as u64) << 1;
        let source = self.source.map_or(0, |source| source.0);
        hash_words([self.tag, ignore.unwrap_or(0), source, class], state);
    }
}

impl MatchKey {
    fn of(wanted: MatchCriteria, source: Option<SourceId>) -> Self {
        let (ignore, tag) = match wanted {
            MatchCriteria::Message => (None, 0),
            MatchCriteria::Tagged { tag, ignore } => (Some(ignore), tag & !ignore),
        };
        let directed = Directed::at(source);
        MatchKey {
            class: MaskClass { ignore, directed },
            tag,
            source,
        }
    }
}

/// The buffer of a receive.
#[derive(Debug)]
enum ReceiveBuffer<T> {
    /// For one message.
    Single(OwnedRecord<Operation<T>>),
    /// A multi-receive buffer. The next message gets a part of it and this token; without a token
    /// the buffer is not armed, and takes no message.
    Multi(BufferCursor, Option<T>),
}

#[derive(Debug)]
pub(super) struct PostedEntry<T> {
    match_key: MatchKey,
    wanted: MatchCriteria,
    key: OpKey,
    buffer: ReceiveBuffer<T>,
}

impl<T> Listed for PostedEntry<T> {
    type ListKey = MatchKey;

    fn list(&self, _slot: usize) -> Option<MatchKey> {
        let takes = !matches!(self.buffer, ReceiveBuffer::Multi(_, None));
        takes.then_some(self.match_key)
    }
}

/// The posted receives.
#[derive(Debug)]
pub(super) struct PostedReceives<T> {
    lists: MultiList<PostedEntry<T>, 1>,
    /// The mask classes in use, each with its number of receives.
    classes: Vec<(MaskClass, usize)>,
}

impl<T> PostedReceives<T> {
    pub(super) fn new() -> Self {
        PostedReceives {
            lists: MultiList::new(),
            classes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn shrink(&mut self) {
        self.lists.shrink();
        self.classes.shrink_to_fit();
    }

    /// Posts a receive in its order.
    pub(super) fn insert(&mut self, receive: PostedReceive<T>) -> Key {
        let PostedReceive {
            record,
            wanted,
            source,
            order,
            key,
        } = receive;
        let buffer = ReceiveBuffer::Single(record);
        self.put(order, wanted, source, key, buffer)
    }

    /// Posts a multi-receive buffer, which is not armed yet.
    pub(super) fn insert_multi(
        &mut self,
        cursor: BufferCursor,
        wanted: MatchCriteria,
        source: Option<SourceId>,
        order: u64,
        key: OpKey,
    ) -> Key {
        let buffer = ReceiveBuffer::Multi(cursor, None);
        self.put(order, wanted, source, key, buffer)
    }

    fn put(
        &mut self,
        order: u64,
        wanted: MatchCriteria,
        source: Option<SourceId>,
        key: OpKey,
        buffer: ReceiveBuffer<T>,
    ) -> Key {
        let match_key = MatchKey::of(wanted, source);
        match self
            .classes
            .iter_mut()
            .find(|(it, _)| *it == match_key.class)
        {
            Some((_, count)) => *count += 1,
            None => self.classes.push((match_key.class, 1)),
        }
        let posted = PostedEntry {
            match_key,
            wanted,
            key,
            buffer,
        };
        self.lists.insert(order, posted)
    }

    fn remove(&mut self, key: Key) -> Option<(u64, PostedEntry<T>)> {
        let (order, posted) = self.lists.remove(key)?;
        let class = posted.match_key.class;
        let at = self.classes.iter().position(|(it, _)| *it == class);
        let at = at.expect("the class of a posted receive is counted");
        self.classes[at].1 -= 1;
        if self.classes[at].1 == 0 {
            self.classes.swap_remove(at);
        }
        Some((order, posted))
    }

    /// Returns the oldest receive that takes this message.
    pub(super) fn find(&self, arrival: &Arrival) -> Option<Key> {
        let found = self.classes.iter().filter_map(|&(class, _)| {
            let tag = match (arrival.kind, class.ignore) {
                (MessageKind::Message, None) => 0,
                (MessageKind::Tagged { tag }, Some(ignore)) => tag & !ignore,
                _ => return None,
            };
            let source = class.directed.source_of(arrival.source);
            self.lists.first(MatchKey { class, tag, source })
        });
        found.min_by_key(|key| self.lists.order(*key))
    }

    /// Takes the receive, or a part of a multi-receive buffer, for a message of this length. The
    /// rest of the buffer takes the next message once it is armed again.
    pub(super) fn take(&mut self, at: Key, len: u64) -> PostedReceive<T> {
        self.take_and_arm(at, len, |_| None)
    }

    /// Like [`take`](Self::take), but the rest of the buffer, if it is not consumed, takes the next
    /// message at once, with the token that `next` makes of this one's.
    pub(super) fn take_and_arm(
        &mut self,
        at: Key,
        len: u64,
        next: impl FnOnce(&T) -> Option<T>,
    ) -> PostedReceive<T> {
        let order = self.lists.order(at);
        let allocate = |posted: &mut PostedEntry<T>| match &mut posted.buffer {
            ReceiveBuffer::Multi(cursor, armed @ Some(_)) => {
                let token = armed.take().expect("just seen");
                let payload = cursor.allocate(len);
                if !cursor.is_consumed() {
                    *armed = next(&token);
                }
                let options = PostOptions::default();
                let part = Operation::new(OpKind::Receive, payload, token, options);
                Some(PostedReceive {
                    record: OwnedRecord::new(part),
                    wanted: posted.wanted,
                    source: posted.match_key.source,
                    order,
                    key: posted.key,
                })
            }
            _ => None,
        };
        if self.is_multi(at)
            && let Some(part) = self.lists.change(at, allocate).flatten()
        {
            return part;
        }
        let (_, posted) = self.remove(at).expect("found a moment ago");
        let ReceiveBuffer::Single(record) = posted.buffer else {
            unreachable!("a buffer that is not armed takes no message")
        };
        PostedReceive {
            record,
            wanted: posted.wanted,
            source: posted.match_key.source,
            order,
            key: posted.key,
        }
    }

    /// True if it takes messages now.
    pub(super) fn is_armed(&self, at: Key) -> bool {
        self.takes(at).is_some()
    }

    /// What a posted receive takes; `None` if it is not armed.
    pub(super) fn takes(&self, at: Key) -> Option<(MatchCriteria, Option<SourceId>)> {
        let posted = self.lists.get(at)?;
        let match_key = posted.list(0)?;
        Some((posted.wanted, match_key.source))
    }

    /// Returns the only sender whose messages it takes, if there is one.
    pub(super) fn source_of(&self, at: Key) -> Option<SourceId> {
        self.lists.get(at)?.match_key.source
    }

    /// Returns an unused part of a multi-receive buffer. The part comes back to the caller if a
    /// later part is in use.
    pub(super) fn return_part(&mut self, at: Key, part: Payload) -> Option<Payload> {
        if !self.is_multi(at) {
            return Some(part);
        }
        let put_back = |posted: &mut PostedEntry<T>| match &mut posted.buffer {
            ReceiveBuffer::Multi(cursor, _) => cursor.take_back(part),
            ReceiveBuffer::Single(..) => Some(part),
        };
        self.lists.change(at, put_back).flatten()
    }

    fn is_multi(&self, at: Key) -> bool {
        let posted = self.lists.get(at);
        posted.is_some_and(|posted| matches!(posted.buffer, ReceiveBuffer::Multi(..)))
    }

    /// Arms a multi-receive buffer: its next message gets this token. Returns what the buffer
    /// takes; `Err`: it is consumed, and the token comes back.
    pub(super) fn arm(&mut self, at: Key, next: T) -> Result<(MatchCriteria, Option<SourceId>), T> {
        let is_open = |posted: &PostedEntry<T>| match &posted.buffer {
            ReceiveBuffer::Multi(cursor, None) => !cursor.is_consumed(),
            _ => false,
        };
        if !self.lists.get(at).is_some_and(is_open) {
            return Err(next);
        }
        let arm = |posted: &mut PostedEntry<T>| {
            if let ReceiveBuffer::Multi(_, token) = &mut posted.buffer {
                *token = Some(next);
            }
            (posted.wanted, posted.match_key.source)
        };
        Ok(self.lists.change(at, arm).expect("just seen"))
    }

    pub(super) fn cancel(&mut self, key: Key) -> Option<CanceledReceive<T>> {
        let (_, posted) = self.remove(key)?;
        Some(match posted.buffer {
            ReceiveBuffer::Single(record) => CanceledReceive::Single(record),
            ReceiveBuffer::Multi(cursor, token) => CanceledReceive::Multi(cursor, token),
        })
    }

    /// Returns the receives of one message.
    pub(super) fn records(&self) -> impl Iterator<Item = &OwnedRecord<Operation<T>>> {
        self.lists
            .iter()
            .filter_map(|(_, posted)| match &posted.buffer {
                ReceiveBuffer::Single(record) => Some(record),
                ReceiveBuffer::Multi(..) => None,
            })
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.lists.check();
        for &(class, count) in &self.classes {
            let of = self
                .lists
                .iter()
                .filter(|(_, posted)| posted.match_key.class == class);
            assert_eq!(of.count(), count, "classes are counted");
        }
        let counted: usize = self.classes.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, self.lists.len());
    }
}

/// A receive that was canceled before a message was matched to it.
#[derive(Debug)]
pub(crate) enum CanceledReceive<T> {
    Single(OwnedRecord<Operation<T>>),
    Multi(BufferCursor, Option<T>),
}
