//! The receive and the batch that are submitted to the link: the states of both directions.
//!
//! ```text
//!            receive                          send
//!   Idle ───────────▶ Armed            Idle ◀─────▶ InFlight
//!    ▲ │ ◀─ outcome ──  ▲
//!    │ │ watch          │ receive
//!    │ └─────▶ Watching ┘
//!    └─ peer gone ┘
//! ```

use crate::edges::{check_edge, state_machine};

use super::port::Port;

/// State of the receiving direction: at most one receive at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvState {
    /// Nothing is submitted.
    Idle,
    /// A receive is submitted.
    Armed {
        /// True if it receives into a region that peers can access.
        region: bool,
    },
    /// Reading is paused, and the link watches for the peer's end.
    Watching,
}

impl RecvState {
    pub(super) fn is_armed(self) -> bool {
        matches!(self, RecvState::Armed { .. })
    }

    /// Moves along a legal edge.
    pub(super) fn go(&mut self, to: RecvState) {
        check_edge(self, &to);
        *self = to;
    }
}

// "Never two armed at once" (docs/memory-model.md, rule 5).
state_machine! { RecvState {
    Idle => [Armed, Watching],
    Armed => [Idle],
    Watching => [Idle, Armed],
}}

/// State of the sending direction: at most one batch at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Nothing is submitted.
    Idle,
    /// A batch is submitted.
    InFlight {
        /// True if it reads from a region that peers can access.
        region: bool,
    },
}

/// Whether the peer's stream has ended, as reported by the link while reading is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStream {
    Open,
    Finished,
}

impl Port {
    /// Takes back kernel operations on regions that peers can access, since a region was closed.
    /// The machine resolves each region again before it hands the region out. Returns true if there
    /// were any.
    pub(super) fn regions_changed(&self) -> bool {
        let mut guard = self.lock("regions changed");
        let state = &mut *guard;
        let Some(link) = &mut state.io.link else {
            return false;
        };
        let receives = state.io.recv == RecvState::Armed { region: true };
        let sends = state.io.send == SendState::InFlight { region: true };
        if receives {
            link.cancel_receive();
        }
        if sends {
            link.cancel_send();
        }
        receives || sends
    }
}

#[cfg(test)]
mod tests {
    use super::RecvState;
    use crate::edges::MachineState;

    /// No single test walks all of these, so the table is repeated here.
    #[test]
    fn only_these_states_follow_each_other() {
        let table: [(&str, &[&str]); 3] = [
            ("Idle", &["Armed", "Watching"]),
            ("Armed", &["Idle"]),
            ("Watching", &["Idle", "Armed"]),
        ];
        assert_eq!(RecvState::EDGES, table);
    }
}
