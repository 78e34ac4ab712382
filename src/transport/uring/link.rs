//! One TCP connection whose receives, and sends that find no room, are the ring's.
//!
//! What is submitted is, at any time, in one of three places: with the link ([`Submitted`]), in
//! flight (the ring's table), or ended (the completion slot). It leaves the second only by its
//! completion.
//!
//! # Receiving
//!
//! Staged receives are for headers and small frames. They take a lent buffer, and its bytes wait in
//! it for the link. One of them may outlive the submission it was made for, since no
//! memory of others is concerned: what it brings waits there for the next receive. A
//! connection that receives nothing else gets a multishot one, which needs no arming per message.
//!
//! A direct receive first takes what has arrived; then it waits for the end of a staged receive in
//! flight, which it cancels; then it is the one receive of the socket (memory-model rule 5).

use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};

use super::completions::LinkCompletions;
use super::harvest::is_passing;
use super::ring::Ring;
use crate::buf::{AccessError, Stage, StagePool};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::slab::Key;
use crate::transport::epoll::{
    connect_result, interrupted, keep_alive, local_addr, send_some, unspecified, vitals,
    would_block,
};
use crate::transport::submitted::{Reading, Submitted};
use crate::transport::{
    IoSizes, KeepAlive, Link, Outcome, RawLink, Receive, Received, SendBatch, Vitals,
};

/// Staged receives in a row after which the next one is a multishot. A direct receive has to stop
/// it, which costs more than it saves where the two alternate.
///
/// Measured on loopback, 64-byte ping-pong in one thread: 16.6 us per round trip by multishot, 19.9
/// without; a multishot armed in front of 1 MiB payloads, which then come through staging buffers,
/// halves their rate.
const STAGES_BEFORE_MULTISHOT: u32 = 8;

/// Bytes that the first staged receive after a direct one asks for: mostly it brings the header of
/// the next large payload, all of which can then go straight to its place.
///
/// Measured on loopback, 1 MiB reads and writes: 3 % less CPU than with a whole buffer; 8 % where
/// the system paces TCP (bbr), which takes an early read for a slow one.
const FEW_BYTES: usize = 1 << 10;

const WATCHED: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;

pub(super) struct UringLink {
    ring: Arc<Ring>,
    slot: Key,
    /// `None` exactly when the link is broken.
    fd: Option<Arc<OwnedFd>>,
    connecting: bool,
    local: SocketAddr,
    submitted: Submitted,
    /// The lent batch, or destination, was asked back.
    send_cancelled: bool,
    receive_cancelled: bool,
    /// Staged receives since the last direct one.
    staged: u32,
    /// An error that the system told only once, to [`Link::watch`]; the end of the stream that a
    /// later receive finds is due to it.
    died_of: Option<Error>,
}

impl UringLink {
    /// A socket on which `connect` has begun.
    pub(super) fn connecting(
        ring: &Arc<Ring>,
        fd: OwnedFd,
        from: Option<SocketAddr>,
        peer: SocketAddr,
        waker: Waker,
        stages: Arc<StagePool>,
    ) -> Self {
        let local = local_addr(&fd)
            .ok()
            .or(from)
            .unwrap_or_else(|| unspecified(peer));
        let mut link = Self::new(ring, fd, local, peer, waker, stages);
        link.connecting = true;
        // The waker's first rule holds from the start, whether or not the caller polls at once.
        link.wait_for(libc::POLLOUT as u32);
        link
    }

    /// A connected socket.
    pub(super) fn connected(
        ring: &Arc<Ring>,
        fd: OwnedFd,
        local: SocketAddr,
        peer: SocketAddr,
        waker: Waker,
        stages: Arc<StagePool>,
    ) -> Result<Self> {
        make_blocking(&fd)?;
        Ok(Self::new(ring, fd, local, peer, waker, stages))
    }

    fn new(
        ring: &Arc<Ring>,
        fd: OwnedFd,
        local: SocketAddr,
        peer: SocketAddr,
        waker: Waker,
        stages: Arc<StagePool>,
    ) -> Self {
        let slot = LinkCompletions::new(waker.clone(), stages);
        let slot = ring.insert_link(slot);
        UringLink {
            ring: Arc::clone(ring),
            slot,
            fd: Some(Arc::new(fd)),
            connecting: false,
            local,
            submitted: Submitted::new(peer, waker),
            send_cancelled: false,
            receive_cancelled: false,
            staged: 0,
            died_of: None,
        }
    }

    fn wait_for(&self, events: u32) {
        let Some(fd) = &self.fd else { return };
        self.ring.with(|state, ring| {
            if state.link(self.slot).poll_op.is_none() {
                state.push_poll(ring, self.slot, fd, events);
            }
        });
    }

    fn poll_connect(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let polled = self
            .ring
            .with(|state, _| state.link(self.slot).polled.take());
        let error = match polled? {
            result if is_passing(result) => {
                self.wait_for(libc::POLLOUT as u32);
                return None;
            }
            result if result < 0 => Error::from_io(&os_error(result), "connecting"),
            _ => match connect_result(fd, self.submitted.peer) {
                Ok(Some(local)) => match make_blocking(fd) {
                    Ok(()) => {
                        self.local = local;
                        self.connecting = false;
                        return Some(Outcome::Connected);
                    }
                    Err(error) => error,
                },
                Ok(None) => {
                    self.wait_for(libc::POLLOUT as u32);
                    return None;
                }
                Err(error) => Error::from_io(&error, "connecting"),
            },
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
        if self.submitted.batch_lent {
            let (batch, result) = self.ring.with(|state, _| state.take_sent(self.slot))?;
            self.submitted.batch_lent = false;
            self.submitted.batch = Some(batch);
            let cancelled = mem::take(&mut self.send_cancelled);
            let result = match (self.submitted.broken(), usize::try_from(result)) {
                (Some(error), _) => Err(error.clone()),
                (None, Ok(count)) => Ok(count),
                (None, Err(_)) if cancelled && is_passing(result) => Ok(0),
                (None, Err(_)) if is_passing(result) => return self.try_send(),
                (None, Err(_)) => Err(Error::from_io(&os_error(result), "sending")),
            };
            return self.submitted.sent(result);
        }
        self.try_send()
    }

    /// Tries the batch here; what finds no room, or goes out with others', goes through the ring.
    fn try_send(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let size_max = self.submitted.sizes.send;
        while !self.ring.batches_sends() {
            let batch = self.submitted.batch.as_ref()?;
            match send_some(fd, batch, size_max) {
                Ok(count) => return self.submitted.sent(Ok(count)),
                Err(error) if interrupted(&error) => {}
                Err(error) if would_block(&error) => break,
                Err(error) => {
                    return self.submitted.sent(Err(Error::from_io(&error, "sending")));
                }
            }
        }
        let batch = self.submitted.lend_batch()?;
        self.ring
            .with(|state, ring| state.push_send(ring, self.slot, fd, batch, size_max));
        None
    }

    fn poll_read(&mut self) -> Option<Outcome> {
        match self.submitted.reading {
            Reading::Idle => None,
            Reading::Watching => self.poll_watch(),
            Reading::Armed(_) => self.poll_receive(),
            Reading::Lent => self.poll_lent(),
        }
    }

    fn poll_receive(&mut self) -> Option<Outcome> {
        match self.next_arrival()? {
            Arrival::Bytes(stage) => Some(self.received(stage)),
            Arrival::End(0) => Some(self.stream_ended()),
            Arrival::End(result) => {
                let error = Error::from_io(&os_error(result), "receiving");
                Some(self.submitted.receive_failed(error))
            }
        }
    }

    /// What a staged receive has brought; `None` when the armed receive waits in the ring now.
    fn next_arrival(&mut self) -> Option<Arrival> {
        let fd = self.fd.as_ref()?;
        let submitted = &mut self.submitted;
        let size_max = submitted.sizes.receive;
        let (is_direct, bytes_max) = match &submitted.reading {
            Reading::Armed(Receive::Direct(direct)) => (true, size_max.min(direct.len)),
            Reading::Armed(Receive::Stage) => (false, size_max),
            _ => return None,
        };
        let multishot =
            self.staged >= STAGES_BEFORE_MULTISHOT && size_max == IoSizes::default().receive;
        let mut staged = if is_direct { 0 } else { self.staged };
        let arrival = self.ring.with(|state, ring| {
            if let Some(stage) = state.take_arrived(self.slot, bytes_max) {
                return Some(Arrival::Bytes(stage));
            }
            let slot = state.link(self.slot);
            if let Some(result) = slot.stage_end.take() {
                return Some(Arrival::End(result));
            }
            match (slot.read_op, is_direct) {
                (None, true) => {
                    if let Some(direct) = submitted.lend_direct() {
                        state.push_direct(ring, self.slot, fd, direct, size_max);
                    }
                }
                (None, false) => {
                    let size_max = match staged {
                        0 => size_max.min(FEW_BYTES),
                        _ => size_max,
                    };
                    staged = staged.saturating_add(1);
                    state.push_stage(ring, self.slot, fd, multishot, size_max);
                }
                (Some(op), true) if !mem::replace(&mut slot.read_cancelled, true) => {
                    state.push_cancel(ring, op);
                }
                (Some(_), _) => {}
            }
            None
        });
        self.staged = staged;
        arrival
    }

    /// Bytes for the armed receive, not more than it wants: as they are, or copied to their place.
    fn received(&mut self, stage: Stage) -> Outcome {
        let received = match self.submitted.disarm() {
            None => Received::Stage(stage),
            Some(mut direct) => match direct.payload.copy_in(direct.offset, &stage) {
                Ok(()) => Received::Direct {
                    direct,
                    len: stage.len(),
                },
                // The region refuses. What was copied before that is copied again, if the rest of
                // the bytes may come in later.
                Err(AccessError::Closed(_)) => {
                    self.put_back(stage);
                    Received::Cancelled {
                        returned: Some(direct),
                    }
                }
                Err(fault) => Received::Failed {
                    error: fault.error("receiving").with_peer(self.submitted.peer),
                    returned: Some(direct),
                },
            },
        };
        Outcome::Received(received)
    }

    fn put_back(&self, stage: Stage) {
        self.ring
            .with(|state, _| state.link(self.slot).put_back(stage));
    }

    fn stream_ended(&mut self) -> Outcome {
        if let Some(error) = self.died_of.take() {
            return self.submitted.receive_failed(error);
        }
        let returned = self.submitted.disarm();
        Outcome::Received(Received::End { returned })
    }

    fn poll_lent(&mut self) -> Option<Outcome> {
        let (direct, result) = self
            .ring
            .with(|state, _| state.take_direct_end(self.slot))?;
        let cancelled = mem::take(&mut self.receive_cancelled);
        self.submitted.reading = Reading::Armed(Receive::Direct(direct));
        if let Some(error) = self.submitted.broken().cloned() {
            return Some(self.submitted.receive_failed(error));
        }
        match usize::try_from(result) {
            Ok(0) => Some(self.stream_ended()),
            Ok(len) => {
                let direct = self.submitted.disarm()?;
                Some(Outcome::Received(Received::Direct { direct, len }))
            }
            Err(_) if cancelled && is_passing(result) => {
                let returned = self.submitted.disarm();
                Some(Outcome::Received(Received::Cancelled { returned }))
            }
            Err(_) if is_passing(result) => self.poll_receive(),
            Err(_) => {
                let error = Error::from_io(&os_error(result), "receiving");
                Some(self.submitted.receive_failed(error))
            }
        }
    }

    fn poll_watch(&mut self) -> Option<Outcome> {
        let fd = self.fd.as_ref()?;
        let (end, polled) = self.ring.with(|state, ring| {
            let slot = state.link(self.slot);
            if let Some(end) = slot.stage_end.take() {
                return (Some(end), None);
            }
            // It would take bytes that nobody wants now, and an error that is to be told here.
            if let Some(op) = slot.read_op {
                if !mem::replace(&mut slot.read_cancelled, true) {
                    state.push_cancel(ring, op);
                }
                return (None, None);
            }
            let polled = slot.polled.take();
            if slot.poll_op.is_none() && polled.is_none_or(is_passing) {
                state.push_poll(ring, self.slot, fd, WATCHED);
            }
            (None, polled.filter(|result| !is_passing(*result)))
        });
        let error = match (end, polled) {
            (None, None) => return None,
            (Some(end), _) if end < 0 => {
                Some(Error::from_io(&os_error(end), "watching a connection"))
            }
            (Some(_), _) => None,
            (None, Some(_)) => match sockopt::socket_error(fd) {
                Ok(Err(error)) => Some(Error::from_io(&error.into(), "watching a connection")),
                _ => None,
            },
        };
        let error = match error {
            Some(error) => self.died_of.insert(error).clone(),
            None => Error::new(ErrorKind::PeerClosed, "it ended its stream"),
        };
        Some(self.submitted.peer_gone(error))
    }

    /// Cancels what is in flight, and takes in what has ended by it.
    fn cancel_now(&self, choose: impl FnOnce(&mut LinkCompletions) -> [Option<Key>; 3]) {
        self.ring.with(|state, ring| {
            for op in choose(state.link(self.slot)).into_iter().flatten() {
                state.push_cancel(ring, op);
            }
            state.submit_and_harvest(ring);
        });
    }
}

/// What a staged receive brought.
enum Arrival {
    Bytes(Stage),
    /// Zero, or the system's error, negative.
    End(i32),
}

impl Link for UringLink {
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
        if !self.submitted.batch_lent {
            self.submitted.cancel_send();
            return;
        }
        self.send_cancelled = true;
        self.cancel_now(|slot| [slot.send_op, None, None]);
    }

    fn receive(&mut self, receive: Receive) {
        if !self.submitted.receive(receive) {
            self.submitted.announce();
        } else if !self.connecting && !self.submitted.will_be_asked() {
            if self.ring.with(|state, _| state.link(self.slot).has_news()) {
                self.submitted.announce();
            } else if let Some(arrival) = self.next_arrival() {
                // It came between the two looks.
                match arrival {
                    Arrival::Bytes(stage) => self.put_back(stage),
                    Arrival::End(end) => {
                        let end = Some(end);
                        self.ring
                            .with(|state, _| state.link(self.slot).stage_end = end);
                    }
                }
                self.submitted.announce();
            }
        }
    }

    fn cancel_receive(&mut self) {
        if !matches!(self.submitted.reading, Reading::Lent) {
            // A staged receive in flight goes on: what it brings is the next one's.
            self.submitted.cancel_receive();
            return;
        }
        self.receive_cancelled = true;
        self.cancel_now(|slot| [slot.read_op, None, None]);
    }

    fn watch(&mut self) {
        if !self.submitted.watch() {
            self.submitted.announce();
        } else if !self.connecting
            && let Some(gone) = self.poll_watch()
        {
            self.submitted.tell(gone);
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
            self.submitted.batch.is_none() && !self.submitted.batch_lent,
            "what is submitted is sent first"
        );
        if let Some(fd) = &self.fd {
            // Fails only if the connection is gone already, which its reading side tells.
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    fn reset(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A zero linger time makes close send a reset and drop what was not sent.
        let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
        drop(fd);
        // The last of the operations in flight closes the socket.
        self.cancel_now(|slot| [slot.send_op, slot.read_op, slot.poll_op]);
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
        let arrived = self
            .ring
            .with(|state, _| state.link(self.slot).arrived_bytes());
        let count = rustix::io::ioctl_fionread(fd).unwrap_or(0);
        usize::try_from(count)
            .unwrap_or(usize::MAX)
            .saturating_add(arrived)
    }

    fn vitals(&self) -> Option<Vitals> {
        vitals(self.fd.as_ref()?).ok()
    }

    fn keep_alive(&mut self, wanted: KeepAlive) -> bool {
        self.fd.as_ref().is_some_and(|fd| keep_alive(fd, wanted))
    }

    fn shrink(&mut self) {
        self.submitted.shrink();
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        if self.connecting || self.submitted.is_anything() {
            return None;
        }
        // A receive in flight would take bytes of the next owner's.
        self.cancel_now(|slot| [slot.read_op, slot.poll_op, None]);
        let is_clean = self.ring.with(|state, _| {
            let slot = state.link(self.slot);
            slot.read_op.is_none() && !slot.has_news()
        });
        if !is_clean {
            return None;
        }
        // A poll that ends late keeps its own share of the descriptor.
        let fd = match Arc::try_unwrap(self.fd.take()?) {
            Ok(fd) => fd,
            Err(shared) => shared.try_clone().ok()?,
        };
        Some(RawLink::Socket {
            fd,
            peer: self.submitted.peer,
            local: self.local,
        })
    }

    #[cfg(any(test, feature = "test-util"))]
    fn limit(&mut self, sizes: IoSizes) {
        debug_assert!(sizes.send > 0 && sizes.receive > 0, "nothing would move");
        self.submitted.sizes = sizes;
    }
}

impl Drop for UringLink {
    fn drop(&mut self) {
        let fd = self.fd.take();
        self.ring.abandon(self.slot, |state| {
            // Closing a socket with unread bytes resets the connection; these were read from it by
            // us alone.
            if let Some(fd) = fd
                && state.link(self.slot).arrived_bytes() > 0
            {
                let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
            }
        });
    }
}

/// The ring waits for a socket by itself, unless the socket says not to. What is done outside of it
/// says so per call.
fn make_blocking(fd: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, false)
        .map_err(|error| Error::from_io(&error.into(), "preparing a connection"))
}

fn os_error(result: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(-result)
}
