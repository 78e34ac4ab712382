//! A descriptor that a listener keeps for the time when its process has no other.
//!
//! Without descriptors nothing can be accepted: peers wait in the system's backlog, and cannot know
//! why. Exhaustion usually passes within moments, so they wait for a while. Then the spare is given
//! to one peer after the other, and each is refused with the reason.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};

use crate::limits::REFUSE_AFTER;

#[derive(Debug, Default)]
pub(super) struct Spare {
    /// `None`: a peer's connection has taken it, or the process cannot open one.
    descriptor: Option<OwnedFd>,
    /// Time at which the process was found without descriptors; `None`: it has some.
    exhausted: Option<Instant>,
}

impl Spare {
    pub(super) fn new() -> Self {
        let mut spare = Spare::default();
        spare.renew();
        spare
    }

    /// Opens the spare if it is missing. Returns false if the process has no descriptor: the
    /// connection just accepted took the spare.
    pub(super) fn renew(&mut self) -> bool {
        if self.descriptor.is_none() {
            let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            self.descriptor = null.ok();
        }
        if self.descriptor.is_some() {
            self.exhausted = None;
        }
        self.descriptor.is_some()
    }

    /// Called when the process has no descriptor for a peer. If it has had none for `REFUSE_AFTER`,
    /// frees the spare for the peer and returns true.
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        let since = *self.exhausted.get_or_insert(now);
        now.saturating_duration_since(since) >= REFUSE_AFTER && self.descriptor.take().is_some()
    }
}
