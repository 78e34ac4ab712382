//! What is known of a member.
//!
//! ```text
//!   New ─▶ Living ◀─▶ Lost, Gone
//!    └────────┴──────────┴──▶ Left ── its next incarnation announces itself ──▶ New
//! ```

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing yet: it is being greeted.
    New,
    Living,
    /// Its connection was lost; it is tried again.
    Lost,
    /// It cannot be reached; it is tried again, for it may come back.
    Gone,
    /// It has said that it ends.
    Left,
}

impl Status {
    /// What it is after this was seen of it. Who has said that it ends stays so: the end of an
    /// operation may be noticed after the good-bye that came behind it.
    pub fn after(self, seen: Status) -> Status {
        match self {
            Status::Left => Status::Left,
            _ => seen,
        }
    }
}
