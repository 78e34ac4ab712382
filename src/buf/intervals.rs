//! A set of numbers, kept as the ranges it consists of.

use std::ops::Range;

/// Invariant: the ranges are not empty, in order, and neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    ranges: Vec<Range<usize>>,
}

impl Intervals {
    /// True if all of the range is in the set; an empty one always is.
    pub(super) fn contains(&self, range: Range<usize>) -> bool {
        if range.is_empty() {
            return true;
        }
        let after = self.ranges.partition_point(|it| it.start <= range.start);
        after
            .checked_sub(1)
            .is_some_and(|at| range.end <= self.ranges[at].end)
    }

    /// Adds a range.
    pub(super) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Ranges that overlap it or touch it become one with it.
        let from = self.ranges.partition_point(|it| it.end < range.start);
        let to = self.ranges.partition_point(|it| it.start <= range.end);
        let mut whole = range;
        if let Some(first) = self.ranges[from..to].first() {
            whole.start = whole.start.min(first.start);
        }
        if let Some(last) = self.ranges[from..to].last() {
            whole.end = whole.end.max(last.end);
        }
        self.ranges.splice(from..to, [whole]);
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let from = self.ranges.partition_point(|it| it.end <= range.start);
        let to = self.ranges.partition_point(|it| it.start < range.end);
        let mut left = Vec::with_capacity(2);
        if let Some(first) = self.ranges[from..to].first() {
            left.push(first.start..range.start);
        }
        if let Some(last) = self.ranges[from..to].last() {
            left.push(range.end..last.end);
        }
        left.retain(|it| it.start < it.end);
        self.ranges.splice(from..to, left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A set of ranges is what a set of single numbers would be, and keeps its invariant.
        #[test]
        fn intervals_behave_like_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0usize..64, 0usize..24), 1..60),
        ) {
            let (mut intervals, mut oracle) = (Intervals::default(), [false; 96]);
            for (insert, start, len) in steps {
                if insert {
                    intervals.insert(start..start + len);
                } else {
                    intervals.remove(start..start + len);
                }
                oracle[start..start + len].fill(insert);
                for at in 0..96 {
                    for len in [0, 1, 2, 7] {
                        let whole = at + len <= 96 && oracle[at..at + len].iter().all(|it| *it);
                        let expected = len == 0 || whole;
                        prop_assert_eq!(intervals.contains(at..at + len), expected);
                    }
                }
                let ranges = &intervals.ranges;
                prop_assert!(ranges.iter().all(|it| it.start < it.end));
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
