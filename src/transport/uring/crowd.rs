//! Whether several connections are at work, so that their sends are worth gathering.
//!
//! A send that is tried in the posting call costs a system call of its own. With many connections
//! at work, all of them wait for the same thread anyway: what they send is left to the driver,
//! whose next submission takes it along in one call. What is posted meanwhile goes in the same
//! send. Measured on loopback, 64 connections echoing 64 bytes: a quarter to a half less CPU per
//! message than with a call for each, and half with eight messages in flight per connection.

use crate::slab::Key;

/// Connections that have something to read in one drive, from which on they are a crowd. With
/// fewer, gathering saves nothing that could be measured, and delays what is sent.
const CROWD_MIN: usize = 4;

/// Drives in a row with bytes for fewer, after which there is no crowd any more: a crowd's bytes
/// come in unequal portions.
const PATIENCE: u8 = 4;

/// Counts connections that a drive brings bytes of.
#[derive(Default)]
pub(super) struct Crowd {
    last: Option<Key>,
    count: usize,
    /// How many drives with few it takes until there is no crowd any more; 0: there is none.
    patience: u8,
}

impl Crowd {
    /// Bytes of a connection have come. Several in a row count once.
    pub(super) fn add(&mut self, owner: Option<Key>) {
        if self.count == 0 || self.last != owner {
            self.last = owner;
            self.count += 1;
        }
    }

    /// Ends the drive, and tells if there is a crowd. One that brought nothing changes nothing.
    pub(super) fn judge(&mut self) -> bool {
        match std::mem::take(&mut self.count) {
            0 => {}
            CROWD_MIN.. => self.patience = PATIENCE,
            _ => self.patience = self.patience.saturating_sub(1),
        }
        self.patience > 0
    }
}
