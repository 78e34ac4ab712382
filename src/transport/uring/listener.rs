//! A listening TCP socket. One multishot accept is armed on it while there is room for its
//! connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::net::{Shutdown, getpeername, shutdown};

use super::completions::CompletionSlot;
use super::ring::Ring;
use crate::error::Result;
use crate::slab::Key;
use crate::transport::epoll::{accept_error, accepted, died_in_backlog, listen_error, local_addr};
use crate::transport::{Listener, RawLink};

pub(super) struct UringListener {
    ring: Arc<Ring>,
    slot: Key,
    fd: Arc<OwnedFd>,
    local: SocketAddr,
}

impl UringListener {
    pub(super) fn new(ring: &Arc<Ring>, fd: OwnedFd) -> Result<Self> {
        let doing = "listening";
        let local = local_addr(&fd).map_err(|error| listen_error(&error, doing))?;
        rustix::io::ioctl_fionbio(&fd, false)
            .map_err(|error| listen_error(&error.into(), doing))?;
        let slot = ring.with(|state, _| state.insert(CompletionSlot::Listener(Box::default())));
        Ok(UringListener {
            ring: Arc::clone(ring),
            slot,
            fd: Arc::new(fd),
            local,
        })
    }
}

impl Listener for UringListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>> {
        loop {
            let accepted = self.ring.with(|state, ring| {
                let slot = state.listener(self.slot);
                if let Some(fd) = slot.accepted.pop_front() {
                    return Some(Ok(fd));
                }
                if let Some(error) = slot.error.take() {
                    return Some(Err(io::Error::from_raw_os_error(-error)));
                }
                match &mut slot.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                if slot.accept.is_idle() {
                    state.push_accept(ring, self.slot, &self.fd);
                }
                None
            });
            match accepted {
                None => return Poll::Pending,
                Some(Ok(fd)) => {
                    // A connection that died meanwhile has no peer address any more.
                    if let Ok(raw) = connection_of(fd) {
                        return Poll::Ready(Ok(raw));
                    }
                }
                Some(Err(error)) if died_in_backlog(&error) => {}
                // No accept is armed now: the poll after the back-off arms one.
                Some(Err(error)) => return Poll::Ready(Err(accept_error(&error))),
            }
        }
    }
}

fn connection_of(fd: OwnedFd) -> io::Result<RawLink> {
    let peer = getpeername(&fd)?;
    accepted(fd, peer)
}

impl Drop for UringListener {
    fn drop(&mut self) {
        // Ends listening now: the socket itself is closed with its last operation.
        let _ = shutdown(&self.fd, Shutdown::Read);
        self.ring.abandon(self.slot, |_| ());
    }
}
