//! Registrations of one kind, by their addresses.
//!
//! Invariant, unless the index is exact: no registration lies within another. So their ends are in
//! the order of their starts, and if any registration covers a range, the last one that begins at
//! or before the range does.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::mr::Access;

/// The properties that a request and a registration must share so that one can serve the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) access: Access,
    /// The bytes may be written to. Writable and read-only bytes form no region together.
    pub(crate) writable: bool,
    /// The caller guarantees that the memory stays mapped; otherwise its owners keep it allocated.
    pub(crate) unowned: bool,
}

/// The registrations of one kind, as places in the cache's list.
#[derive(Debug)]
pub(super) struct Index {
    kind: Kind,
    /// A registration serves exactly the range it was made for, and no part of it.
    exact: bool,
    by_addresses: BTreeMap<(usize, usize), usize>,
}

impl Index {
    pub(super) fn new(kind: Kind, exact: bool) -> Self {
        Index {
            kind,
            exact,
            by_addresses: BTreeMap::new(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The registration that serves this range.
    pub(super) fn find(&self, range: &Range<usize>) -> Option<usize> {
        if self.exact {
            return self.by_addresses.get(&(range.start, range.end)).copied();
        }
        let before = self.by_addresses.range(..=(range.start, usize::MAX));
        let (&(_, end), &place) = before.into_iter().next_back()?;
        (end >= range.end).then_some(place)
    }

    /// Enters a registration, after those [within](Index::within) it have been removed.
    pub(super) fn insert(&mut self, range: &Range<usize>, place: usize) {
        let before = self.by_addresses.insert((range.start, range.end), place);
        debug_assert!(before.is_none(), "a range is registered once");
    }

    pub(super) fn remove(&mut self, range: &Range<usize>) {
        self.by_addresses.remove(&(range.start, range.end));
    }

    /// Returns the registrations that a registration of this range replaces.
    pub(super) fn within(&self, range: &Range<usize>) -> Vec<usize> {
        if self.exact {
            return Vec::new();
        }
        let from = self.by_addresses.range((range.start, 0)..);
        let within = from.take_while(|((_, end), _)| *end <= range.end);
        within.map(|(_, place)| *place).collect()
    }

    /// Returns the registrations with a byte of this range.
    pub(super) fn overlapping(&self, range: &Range<usize>) -> Vec<usize> {
        self.before(range.end)
            .take_while(|(end, _)| self.exact || *end > range.start)
            .filter(|(end, _)| *end > range.start)
            .map(|(_, place)| place)
            .collect()
    }

    /// Returns the registrations that overlap this range or are adjacent to it.
    pub(super) fn touching(&self, range: &Range<usize>) -> Vec<usize> {
        self.before(range.end.saturating_add(1))
            .take_while(|(end, _)| *end >= range.start)
            .map(|(_, place)| place)
            .collect()
    }

    /// Ends and places of the registrations that begin before an address, the last one first.
    fn before(&self, address: usize) -> impl Iterator<Item = (usize, usize)> {
        let before = self.by_addresses.range(..(address, 0));
        before.rev().map(|((_, end), place)| (*end, *place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        access: Access::LOCAL,
        writable: true,
        unowned: false,
    };

    fn index(ranges: &[Range<usize>]) -> Index {
        let mut index = Index::new(KIND, false);
        for (place, range) in ranges.iter().enumerate() {
            index.insert(range, place);
        }
        index
    }

    #[test]
    fn a_range_is_served_by_what_covers_all_of_it() {
        let index = index(&[10..20, 15..30, 40..50]);
        assert_eq!(index.find(&(10..20)), Some(0));
        assert_eq!(index.find(&(12..18)), Some(0));
        assert_eq!(index.find(&(16..18)), Some(1));
        assert_eq!(index.find(&(16..30)), Some(1));
        assert_eq!(index.find(&(12..22)), None);
        assert_eq!(index.find(&(30..40)), None);
        assert_eq!(index.find(&(45..51)), None);
        assert_eq!(index.find(&(0..1)), None);
    }

    #[test]
    fn an_exact_index_serves_the_very_range_only() {
        let mut index = Index::new(KIND, true);
        index.insert(&(10..20), 0);
        index.insert(&(10..15), 1);
        assert_eq!(index.find(&(10..20)), Some(0));
        assert_eq!(index.find(&(10..15)), Some(1));
        assert_eq!(index.find(&(11..15)), None);
        assert_eq!(index.within(&(0..100)), [0; 0]);
        assert_eq!(index.overlapping(&(18..19)), [0]);
        assert_eq!(index.overlapping(&(12..13)), [0, 1]);
    }

    #[test]
    fn neighbours_touch_and_do_not_overlap() {
        let index = index(&[10..20, 20..30, 31..40]);
        assert_eq!(index.overlapping(&(20..30)), [1]);
        assert_eq!(index.touching(&(20..30)), [1, 0]);
        assert_eq!(index.touching(&(30..31)), [2, 1]);
        assert_eq!(index.within(&(10..30)), [0, 1]);
        assert_eq!(index.overlapping(&(0..100)), [2, 1, 0]);
    }

    /// Against a list that is searched from end to end.
    #[test]
    fn it_finds_what_a_search_of_all_finds() {
        let mut seed = 7u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for _ in 0..300 {
            let mut index = Index::new(KIND, false);
            let mut list: Vec<(Range<usize>, usize)> = Vec::new();
            for place in 0..20 {
                let start = draw(60);
                let range = start..start + 1 + draw(20);
                if index.find(&range).is_some() {
                    continue;
                }
                for place in index.within(&range) {
                    let at = list.iter().position(|it| it.1 == place).unwrap();
                    index.remove(&list.swap_remove(at).0);
                }
                index.insert(&range, place);
                list.push((range, place));
            }
            for _ in 0..50 {
                let start = draw(90);
                let range = start..start + 1 + draw(25);
                let sorted = |mut places: Vec<usize>| {
                    places.sort_unstable();
                    places
                };
                let all = |test: &dyn Fn(&Range<usize>) -> bool| {
                    let those = list.iter().filter(|it| test(&it.0));
                    sorted(those.map(|it| it.1).collect())
                };
                let covering = all(&|it| it.start <= range.start && range.end <= it.end);
                assert_eq!(index.find(&range).is_some(), !covering.is_empty());
                assert!(index.find(&range).is_none_or(|it| covering.contains(&it)));
                let overlap = all(&|it| it.start < range.end && range.start < it.end);
                assert_eq!(sorted(index.overlapping(&range)), overlap);
                let touch = all(&|it| it.start <= range.end && range.start <= it.end);
                assert_eq!(sorted(index.touching(&range)), touch);
                let within = all(&|it| range.start <= it.start && it.end <= range.end);
                assert_eq!(sorted(index.within(&range)), within);
            }
        }
    }
}
