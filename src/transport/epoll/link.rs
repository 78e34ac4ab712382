//! One TCP connection.
//!
//! ```text
//!   connecting --writable, no error--> open --reset--> broken
//!        \--------error or reset----------------------> broken
//! ```
//!
//! An open link whose socket has died stays open: each system call tells its own end of it, and
//! what arrived before the death can still be read.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::unix::AsyncFd;

use super::calls::{
    Got, connect_result, interrupted, local_addr, receive_direct, receive_stage, send_some,
    would_block,
};
use super::vitals::{keep_alive, vitals};
use super::{Side, poll_ready, register, unspecified};
use crate::buf::StagePool;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::transport::submitted::{Reading, Submitted};
use crate::transport::{
    IoSizes, KeepAlive, Link, Outcome, RawLink, Receive, Received, SendBatch, Vitals,
};

pub(super) struct EpollLink {
    /// `None` exactly when the link is broken.
    fd: Option<AsyncFd<OwnedFd>>,
    connecting: bool,
    local: SocketAddr,
    stages: Arc<StagePool>,
    submitted: Submitted,
    /// The socket had no room when it was tried last, so the reactor is asked before the next try.
    full: bool,
    /// The socket may hold bytes although its readiness was cleared: watching does that.
    unread: bool,
    /// An error that the system told only once, to [`Link::watch`]; the end of the stream that a
    /// later receive finds is due to it.
    died_of: Option<Error>,
}

impl EpollLink {
    /// A socket on which `connect` has begun. Must be called within the runtime that shall watch
    /// it.
    pub(super) fn connecting(
        fd: OwnedFd,
        from: Option<SocketAddr>,
        peer: SocketAddr,
        waker: Waker,
        stages: Arc<StagePool>,
    ) -> Result<Self> {
        let local = local_addr(&fd)
            .ok()
            .or(from)
            .unwrap_or_else(|| unspecified(peer));
        let mut link = Self::connected(fd, local, peer, waker, stages)?;
        link.connecting = true;
        // The waker's first rule holds from the start, whether or not the caller polls at once.
        link.announce(Side::Write);
        Ok(link)
    }

    /// A connected socket. Must be called within the runtime that shall watch it.
    pub(super) fn connected(
        fd: OwnedFd,
        local: SocketAddr,
        peer: SocketAddr,
        waker: Waker,
        stages: Arc<StagePool>,
    ) -> Result<Self> {
        Ok(EpollLink {
            fd: Some(register(fd, "watching a connection")?),
            connecting: false,
            local,
            stages,
            submitted: Submitted::new(peer, waker),
            full: false,
            unread: false,
            died_of: None,
        })
    }

    /// Sees to it that the waker is woken when `side` may move: registers it, or wakes it now.
    fn announce(&self, side: Side) {
        let Some(fd) = &self.fd else { return };
        if self.submitted.will_be_asked() {
            return;
        }
        let unread = matches!(side, Side::Read) && self.unread;
        match poll_ready(fd, side, &self.submitted.waker) {
            Poll::Pending if !unread => {}
            Poll::Ready(Ok(mut guard)) => {
                guard.retain_ready();
                self.submitted.announce();
            }
            Poll::Pending | Poll::Ready(Err(_)) => self.submitted.announce(),
        }
    }

    fn poll_connect(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let error = loop {
            let mut guard = match poll_ready(fd, Side::Write, &self.submitted.waker) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => break error,
                Poll::Ready(Ok(guard)) => guard,
            };
            match connect_result(guard.get_inner(), self.submitted.peer) {
                Ok(Some(local)) => {
                    guard.retain_ready();
                    self.local = local;
                    self.connecting = false;
                    return Some(Outcome::Connected);
                }
                Ok(None) => guard.clear_ready(),
                Err(error) => {
                    guard.retain_ready();
                    break Error::from_io(&error, "connecting");
                }
            }
        };
        Some(self.connect_failed(error))
    }

    fn connect_failed(&mut self, error: Error) -> Outcome {
        let error = error
            .with_operation(OperationKind::Connect)
            .with_peer(self.submitted.peer);
        self.fd = None;
        self.connecting = false;
        self.submitted.break_off(error.clone());
        Outcome::Failed(error)
    }

    fn poll_send(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let batch = self.submitted.batch.as_ref()?;
        let result = loop {
            // Mostly there is room, and asking the reactor would cost half as much as the call.
            let mut guard = if self.full {
                match poll_ready(fd, Side::Write, &self.submitted.waker) {
                    Poll::Pending => return None,
                    Poll::Ready(Err(error)) => break Err(error),
                    Poll::Ready(Ok(guard)) => Some(guard),
                }
            } else {
                None
            };
            let attempt = send_some(fd.get_ref(), batch, self.submitted.sizes.send);
            // A short send is none of a full socket. Mostly it means one, and then the next call
            // says so; but it may also have met a page that cannot be read, and then no edge would
            // ever come.
            self.full = attempt.as_ref().is_err_and(would_block);
            match guard.as_mut() {
                Some(guard) if self.full => guard.clear_ready(),
                Some(guard) => guard.retain_ready(),
                None => {}
            }
            match attempt {
                Ok(count) => break Ok(count),
                Err(error) if would_block(&error) || interrupted(&error) => {}
                Err(error) => break Err(Error::from_io(&error, "sending")),
            }
        };
        self.submitted.sent(result)
    }

    fn poll_read(&mut self) -> Option<Outcome> {
        match self.submitted.reading {
            Reading::Idle | Reading::Lent => None,
            Reading::Watching => self.poll_watch(),
            Reading::Armed(_) => self.poll_receive(),
        }
    }

    fn poll_receive(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let Reading::Armed(armed) = &self.submitted.reading else {
            return None;
        };
        let sizes = self.submitted.sizes;
        let result = loop {
            // After a watch, the readiness that Tokio knows of says nothing: try without it.
            let mut guard = if self.unread {
                None
            } else {
                match poll_ready(fd, Side::Read, &self.submitted.waker) {
                    Poll::Pending => return None,
                    Poll::Ready(Err(error)) => break Err(error),
                    Poll::Ready(Ok(guard)) => Some(guard),
                }
            };
            let attempt = receive(fd.get_ref(), armed, &self.stages, sizes);
            let drained = match &attempt {
                Ok(got) => got.drained,
                Err(error) => would_block(error),
            };
            match guard.as_mut() {
                Some(guard) if drained => guard.clear_ready(),
                Some(guard) => guard.retain_ready(),
                // Until the socket is found empty there will be no edge for what it holds.
                None => self.unread = !drained,
            }
            match attempt {
                Ok(got) => break Ok(got),
                Err(error) if would_block(&error) || interrupted(&error) => {}
                Err(error) => break Err(Error::from_io(&error, "receiving")),
            }
        };
        Some(match result {
            Ok(got) => self.received(got),
            Err(error) => self.submitted.receive_failed(error),
        })
    }

    fn received(&mut self, got: Got) -> Outcome {
        if got.len == 0
            && let Some(error) = self.died_of.take()
        {
            return self.submitted.receive_failed(error);
        }
        let returned = self.submitted.disarm();
        Outcome::Received(match (returned, got.stage) {
            (returned, _) if got.len == 0 => Received::End { returned },
            (Some(direct), _) => Received::Direct {
                direct,
                len: got.len,
            },
            (None, stage) => {
                Received::Stage(stage.expect("bytes without a destination are in a stage"))
            }
        })
    }

    /// Clears what readiness there is, so that only news wakes us: bytes that stay unread would
    /// keep the socket ready, and the peer's end unseen. Tokio never clears the mark of a closed
    /// peer.
    fn poll_watch(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let error = loop {
            let mut guard = match poll_ready(fd, Side::Read, &self.submitted.waker) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => break error,
                Poll::Ready(Ok(guard)) => guard,
            };
            if guard.ready().is_read_closed() {
                guard.retain_ready();
                break match sockopt::socket_error(guard.get_inner()) {
                    Ok(Err(error)) => {
                        let error = Error::from_io(&error.into(), "watching a connection");
                        self.died_of = Some(error.clone());
                        error
                    }
                    _ => Error::new(ErrorKind::PeerClosed, "it ended its stream"),
                };
            }
            guard.clear_ready();
            self.unread = true;
        };
        Some(self.submitted.peer_gone(error))
    }
}

fn receive(
    fd: &OwnedFd,
    armed: &Receive,
    stages: &Arc<StagePool>,
    sizes: IoSizes,
) -> io::Result<Got> {
    match armed {
        Receive::Stage => receive_stage(fd, stages, sizes.receive),
        Receive::Direct(direct) => receive_direct(fd, direct, sizes.receive),
    }
}

impl Link for EpollLink {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.submitted.peer
    }

    fn send(&mut self, batch: SendBatch) {
        if self.submitted.send(batch)
            && !self.connecting
            && let Some(sent) = self.poll_send()
        {
            self.submitted.keep(sent);
        }
    }

    fn cancel_send(&mut self) {
        self.submitted.cancel_send();
    }

    fn receive(&mut self, receive: Receive) {
        if self.submitted.receive(receive) {
            self.announce(Side::Read);
        } else {
            self.submitted.announce();
        }
    }

    fn cancel_receive(&mut self) {
        self.submitted.cancel_receive();
    }

    fn watch(&mut self) {
        if self.submitted.watch() {
            self.announce(Side::Read);
        } else {
            self.submitted.announce();
        }
    }

    fn poll_outcome(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.submitted.next_ended() {
            return Some(outcome);
        }
        let outcome = if self.connecting {
            self.poll_connect()
        } else if self.submitted.is_send_first() {
            self.poll_send().or_else(|| self.poll_read())
        } else {
            self.poll_read().or_else(|| self.poll_send())
        };
        self.submitted.tried(&outcome);
        outcome
    }

    fn finish(&mut self) {
        debug_assert!(
            self.submitted.batch.is_none(),
            "what is submitted is sent first"
        );
        if let Some(fd) = &self.fd {
            // Fails only if the connection is gone already, which its reading side tells.
            let _ = shutdown(fd.get_ref(), Shutdown::Write);
        }
    }

    fn reset(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A zero linger time makes close send a reset and drop what was not sent.
        let _ = sockopt::set_socket_linger(fd.get_ref(), Some(Duration::ZERO));
        drop(fd);
        let error = Error::new(ErrorKind::ConnectionReset, "by this side");
        if mem::take(&mut self.connecting) {
            let failed = self.connect_failed(error);
            self.submitted.tell(failed);
        } else {
            self.submitted.break_off(error);
        }
    }

    fn unread(&self) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let count = rustix::io::ioctl_fionread(fd.get_ref()).unwrap_or(0);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    fn vitals(&self) -> Option<Vitals> {
        vitals(self.fd.as_ref()?.get_ref()).ok()
    }

    fn keep_alive(&mut self, wanted: KeepAlive) -> bool {
        let fd = self.fd.as_ref();
        fd.is_some_and(|fd| keep_alive(fd.get_ref(), wanted))
    }

    fn shrink(&mut self) {
        self.submitted.shrink();
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        if self.connecting || self.submitted.is_anything() {
            return None;
        }
        let fd = self.fd.take()?.into_inner();
        Some(RawLink::Socket {
            fd,
            peer: self.submitted.peer,
            local: self.local,
        })
    }

    fn look(&mut self) -> Option<Outcome> {
        let Reading::Armed(armed) = &self.submitted.reading else {
            return None;
        };
        let fd = self.fd.as_ref().filter(|_| !self.connecting)?;
        let attempt = receive(fd.get_ref(), armed, &self.stages, self.submitted.sizes);
        let outcome = match attempt {
            Ok(got) => {
                self.unread = !got.drained;
                self.received(got)
            }
            Err(error) if would_block(&error) => {
                self.unread = false;
                return None;
            }
            Err(error) if interrupted(&error) => return None,
            Err(error) => {
                let error = Error::from_io(&error, "receiving");
                self.submitted.receive_failed(error)
            }
        };
        let outcome = Some(outcome);
        self.submitted.tried(&outcome);
        outcome
    }

    #[cfg(any(test, feature = "test-util"))]
    fn limit(&mut self, sizes: IoSizes) {
        debug_assert!(sizes.send > 0 && sizes.receive > 0, "nothing would move");
        self.submitted.sizes = sizes;
    }
}
