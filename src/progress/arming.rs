//! What the link has of ours, in each direction.
//!
//! ```text
//!            receive                          send
//!   Idle ───────────▶ Armed            Idle ◀─────▶ InFlight
//!    ▲ │ ◀─ outcome ──  ▲
//!    │ │ watch          │ receive
//!    │ └─────▶ Watching ┘
//!    └─ peer gone ┘
//! ```

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

    /// Every legal edge; all others are bugs of ours.
    fn may_become(self, to: RecvState) -> bool {
        use RecvState::{Armed, Idle, Watching};
        matches!(
            (self, to),
            (Idle | Watching, Armed { .. }) | (Idle, Watching) | (Armed { .. } | Watching, Idle)
        )
    }

    /// Moves along a legal edge.
    pub(super) fn go(&mut self, to: RecvState) {
        debug_assert!(self.may_become(to), "no edge from {self:?} to {to:?}");
        *self = to;
    }
}

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

/// Whether the peer's stream has ended, as told while reading was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerStream {
    Open,
    Finished,
}

#[cfg(test)]
mod tests {
    use super::RecvState::{self, Armed, Idle, Watching};

    /// "Never two armed at once" (docs/memory-model.md, rule 5), and the rest of the drawing.
    #[test]
    fn only_the_drawn_edges_exist() {
        let all = [Idle, Armed { region: true }, Watching];
        let mut edges = Vec::new();
        for from in all {
            edges.extend(
                all.iter()
                    .filter(|to| from.may_become(**to))
                    .map(|to| (from, *to)),
            );
        }
        let armed = Armed { region: true };
        let drawn: [(RecvState, RecvState); 5] = [
            (Idle, armed),
            (Idle, Watching),
            (armed, Idle),
            (Watching, Idle),
            (Watching, armed),
        ];
        assert_eq!(edges, drawn);
    }
}
