//! What is submitted to the link, in each direction.
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

/// Of the direction in which bytes come: at most one receive at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvState {
    /// Nothing is submitted.
    Idle,
    /// A receive is submitted.
    Armed {
        /// It lands in a region that peers reach.
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

/// Of the direction in which bytes go: at most one batch at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Nothing is submitted.
    Idle,
    /// A batch is submitted.
    InFlight {
        /// It reads from a region that peers reach.
        region: bool,
    },
}

/// Whether the peer's stream has ended, as the link reports while reading is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStream {
    Open,
    Finished,
}

impl Port {
    /// A region was closed. Takes back from the kernel what reads or writes a region that peers
    /// reach; the machine resolves each region anew before it hands it out again. True if there was
    /// anything.
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
