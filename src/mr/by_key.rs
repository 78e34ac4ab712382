//! A map from keys to regions, for one that is looked at by every registration and by every access
//! of a peer: open addressing, one word of a key compared at a time. The standard map looks at the
//! marks of sixteen places at once, among them the one that was written last, and the processor
//! waits for such a mix: 10 ns of a registration's 100.
//!
//! Nobody but this process enters keys, so nobody looks for those that hash alike; and most of them
//! are random.
//!
//! Invariants: the number of places is a power of two, and at most half of them are taken. From the
//! place where a key is looked for first to the place where it is, every place is taken.

use std::mem;

/// Places of the first table.
const PLACES_MIN: usize = 8;

/// Values by key.
pub(super) struct ByKey<T> {
    places: Vec<Option<(u64, T)>>,
    len: usize,
}

impl<T> ByKey<T> {
    pub(super) fn new() -> Self {
        ByKey {
            places: Vec::new(),
            len: 0,
        }
    }

    /// Takes so many without growing.
    pub(super) fn expecting(count: usize) -> Self {
        let mut map = Self::new();
        if count > 0 {
            map.resize(places_for(count));
        }
        map
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many it takes without growing.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.len() / 2
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&T> {
        let (_, value) = self.places.get(self.find(key)?)?.as_ref()?;
        Some(value)
    }

    /// Enters a value; it comes back if the key is taken.
    #[inline]
    pub(super) fn insert(&mut self, key: u64, value: T) -> Result<(), T> {
        if self.len >= self.places.len() / 2 {
            self.resize(places_for(self.len + 1));
        }
        let mut at = self.first(key);
        while let Some((taken, _)) = &self.places[at] {
            if *taken == key {
                return Err(value);
            }
            at = self.after(at);
        }
        self.places[at] = Some((key, value));
        self.len += 1;
        Ok(())
    }

    /// Takes a value out, if there is one and `is_meant` says that it is the one.
    #[inline]
    pub(super) fn remove(&mut self, key: u64, is_meant: impl FnOnce(&T) -> bool) -> Option<T> {
        let at = self.find(key)?;
        let (_, value) = self.places[at].take_if(|it| is_meant(&it.1))?;
        self.len -= 1;
        self.close_up(at);
        Some(value)
    }

    /// Moves those up that were looked for at a place that is free now.
    #[inline]
    fn close_up(&mut self, mut free: usize) {
        let mut at = self.after(free);
        while let Some((key, _)) = &self.places[at] {
            let first = self.first(*key);
            // Whether the free place is on the way from where this one is looked for first.
            let mask = self.places.len() - 1;
            if at.wrapping_sub(first) & mask >= at.wrapping_sub(free) & mask {
                self.places.swap(free, at);
                free = at;
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.first(key);
        while let Some((taken, _)) = &self.places[at] {
            if *taken == key {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Where a key is looked for first. There are places.
    #[inline]
    fn first(&self, key: u64) -> usize {
        // Both halves of the product: keys that an application chooses may differ in any bits.
        let product = u128::from(key) * 0x9E37_79B9_7F4A_7C15;
        (product as u64 ^ (product >> 64) as u64) as usize & (self.places.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    #[cold]
    fn resize(&mut self, places: usize) {
        let wider = (0..places).map(|_| None).collect();
        let before = mem::replace(&mut self.places, wider);
        for (key, value) in before.into_iter().flatten() {
            let mut at = self.first(key);
            while self.places[at].is_some() {
                at = self.after(at);
            }
            self.places[at] = Some((key, value));
        }
    }
}

/// How many places so many values take.
fn places_for(count: usize) -> usize {
    (2 * count).next_power_of_two().max(PLACES_MIN)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    impl<T> ByKey<T> {
        fn invariants(&self) {
            assert_eq!(self.places.iter().flatten().count(), self.len);
            assert!(2 * self.len <= self.places.len());
            for (at, place) in self.places.iter().enumerate() {
                let Some((key, _)) = place else { continue };
                assert_eq!(self.find(*key), Some(at), "each key is found where it is");
            }
        }
    }

    /// Rule 33 of the house: against a plain map, with keys that are looked for at the same places,
    /// the last and the first among them.
    #[test]
    fn it_holds_what_a_plain_map_holds() {
        let mut seed = 11u64;
        let mut draw = move |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % below
        };
        for keys in [4, 12, 40, 200] {
            // Among them 0, the largest key there is, and some that differ in high bits only.
            let key = |drawn: u64| match drawn % 3 {
                0 => drawn / 3,
                1 => u64::MAX - 1 - drawn,
                _ => drawn << 56,
            };
            let (mut map, mut plain) = (ByKey::new(), HashMap::new());
            for step in 0..3000u64 {
                let key = key(draw(keys));
                match draw(5) {
                    0 | 1 => {
                        let is_new = !plain.contains_key(&key);
                        assert_eq!(map.insert(key, step).is_ok(), is_new);
                        plain.entry(key).or_insert(step);
                    }
                    2 | 3 => {
                        let removed = map.remove(key, |it| Some(it) == plain.get(&key));
                        assert_eq!(removed, plain.remove(&key));
                    }
                    _ => {
                        assert_eq!(map.remove(key, |_| false), None);
                    }
                }
                assert_eq!(map.get(key), plain.get(&key));
                assert_eq!(map.len(), plain.len());
                map.invariants();
            }
            for (key, value) in &plain {
                assert_eq!(map.get(*key), Some(value));
            }
        }
    }

    /// `mr_cnt` of fi_domain(3): room for what is expected is made ahead, once.
    #[test]
    fn what_is_expected_takes_no_growing() {
        for count in [0, 1, 7, 8, 9, 1000] {
            let mut map = ByKey::expecting(count);
            let places = map.places.len();
            assert!(map.capacity() >= count);
            for key in 0..count as u64 {
                assert_eq!(map.insert(key.wrapping_mul(0x1_0000_0001), key), Ok(()));
            }
            assert_eq!(map.places.len(), places);
            map.invariants();
        }
    }
}
