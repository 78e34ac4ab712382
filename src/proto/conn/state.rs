//! The life of a connection.
//!
//! ```text
//!            connect            response
//!   Idle ──────────────▶ Connecting ─────▶ Connected ──▶ Closed
//!    │      accept           │   response sent ▲            ▲
//!    └──────────────▶ Accepting ───────────────┘            │
//!    └───────────────────────┴──────────────────────────────┘
//! ```
//! An attempt that fails leads back to Idle. So does a connection of a connectionless endpoint that
//! has ended in order with operations left to send: they go over the next connection.

use crate::edges::{check_edge, state_machine};

/// The states of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lifecycle {
    /// Opened; receives may be posted.
    Idle,
    /// The request or its response is on its way.
    Connecting,
    /// The response is on its way.
    Accepting,
    /// Both sides may send.
    Connected,
    /// Ended; every operation has ended or ends now.
    Closed {
        /// True if this side or the peer closed the connection. False if it was lost, or never came
        /// up.
        in_order: bool,
    },
}

state_machine! { Lifecycle {
    Idle => [Connecting, Accepting, Closed],
    Connecting => [Connected, Idle, Closed],
    Accepting => [Connected, Idle, Closed],
    Connected => [Closed, Idle],
    Closed => [],
}}

impl Lifecycle {
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Lifecycle::Closed { .. })
    }

    /// Moves along a legal edge.
    pub(crate) fn go(&mut self, to: Lifecycle) {
        check_edge(self, &to);
        *self = to;
    }
}

#[cfg(test)]
mod tests {
    use super::Lifecycle;
    use crate::edges::MachineState;

    /// No single test walks all of a connection's life, so the table is repeated here.
    #[test]
    fn only_these_states_follow_each_other() {
        let table: [(&str, &[&str]); 5] = [
            ("Idle", &["Connecting", "Accepting", "Closed"]),
            ("Connecting", &["Connected", "Idle", "Closed"]),
            ("Accepting", &["Connected", "Idle", "Closed"]),
            ("Connected", &["Closed", "Idle"]),
            ("Closed", &[]),
        ];
        assert_eq!(Lifecycle::EDGES, table);
    }
}
