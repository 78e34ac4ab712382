//! The readiness of a datagram socket, told by Tokio's reactor.
//!
//! The reactor watches for what can be read. That a socket may be written again is asked for only
//! when one was full, by a second descriptor: every datagram that leaves makes the socket writable,
//! and would wake the driver for nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::calls::would_block;
use super::udp::{Moved, Readiness};
use super::{Side, poll_ready, register_for};
use crate::error::{Error, Result};

pub(super) struct EpollReadiness {
    runtime: Handle,
    readable: AsyncFd<OwnedFd>,
    /// There while a send waits for room.
    writable: Option<AsyncFd<OwnedFd>>,
    waker: Waker,
    looking: bool,
}

impl EpollReadiness {
    pub(super) fn new(runtime: &Handle, fd: OwnedFd, waker: Waker) -> Result<Self> {
        let _runtime = runtime.enter();
        Ok(EpollReadiness {
            runtime: runtime.clone(),
            readable: register_for(fd, Interest::READABLE, WATCHING)?,
            writable: None,
            waker,
            looking: false,
        })
    }

    fn read(
        &mut self,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Option<Result<io::Result<Moved>>> {
        if std::mem::take(&mut self.looking) {
            match call(self.readable.get_ref()) {
                Err(error) if would_block(&error) => {}
                done => return Some(Ok(done)),
            }
        }
        loop {
            let mut guard = match poll_ready(&self.readable, Side::Read, &self.waker) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => return Some(Err(error)),
                Poll::Ready(Ok(guard)) => guard,
            };
            match call(guard.get_inner()) {
                Err(error) if would_block(&error) => guard.clear_ready(),
                done => {
                    match &done {
                        Ok(Moved { drained: true, .. }) => guard.clear_ready(),
                        _ => guard.retain_ready(),
                    }
                    return Some(Ok(done));
                }
            }
        }
    }

    fn write(
        &mut self,
        mut call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Option<Result<io::Result<Moved>>> {
        loop {
            if let Some(writable) = &self.writable {
                match poll_ready(writable, Side::Write, &self.waker) {
                    Poll::Pending => return None,
                    Poll::Ready(Err(error)) => return Some(Err(error)),
                    Poll::Ready(Ok(mut guard)) => guard.retain_ready(),
                }
                self.writable = None;
            }
            match call(self.readable.get_ref()) {
                Err(error) if would_block(&error) => match self.watch_room() {
                    Ok(watched) => self.writable = Some(watched),
                    Err(error) => return Some(Err(error)),
                },
                done => return Some(Ok(done)),
            }
        }
    }

    fn watch_room(&self) -> Result<AsyncFd<OwnedFd>> {
        let fd = (self.readable.get_ref().as_fd().try_clone_to_owned())
            .map_err(|error| Error::from_io(&error, WATCHING))?;
        let _runtime = self.runtime.enter();
        register_for(fd, Interest::WRITABLE, WATCHING)
    }
}

const WATCHING: &str = "watching a datagram socket";

impl Readiness for EpollReadiness {
    fn fd(&self) -> &OwnedFd {
        self.readable.get_ref()
    }

    fn attempt(
        &mut self,
        side: Side,
        call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Option<Result<io::Result<Moved>>> {
        match side {
            Side::Read => self.read(call),
            Side::Write => self.write(call),
        }
    }

    fn look(&mut self) {
        self.looking = true;
    }
}
