//! The one word of a gate: marks in the low bits, and above them the number of users in each role.
//! Pure arithmetic, so that every change is one atomic step.

/// The side on whose behalf the bytes are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An operation of this process: inside from the post to the end.
    Local,
    /// One kernel operation or one copy on behalf of a peer: inside only while it lasts.
    Remote,
}

/// The reason why entry was refused. If several apply, the most lasting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateError {
    /// The region has not been enabled yet.
    Disabled,
    /// Peers have lost their access for good.
    Revoked,
    /// The pages behind the region are being inspected.
    Refreshing,
    /// A guard has exclusive access to the bytes.
    Quiesced,
    /// The region has no handle; a cache keeps it for the next request.
    Parked,
    /// The region is deregistered, or its last handle was dropped.
    Closed,
}

/// The users that a drain waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainScope {
    /// Users on behalf of peers; local ones may stay.
    Remote,
    /// All users.
    All,
}

pub(super) const DISABLED: u64 = 1;
pub(super) const REVOKED: u64 = 1 << 1;
pub(super) const REFRESHING: u64 = 1 << 2;
pub(super) const QUIESCED: u64 = 1 << 3;
pub(super) const PARKED: u64 = 1 << 4;
pub(super) const CLOSED: u64 = 1 << 5;
/// A waiter is registered, which the last user to leave must wake.
pub(super) const AWAITED: u64 = 1 << 6;
/// A caller owns the memory behind the gate, since the gate was closed and drained.
pub(super) const CLAIMED: u64 = 1 << 7;

/// Larger than the number of operations that fit into any memory.
const COUNT_MAX: u64 = (1 << 28) - 1;
const LOCAL_ONE: u64 = 1 << 8;
const REMOTE_ONE: u64 = LOCAL_ONE * (COUNT_MAX + 1);
const LOCAL_COUNT: u64 = COUNT_MAX * LOCAL_ONE;
const REMOTE_COUNT: u64 = COUNT_MAX * REMOTE_ONE;

/// Marks that refuse everyone.
pub(super) const SHUT: u64 = CLOSED | QUIESCED | PARKED | REFRESHING;

impl Role {
    /// Returns the marks that refuse this role.
    pub(super) fn refused_by(self) -> u64 {
        match self {
            Role::Local => SHUT,
            Role::Remote => SHUT | REVOKED | DISABLED,
        }
    }

    /// Returns the word with one more user, unless one of these marks is set.
    pub(super) fn enter(self, word: u64, refused_by: u64) -> Result<u64, GateError> {
        check(word, refused_by)?;
        let (one, count) = self.one_and_count();
        // One more would carry into the count of the other role.
        assert!(word & count != count, "a gate counts all that are inside");
        Ok(word + one)
    }

    /// Returns the word's increment for one user, and the bits of its role's count.
    pub(super) fn one_and_count(self) -> (u64, u64) {
        match self {
            Role::Local => (LOCAL_ONE, LOCAL_COUNT),
            Role::Remote => (REMOTE_ONE, REMOTE_COUNT),
        }
    }
}

impl DrainScope {
    /// Returns true if none of these users is inside.
    pub(super) fn is_drained(self, word: u64) -> bool {
        word & match self {
            DrainScope::Remote => REMOTE_COUNT,
            DrainScope::All => REMOTE_COUNT | LOCAL_COUNT,
        } == 0
    }
}

/// Refuses if any of these marks is set.
pub(super) fn check(word: u64, marks: u64) -> Result<(), GateError> {
    let reasons = [
        (CLOSED, GateError::Closed),
        (REVOKED, GateError::Revoked),
        (QUIESCED, GateError::Quiesced),
        (PARKED, GateError::Parked),
        (REFRESHING, GateError::Refreshing),
        (DISABLED, GateError::Disabled),
    ];
    let set = word & marks;
    if set == 0 {
        return Ok(());
    }
    let reason = reasons.iter().find(|(mark, _)| set & mark != 0);
    reason.map_or(Ok(()), |(_, why)| Err(*why))
}

/// Returns the number of users inside, local and remote.
pub(super) fn counts(word: u64) -> (u64, u64) {
    ((word & LOCAL_COUNT) / LOCAL_ONE, word / REMOTE_ONE)
}
