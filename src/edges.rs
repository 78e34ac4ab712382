//! State machines: every step goes along an edge of the machine's table. Debug builds check that,
//! and tests check that every edge was walked.
//!
//! Gates (`sync/gate.rs`), leases (which are entries of gates), counters and the slots of queues
//! have no edges: threads share these counts, and loom explores the interleavings (`models`).

/// The states of a machine and the transitions between them: see [`state_machine`].
pub(crate) trait MachineState {
    /// Every state with the states that may follow it. Any other step is a bug of this library.
    const EDGES: &'static [(&'static str, &'static [&'static str])];

    /// Returns the state's name, without its data.
    fn name(&self) -> &'static str;
}

/// Defines a machine's table: each variant of its enum, without the variant's data, and the
/// variants that may follow it.
macro_rules! state_machine {
    ($state:ident $(<$argument:ident>)? { $($from:ident => [$($to:ident),* $(,)?],)+ }) => {
        impl $(<$argument>)? $crate::edges::MachineState for $state $(<$argument>)? {
            const EDGES: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($from), &[$(stringify!($to)),*])),+];

            fn name(&self) -> &'static str {
                // Compiles only if every successor is a state too.
                $($(let _ = |it: &Self| matches!(it, Self::$to { .. });)*)+
                match self {
                    $(Self::$from { .. } => stringify!($from),)+
                }
            }
        }
    };
}

pub(crate) use state_machine;

/// Checks a step of a machine, in debug builds and tests.
#[inline]
pub(crate) fn check_edge<S: MachineState>(from: &S, to: &S) {
    if cfg!(debug_assertions) {
        check_step::<S>(from.name(), to.name());
    }
}

/// As `check_edge`, for a caller that has only the name of the previous state.
#[inline]
pub(crate) fn check_step<S: MachineState>(from: &'static str, to: &'static str) {
    debug_assert!(
        (S::EDGES.iter()).any(|(state, next)| *state == from && next.contains(&to)),
        "no edge from {from} to {to}"
    );
    #[cfg(test)]
    coverage::note::<S>(from, to);
}

#[cfg(test)]
pub(crate) use coverage::EdgeCoverage;

#[cfg(test)]
mod coverage {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};

    use super::MachineState;

    type Edge = (&'static str, &'static str);

    thread_local! {
        /// The edges that were not walked, by the name of the machine's type.
        static LEFT: RefCell<BTreeMap<&'static str, BTreeSet<Edge>>> = RefCell::default();
    }

    /// Returns the last segment of the type's path.
    fn name_of<S>() -> &'static str {
        let path = std::any::type_name::<S>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit("::").next().unwrap_or(path)
    }

    pub(super) fn note<S: MachineState>(from: &'static str, to: &'static str) {
        let all = || {
            let edges = S::EDGES.iter();
            edges.flat_map(|(from, all)| all.iter().map(|to| (*from, *to)))
        };
        LEFT.with_borrow_mut(|left| {
            let left = left.entry(name_of::<S>());
            left.or_insert_with(|| all().collect()).remove(&(from, to));
        });
    }

    /// Records the edges of one machine that this thread walks from now on.
    pub(crate) struct EdgeCoverage(&'static str);

    impl EdgeCoverage {
        pub(crate) fn begin(machine: &'static str) -> Self {
            LEFT.with_borrow_mut(|left| left.remove(machine));
            EdgeCoverage(machine)
        }

        /// Panics unless every edge was walked.
        #[track_caller]
        pub(crate) fn expect_all(self) {
            let left = LEFT.with_borrow(|left| left.get(self.0).cloned());
            let left = left.unwrap_or_else(|| panic!("no step of {} was walked", self.0));
            assert!(left.is_empty(), "never walked: {left:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(dead_code, reason = "the data of a state is no part of the table")]
    enum Door {
        Open { wide: bool },
        Shut,
        Locked(u8),
    }

    state_machine! { Door {
        Open => [Shut],
        Shut => [Open, Locked],
        Locked => [],
    }}

    const WIDE: Door = Door::Open { wide: true };

    #[test]
    #[should_panic(expected = "no edge from Open to Locked")]
    fn a_step_beside_the_table_panics() {
        check_edge(&WIDE, &Door::Locked(1));
    }

    #[test]
    fn a_walk_over_every_edge_is_complete() {
        let coverage = EdgeCoverage::begin("Door");
        check_edge(&WIDE, &Door::Shut);
        check_edge(&Door::Shut, &Door::Open { wide: false });
        check_step::<Door>("Shut", Door::Locked(2).name());
        coverage.expect_all();
    }

    #[test]
    #[should_panic(expected = "never walked: {(\"Shut\", \"Locked\")}")]
    fn an_edge_that_was_not_walked_is_named() {
        let coverage = EdgeCoverage::begin("Door");
        check_edge(&WIDE, &Door::Shut);
        check_edge(&Door::Shut, &WIDE);
        coverage.expect_all();
    }

    #[test]
    #[should_panic(expected = "no step of Door was walked")]
    fn a_machine_that_was_not_walked_is_named() {
        EdgeCoverage::begin("Door").expect_all();
    }
}
