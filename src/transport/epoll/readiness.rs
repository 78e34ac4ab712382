//! The readiness of a datagram socket, as reported by Tokio's reactor.
//!
//! The reactor watches for readability. Only while a socket is full, a second descriptor is watched
//! for writability: otherwise every sent datagram would make the socket writable, and wake the
//! reactor for nothing.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::io::Interest;
use tokio::runtime::Handle;

use super::calls::would_block;
use super::udp::{Moved, Readiness};
use super::watched::{Poller, Watched};
use super::{IoDirection, poll_io, poll_ready, register_for};
use crate::error::{Error, Result};

pub(super) struct EpollReadiness {
    runtime: Handle,
    poller: Option<Arc<Poller>>,
    readable: Watched,
    /// Set while a send waits for room.
    writable: Option<Watched>,
    waker: Waker,
    /// True if the next read does not ask for readiness.
    assumed_readable: bool,
}

impl EpollReadiness {
    pub(super) fn new(
        runtime: &Handle,
        poller: Option<Arc<Poller>>,
        fd: OwnedFd,
        waker: Waker,
    ) -> Result<Self> {
        let _runtime = runtime.enter();
        Ok(EpollReadiness {
            runtime: runtime.clone(),
            readable: register_for(fd, Interest::READABLE, poller.as_ref(), WATCHING)?,
            poller,
            writable: None,
            waker,
            assumed_readable: false,
        })
    }

    fn try_read(
        &mut self,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Poll<Result<io::Result<Moved>>> {
        if mem::take(&mut self.assumed_readable) {
            match call(self.readable.get_ref()) {
                Err(error) if would_block(&error) => {}
                done => return Poll::Ready(Ok(done)),
            }
        }
        poll_io(&self.readable, IoDirection::Read, &self.waker, |fd| {
            let moved = call(fd)?;
            let drained = moved.drained;
            Ok((moved, drained))
        })
    }

    fn try_write(
        &mut self,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Poll<Result<io::Result<Moved>>> {
        loop {
            if let Some(writable) = &self.writable {
                match poll_ready(writable, IoDirection::Write, &self.waker) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(mut guard)) => guard.retain_ready(),
                }
                self.writable = None;
            }
            match call(self.readable.get_ref()) {
                Err(error) if would_block(&error) => match self.watch_room() {
                    Ok(watched) => self.writable = Some(watched),
                    Err(error) => return Poll::Ready(Err(error)),
                },
                done => return Poll::Ready(Ok(done)),
            }
        }
    }

    fn watch_room(&self) -> Result<Watched> {
        let fd = (self.readable.get_ref().as_fd().try_clone_to_owned())
            .map_err(|error| Error::from_io(&error, WATCHING))?;
        let _runtime = self.runtime.enter();
        register_for(fd, Interest::WRITABLE, self.poller.as_ref(), WATCHING)
    }
}

const WATCHING: &str = "watching a datagram socket";

impl Readiness for EpollReadiness {
    fn fd(&self) -> &OwnedFd {
        self.readable.get_ref()
    }

    fn try_io(
        &mut self,
        direction: IoDirection,
        call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Poll<Result<io::Result<Moved>>> {
        match direction {
            IoDirection::Read => self.try_read(call),
            IoDirection::Write => self.try_write(call),
        }
    }

    fn assume_readable(&mut self) {
        self.assumed_readable = true;
    }
}
