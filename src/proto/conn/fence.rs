//! Fences (`FI_FENCE`): operations that wait until all earlier ones have ended, and that no later
//! one overtakes.
//!
//! ```text
//!   numbers    3   4   5 F  6   7   8 F  9
//!              |---|   |--------|   |----      counted: those of each stretch that have not ended
//! ```
//! A fence goes out once no earlier operation is outstanding. From then on it counts as an ordinary
//! operation, and the next fence is the first one.

use std::collections::VecDeque;

#[derive(Debug)]
struct Fence {
    /// The number of the fence's frame.
    number: u64,
    /// Operations that have not ended, from the previous fence up to this one.
    before: usize,
}

/// The fences that have not gone out, and the operations that each of them waits for.
///
/// Invariant: every admitted transmit operation that has not ended is counted once, in the interval
/// between fences that contains its number.
#[derive(Debug, Default)]
pub(super) struct Fences {
    waiting: VecDeque<Fence>,
    /// Operations that have not ended, from the last fence on.
    behind: usize,
}

impl Fences {
    /// Counts an admitted operation. `number`: the number of its frame, the highest so far.
    pub(super) fn began(&mut self, number: u64, is_fence: bool) {
        if is_fence {
            let before = std::mem::take(&mut self.behind);
            self.waiting.push_back(Fence { number, before });
        }
        self.behind += 1;
    }

    /// Notes that the operation with this number has ended.
    #[inline]
    pub(super) fn ended(&mut self, number: u64) {
        let at = self.waiting.partition_point(|fence| fence.number <= number);
        let stretch = match self.waiting.get_mut(at) {
            Some(fence) => &mut fence.before,
            None => &mut self.behind,
        };
        debug_assert!(*stretch > 0, "an operation ends once");
        *stretch = stretch.saturating_sub(1);
    }

    /// Notes that `count` operations have ended whose frames had gone out. They precede the first
    /// waiting fence.
    pub(super) fn ended_first(&mut self, count: usize) {
        let stretch = match self.waiting.front_mut() {
            Some(fence) => &mut fence.before,
            None => &mut self.behind,
        };
        debug_assert!(*stretch >= count, "an operation ends once");
        *stretch = stretch.saturating_sub(count);
    }

    /// The number of the first fence that has not gone out.
    pub(super) fn first(&self) -> Option<u64> {
        self.waiting.front().map(|fence| fence.number)
    }

    /// True if the frame with this number may go out.
    pub(super) fn let_pass(&self, number: u64) -> bool {
        self.waiting.front().is_none_or(|fence| {
            number < fence.number || number == fence.number && fence.before == 0
        })
    }

    /// Notes that the frame with this number went out, or was withdrawn.
    #[inline]
    pub(super) fn gone(&mut self, number: u64) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.waiting.partition_point(|fence| fence.number < number);
        if self
            .waiting
            .get(at)
            .is_none_or(|fence| fence.number != number)
        {
            return;
        }
        let Some(Fence { before, .. }) = self.waiting.remove(at) else {
            return;
        };
        match self.waiting.get_mut(at) {
            Some(next) => next.before += before,
            None => self.behind += before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fences;

    #[test]
    fn a_fence_waits_for_what_is_before_it_and_stops_what_is_behind() {
        let mut fences = Fences::default();
        for number in 0..8 {
            fences.began(number, number == 2 || number == 5);
        }
        let passing = |fences: &Fences| (0..8).filter(|n| fences.let_pass(*n)).collect::<Vec<_>>();
        assert_eq!(passing(&fences), [0, 1]);
        fences.ended(1);
        fences.ended(7);
        assert_eq!(passing(&fences), [0, 1]);
        fences.ended(0);
        assert_eq!(passing(&fences), [0, 1, 2]);
        fences.gone(2);
        assert_eq!(passing(&fences), [0, 1, 2, 3, 4]);
        for number in [3, 2] {
            fences.ended(number);
            assert!(!fences.let_pass(5));
        }
        fences.ended(4);
        assert!(fences.let_pass(5) && !fences.let_pass(6));
    }

    #[test]
    fn a_withdrawn_fence_leaves_its_duty_to_the_next() {
        let mut fences = Fences::default();
        for number in 0..4 {
            fences.began(number, number == 1 || number == 3);
        }
        fences.gone(1);
        fences.ended(1);
        assert!(fences.let_pass(2) && !fences.let_pass(3));
        fences.ended(2);
        assert!(!fences.let_pass(3), "the oldest is still there");
        fences.ended(0);
        assert!(fences.let_pass(3));
        fences.gone(3);
        fences.ended(3);
        assert_eq!(fences.behind, 0);
    }
}
