//! One TCP connection, driven by readiness.
//!
//! A connection whose socket has died stays open: each system call reports its own error, and bytes
//! that arrived before can still be read.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};

use super::calls::{
    ReceivedBytes, connect_result, interrupted, receive_direct, receive_stage, send_some,
    would_block,
};
use super::low_water::LowWater;
use super::tcp_info::{set_keep_alive, stats};
use super::watched::{Poller, Watched};
use super::{IoDirection, poll_io, poll_ready, register};
use crate::error::{Error, ErrorKind, Result};
use crate::transport::stream::{Stream, Submissions};
use crate::transport::{KeepAliveConfig, LinkStats, RawLink, RawSocket, Receive, TrafficMark};

pub(super) struct EpollStream {
    /// `None` once the connection is broken, or taken out.
    fd: Option<Watched>,
    /// True if the socket may hold bytes although its readiness was cleared by a watch, or by a
    /// receive that did not ask for readiness.
    unread: bool,
    /// True if the socket was full at the last send: the reactor reports when to retry.
    is_full: bool,
    low_water: LowWater,
    /// An error that the system reports only once, found by a watch. If a later receive finds the
    /// end of the stream, this error is the cause.
    watch_error: Option<Error>,
}

impl EpollStream {
    /// Must be called within the runtime whose reactor will watch the socket.
    pub(super) fn new(fd: OwnedFd, poller: Option<&Arc<Poller>>) -> Result<Self> {
        Ok(EpollStream {
            fd: Some(register(fd, poller, "watching a connection")?),
            unread: false,
            is_full: false,
            low_water: LowWater::default(),
            watch_error: None,
        })
    }

    fn received(&mut self, io: &mut Submissions, bytes: ReceivedBytes) {
        let ReceivedBytes { len, stage, .. } = bytes;
        if len == 0
            && let Some(error) = self.watch_error.take()
        {
            return io.fail_receive(error);
        }
        if len == 0 {
            return io.end_stream();
        }
        if let Some(direct) = io.armed_direct() {
            // SAFETY: `receive_direct` gave the kernel the payload's spans from this offset on, and
            // the kernel says that it has written so many bytes.
            unsafe { direct.payload.assume_written(direct.offset, len) };
        }
        io.end_receive(len, stage);
    }
}

/// Tries the armed receive, without waiting.
pub(in crate::transport) fn receive(
    fd: &OwnedFd,
    armed: &Receive,
    size_max: usize,
) -> io::Result<ReceivedBytes> {
    match armed {
        Receive::Stage | Receive::StageOf { .. } => receive_stage(fd, size_max),
        Receive::Direct(direct) => receive_direct(fd, direct, size_max),
    }
}

/// Joins the reactor's error with that of the call.
fn flatten<T>(result: Result<io::Result<T>>, doing: &'static str) -> Result<T> {
    result?.map_err(|error| Error::from_io(&error, doing))
}

impl Stream for EpollStream {
    fn poll_connect(&mut self, io: &mut Submissions) -> Poll<Result<SocketAddr>> {
        let Some(fd) = &self.fd else {
            return Poll::Pending;
        };
        let connected = ready!(poll_io(fd, IoDirection::Write, &io.waker, |fd| {
            Ok((connect_result(fd, io.peer)?, false))
        }));
        Poll::Ready(flatten(connected, "connecting"))
    }

    fn poll_send(&mut self, io: &mut Submissions) {
        let (Some(fd), Some(batch)) = (&self.fd, io.batch()) else {
            return;
        };
        // A short send does not prove that the socket is full: the send may have met a page that
        // cannot be read, and then no edge would ever come. The next call finds out.
        let send = |fd: &OwnedFd| Ok((send_some(fd, batch, io.sizes.send)?, false));
        let sent = match self.is_full {
            false => send(fd.get_ref()).map(|(sent, _)| sent),
            true => Err(io::ErrorKind::WouldBlock.into()),
        };
        let sent = match sent {
            Err(error) if would_block(&error) || interrupted(&error) => {
                poll_io(fd, IoDirection::Write, &io.waker, send)
            }
            sent => Poll::Ready(Ok(sent)),
        };
        self.is_full = sent.is_pending();
        if let Poll::Ready(sent) = sent {
            io.end_send(flatten(sent, "sending"));
        }
    }

    fn poll_receive(&mut self, io: &mut Submissions) {
        // 1. Bytes whose readiness was cleared cause no edge: try without asking for readiness.
        while self.unread && io.armed().is_some() {
            self.try_receive(io);
        }
        // 2. Otherwise the reactor reports when to try.
        let (Some(fd), Some(armed)) = (&self.fd, io.armed()) else {
            return;
        };
        let received = poll_io(fd, IoDirection::Read, &io.waker, |fd| {
            let bytes = receive(fd, armed, io.sizes.receive)?;
            let drained = bytes.drained;
            Ok((bytes, drained))
        });
        match received {
            Poll::Pending => self.low_water.set(fd.get_ref(), armed.wake_bytes()),
            Poll::Ready(received) => match flatten(received, "receiving") {
                Ok(bytes) => self.received(io, bytes),
                Err(error) => io.fail_receive(error),
            },
        }
    }

    fn try_receive(&mut self, io: &mut Submissions) {
        let (Some(fd), Some(armed)) = (&self.fd, io.armed()) else {
            return;
        };
        match receive(fd.get_ref(), armed, io.sizes.receive) {
            Ok(bytes) => {
                // Until the socket is found empty, there is no edge for the bytes in it.
                self.unread = !bytes.drained;
                self.received(io, bytes);
            }
            Err(error) if would_block(&error) => self.unread = false,
            Err(error) if interrupted(&error) => {}
            Err(error) => io.fail_receive(Error::from_io(&error, "receiving")),
        }
    }

    /// Clears the present readiness, so that only the peer's end wakes the link: unread bytes would
    /// keep the socket ready. Tokio never clears the mark of a closed peer.
    fn poll_watch(&mut self, io: &mut Submissions) {
        let Some(fd) = &self.fd else { return };
        let error = loop {
            let mut guard = match poll_ready(fd, IoDirection::Read, &io.waker) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => break error,
                Poll::Ready(Ok(guard)) => guard,
            };
            if guard.is_read_closed() {
                guard.retain_ready();
                break match sockopt::socket_error(guard.get_inner()) {
                    Ok(Err(error)) => {
                        let error = Error::from_io(&error.into(), "watching a connection");
                        self.watch_error = Some(error.clone());
                        error
                    }
                    _ => Error::new(ErrorKind::PeerClosed, "it ended its stream"),
                };
            }
            guard.clear_ready();
            self.unread = true;
        };
        io.end_watch(error);
    }

    fn localized(&mut self) {
        if let Some(fd) = &self.fd {
            self.low_water.keep_lowest(fd.get_ref());
        }
    }

    fn poll_end(&mut self, io: &mut Submissions) -> Poll<Result<()>> {
        let Some(fd) = &self.fd else {
            return Poll::Pending;
        };
        loop {
            let mut guard = ready!(poll_ready(fd, IoDirection::Read, &io.waker))?;
            if guard.is_read_closed() {
                guard.retain_ready();
                if let Ok(Err(error)) = sockopt::socket_error(guard.get_inner()) {
                    let error = Error::from_io(&error.into(), "watching a connection");
                    self.watch_error = Some(error);
                }
                // The system reports its error once; a later call returns the same answer.
                return Poll::Ready(self.watch_error.clone().map_or(Ok(()), Err));
            }
            guard.clear_ready();
        }
    }

    fn arm(&mut self, io: &mut Submissions) {
        let Some(fd) = &self.fd else { return };
        match poll_ready(fd, IoDirection::Read, &io.waker) {
            Poll::Pending if !self.unread => {
                if let Some(armed) = io.armed() {
                    self.low_water.set(fd.get_ref(), armed.wake_bytes());
                }
            }
            Poll::Ready(Ok(mut guard)) => {
                guard.retain_ready();
                io.notify();
            }
            Poll::Pending | Poll::Ready(Err(_)) => io.notify(),
        }
    }

    fn abort(&mut self) {
        if let Some(fd) = self.fd.take() {
            // A zero linger time makes close send a reset and drop unsent bytes.
            let _ = sockopt::set_socket_linger(fd.get_ref(), Some(Duration::ZERO));
        }
    }

    fn finish(&mut self, _io: &mut Submissions) {
        if let Some(fd) = &self.fd {
            // Fails only if the connection is gone already, which its receiving side reports.
            let _ = shutdown(fd.get_ref(), Shutdown::Write);
        }
    }

    fn unread_bytes(&self) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let count = rustix::io::ioctl_fionread(fd.get_ref()).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    fn stats(&self) -> Option<LinkStats> {
        stats(self.fd.as_ref()?.get_ref()).ok()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_ref()?.get_ref().as_fd())
    }

    fn set_keep_alive(&mut self, config: KeepAliveConfig) -> bool {
        let fd = self.fd.as_ref();
        fd.is_some_and(|fd| set_keep_alive(fd.get_ref(), config))
    }

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()> {
        // A broken connection reports that with its next outcome.
        (self.fd.as_ref()).map_or(Ok(()), |fd| mark.apply(fd.get_ref()))
    }

    fn take_raw(&mut self, io: &Submissions) -> Option<RawLink> {
        let fd = self.fd.take()?.into_inner();
        self.low_water.set(&fd, 1);
        Some(RawLink::Socket(RawSocket {
            fd,
            peer: io.peer,
            local: io.local,
            counts: io.counts,
        }))
    }
}
