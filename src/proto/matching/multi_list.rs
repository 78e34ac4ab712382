//! Doubly linked lists, found by key through a hash table; an entry is in up to `N` lists at once.
//! Append, pop and removal of any entry are O(1).
//!
//! Invariant: an entry is in a list of slot `i` exactly if its value names that list for slot `i`.
//! Each list is sorted by the order of its entries.

use std::array::from_fn;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;

use crate::slab::{Key, Slab};

/// A keyed hash, since peers choose the tags and must not be able to provoke collisions.
#[cfg(not(feature = "__instructions"))]
type ListHasher = std::hash::RandomState;
/// Without a random key, so that the instruction counts are reproducible.
#[cfg(feature = "__instructions")]
type ListHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// The name of a list.
pub(super) trait ListName: Copy + Eq + fmt::Debug {
    /// Returns the words to hash. Few lists have the same words.
    fn words(&self) -> [u64; 2];
}

/// A value that names the lists it belongs to.
pub(super) trait Listed {
    type Name: ListName;

    /// Returns the name of the value's list in this slot. A name belongs to one slot only.
    fn list(&self, slot: usize) -> Option<Self::Name>;
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
    /// Hash of the list's key, stored so that an entry is hashed once.
    hash: u64,
}

#[derive(Clone, Copy, Debug)]
struct List<K> {
    key: K,
    hash: u64,
    first: Key,
    last: Key,
}

/// Entries, linked into lists.
pub(super) struct MultiList<V: Listed, const N: usize> {
    entries: Slab<Entry<V, N>>,
    lists: HashTable<List<V::Name>>,
    hasher: ListHasher,
}

impl<V: Listed, const N: usize> MultiList<V, N> {
    pub(super) fn new() -> Self {
        MultiList {
            entries: Slab::new(),
            lists: HashTable::new(),
            hasher: ListHasher::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Inserts an entry in order. O(1) at the end of its lists; else linear in the number of
    /// entries with a lower order.
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

    fn hash(&self, list: V::Name) -> u64 {
        let [first, second] = list.words().map(u64::to_ne_bytes);
        let mut hasher = self.hasher.build_hasher();
        // One write: a keyed hash costs more per write than per byte.
        hasher.write([first, second].as_flattened());
        hasher.finish()
    }

    fn link(&mut self, key: Key, order: u64, slot: usize, list: V::Name) {
        let hash = self.hash(list);
        self.entry_mut(key).links[slot].hash = hash;
        let found = (self.lists).entry(hash, |it| it.key == list, |it| it.hash);
        let List { first, last, .. } = match found {
            TableEntry::Vacant(place) => {
                place.insert(List {
                    key: list,
                    hash,
                    first: key,
                    last: key,
                });
                return;
            }
            TableEntry::Occupied(place) => *place.get(),
        };
        let (before, after) = if self.order(last) < order {
            (Some(last), None)
        } else {
            let mut before = None;
            let mut after = first;
            while self.order(after) < order {
                before = Some(after);
                after = self.next(after, slot).expect("the last one is higher");
            }
            (before, Some(after))
        };
        self.entry_mut(key).links[slot] = Links {
            before,
            after,
            hash,
        };
        match before {
            Some(before) => self.entry_mut(before).links[slot].after = Some(key),
            None => self.list_mut(hash, list).first = key,
        }
        match after {
            Some(after) => self.entry_mut(after).links[slot].before = Some(key),
            None => self.list_mut(hash, list).last = key,
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

    fn unlink(&mut self, links: Links, slot: usize, list: V::Name) {
        let Links {
            before,
            after,
            hash,
        } = links;
        if before.is_none() && after.is_none() {
            let found = self.lists.find_entry(hash, |it| it.key == list);
            if let Ok(found) = found {
                found.remove();
            }
            return;
        }
        match before {
            Some(before) => self.entry_mut(before).links[slot].after = after,
            None => self.list_mut(hash, list).first = after.expect("not alone"),
        }
        match after {
            Some(after) => self.entry_mut(after).links[slot].before = before,
            None => self.list_mut(hash, list).last = before.expect("not alone"),
        }
    }

    /// Changes an entry, and moves it to the lists that it names afterwards.
    pub(super) fn change<R>(&mut self, key: Key, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let lists = |value: &V| -> [Option<V::Name>; N] { from_fn(|slot| value.list(slot)) };
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
    pub(super) fn first(&self, list: V::Name) -> Option<Key> {
        // Usually there is only one list, which is found without a hash.
        let found = match self.lists.len() {
            0 => None,
            1 => self.lists.iter().find(|it| it.key == list),
            _ => self.lists.find(self.hash(list), |it| it.key == list),
        };
        Some(found?.first)
    }

    /// The next entry in the list of this slot.
    pub(super) fn next(&self, key: Key, slot: usize) -> Option<Key> {
        self.entry(key).links[slot].after
    }

    /// Iterates over the entries of a list, which belongs to this slot, in order.
    pub(super) fn walk(&self, list: V::Name, slot: usize) -> impl Iterator<Item = (Key, &V)> {
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
        self.lists.shrink_to_fit(|it| it.hash);
    }

    #[cfg(test)]
    pub(super) fn lists_kept(&self) -> usize {
        self.lists.capacity()
    }

    fn entry(&self, key: Key) -> &Entry<V, N> {
        self.entries.get(key).expect("an entry of ours")
    }

    fn entry_mut(&mut self, key: Key) -> &mut Entry<V, N> {
        self.entries.get_mut(key).expect("an entry of ours")
    }

    fn list_mut(&mut self, hash: u64, list: V::Name) -> &mut List<V::Name> {
        let found = self.lists.find_mut(hash, |it| it.key == list);
        found.expect("a list with entries")
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut linked = 0;
        for &List {
            key: list,
            first,
            last,
            hash,
        } in &self.lists
        {
            assert_eq!(hash, self.hash(list), "found where it is looked for");
            let slot = (0..N)
                .find(|slot| self.entry(first).value.list(*slot) == Some(list))
                .expect("the first of a list belongs to it");
            let mut before = None;
            let mut at = Some(first);
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
            assert_eq!(before, Some(last));
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
