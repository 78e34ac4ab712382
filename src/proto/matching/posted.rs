//! Posted receives, found by what arrives.
//!
//! Receives with the same mask, and with or without a sender, have one *shape*; those of a shape
//! that want the same are one list. So whatever arrives asks once per shape, and in each list the
//! first is the oldest. Applications use one or two masks.

use std::hash::{Hash, Hasher};

use crate::buf::{BufferCursor, Payload};
use crate::slab::Key;

use super::lists::{Filed, Lists, hash_words};
use super::{Arrival, Kind, PostedReceive, Wanted};
use crate::proto::op::OpKey;
use crate::proto::peers::SourceId;

/// What receives have in common that are found by one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// The mask of those that want a tag.
    ignore: Option<u64>,
    directed: bool,
}

/// What a receive takes, in its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    shape: Shape,
    /// Without the bits that do not matter.
    tag: u64,
    source: Option<SourceId>,
}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Shape { ignore, directed } = self.shape;
        let shape = u64::from(ignore.is_some()) | u64::from(directed) << 1;
        let source = self.source.map_or(0, |source| source.0);
        hash_words([self.tag, ignore.unwrap_or(0), source, shape], state);
    }
}

impl Pattern {
    fn of(wanted: Wanted, source: Option<SourceId>) -> Self {
        let (ignore, tag) = match wanted {
            Wanted::Message => (None, 0),
            Wanted::Tagged { tag, ignore } => (Some(ignore), tag & !ignore),
        };
        let directed = source.is_some();
        Pattern {
            shape: Shape { ignore, directed },
            tag,
            source,
        }
    }
}

/// The memory of a receive.
#[derive(Debug)]
enum Memory<T> {
    /// For one message.
    Whole(Payload, T),
    /// For many, the next of which gets a part and this token. Without a token it takes none.
    Carved(BufferCursor, Option<T>),
}

#[derive(Debug)]
pub(super) struct Posted<T> {
    pattern: Pattern,
    wanted: Wanted,
    key: OpKey,
    memory: Memory<T>,
}

impl<T> Filed for Posted<T> {
    type List = Pattern;

    fn list(&self, _slot: usize) -> Option<Pattern> {
        let takes = !matches!(self.memory, Memory::Carved(_, None));
        takes.then_some(self.pattern)
    }
}

/// The posted receives.
#[derive(Debug)]
pub(super) struct PostedReceives<T> {
    lists: Lists<Posted<T>, 1>,
    /// The shapes of those that are posted, with how many they are.
    shapes: Vec<(Shape, usize)>,
}

impl<T> PostedReceives<T> {
    pub(super) fn new() -> Self {
        PostedReceives {
            lists: Lists::new(),
            shapes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    pub(super) fn shrink(&mut self) {
        self.lists.shrink();
        self.shapes.shrink_to_fit();
    }

    /// Posts a receive in its order.
    pub(super) fn insert(&mut self, receive: PostedReceive<T>) -> Key {
        let PostedReceive {
            token,
            payload,
            wanted,
            source,
            order,
            key,
        } = receive;
        let memory = Memory::Whole(payload, token);
        self.put(order, wanted, source, key, memory)
    }

    /// Posts a buffer for many messages, which takes none before it is armed.
    pub(super) fn insert_many(
        &mut self,
        carving: BufferCursor,
        wanted: Wanted,
        source: Option<SourceId>,
        order: u64,
        key: OpKey,
    ) -> Key {
        let memory = Memory::Carved(carving, None);
        self.put(order, wanted, source, key, memory)
    }

    fn put(
        &mut self,
        order: u64,
        wanted: Wanted,
        source: Option<SourceId>,
        key: OpKey,
        memory: Memory<T>,
    ) -> Key {
        let pattern = Pattern::of(wanted, source);
        match self.shapes.iter_mut().find(|(it, _)| *it == pattern.shape) {
            Some((_, count)) => *count += 1,
            None => self.shapes.push((pattern.shape, 1)),
        }
        let posted = Posted {
            pattern,
            wanted,
            key,
            memory,
        };
        self.lists.insert(order, posted)
    }

    fn remove(&mut self, key: Key) -> Option<(u64, Posted<T>)> {
        let (order, posted) = self.lists.remove(key)?;
        let shape = posted.pattern.shape;
        let at = self.shapes.iter().position(|(it, _)| *it == shape);
        let at = at.expect("the shape of a posted receive is counted");
        self.shapes[at].1 -= 1;
        if self.shapes[at].1 == 0 {
            self.shapes.swap_remove(at);
        }
        Some((order, posted))
    }

    /// The oldest receive that takes this.
    pub(super) fn find(&self, arrival: &Arrival) -> Option<Key> {
        let found = self.shapes.iter().filter_map(|&(shape, _)| {
            let tag = match (arrival.kind, shape.ignore) {
                (Kind::Message, None) => 0,
                (Kind::Tagged { tag }, Some(ignore)) => tag & !ignore,
                _ => return None,
            };
            let source = shape.directed.then_some(arrival.source);
            self.lists.first(Pattern { shape, tag, source })
        });
        found.min_by_key(|key| self.lists.order(*key))
    }

    /// Takes the receive, or a part of it, for a message of this length. What is left of a buffer
    /// for many messages takes the next one once it is armed.
    pub(super) fn take(&mut self, at: Key, len: u64) -> PostedReceive<T> {
        let order = self.lists.order(at);
        let carve = |posted: &mut Posted<T>| match &mut posted.memory {
            Memory::Carved(carving, token @ Some(_)) => Some(PostedReceive {
                token: token.take().expect("just seen"),
                payload: carving.carve(len),
                wanted: posted.wanted,
                source: posted.pattern.source,
                order,
                key: posted.key,
            }),
            _ => None,
        };
        if self.is_for_many(at)
            && let Some(part) = self.lists.change(at, carve).flatten()
        {
            return part;
        }
        let (_, posted) = self.remove(at).expect("found a moment ago");
        let Memory::Whole(payload, token) = posted.memory else {
            unreachable!("a buffer that is not armed takes no message")
        };
        PostedReceive {
            token,
            payload,
            wanted: posted.wanted,
            source: posted.pattern.source,
            order,
            key: posted.key,
        }
    }

    /// What a posted receive takes, if it takes a message now.
    pub(super) fn takes(&self, at: Key) -> Option<(Wanted, Option<SourceId>)> {
        let posted = self.lists.get(at)?;
        let pattern = posted.list(0)?;
        Some((posted.wanted, pattern.source))
    }

    /// The sender whose messages alone it takes.
    pub(super) fn source_of(&self, at: Key) -> Option<SourceId> {
        self.lists.get(at)?.pattern.source
    }

    /// A part of a buffer for many messages is not used: it comes back if what follows it is.
    pub(super) fn put_part_back(&mut self, at: Key, part: Payload) -> Option<Payload> {
        if !self.is_for_many(at) {
            return Some(part);
        }
        let put_back = |posted: &mut Posted<T>| match &mut posted.memory {
            Memory::Carved(carving, _) => carving.take_back(part),
            Memory::Whole(..) => Some(part),
        };
        self.lists.change(at, put_back).flatten()
    }

    fn is_for_many(&self, at: Key) -> bool {
        let posted = self.lists.get(at);
        posted.is_some_and(|posted| matches!(posted.memory, Memory::Carved(..)))
    }

    /// Lets a buffer for many messages take the next, which gets this token. Tells what it takes;
    /// `None` if it takes none any more, with the token.
    pub(super) fn arm(&mut self, at: Key, next: T) -> Result<(Wanted, Option<SourceId>), T> {
        let is_open = |posted: &Posted<T>| match &posted.memory {
            Memory::Carved(carving, None) => !carving.is_consumed(),
            _ => false,
        };
        if !self.lists.get(at).is_some_and(is_open) {
            return Err(next);
        }
        let arm = |posted: &mut Posted<T>| {
            if let Memory::Carved(_, token) = &mut posted.memory {
                *token = Some(next);
            }
            (posted.wanted, posted.pattern.source)
        };
        Ok(self.lists.change(at, arm).expect("just seen"))
    }

    pub(super) fn withdraw(&mut self, key: Key) -> Option<Withdrawn<T>> {
        let (_, posted) = self.remove(key)?;
        Some(match posted.memory {
            Memory::Whole(payload, token) => Withdrawn::Whole(payload, token),
            Memory::Carved(carving, token) => Withdrawn::Carved(carving, token),
        })
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.lists.check();
        for &(shape, count) in &self.shapes {
            let of = self
                .lists
                .iter()
                .filter(|(_, posted)| posted.pattern.shape == shape);
            assert_eq!(of.count(), count, "shapes are counted");
        }
        let counted: usize = self.shapes.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, self.lists.len());
    }
}

/// A receive that was taken back.
#[derive(Debug)]
pub(crate) enum Withdrawn<T> {
    Whole(Payload, T),
    Carved(BufferCursor, Option<T>),
}
