//! A slab whose keys contain a generation, so that a stale key finds nothing, instead of the next
//! entry in its slot.

use std::fmt;

/// Index and generation of one entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the key as one word, for fields that hold nothing else.
    pub(crate) fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Key {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

struct SlabEntry<T> {
    generation: u32,
    /// `None`: the slot is free.
    value: Option<T>,
}

/// Entries by [`Key`].
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    /// Free slots; the slot that was freed last is used first.
    free: Vec<u32>,
    next_generation: u32,
}

debug_fields!([T] Slab<T>, self => len: self.len());

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let entry = &mut self.entries[index as usize];
        debug_assert!(entry.value.is_none(), "it is among the free ones");
        *entry = SlabEntry {
            generation,
            value: Some(value),
        };
        Key { index, generation }
    }

    /// Adds a free slot behind all others.
    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("a slab never holds 2^32 entries");
        self.entries.push(SlabEntry {
            generation: 0,
            value: None,
        });
        index
    }

    /// Frees the memory of the free slots behind the last entry.
    pub(crate) fn shrink(&mut self) {
        let is_free = |entry: &mut SlabEntry<T>| entry.value.is_none();
        while self.entries.pop_if(is_free).is_some() {}
        let len = self.entries.len();
        self.free.retain(|index| (*index as usize) < len);
        self.entries.shrink_to_fit();
        self.free.shrink_to_fit();
    }

    #[inline]
    fn entry_mut(&mut self, key: Key) -> Option<&mut SlabEntry<T>> {
        let entry = self.entries.get_mut(key.index as usize)?;
        (entry.generation == key.generation).then_some(entry)
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.entry_mut(key)?.value.take()?;
        self.free.push(key.index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry
            .value
            .as_ref()
            .filter(|_| entry.generation == key.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entry_mut(key)?.value.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| {
            let key = Key {
                index: index as u32,
                generation: entry.generation,
            };
            Some((key, entry.value.as_ref()?))
        })
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Returns all keys, the oldest first.
    pub(crate) fn keys_by_age(&self) -> Vec<Key> {
        let mut keys = self.keys();
        // Ages are compared relative to the next generation. Relative to it, generations increase
        // with each insertion, even across their wrap.
        keys.sort_unstable_by_key(|key| key.generation.wrapping_sub(self.next_generation));
        keys
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of age survives the wrap of the generations.
    #[test]
    fn keys_come_by_age_also_across_the_wrap() {
        let mut slab = Slab::new();
        slab.next_generation = u32::MAX - 3;
        let keys: Vec<Key> = (0..4).map(|at| slab.insert(at)).collect();
        slab.remove(keys[1]);
        let late = slab.insert(9);
        assert_eq!(slab.keys_by_age(), [keys[0], keys[2], keys[3], late]);
    }

    /// A stale key finds nothing, whatever is in its slot now.
    #[test]
    fn stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert("new");
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(Key::from_bits(new.to_bits())), Some(&"new"));
        assert_eq!(slab.len(), 1);
    }

    /// Memory of slots behind the last entry is given back, and what is there stays.
    #[test]
    fn a_slab_that_shrinks_keeps_its_entries() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..8).map(|at| slab.insert(at)).collect();
        for at in [1, 4, 5, 6, 7] {
            slab.remove(keys[at]);
        }
        slab.shrink();
        assert_eq!((slab.entries.len(), slab.len()), (4, 3));
        assert_eq!(slab.get(keys[7]), None);
        let more: Vec<Key> = (10..15).map(|at| slab.insert(at)).collect();
        assert_eq!(slab.keys().len(), 8);
        assert_eq!(slab.get(more[4]), Some(&14));
        assert_eq!(slab.get(keys[3]), Some(&3));
    }
}
