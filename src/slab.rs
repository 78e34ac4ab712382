//! A slab whose keys carry a generation, so that a key kept too long finds nothing instead of the
//! slot's next tenant.
//!
//! An entry may be [retired](Slab::retire) into a value of another type: by its key it is gone
//! then, and a second key finds that value until it is dropped.

use std::convert::Infallible;
use std::fmt;
use std::mem;

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

struct SlabEntry<T, R> {
    generation: u32,
    slot: SlabSlot<T, R>,
}

enum SlabSlot<T, R> {
    Free,
    Live(T),
    Retired(R),
}

/// Entries by [`Key`]; `R` is what they are once they are retired.
pub(crate) struct Slab<T, R = Infallible> {
    entries: Vec<SlabEntry<T, R>>,
    /// The free ones; that which came free last is taken first.
    free: Vec<u32>,
    next_generation: u32,
    /// Entries that are not retired.
    len: usize,
}

debug_fields!([T, R] Slab<T, R>, self => len: self.len);

impl<T, R> Slab<T, R> {
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
        debug_assert!(
            matches!(entry.slot, SlabSlot::Free),
            "it is among the free ones"
        );
        // Nothing is to be dropped there, which the compiler does not know.
        mem::forget(mem::replace(&mut entry.slot, SlabSlot::Live(value)));
        Key { index, generation }
    }

    /// Makes a free slot behind all others.
    #[cold]
    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("a slab never holds 2^32 entries");
        self.entries.push(SlabEntry {
            generation: RETIRED,
            slot: SlabSlot::Free,
        });
        index
    }

    /// Gives the memory of free slots behind the last entry back.
    pub(crate) fn shrink(&mut self) {
        let is_free = |entry: &mut SlabEntry<T, R>| matches!(entry.slot, SlabSlot::Free);
        while self.entries.pop_if(is_free).is_some() {}
        let len = self.entries.len();
        self.free.retain(|index| (*index as usize) < len);
        self.entries.shrink_to_fit();
        self.free.shrink_to_fit();
    }

    #[inline]
    fn entry_mut(&mut self, key: Key) -> Option<&mut SlabEntry<T, R>> {
        let entry = self.entries.get_mut(key.index as usize)?;
        (entry.generation == key.generation).then_some(entry)
    }

    #[inline]
    fn live_in(entries: &mut [SlabEntry<T, R>], key: Key) -> Option<&mut SlabEntry<T, R>> {
        let entry = entries.get_mut(key.index as usize)?;
        let is_live = matches!(entry.slot, SlabSlot::Live(_));
        (is_live && entry.generation == key.generation).then_some(entry)
    }

    /// Makes another value of an entry, which is found by the key that is returned only, and counts
    /// and is listed no more.
    #[inline]
    pub(crate) fn retire(&mut self, key: Key, into: impl FnOnce(T) -> R) -> Option<(Key, &mut R)> {
        let entry = Self::live_in(&mut self.entries, key)?;
        let SlabSlot::Live(value) = mem::replace(&mut entry.slot, SlabSlot::Free) else {
            return None;
        };
        entry.slot = SlabSlot::Retired(into(value));
        entry.generation |= RETIRED;
        let SlabSlot::Retired(retired) = &mut entry.slot else {
            return None;
        };
        self.len -= 1;
        let key = Key {
            generation: entry.generation,
            ..key
        };
        Some((key, retired))
    }

    /// What an entry was retired into.
    #[inline]
    pub(crate) fn retired_mut(&mut self, key: Key) -> Option<&mut R> {
        match &mut self.entry_mut(key)?.slot {
            SlabSlot::Retired(value) => Some(value),
            _ => None,
        }
    }

    /// Drops what an entry was retired into, where it lies.
    #[inline]
    pub(crate) fn drop_retired(&mut self, key: Key) {
        if let Some(entry) = self.entry_mut(key)
            && let SlabSlot::Retired(_) = entry.slot
        {
            entry.slot = SlabSlot::Free;
            self.free.push(key.index);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = Self::live_in(&mut self.entries, key)?;
        let SlabSlot::Live(value) = mem::replace(&mut entry.slot, SlabSlot::Free) else {
            return None;
        };
        self.free.push(key.index);
        self.len -= 1;
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.entries.get(key.index as usize) {
            Some(SlabEntry {
                generation,
                slot: SlabSlot::Live(value),
            }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match &mut self.entry_mut(key)?.slot {
            SlabSlot::Live(value) => Some(value),
            _ => None,
        }
    }

    /// All that are not retired.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let slots = self.entries.iter().enumerate();
        slots.filter_map(|(index, entry)| {
            let SlabSlot::Live(value) = &entry.slot else {
                return None;
            };
            let key = Key {
                index: index as u32,
                generation: entry.generation,
            };
            Some((key, value))
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
        let mut slab: Slab<_> = Slab::new();
        slab.next_generation = u32::MAX - 3;
        let keys: Vec<Key> = (0..4).map(|at| slab.insert(at)).collect();
        slab.remove(keys[1]);
        let late = slab.insert(9);
        assert_eq!(slab.keys_by_age(), [keys[0], keys[2], keys[3], late]);
    }

    /// A stale key finds nothing, whatever is in its slot now.
    #[test]
    fn stale_key_finds_nothing() {
        let mut slab: Slab<_> = Slab::new();
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
        let mut slab: Slab<&str, usize> = Slab::new();
        let first = slab.insert("one");
        let (second, retired) = slab.retire(first, str::len).unwrap();
        assert_eq!(*retired, 3);
        assert_eq!((slab.get(first), slab.len()), (None, 0));
        assert_eq!(slab.retire(first, str::len), None);
        assert_eq!(slab.retired_mut(first), None);
        assert_eq!(slab.keys(), []);
        let other = slab.insert("three");
        assert_eq!(slab.retired_mut(second), Some(&mut 3));
        assert_eq!(slab.get(second), None);
        assert_eq!(slab.remove(second), None);
        slab.drop_retired(second);
        assert_eq!(slab.retired_mut(second), None);
        assert_eq!((slab.get(other), slab.len()), (Some(&"three"), 1));
    }

    /// Memory of slots behind the last entry is given back, and what is there stays.
    #[test]
    fn a_slab_that_shrinks_keeps_its_entries() {
        let mut slab: Slab<_> = Slab::new();
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
