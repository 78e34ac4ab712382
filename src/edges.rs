//! State machines: every step goes along a drawn edge. Debug builds check that, and tests ask
//! whether every edge was walked.
//!
//! Gates (`sync/gate.rs`), the leases that are entries of them, counters and the slots of queues
//! have no edges: they are counts that threads share, whose interleavings loom explores (`models`).

use std::fmt::Debug;

/// A state of a machine, without the data that belongs to it.
pub(crate) trait MachineState: Copy + Debug + PartialEq + 'static {
    /// Every legal edge, as the drawing of the machine has them; all others are bugs of ours.
    const EDGES: &'static [(Self, Self)];
}

/// Checks a step of a machine, in debug builds and tests.
#[inline]
pub(crate) fn check_edge<S: MachineState>(from: S, to: S) {
    debug_assert!(
        S::EDGES.contains(&(from, to)),
        "no edge from {from:?} to {to:?}"
    );
    #[cfg(test)]
    coverage::note(from, to);
}

#[cfg(test)]
pub(crate) use coverage::{EdgeCoverage, drawn};

#[cfg(test)]
mod coverage {
    use std::any::TypeId;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::marker::PhantomData;

    use super::MachineState;

    thread_local! {
        /// The machine's type, and the place of the edge in its list.
        static WALKED: RefCell<BTreeSet<(TypeId, usize)>> = RefCell::default();
    }

    pub(super) fn note<S: MachineState>(from: S, to: S) {
        let at = S::EDGES.iter().position(|edge| *edge == (from, to));
        let at = at.unwrap_or_else(|| panic!("no edge from {from:?} to {to:?}"));
        WALKED.with_borrow_mut(|walked| walked.insert((TypeId::of::<S>(), at)));
    }

    /// Which edges of a machine this thread walks from now on.
    pub(crate) struct EdgeCoverage<S>(PhantomData<S>);

    impl<S: MachineState> EdgeCoverage<S> {
        pub(crate) fn begin() -> Self {
            WALKED.with_borrow_mut(|walked| walked.retain(|(of, _)| *of != TypeId::of::<S>()));
            EdgeCoverage(PhantomData)
        }

        /// Panics unless every drawn edge was walked.
        #[track_caller]
        pub(crate) fn expect_all(self) {
            let is_walked = |at| WALKED.with_borrow(|it| it.contains(&(TypeId::of::<S>(), at)));
            let edges = S::EDGES.iter().enumerate();
            let missed: Vec<_> = edges.filter(|(at, _)| !is_walked(*at)).collect();
            assert!(missed.is_empty(), "never walked: {missed:?}");
        }
    }

    /// The edges of a machine, for a test in which every change of the drawing shows.
    pub(crate) fn drawn<S: MachineState>() -> String {
        let edges = S::EDGES.iter().map(|(from, to)| format!("{from:?}>{to:?}"));
        edges.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Door {
        Open,
        Shut,
        Locked,
    }

    impl MachineState for Door {
        const EDGES: &'static [(Door, Door)] = &[
            (Door::Open, Door::Shut),
            (Door::Shut, Door::Open),
            (Door::Shut, Door::Locked),
        ];
    }

    #[test]
    #[should_panic(expected = "no edge from Open to Locked")]
    fn a_step_beside_the_drawing_panics() {
        check_edge(Door::Open, Door::Locked);
    }

    #[test]
    fn a_walk_over_every_edge_is_complete() {
        let coverage = EdgeCoverage::<Door>::begin();
        Door::EDGES
            .iter()
            .for_each(|(from, to)| check_edge(*from, *to));
        coverage.expect_all();
        assert_eq!(drawn::<Door>(), "Open>Shut Shut>Open Shut>Locked");
    }

    #[test]
    #[should_panic(expected = "never walked: [(2, (Shut, Locked))]")]
    fn an_edge_that_was_not_walked_is_named() {
        let coverage = EdgeCoverage::<Door>::begin();
        check_edge(Door::Open, Door::Shut);
        check_edge(Door::Shut, Door::Open);
        coverage.expect_all();
    }
}
