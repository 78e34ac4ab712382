//! Deadlines of a listener's half-open connections. Each call takes O(log n) time, as with
//! [`HostShares`](crate::proto::HostShares), which bounds their number: no call scans them.

use std::collections::BTreeSet;
use std::time::Instant;

/// The deadlines, each with its connection.
#[derive(Debug)]
pub(super) struct HandshakeDeadlines<Id>(BTreeSet<(Instant, Id)>);

impl<Id: Copy + Ord> HandshakeDeadlines<Id> {
    pub(super) fn new() -> Self {
        HandshakeDeadlines(BTreeSet::new())
    }

    /// Replaces `held`, the present deadline of this connection.
    pub(super) fn set(&mut self, id: Id, held: &mut Option<Instant>, to: Option<Instant>) {
        if let Some(old) = std::mem::replace(held, to) {
            self.0.remove(&(old, id));
        }
        self.0.extend(to.map(|at| (at, id)));
    }

    /// Takes one connection whose deadline has passed.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Id> {
        let &(at, id) = self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            id
        })
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::proto::HostShares;

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// A number that counts its comparisons.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// Returns the comparisons of the most expensive of a thousand arrivals among `held` other
    /// connections. Each arrival has an eviction, a new deadline and a check for due ones.
    fn cost_among(held: u64) -> u64 {
        let start = Instant::now();
        let mut half_open = HostShares::new(held as usize);
        let mut deadlines = HandshakeDeadlines::new();
        let mut dearest = 0;
        for number in 0..held + 1000 {
            let before = COMPARISONS.get();
            let (id, at) = (Counted(number), start + Duration::from_nanos(number));
            deadlines.set(id, &mut None, Some(at));
            if let Some(evicted) = half_open.insert(id, 0) {
                let at = start + Duration::from_nanos(evicted.0);
                deadlines.set(evicted, &mut Some(at), None);
            }
            assert_eq!(deadlines.pop_due(start - Duration::from_secs(1)), None);
            if number >= held {
                dearest = dearest.max(COMPARISONS.get() - before);
            }
        }
        assert_eq!(half_open.len() as u64, held);
        dearest
    }

    /// The cost of one arrival does not depend on how many connections are half open.
    #[test]
    fn an_arrival_looks_at_few_of_many_half_open_connections() {
        let (few, many) = (cost_among(16), cost_among(65_536));
        println!("comparisons per arrival: {few} among 16, {many} among 65,536");
        // A tree of 65,536 has a few levels of eleven; a scan compares them all.
        assert!(many < 256, "{many} comparisons per arrival");
    }
}
