//! The readiness of a datagram socket, told by the ring: one poll per side, armed when a call found
//! nothing, or no room. A poll looks when it is armed, so nothing is lost between the two.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use super::completions::{CompletionSlot, ReadinessCompletions};
use super::ring::Ring;
use crate::error::Result;
use crate::slab::Key;
use crate::transport::epoll::{Moved, Readiness, Side, would_block};

pub(super) struct UringReadiness {
    ring: Arc<Ring>,
    slot: Key,
    fd: Arc<OwnedFd>,
    looking: bool,
}

impl UringReadiness {
    pub(super) fn new(ring: &Arc<Ring>, fd: OwnedFd, waker: Waker) -> Self {
        let slot = ring.with(|state, _| {
            state.insert(CompletionSlot::Watch(Box::new(ReadinessCompletions::new(
                waker,
            ))))
        });
        UringReadiness {
            ring: Arc::clone(ring),
            slot,
            fd: Arc::new(fd),
            looking: false,
        }
    }

    fn arm(&self, side: Side) {
        (self.ring).with(|state, ring| state.push_watch(ring, self.slot, &self.fd, side));
    }
}

impl Readiness for UringReadiness {
    fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn attempt(
        &mut self,
        side: Side,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Option<Result<io::Result<Moved>>> {
        let looking = side == Side::Read && std::mem::take(&mut self.looking);
        let armed = (self.ring).with(|state, _| state.watch(self.slot).side(side).is_some());
        if armed && !looking {
            return None;
        }
        let done = call(&self.fd);
        let blocks = match &done {
            Ok(moved) => moved.drained,
            Err(error) => would_block(error),
        };
        if blocks && !armed {
            self.arm(side);
        }
        match done {
            Err(error) if would_block(&error) => None,
            done => Some(Ok(done)),
        }
    }

    fn look(&mut self) {
        self.looking = true;
    }
}

impl Drop for UringReadiness {
    fn drop(&mut self) {
        self.ring.abandon(self.slot, |_| ());
    }
}
