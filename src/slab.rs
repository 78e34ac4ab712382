//! A slab whose keys carry a generation, so that a key kept too long finds nothing instead of the
//! slot's next tenant.

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

/// Entries by [`Key`].
pub(crate) struct Slab<T> {
    entries: slab::Slab<(u32, T)>,
    next_generation: u32,
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab")
            .field("len", &self.entries.len())
            .finish()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab {
            entries: slab::Slab::new(),
            next_generation: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1);
        let index = self.entries.insert((generation, value));
        let index = u32::try_from(index).expect("a slab never holds 2^32 entries");
        Key { index, generation }
    }

    /// Gives the memory of free places behind the last entry back.
    pub(crate) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        Some(self.entries.remove(key.index as usize).1)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.entries.get(key.index as usize) {
            Some((generation, value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.entries.get_mut(key.index as usize) {
            Some((generation, value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().map(|(index, (generation, value))| {
            (
                Key {
                    index: index as u32,
                    generation: *generation,
                },
                value,
            )
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

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of age survives the wrap of the generations.
    #[test]
    fn keys_come_by_age_also_across_the_wrap() {
        let mut slab = Slab::new();
        slab.next_generation = u32::MAX - 1;
        let keys: Vec<Key> = (0..4).map(|at| slab.insert(at)).collect();
        slab.remove(keys[1]);
        let late = slab.insert(9);
        assert_eq!(slab.keys_by_age(), [keys[0], keys[2], keys[3], late]);
    }

    /// A stale key finds nothing, whoever lives in its slot now.
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
}
