//! Posted receives, indexed by the properties of arriving messages.
//!
//! Receives form one *mask class* if they have the same mask and are directed alike: at any sender,
//! at one sender, or at all senders of one authorization key. Receives of a class with the same tag
//! and sender form one list, whose first entry is the oldest. So a message costs one hash lookup
//! per class; applications use one or two masks.

use crate::buf::{BufferCursor, Payload};
use crate::proto::op::OpKey;
use crate::proto::peers::SourceId;
use crate::slab::Key;

use super::multi_list::{ListName, Listed, MultiList};
use super::{Arrival, MatchCriteria, MatchedReceive, MessageKind, PostedReceive};

/// Properties that receives have in common if one hash lookup can find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MaskClass {
    /// The mask of receives that want a tag.
    ignore: Option<u64>,
    directed: Directed,
}

/// The senders whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directed {
    Anybodys,
    OnePeers,
    /// All peers with one authorization key.
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

    /// Returns the source of a receive that is directed like this and takes this sender's messages.
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

impl ListName for MatchKey {
    /// The class is not hashed: there are few classes.
    fn words(&self) -> [u64; 2] {
        [self.tag, self.source.map_or(0, |source| source.0)]
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

    /// Returns the criteria of the receive.
    fn wanted(&self) -> MatchCriteria {
        match self.class.ignore {
            None => MatchCriteria::Message,
            Some(ignore) => MatchCriteria::Tagged {
                tag: self.tag,
                ignore,
            },
        }
    }
}

/// A multi-receive buffer.
#[derive(Debug)]
struct MultiBuffer {
    cursor: BufferCursor,
    /// The next message gets a part of the buffer. An unarmed buffer takes no message.
    is_armed: bool,
}

#[derive(Debug)]
pub(super) struct PostedEntry {
    match_key: MatchKey,
    key: OpKey,
    /// `None`: the receive takes one message. Boxed, so that other receives do not become larger.
    multi: Option<Box<MultiBuffer>>,
}

impl PostedEntry {
    fn receive(&self, order: u64) -> PostedReceive {
        PostedReceive {
            wanted: self.match_key.wanted(),
            source: self.match_key.source,
            order,
            key: self.key,
        }
    }
}

impl Listed for PostedEntry {
    type Name = MatchKey;

    fn list(&self, _slot: usize) -> Option<MatchKey> {
        let takes = self.multi.as_ref().is_none_or(|multi| multi.is_armed);
        takes.then_some(self.match_key)
    }
}

/// The posted receives.
#[derive(Debug)]
pub(super) struct PostedReceives {
    lists: MultiList<PostedEntry, 1>,
    /// The mask classes in use, each with its number of receives.
    classes: Vec<(MaskClass, usize)>,
}

impl PostedReceives {
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

    /// Posts a receive in its order; with a cursor, a multi-receive buffer, which is not armed yet.
    pub(super) fn insert(&mut self, receive: PostedReceive, cursor: Option<BufferCursor>) -> Key {
        let match_key = MatchKey::of(receive.wanted, receive.source);
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
            key: receive.key,
            multi: cursor.map(|cursor| {
                Box::new(MultiBuffer {
                    cursor,
                    is_armed: false,
                })
            }),
        };
        self.lists.insert(receive.order, posted)
    }

    fn remove(&mut self, key: Key) -> Option<(u64, PostedEntry)> {
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
    /// rest of the buffer takes no message until it is armed again.
    pub(super) fn take(&mut self, at: Key, len: u64) -> MatchedReceive {
        self.take_and_arm(at, len, |_| false)
    }

    /// Like [`take`](Self::take), but if the rest of the buffer is not consumed and `may_arm`
    /// agrees, it takes the next message at once.
    pub(super) fn take_and_arm(
        &mut self,
        at: Key,
        len: u64,
        may_arm: impl FnOnce(OpKey) -> bool,
    ) -> MatchedReceive {
        let order = self.lists.order(at);
        let allocate = |posted: &mut PostedEntry| {
            let receive = posted.receive(order);
            let multi = posted.multi.as_mut()?;
            let part = multi.cursor.allocate(len);
            multi.is_armed = !multi.cursor.is_consumed() && may_arm(receive.key);
            Some(MatchedReceive {
                receive,
                part: Some(part),
            })
        };
        if self.is_multi(at)
            && let Some(part) = self.lists.change(at, allocate).flatten()
        {
            return part;
        }
        let (order, posted) = self.remove(at).expect("found a moment ago");
        posted.receive(order).into()
    }

    /// True if the receive takes messages now.
    #[cfg(test)]
    pub(super) fn is_armed(&self, at: Key) -> bool {
        self.takes(at).is_some()
    }

    /// Returns the criteria and the source of a posted receive; `None` if it is not armed.
    pub(super) fn takes(&self, at: Key) -> Option<(MatchCriteria, Option<SourceId>)> {
        let posted = self.lists.get(at)?;
        let match_key = posted.list(0)?;
        Some((match_key.wanted(), match_key.source))
    }

    /// Returns the only source whose messages the receive takes, if there is one.
    pub(super) fn source_of(&self, at: Key) -> Option<SourceId> {
        self.lists.get(at)?.match_key.source
    }

    /// Returns an unused part of a multi-receive buffer. The part comes back to the caller if a
    /// later part is in use.
    pub(super) fn return_part(&mut self, at: Key, part: Payload) -> Option<Payload> {
        if !self.is_multi(at) {
            return Some(part);
        }
        let put_back = |posted: &mut PostedEntry| match &mut posted.multi {
            Some(multi) => multi.cursor.take_back(part),
            None => Some(part),
        };
        self.lists.change(at, put_back).flatten()
    }

    fn is_multi(&self, at: Key) -> bool {
        self.lists.get(at).is_some_and(|it| it.multi.is_some())
    }

    /// Arms a multi-receive buffer for its next message. Returns the buffer's criteria and source;
    /// `None`: the buffer is armed already, or consumed.
    pub(super) fn arm(&mut self, at: Key) -> Option<(MatchCriteria, Option<SourceId>)> {
        let multi = self.lists.get(at)?.multi.as_ref()?;
        if multi.is_armed || multi.cursor.is_consumed() {
            return None;
        }
        let arm = |posted: &mut PostedEntry| {
            if let Some(multi) = &mut posted.multi {
                multi.is_armed = true;
            }
            (posted.match_key.wanted(), posted.match_key.source)
        };
        self.lists.change(at, arm)
    }

    /// Removes a receive; returns the rest of a multi-receive buffer.
    pub(super) fn cancel(&mut self, key: Key) -> Option<BufferCursor> {
        self.remove(key)?.1.multi.map(|multi| multi.cursor)
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
