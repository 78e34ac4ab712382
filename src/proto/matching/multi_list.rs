//! Doubly linked lists, found by key through a hash table; an entry is in up to `N` lists at once.
//! Append, pop and removal of any entry are O(1).
//!
//! Invariant: an entry is in a list of slot `i` exactly if its value names one there, and each list
//! is sorted by the order of its entries.

use std::array::from_fn;
use std::collections::HashMap;
use std::collections::hash_map::Entry as HashEntry;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::slab::{Key, Slab};

/// A keyed hash, since peers choose the tags and must not be able to provoke collisions.
#[cfg(not(feature = "__instructions"))]
type ListHasher = std::hash::RandomState;
/// Without a random key, so that the instruction counts are reproducible.
#[cfg(feature = "__instructions")]
type ListHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Hashes all words by one write: a keyed hash costs more per write than per byte.
pub(super) fn hash_words<H: Hasher, const N: usize>(words: [u64; N], state: &mut H) {
    let mut bytes = [[0; size_of::<u64>()]; N];
    for (place, word) in bytes.iter_mut().zip(words) {
        *place = word.to_ne_bytes();
    }
    state.write(bytes.as_flattened());
}

/// A value that names the lists it belongs to.
pub(super) trait Listed {
    type ListKey: Copy + Eq + Hash + fmt::Debug;

    /// The list it belongs to in this slot. A list key belongs to one slot only.
    fn list(&self, slot: usize) -> Option<Self::ListKey>;
}

#[derive(Debug)]
struct Entry<V, const N: usize> {
    order: u64,
    value: V,
    links: [Links; N],
}

#[derive(Clone, Copy, Debug, Default)]
struct Links {
    before: Option<Key>,
    after: Option<Key>,
}

#[derive(Clone, Copy, Debug)]
struct ListEnds {
    first: Key,
    last: Key,
}

/// Entries, linked into lists.
pub(super) struct MultiList<V: Listed, const N: usize> {
    entries: Slab<Entry<V, N>>,
    ends: HashMap<V::ListKey, ListEnds, ListHasher>,
}

impl<V: Listed, const N: usize> MultiList<V, N> {
    pub(super) fn new() -> Self {
        MultiList {
            entries: Slab::new(),
            ends: HashMap::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Inserts an entry in order. O(1) at the end of its lists; else linear in the entries of a
    /// lower order.
    pub(super) fn insert(&mut self, order: u64, value: V) -> Key {
        let key = self.entries.insert(Entry {
            order,
            value,
            links: [Links::default(); N],
        });
        for slot in 0..N {
            if let Some(list) = self.entry(key).value.list(slot) {
                self.link(key, order, slot, list);
            }
        }
        key
    }

    fn link(&mut self, key: Key, order: u64, slot: usize, list: V::ListKey) {
        let ends = match self.ends.entry(list) {
            HashEntry::Vacant(place) => {
                let (first, last) = (key, key);
                place.insert(ListEnds { first, last });
                return;
            }
            HashEntry::Occupied(place) => *place.get(),
        };
        let (before, after) = if self.order(ends.last) < order {
            (Some(ends.last), None)
        } else {
            let mut before = None;
            let mut after = ends.first;
            while self.order(after) < order {
                before = Some(after);
                after = self.next(after, slot).expect("the last one is higher");
            }
            (before, Some(after))
        };
        self.entry_mut(key).links[slot] = Links { before, after };
        match before {
            Some(before) => self.entry_mut(before).links[slot].after = Some(key),
            None => self.ends_mut(list).first = key,
        }
        match after {
            Some(after) => self.entry_mut(after).links[slot].before = Some(key),
            None => self.ends_mut(list).last = key,
        }
    }

    /// Removes an entry from all its lists.
    pub(super) fn remove(&mut self, key: Key) -> Option<(u64, V)> {
        let entry = self.entries.remove(key)?;
        for (slot, links) in entry.links.iter().enumerate() {
            if let Some(list) = entry.value.list(slot) {
                self.unlink(*links, slot, list);
            }
        }
        Some((entry.order, entry.value))
    }

    fn unlink(&mut self, links: Links, slot: usize, list: V::ListKey) {
        let Links { before, after } = links;
        if before.is_none() && after.is_none() {
            self.ends.remove(&list);
            return;
        }
        match before {
            Some(before) => self.entry_mut(before).links[slot].after = after,
            None => self.ends_mut(list).first = after.expect("not alone"),
        }
        match after {
            Some(after) => self.entry_mut(after).links[slot].before = before,
            None => self.ends_mut(list).last = before.expect("not alone"),
        }
    }

    /// Changes an entry, and links it into the lists that it names afterwards.
    pub(super) fn change<R>(&mut self, key: Key, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let lists = |value: &V| -> [Option<V::ListKey>; N] { from_fn(|slot| value.list(slot)) };
        let entry = self.entries.get_mut(key)?;
        let (order, links, before) = (entry.order, entry.links, lists(&entry.value));
        let result = change(&mut entry.value);
        let after = lists(&entry.value);
        for slot in (0..N).filter(|slot| before[*slot] != after[*slot]) {
            if let Some(list) = before[slot] {
                self.unlink(links[slot], slot, list);
                self.entry_mut(key).links[slot] = Links::default();
            }
            if let Some(list) = after[slot] {
                self.link(key, order, slot, list);
            }
        }
        Some(result)
    }

    pub(super) fn get(&self, key: Key) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// The order of an entry.
    pub(super) fn order(&self, key: Key) -> u64 {
        self.entry(key).order
    }

    /// The first entry of a list.
    pub(super) fn first(&self, list: V::ListKey) -> Option<Key> {
        // Most often there is one list, which takes no hash to find.
        let ends = match self.ends.len() {
            1 => self.ends.iter().find(|(it, _)| **it == list)?.1,
            _ => self.ends.get(&list)?,
        };
        Some(ends.first)
    }

    /// The next entry in the list of that slot.
    pub(super) fn next(&self, key: Key, slot: usize) -> Option<Key> {
        self.entry(key).links[slot].after
    }

    /// Walks the entries of a list, which belongs to this slot, in order.
    pub(super) fn walk(&self, list: V::ListKey, slot: usize) -> impl Iterator<Item = (Key, &V)> {
        let mut at = self.first(list);
        std::iter::from_fn(move || {
            let key = at?;
            at = self.next(key, slot);
            Some((key, &self.entry(key).value))
        })
    }

    /// All entries, unordered.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Frees spare capacity.
    pub(super) fn shrink(&mut self) {
        self.entries.shrink();
        self.ends.shrink_to_fit();
    }

    #[cfg(test)]
    pub(super) fn ends_kept(&self) -> usize {
        self.ends.capacity()
    }

    fn entry(&self, key: Key) -> &Entry<V, N> {
        self.entries.get(key).expect("an entry of ours")
    }

    fn entry_mut(&mut self, key: Key) -> &mut Entry<V, N> {
        self.entries.get_mut(key).expect("an entry of ours")
    }

    fn ends_mut(&mut self, list: V::ListKey) -> &mut ListEnds {
        self.ends.get_mut(&list).expect("a list with entries")
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut linked = 0;
        for (&list, ends) in &self.ends {
            let slot = (0..N)
                .find(|slot| self.entry(ends.first).value.list(*slot) == Some(list))
                .expect("the first of a list belongs to it");
            let mut before = None;
            let mut at = Some(ends.first);
            while let Some(key) = at {
                let entry = self.entry(key);
                assert_eq!(entry.value.list(slot), Some(list), "in its list");
                assert_eq!(entry.links[slot].before, before, "linked both ways");
                if let Some(before) = before {
                    assert!(self.order(before) < entry.order, "in order");
                }
                linked += 1;
                before = at;
                at = entry.links[slot].after;
            }
            assert_eq!(before, Some(ends.last));
        }
        let named = |entry: &Entry<V, N>| {
            (0..N)
                .filter(|slot| entry.value.list(*slot).is_some())
                .count()
        };
        let all: usize = self.entries.iter().map(|(_, entry)| named(entry)).sum();
        assert_eq!(linked, all, "each entry is in all its lists");
    }
}

impl<V: Listed + fmt::Debug, const N: usize> fmt::Debug for MultiList<V, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lists")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
