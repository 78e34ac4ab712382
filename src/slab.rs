//! A slab whose keys carry a generation, so that a key kept too long finds nothing instead of the
//! slot's next tenant.
//!
//! An entry has a second key once it is [retired](Slab::retire): by its first one it is gone, by
//! the second it is there until it is removed.

use std::fmt;

/// Index and generation of one entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The key as one word, for places that carry nothing else.
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

/// Of the generation of an entry that is retired; others have even ones.
const RETIRED: u32 = 1;

/// One slot.
struct SlabEntry<T> {
    generation: u32,
    /// `None` while it is free.
    value: Option<T>,
}

/// Entries by [`Key`].
pub(crate) struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    /// The free ones; that which came free last is taken first.
    free: Vec<u32>,
    next_generation: u32,
    /// Entries that are not retired.
    len: usize,
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("len", &self.len).finish()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            len: 0,
        }
    }

    /// Inlined, so that a value that is made at the call is made in its entry.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(2);
        self.len += 1;
        let entry = &mut self.entries[index as usize];
        entry.generation = generation;
        match &mut entry.value {
            slot @ None => *slot = Some(value),
            Some(_) => unreachable!("it is among the free ones"),
        }
        Key { index, generation }
    }

    /// Makes a free slot behind all others.
    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("a slab never holds 2^32 entries");
        self.entries.push(SlabEntry {
            generation: RETIRED,
            value: None,
        });
        index
    }

    /// Gives the memory of free slots behind the last entry back.
    pub(crate) fn shrink(&mut self) {
        while self.entries.pop_if(|entry| entry.value.is_none()).is_some() {}
        let len = self.entries.len();
        self.free.retain(|index| (*index as usize) < len);
        self.entries.shrink_to_fit();
        self.free.shrink_to_fit();
    }

    /// Takes the entry's key away: it is found by the one that is returned only, and counts and is
    /// listed no more.
    #[inline]
    pub(crate) fn retire(&mut self, key: Key) -> Option<(Key, &mut T)> {
        debug_assert_eq!(key.generation & RETIRED, 0, "an entry retires once");
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.as_mut()?;
        entry.generation |= RETIRED;
        self.len -= 1;
        let key = Key {
            generation: entry.generation,
            ..key
        };
        Some((key, value))
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation || entry.value.is_none() {
            return None;
        }
        self.free.push(key.index);
        self.len -= usize::from(key.generation & RETIRED == 0);
        entry.value.take()
    }

    /// As [`remove`](Self::remove), but the value is dropped where it lies.
    #[inline]
    pub(crate) fn discard(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(key.index as usize)
            && entry.generation == key.generation
            && entry.value.is_some()
        {
            entry.value = None;
            self.free.push(key.index);
            self.len -= usize::from(key.generation & RETIRED == 0);
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.entries.get(key.index as usize) {
            Some(entry) if entry.generation == key.generation => entry.value.as_ref(),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.entries.get_mut(key.index as usize) {
            Some(entry) if entry.generation == key.generation => entry.value.as_mut(),
            _ => None,
        }
    }

    /// All that are not retired.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let slots = self.entries.iter().enumerate();
        slots.filter_map(|(index, entry)| {
            let key = Key {
                index: index as u32,
                generation: entry.generation,
            };
            let value = entry.value.as_ref()?;
            (key.generation & RETIRED == 0).then_some((key, value))
        })
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// All keys, those inserted first in front.
    pub(crate) fn keys_by_age(&self) -> Vec<Key> {
        let mut keys = self.keys();
        // Counted from the next one, generations grow from insertion to insertion also where they
        // wrap.
        keys.sort_unstable_by_key(|key| key.generation.wrapping_sub(self.next_generation));
        keys
    }

    /// How many are not retired.
    pub(crate) fn len(&self) -> usize {
        self.len
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

    /// A retired entry is found by its second key alone, and its slot is not used again before it
    /// is removed by that.
    #[test]
    fn a_retired_entry_is_found_by_its_second_key_alone() {
        let mut slab = Slab::new();
        let first = slab.insert("one");
        let (second, value) = slab.retire(first).unwrap();
        assert_eq!(*value, "one");
        assert_eq!((slab.get(first), slab.len()), (None, 0));
        assert_eq!(slab.retire(first), None);
        assert_eq!(slab.keys(), []);
        let other = slab.insert("two");
        assert_eq!(slab.get(second), Some(&"one"));
        assert_eq!(slab.remove(second), Some("one"));
        assert_eq!(slab.remove(second), None);
        assert_eq!((slab.get(other), slab.len()), (Some(&"two"), 1));
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
