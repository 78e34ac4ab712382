//! The life of a connection.
//!
//! ```text
//!            connect            response
//!   Idle ──────────────▶ Connecting ─────▶ Connected ──▶ Closed
//!    │      accept           │   response sent ▲            ▲
//!    └──────────────▶ Accepting ───────────────┘            │
//!    └───────────────────────┴──────────────────────────────┘
//! ```
//! An attempt that comes to nothing leads back to Idle.

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

impl Lifecycle {
    /// Every legal edge; all others are bugs of ours.
    pub(crate) const EDGES: [(Lifecycle, Lifecycle); 11] = [
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
        // Of a connectionless endpoint's: what is left to be sent goes over the next one.
        (Lifecycle::Connected, Lifecycle::Idle),
    ];

    /// Moves along a legal edge.
    pub(crate) fn go(&mut self, to: Lifecycle) {
        debug_assert!(
            Lifecycle::EDGES.contains(&(*self, to)),
            "no edge from {self:?} to {to:?}"
        );
        *self = to;
    }
}

#[cfg(test)]
mod tests {
    use super::Lifecycle::{self, *};

    /// The whole table, so that a change of the state machine shows in a review.
    #[test]
    fn only_the_drawn_edges_exist() {
        let all = [Idle, Connecting, Accepting, Connected, Closed];
        let mut table = String::new();
        for from in all {
            for to in all {
                if Lifecycle::EDGES.contains(&(from, to)) {
                    table.push_str(&format!("{from:?}>{to:?} "));
                }
            }
        }
        assert_eq!(
            table.trim(),
            "Idle>Connecting Idle>Accepting Idle>Closed Connecting>Idle Connecting>Connected \
             Connecting>Closed Accepting>Idle Accepting>Connected Accepting>Closed \
             Connected>Idle Connected>Closed"
        );
    }
}
