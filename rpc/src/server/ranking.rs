//! Finds the owner that holds most of a shared resource, without a search through all holdings.

use std::collections::{BTreeMap, BTreeSet};

/// The holdings of several owners. An owner has pieces, ordered by number and each of a kind, and a
/// sum that is set separately. `T` is the value of a piece.
#[derive(Debug)]
pub(super) struct Ranking<T> {
    owners: BTreeMap<usize, Owner<T>>,
    /// Owners, by the number of their pieces.
    by_count: BTreeSet<(usize, usize)>,
    /// Owners, by their sums.
    by_sum: BTreeSet<(usize, usize)>,
}

#[derive(Debug)]
struct Owner<T> {
    pieces: BTreeMap<u64, RankedValue<T>>,
    /// The kind and number of each of the owner's pieces.
    kinds: BTreeSet<(usize, u64)>,
    /// Numbers of the pieces that count in the sum.
    counted: BTreeSet<u64>,
    sum: usize,
}

#[derive(Debug)]
struct RankedValue<T> {
    kind: usize,
    value: T,
}

impl<T> Ranking<T> {
    pub(super) fn new() -> Ranking<T> {
        Ranking {
            owners: BTreeMap::new(),
            by_count: BTreeSet::new(),
            by_sum: BTreeSet::new(),
        }
    }

    /// Inserts a piece of an owner; `sum` is the sum of a new owner. Numbers must increase.
    pub(super) fn insert(&mut self, owner: usize, sum: usize, number: u64, kind: usize, value: T) {
        let all = self.owners.entry(owner).or_insert_with(|| Owner {
            pieces: BTreeMap::new(),
            kinds: BTreeSet::new(),
            counted: BTreeSet::new(),
            sum,
        });
        let count = all.pieces.len();
        self.by_count.remove(&(count, owner));
        self.by_count.insert((count + 1, owner));
        self.by_sum.insert((all.sum, owner));
        all.kinds.insert((kind, number));
        all.pieces.insert(number, RankedValue { kind, value });
    }

    pub(super) fn value_mut(&mut self, owner: usize, number: u64) -> Option<&mut T> {
        let piece = self.owners.get_mut(&owner)?.pieces.get_mut(&number)?;
        Some(&mut piece.value)
    }

    /// Marks a piece as one that counts in its owner's sum.
    pub(super) fn count_in(&mut self, owner: usize, number: u64) {
        if let Some(all) = self.owners.get_mut(&owner) {
            all.counted.insert(number);
        }
    }

    /// Sets the owner's sum, if the owner has a piece.
    pub(super) fn set_sum(&mut self, owner: usize, sum: usize) {
        if let Some(all) = self.owners.get_mut(&owner) {
            self.by_sum.remove(&(all.sum, owner));
            self.by_sum.insert((sum, owner));
            all.sum = sum;
        }
    }

    pub(super) fn remove(&mut self, owner: usize, number: u64) -> Option<T> {
        let all = self.owners.get_mut(&owner)?;
        let piece = all.pieces.remove(&number)?;
        all.kinds.remove(&(piece.kind, number));
        all.counted.remove(&number);
        let left = all.pieces.len();
        self.by_count.remove(&(left + 1, owner));
        match left {
            0 => {
                self.by_sum.remove(&(all.sum, owner));
                self.owners.remove(&owner);
            }
            left => drop(self.by_count.insert((left, owner))),
        }
        Some(piece.value)
    }

    /// Returns the oldest piece of the owner with the most pieces, if it has more than `more_than`.
    /// With `kind`, considers only pieces of this kind and the owners that have one.
    pub(super) fn oldest_of_most(
        &self,
        more_than: usize,
        kind: Option<usize>,
    ) -> Option<(usize, u64)> {
        let above = self.by_count.range((more_than + 1, 0)..).rev();
        above.map(|(_, owner)| *owner).find_map(|owner| {
            let all = self.owners.get(&owner)?;
            let oldest = match kind {
                Some(kind) => all.kinds.range((kind, 0)..=(kind, u64::MAX)).next()?.1,
                None => *all.pieces.first_key_value()?.0,
            };
            Some((owner, oldest))
        })
    }

    /// Returns the oldest piece that counts in its owner's sum, of the owner with the largest sum
    /// that has such a piece, if the sum is more than `more_than`.
    pub(super) fn oldest_of_largest(&self, more_than: usize) -> Option<(usize, u64)> {
        let above = self.by_sum.range((more_than + 1, 0)..).rev();
        above.map(|(_, owner)| *owner).find_map(|owner| {
            let oldest = *self.owners.get(&owner)?.counted.first()?;
            Some((owner, oldest))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A piece in a list of all pieces.
    struct Listed {
        owner: usize,
        number: u64,
        kind: usize,
        is_counted: bool,
    }

    /// Finds the same by a search of the whole list: the last of the owners that hold most, and its
    /// oldest piece.
    fn most(
        all: &[Listed],
        more_than: usize,
        has: impl Fn(usize) -> usize,
        may: impl Fn(&Listed) -> bool,
    ) -> Option<(usize, u64)> {
        let of_use = all.iter().filter(|it| may(it) && has(it.owner) > more_than);
        let most = of_use.max_by_key(|it| (has(it.owner), it.owner, std::cmp::Reverse(it.number)));
        most.map(|it| (it.owner, it.number))
    }

    proptest! {
        #[test]
        fn it_finds_what_a_look_at_all_finds(
            steps in prop::collection::vec((0..4_u8, 0..5_usize, 0..3_usize, 0..9_usize), 1..80),
        ) {
            let (mut ranking, mut all, mut sums) = (Ranking::new(), Vec::<Listed>::new(), [0; 5]);
            for (number, (step, owner, kind, amount)) in (0_u64..).zip(steps) {
                match step {
                    0 | 1 => {
                        ranking.insert(owner, sums[owner], number, kind, number);
                        all.push(Listed { owner, number, kind, is_counted: false });
                    }
                    2 => {
                        let at = all.iter_mut().find(|it| it.owner == owner && !it.is_counted);
                        if let Some(at) = at {
                            at.is_counted = true;
                            ranking.count_in(owner, at.number);
                        }
                        sums[owner] = amount;
                        ranking.set_sum(owner, amount);
                    }
                    _ => {
                        if let Some(at) = all.iter().position(|it| it.owner == owner) {
                            let gone = all.remove(at);
                            prop_assert_eq!(ranking.remove(owner, gone.number), Some(gone.number));
                        }
                        prop_assert_eq!(ranking.remove(owner, u64::MAX), None);
                    }
                }
                let counts = |owner| all.iter().filter(|it: &&Listed| it.owner == owner).count();
                let wanted = Some(kind);
                let found = ranking.oldest_of_most(amount, wanted);
                prop_assert_eq!(found, most(&all, amount, counts, |it| it.kind == kind));
                let found = ranking.oldest_of_most(amount, None);
                prop_assert_eq!(found, most(&all, amount, counts, |_| true));
                let found = ranking.oldest_of_largest(amount);
                prop_assert_eq!(found, most(&all, amount, |it| sums[it], |it| it.is_counted));
            }
        }
    }
}
