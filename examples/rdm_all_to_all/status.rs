//! What this process knows about a member.
//!
//! ```text
//!   New ─▶ Living ◀─▶ Lost, Gone
//!    └────────┴──────────┴──▶ Left ── its next incarnation announces itself ──▶ New
//! ```

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing is known yet: the member is being greeted.
    New,
    Living,
    /// Its connection was lost; reconnecting.
    Lost,
    /// It cannot be reached; reconnecting, since it may come back.
    Gone,
    /// It has announced its end.
    Left,
}

impl Status {
    /// Returns the status after `seen`. A member that has left stays so: the end of an operation
    /// may be noticed after the announcement that followed it.
    pub fn after(self, seen: Status) -> Status {
        match self {
            Status::Left => Status::Left,
            _ => seen,
        }
    }
}
