//! The life of a connection.
//!
//! ```text
//!            connect            response
//!   Idle ──────────────▶ Connecting ─────▶ Connected ──▶ Closed
//!    │      accept           │   response sent ▲            ▲
//!    └──────────────▶ Accepting ───────────────┘            │
//!    └───────────────────────┴──────────────────────────────┘
//! ```
//! An attempt that comes to nothing leads back to Idle; so does a connection of a connectionless
//! endpoint that has ended in order while something is left to be sent, which goes over the next.

use crate::edges::{MachineState, check_edge};

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lifecycle {
    /// Opened; receives may be posted.
    Idle,
    /// The request is on its way, or its response.
    Connecting,
    /// The response is on its way.
    Accepting,
    /// Both sides may send.
    Connected,
    /// Over; every operation has ended or ends now.
    Closed,
}

impl MachineState for Lifecycle {
    const EDGES: &'static [(Lifecycle, Lifecycle)] = &[
        (Lifecycle::Idle, Lifecycle::Connecting),
        (Lifecycle::Idle, Lifecycle::Accepting),
        (Lifecycle::Connecting, Lifecycle::Connected),
        (Lifecycle::Accepting, Lifecycle::Connected),
        (Lifecycle::Connecting, Lifecycle::Idle),
        (Lifecycle::Accepting, Lifecycle::Idle),
        (Lifecycle::Idle, Lifecycle::Closed),
        (Lifecycle::Connecting, Lifecycle::Closed),
        (Lifecycle::Accepting, Lifecycle::Closed),
        (Lifecycle::Connected, Lifecycle::Closed),
        (Lifecycle::Connected, Lifecycle::Idle),
    ];
}

impl Lifecycle {
    /// Moves along a legal edge.
    pub(crate) fn go(&mut self, to: Lifecycle) {
        check_edge(*self, to);
        *self = to;
    }
}

#[cfg(test)]
mod tests {
    use super::Lifecycle;
    use crate::edges::drawn;

    /// The whole table, so that a change of the state machine shows in a review.
    #[test]
    fn only_the_drawn_edges_exist() {
        assert_eq!(
            drawn::<Lifecycle>(),
            "Idle>Connecting Idle>Accepting Connecting>Connected Accepting>Connected \
             Connecting>Idle Accepting>Idle Idle>Closed Connecting>Closed Accepting>Closed \
             Connected>Closed Connected>Idle"
        );
    }
}
