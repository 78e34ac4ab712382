//! Entries in lists by key, each list in order, each entry in up to `N` lists at once. Adding
//! behind the last, taking the first and taking any out cost a constant.
//!
//! Invariant: an entry is in the list of slot `i` exactly if its value names one there, and each
//! list is in the order of its entries.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::slab::{Key, Slab};

/// With what lists are found: hashes with a secret, since peers choose the tags.
#[cfg(not(feature = "__instructions"))]
type Secret = std::hash::RandomState;
/// One that is none, so that the same instructions are counted each time.
#[cfg(feature = "__instructions")]
type Secret = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Hashes these words in one go: a hash that withstands whoever chooses them takes its time for
/// each write, more than for what is written.
pub(super) fn hash_words<H: Hasher, const N: usize>(words: [u64; N], state: &mut H) {
    let mut bytes = [[0; size_of::<u64>()]; N];
    for (place, word) in bytes.iter_mut().zip(words) {
        *place = word.to_ne_bytes();
    }
    state.write(bytes.as_flattened());
}

/// What can be kept in lists.
pub(super) trait Filed {
    type List: Copy + Eq + Hash + fmt::Debug;

    /// The list it belongs to in this slot. A list belongs to one slot only.
    fn list(&self, slot: usize) -> Option<Self::List>;
}

#[derive(Debug)]
struct Entry<V, const N: usize> {
    order: u64,
    value: V,
    links: [Neighbours; N],
}

#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    before: Option<Key>,
    after: Option<Key>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: Key,
    last: Key,
}

/// The lists.
pub(super) struct Lists<V: Filed, const N: usize> {
    entries: Slab<Entry<V, N>>,
    ends: HashMap<V::List, Ends, Secret>,
}

impl<V: Filed, const N: usize> Lists<V, N> {
    pub(super) fn new() -> Self {
        Lists {
            entries: Slab::new(),
            ends: HashMap::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Puts it behind those of a lower order. Cheap if its order is the highest so far, or one of
    /// the lowest.
    pub(super) fn insert(&mut self, order: u64, value: V) -> Key {
        let key = self.entries.insert(Entry {
            order,
            value,
            links: [Neighbours::default(); N],
        });
        self.link_all(key, order);
        key
    }

    fn link_all(&mut self, key: Key, order: u64) {
        for slot in 0..N {
            if let Some(list) = self.entry(key).value.list(slot) {
                self.link(key, order, slot, list);
            }
        }
    }

    fn link(&mut self, key: Key, order: u64, slot: usize, list: V::List) {
        let ends = match self.ends.entry(list) {
            Place::Vacant(place) => {
                let (first, last) = (key, key);
                place.insert(Ends { first, last });
                return;
            }
            Place::Occupied(place) => *place.get(),
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
        self.entry_mut(key).links[slot] = Neighbours { before, after };
        match before {
            Some(before) => self.entry_mut(before).links[slot].after = Some(key),
            None => self.ends_mut(list).first = key,
        }
        match after {
            Some(after) => self.entry_mut(after).links[slot].before = Some(key),
            None => self.ends_mut(list).last = key,
        }
    }

    /// Takes an entry out of all lists.
    pub(super) fn remove(&mut self, key: Key) -> Option<(u64, V)> {
        let entry = self.entries.remove(key)?;
        for (slot, links) in entry.links.iter().enumerate() {
            if let Some(list) = entry.value.list(slot) {
                self.unlink(*links, slot, list);
            }
        }
        Some((entry.order, entry.value))
    }

    fn unlink(&mut self, links: Neighbours, slot: usize, list: V::List) {
        let Neighbours { before, after } = links;
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

    /// Changes an entry, which may put it into other lists.
    pub(super) fn change<R>(&mut self, key: Key, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let entry = self.entries.get(key)?;
        let (order, links) = (entry.order, entry.links);
        for (slot, links) in links.iter().enumerate() {
            if let Some(list) = self.entry(key).value.list(slot) {
                self.unlink(*links, slot, list);
            }
        }
        let entry = self.entry_mut(key);
        entry.links = [Neighbours::default(); N];
        let result = change(&mut entry.value);
        self.link_all(key, order);
        Some(result)
    }

    pub(super) fn get(&self, key: Key) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// The place of an entry that is there.
    pub(super) fn order(&self, key: Key) -> u64 {
        self.entry(key).order
    }

    /// The first of a list.
    pub(super) fn first(&self, list: V::List) -> Option<Key> {
        self.ends.get(&list).map(|ends| ends.first)
    }

    /// The one behind this in its list of that slot.
    pub(super) fn next(&self, key: Key, slot: usize) -> Option<Key> {
        self.entry(key).links[slot].after
    }

    /// Those of a list, which is one of that slot.
    pub(super) fn walk(&self, list: V::List, slot: usize) -> impl Iterator<Item = (Key, &V)> {
        let mut at = self.first(list);
        std::iter::from_fn(move || {
            let key = at?;
            at = self.next(key, slot);
            Some((key, &self.entry(key).value))
        })
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Gives the memory back that is kept for what may come.
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

    fn ends_mut(&mut self, list: V::List) -> &mut Ends {
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

impl<V: Filed + fmt::Debug, const N: usize> fmt::Debug for Lists<V, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lists")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
