//! The readiness of a datagram socket or a doorbell, as reported by the ring: one poll per
//! direction, submitted when a call found no datagram, or no room. A poll checks the socket when it
//! is submitted, so no readiness is lost in between.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::completions::{CompletionSlot, ReadinessCompletions};
use super::ring::Ring;
use crate::error::Result;
use crate::slab::Key;
use crate::transport::Doorbell;
use crate::transport::epoll::{IoDirection, Moved, Readiness, would_block};

pub(super) struct UringReadiness {
    ring: Arc<Ring>,
    slot: Key,
    fd: Arc<OwnedFd>,
    /// True if the next read does not ask for readiness.
    assumed_readable: bool,
}

impl UringReadiness {
    pub(super) fn new(ring: &Arc<Ring>, fd: OwnedFd, waker: Waker) -> Self {
        let slot = ring.with(|state, _| {
            let completions = ReadinessCompletions::new(waker);
            state.insert(CompletionSlot::Readiness(Box::new(completions)))
        });
        UringReadiness {
            ring: Arc::clone(ring),
            slot,
            fd: Arc::new(fd),
            assumed_readable: false,
        }
    }

    fn arm(&self, direction: IoDirection) {
        self.ring.with(|state, ring| {
            state.push_readiness(ring, self.slot, &self.fd, direction);
        });
    }
}

impl Readiness for UringReadiness {
    fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn try_io(
        &mut self,
        direction: IoDirection,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Poll<Result<io::Result<Moved>>> {
        let assumed = direction == IoDirection::Read && std::mem::take(&mut self.assumed_readable);
        let armed =
            (self.ring).with(|state, _| !state.readiness(self.slot).poll(direction).is_idle());
        if armed && !assumed {
            return Poll::Pending;
        }
        let done = call(&self.fd);
        let blocks = match &done {
            Ok(moved) => moved.drained,
            Err(error) => would_block(error),
        };
        if blocks && !armed {
            self.arm(direction);
        }
        match done {
            Err(error) if would_block(&error) => Poll::Pending,
            done => Poll::Ready(Ok(done)),
        }
    }

    fn assume_readable(&mut self) {
        self.assumed_readable = true;
    }
}

/// A poll reports rings that came before it, so a ring that was noticed is read first.
impl Doorbell for UringReadiness {
    fn register(&mut self) {
        let take = |fd: &OwnedFd| {
            rustix::io::read(fd, &mut [0; 8])?;
            Ok(Moved {
                count: 1,
                drained: true,
            })
        };
        // Once the io_uring ring has failed, it ends its links.
        while let Poll::Ready(Ok(Ok(_))) = self.try_io(IoDirection::Read, take) {}
    }
}

impl Drop for UringReadiness {
    fn drop(&mut self) {
        self.ring.abandon(self.slot, |_| ());
    }
}
