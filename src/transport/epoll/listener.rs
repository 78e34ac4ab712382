//! A listening TCP socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::net::{SocketAddrAny, SocketFlags, acceptfrom_with, sockopt};

use super::calls::local_addr;
use super::watched::{Poller, Watched};
use super::{IoDirection, Listener, RawLink, listen_error, poll_io, register};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::canonical;
use crate::transport::{ByteCounts, RawSocket};

/// Accepts sockets without registering them with a reactor, so that each goes directly to the
/// runtime of the domain that accepts it.
pub(super) struct EpollListener {
    fd: Watched,
    local: SocketAddr,
}

impl EpollListener {
    /// Must be called within the runtime whose reactor will watch the socket.
    pub(super) fn new(fd: OwnedFd, poller: Option<&Arc<Poller>>) -> Result<Self> {
        let doing = "listening";
        let local = local_addr(&fd).map_err(|error| listen_error(&error, doing))?;
        Ok(EpollListener {
            fd: register(fd, poller, doing)?,
            local,
        })
    }
}

impl Listener for EpollListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>> {
        loop {
            let accepted = poll_io(&self.fd, IoDirection::Read, cx.waker(), |fd| {
                Ok((accept(fd)?, false))
            });
            match ready!(accepted)? {
                Ok(raw) => return Poll::Ready(Ok(raw)),
                Err(error) if died_in_backlog(&error) => {}
                // The readiness is kept, so that the poll after the back-off tries again.
                Err(error) => return Poll::Ready(Err(accept_error(&error))),
            }
        }
    }
}

fn accept(listener: &OwnedFd) -> io::Result<RawLink> {
    let (fd, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    accepted(fd, peer)
}

/// Prepares an accepted socket.
pub(in crate::transport) fn accepted(
    fd: OwnedFd,
    peer: Option<SocketAddrAny>,
) -> io::Result<RawLink> {
    let peer = peer
        .and_then(|peer| SocketAddr::try_from(peer).ok().map(canonical))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))?;
    let local = local_addr(&fd)?;
    // A failure means a dead connection, which the first receive reports.
    let _ = sockopt::set_tcp_nodelay(&fd, true);
    Ok(RawLink::Socket(RawSocket {
        fd,
        peer,
        local,
        counts: ByteCounts::default(),
    }))
}

/// Returns true if the connection died before it was accepted, or a signal came: the caller tries
/// again. accept(2) asks Linux programs to treat pending network errors in the same way.
pub(in crate::transport) fn died_in_backlog(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ECONNABORTED
                | libc::ECONNRESET
                | libc::ENOTCONN
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
        )
    )
}

pub(in crate::transport) fn accept_error(error: &io::Error) -> Error {
    let doing = "accepting a connection";
    let named = match error.raw_os_error() {
        // `io::Error` has no kind for these temporary errors.
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            Error::new(ErrorKind::LimitReached, format!("{doing}: {error}"))
        }
        _ => Error::from_io(error, doing),
    };
    named.with_operation(OperationKind::Accept)
}
