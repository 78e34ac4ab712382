//! A descriptor that a listener keeps for the time when its process has no other.
//!
//! Without descriptors nothing can be accepted: peers wait in the system's backlog, and cannot know
//! why. Exhaustion usually passes within moments, so they wait for a while. Then the spare is given
//! up for one peer after the other, each of which is refused with the reason.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};

use crate::limits::REFUSE_AFTER;

#[derive(Debug)]
pub(super) enum Spare {
    /// This listener refuses none: its peers try again by themselves.
    Unused,
    Kept {
        /// `None`: a peer has it, or it cannot be had.
        descriptor: Option<OwnedFd>,
        /// When the process was found without descriptors; `None`: it has some.
        exhausted: Option<Instant>,
    },
}

impl Spare {
    pub(super) fn new(is_used: bool) -> Self {
        match is_used {
            false => Spare::Unused,
            true => Spare::Kept {
                descriptor: make(),
                exhausted: None,
            },
        }
    }

    /// A peer was accepted. Returns false if it took the spare, and there is no other.
    pub(super) fn renew(&mut self) -> bool {
        let Spare::Kept {
            descriptor,
            exhausted,
        } = self
        else {
            return true;
        };
        if descriptor.is_none() {
            *descriptor = make();
        }
        if descriptor.is_some() {
            *exhausted = None;
        }
        descriptor.is_some()
    }

    /// The process has no descriptor for a peer. Returns true if there is one now: the process has
    /// had none for long enough.
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        let Spare::Kept {
            descriptor,
            exhausted,
        } = self
        else {
            return false;
        };
        if descriptor.is_none() {
            *descriptor = make();
        }
        let since = *exhausted.get_or_insert(now);
        now.saturating_duration_since(since) >= REFUSE_AFTER && descriptor.take().is_some()
    }
}

fn make() -> Option<OwnedFd> {
    open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
