//! One TCP connection whose receives, and sends that find no room, go through the ring.
//!
//! # Receiving
//!
//! Staged receives are for headers and small frames. Their bytes wait for the link in a provided
//! buffer. A staged receive may outlive the submission it was made for, since it uses no memory of
//! the application: its bytes go to the next receive. A connection that has only staged receives
//! gets a multishot receive, which is not armed again for each message.
//!
//! Once bytes may come through shared memory (`transport/local`), the socket is read by system
//! calls when the ring reports it readable: a receive in flight could take bytes while no receive
//! is submitted.
//!
//! A direct receive first takes bytes that have been received already; then it waits for the end of
//! a staged receive in flight, which it cancels; then it is the one receive of the socket
//! (memory-model rule 5).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use io_uring::IoUring;
use rustix::net::{Shutdown, shutdown, sockopt};

use super::completions::LinkCompletions;
use super::harvest::is_retryable;
use super::op::OpSlot;
use super::ring::{Ring, State};
use crate::buf::{AccessError, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::RING_STAGES_BEFORE_MULTISHOT;
use crate::slab::Key;
use crate::transport::epoll::{
    connect_result, interrupted, receive, send_some, set_keep_alive, stats, would_block,
};
use crate::transport::stream::{Stream, Submissions};
use crate::transport::{IoSizes, KeepAliveConfig, LinkStats, RawLink, RawSocket, TrafficMark};

/// Poll events that end a watch.
const PEER_END: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;
/// Poll events after which a receive finds something.
const READABLE: u32 = PEER_END | libc::POLLIN as u32;

pub(super) struct UringStream {
    ring: Arc<Ring>,
    slot: Key,
    /// `None` once the connection is broken, or taken out.
    fd: Option<Arc<OwnedFd>>,
    /// Number of staged receives since the last direct receive, counted up to a limit.
    staged: u8,
    /// True once bytes may come through shared memory.
    is_local: bool,
    /// The events of the last poll.
    polls_for: u32,
    /// An error that the system reports only once, found by a watch. If a later receive finds the
    /// end of the stream, this error is the cause.
    watch_error: Option<Error>,
}

impl UringStream {
    /// Makes the stream of a socket on which `connect` has begun.
    pub(super) fn new(ring: &Arc<Ring>, fd: OwnedFd, waker: Waker) -> Self {
        let completions = LinkCompletions::new(waker);
        UringStream {
            ring: Arc::clone(ring),
            slot: ring.insert_link(completions),
            fd: Some(Arc::new(fd)),
            staged: 0,
            is_local: false,
            polls_for: 0,
            watch_error: None,
        }
    }

    /// Makes the stream of a connected socket.
    pub(super) fn connected(ring: &Arc<Ring>, fd: OwnedFd, waker: Waker) -> Result<Self> {
        make_blocking(&fd)?;
        Ok(Self::new(ring, fd, waker))
    }

    /// Tries to send the batch in this call. Bytes that find no room, or that are gathered with
    /// other sends, go to the ring.
    fn try_send(&mut self, io: &mut Submissions) {
        let Some(fd) = &self.fd else { return };
        let size_max = io.sizes.send;
        while !self.ring.batches_sends() {
            let Some(batch) = io.batch() else { return };
            match send_some(fd, batch, size_max) {
                Ok(count) => return io.end_send(Ok(count)),
                Err(error) if interrupted(&error) => {}
                Err(error) if would_block(&error) => break,
                Err(error) => return io.end_send(Err(self.reason(&error, "sending"))),
            }
        }
        if let Some(batch) = io.take_batch() {
            (self.ring).with(|state, ring| state.push_send(ring, self.slot, fd, batch, size_max));
        }
    }

    /// Takes the completion of the direct receive in flight.
    fn take_direct_end(&mut self, io: &mut Submissions) {
        let ended = (self.ring).with(|state, _| state.take_direct_end(self.slot));
        let Some((direct, result)) = ended else {
            return;
        };
        let cancelled = io.return_direct(direct);
        if let Some(error) = io.error().cloned() {
            return io.fail_receive(error);
        }
        match usize::try_from(result) {
            Ok(0) => self.stream_ended(io),
            Ok(len) => {
                if let Some(direct) = io.armed_direct() {
                    // SAFETY: the entry had the payload's spans from this offset on, and its
                    // completion says that the kernel has written so many bytes.
                    unsafe { direct.payload.assume_written(direct.offset, len) };
                }
                io.end_receive(len, None);
            }
            Err(_) if is_retryable(result) && cancelled => io.end_cancelled(),
            Err(_) if is_retryable(result) => self.poll_receive(io),
            Err(_) => io.fail_receive(self.reason(&os_error(result), "receiving")),
        }
    }

    /// Ends the armed receive with staged bytes, at most as many as it asked for: in their stage,
    /// or copied to the destination.
    fn received(&mut self, io: &mut Submissions, stage: Stage) {
        let copied = io.armed_direct().map_or(Ok(()), |direct| {
            direct.payload.copy_in(direct.offset, &stage)
        });
        match copied {
            Ok(()) => io.end_receive(stage.len(), Some(stage)),
            // The region refuses access. Bytes copied before that are copied again, if the rest can
            // be copied later.
            Err(AccessError::Closed(_)) => {
                (self.ring).with(|state, _| state.link(self.slot).put_back(stage));
                io.end_cancelled();
            }
            Err(fault) => io.fail_receive(fault.error("receiving")),
        }
    }

    /// Ends the armed receive with bytes of earlier staged receives, or with the end of the stream
    /// that follows them. Returns false if there is neither.
    fn take_staged(&mut self, io: &mut Submissions) -> bool {
        let size_max = io.sizes.receive;
        let wanted = io
            .armed_direct()
            .map_or(size_max, |direct| (direct.len as usize).min(size_max));
        let slot = self.slot;
        let end = self.ring.with(|state, _| {
            let stage = state.take_received(slot, wanted).map(StagedEnd::Bytes);
            stage.or_else(|| state.link(slot).stage_end.take().map(StagedEnd::End))
        });
        match end {
            None => return false,
            Some(StagedEnd::Bytes(stage)) => self.received(io, stage),
            Some(StagedEnd::End(0)) => self.stream_ended(io),
            Some(StagedEnd::End(result)) => {
                io.fail_receive(self.reason(&os_error(result), "receiving"));
            }
        }
        true
    }

    /// Receives by a system call; a poll in the ring reports when to try again.
    fn receive_here(&mut self, io: &mut Submissions) {
        if !self.is_read_idle() {
            return;
        }
        loop {
            let (Some(fd), Some(armed)) = (&self.fd, io.armed()) else {
                return;
            };
            match receive(fd, armed, io.sizes.receive) {
                Ok(bytes) if bytes.len == 0 => return self.stream_ended(io),
                Ok(bytes) => {
                    if let Some(direct) = io.armed_direct() {
                        // SAFETY: `receive` gave the kernel the payload's spans from this offset
                        // on, and the kernel says that it has written so many bytes.
                        unsafe { direct.payload.assume_written(direct.offset, bytes.len) };
                    }
                    return io.end_receive(bytes.len, bytes.stage);
                }
                Err(error) if would_block(&error) => return self.poll_for(READABLE),
                Err(error) if interrupted(&error) => {}
                Err(error) => return io.fail_receive(self.reason(&error, "receiving")),
            }
        }
    }

    /// Returns true if the ring has no receive of this socket. Otherwise cancels the receive, whose
    /// end wakes the link.
    fn is_read_idle(&self) -> bool {
        self.ring.with(|state, ring| {
            let link = state.link(self.slot);
            if link.read.is_idle() {
                return true;
            }
            if let Some(op) = link.read.cancel() {
                state.push_cancel(ring, op);
            }
            false
        })
    }

    /// Polls the socket for these events; their report wakes the link. A poll for other events is
    /// cancelled first, and its end wakes the link too.
    fn poll_for(&mut self, events: u32) {
        let Some(fd) = &self.fd else { return };
        let polls_for = &mut self.polls_for;
        self.ring.with(|state, ring| {
            let link = state.link(self.slot);
            if link.poll.is_idle() {
                *polls_for = events;
                link.polled = None;
                state.push_poll(ring, self.slot, fd, events);
            } else if *polls_for != events
                && let Some(op) = link.poll.cancel()
            {
                state.push_cancel(ring, op);
            }
        });
    }

    /// Ready once the peer has ended its stream, or with the reason why the connection is broken.
    /// Pending: the ring will report either.
    fn poll_peer_end(&mut self) -> Poll<Result<()>> {
        if self.fd.is_none() {
            return Poll::Pending;
        }
        // 1. A staged receive would take bytes that are not wanted now, and an error that must be
        //    reported here.
        let end = (self.ring).with(|state, _| state.link(self.slot).stage_end.take());
        if end.is_none() && !self.is_read_idle() {
            return Poll::Pending;
        }
        // 2. Take the result of the poll, or poll.
        let polled = (self.ring).with(|state, _| state.link(self.slot).polled.take());
        let polled = polled.filter(|result| *result < 0 || *result as u32 & PEER_END != 0);
        let error = match (end, polled.filter(|result| !is_retryable(*result))) {
            (None, None) => {
                self.poll_for(PEER_END);
                return Poll::Pending;
            }
            (Some(end), _) if end < 0 => Some(os_error(end)),
            (Some(_), _) => None,
            (None, Some(_)) => match self.fd.as_ref().map(sockopt::socket_error) {
                Some(Ok(Err(error))) => Some(error.into()),
                _ => None,
            },
        };
        // The system reports its error once; a later call returns the same answer.
        let error = error.map(|error| self.reason(&error, "watching a connection"));
        if let Some(error) = error.or_else(|| self.ring.check().err()) {
            self.watch_error = Some(error);
        }
        Poll::Ready(self.watch_error.clone().map_or(Ok(()), Err))
    }

    fn stream_ended(&mut self, io: &mut Submissions) {
        match self.watch_error.take().or_else(|| self.ring.check().err()) {
            Some(error) => io.fail_receive(error),
            None => io.end_stream(),
        }
    }

    /// Returns why the socket has failed: the socket's own error, or the ring's. A ring that fails
    /// shuts its sockets down.
    #[cold]
    fn reason(&self, error: &io::Error, what: &'static str) -> Error {
        let failure = self.ring.check().err();
        failure.unwrap_or_else(|| Error::from_io(error, what))
    }

    /// Cancels the chosen operations in flight, and harvests those that have ended.
    fn cancel(&self, choose: impl FnOnce(&mut LinkCompletions) -> Vec<&mut OpSlot>) {
        self.ring.with(|state, ring| {
            let ops = choose(state.link(self.slot)).into_iter();
            let ops: Vec<Key> = ops.filter_map(OpSlot::cancel).collect();
            ops.into_iter().for_each(|op| state.push_cancel(ring, op));
            state.submit_and_harvest(ring);
        });
    }
}

/// Gives the armed receive to the ring, unless it must wait for a staged receive in flight.
fn start_receive(
    state: &mut State,
    ring: &IoUring,
    slot: Key,
    fd: &Arc<OwnedFd>,
    staged: &mut u8,
    io: &mut Submissions,
) {
    let size_max = io.sizes.receive;
    let is_direct = io.armed_direct().is_some();
    let in_flight = state.link(slot).read;
    if is_direct {
        *staged = 0;
    }
    match (in_flight, is_direct) {
        (OpSlot::Idle, true) => {
            if let Some(direct) = io.take_direct() {
                state.push_direct(ring, slot, fd, direct, size_max);
            }
        }
        (OpSlot::Idle, false) => {
            let is_limited = size_max != IoSizes::default().receive;
            let multishot = *staged >= RING_STAGES_BEFORE_MULTISHOT && !is_limited;
            *staged = staged.saturating_add(1);
            state.push_stage(ring, slot, fd, multishot, size_max);
        }
        (_, true) => {
            if let Some(op) = state.link(slot).read.cancel() {
                state.push_cancel(ring, op);
            }
        }
        (_, false) => {}
    }
}

/// The result of a staged receive.
enum StagedEnd {
    Bytes(Stage),
    /// Zero, or the system's error as a negative number.
    End(i32),
}

impl Stream for UringStream {
    fn poll_connect(&mut self, io: &mut Submissions) -> Poll<Result<SocketAddr>> {
        let Some(fd) = &self.fd else {
            return Poll::Pending;
        };
        // 1. Take the result of the poll for writability.
        let polled = self
            .ring
            .with(|state, _| state.link(self.slot).polled.take());
        let result = match polled {
            None => None,
            Some(result) if is_retryable(result) => None,
            Some(result) if result < 0 => Some(Err(os_error(result))),
            // 2. Ask the socket how the connect ended.
            Some(_) => match connect_result(fd, io.peer) {
                Err(error) if would_block(&error) => None,
                result => Some(result),
            },
        };
        // 3. Poll until it has ended.
        match result {
            None => {
                self.ring.with(|state, ring| {
                    if state.link(self.slot).poll.is_idle() {
                        state.push_poll(ring, self.slot, fd, libc::POLLOUT as u32);
                    }
                });
                Poll::Pending
            }
            Some(result) => Poll::Ready(
                result
                    .map_err(|error| self.reason(&error, "connecting"))
                    .and_then(|local| make_blocking(fd).map(|()| local)),
            ),
        }
    }

    fn poll_send(&mut self, io: &mut Submissions) {
        if !io.is_send_in_flight() {
            return self.try_send(io);
        }
        let sent = (self.ring).with(|state, _| state.take_sent(self.slot));
        let Some((batch, result)) = sent else { return };
        let cancelled = io.return_batch(batch);
        let result = match (io.error(), usize::try_from(result)) {
            (Some(error), _) => Err(error.clone()),
            (None, Ok(count)) => Ok(count),
            (None, Err(_)) if is_retryable(result) && cancelled => Ok(0),
            (None, Err(_)) if is_retryable(result) => return self.try_send(io),
            (None, Err(_)) => Err(self.reason(&os_error(result), "sending")),
        };
        io.end_send(result);
    }

    fn poll_receive(&mut self, io: &mut Submissions) {
        if io.is_receive_in_flight() {
            return self.take_direct_end(io);
        }
        if self.fd.is_none() || self.take_staged(io) {
            return;
        }
        if self.is_local {
            return self.receive_here(io);
        }
        let Some(fd) = &self.fd else { return };
        let (slot, staged) = (self.slot, &mut self.staged);
        (self.ring).with(|state, ring| start_receive(state, ring, slot, fd, staged, io));
    }

    fn poll_watch(&mut self, io: &mut Submissions) {
        let Poll::Ready(end) = self.poll_peer_end() else {
            return;
        };
        let ended = || Error::new(ErrorKind::PeerClosed, "it ended its stream");
        io.end_watch(end.err().unwrap_or_else(ended));
    }

    fn localized(&mut self) {
        self.is_local = true;
        self.cancel(|link| vec![&mut link.read]);
    }

    fn poll_end(&mut self, _io: &mut Submissions) -> Poll<Result<()>> {
        self.poll_peer_end()
    }

    fn arm(&mut self, io: &mut Submissions) {
        if io.armed().is_none() {
            self.poll_watch(io);
            return io.notify_if_received();
        }
        if self.is_local {
            let has_received = (self.ring).with(|state, _| state.link(self.slot).has_received());
            if has_received {
                io.notify();
            } else if self.is_read_idle() {
                self.poll_for(READABLE);
            }
            return;
        }
        let Some(fd) = &self.fd else { return };
        let (slot, staged) = (self.slot, &mut self.staged);
        let has_received = self.ring.with(|state, ring| {
            let has_received = state.link(slot).has_received();
            if !has_received {
                start_receive(state, ring, slot, fd, staged, io);
            }
            has_received
        });
        if has_received {
            io.notify();
        }
    }

    fn cancel_send(&mut self) {
        self.cancel(|link| vec![&mut link.send]);
    }

    fn cancel_receive(&mut self) {
        self.cancel(|link| vec![&mut link.read]);
    }

    fn abort(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // A zero linger time makes close send a reset and drop unsent bytes.
        let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
        drop(fd);
        // The last of the operations in flight closes the socket.
        self.cancel(|link| vec![&mut link.send, &mut link.read, &mut link.poll]);
    }

    fn finish(&mut self, _io: &mut Submissions) {
        if let Some(fd) = &self.fd {
            // Fails only if the connection is gone already, which its receiving side reports.
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    fn unread_bytes(&self) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let received = self
            .ring
            .with(|state, _| state.link(self.slot).unread_bytes());
        let count = rustix::io::ioctl_fionread(fd).unwrap_or(0);
        usize::try_from(count)
            .unwrap_or(usize::MAX)
            .saturating_add(received)
    }

    fn stats(&self) -> Option<LinkStats> {
        stats(self.fd.as_ref()?).ok()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_ref()?.as_fd())
    }

    fn set_keep_alive(&mut self, config: KeepAliveConfig) -> bool {
        self.fd
            .as_ref()
            .is_some_and(|fd| set_keep_alive(fd, config))
    }

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()> {
        // A broken connection reports that with its next outcome.
        self.fd.as_ref().map_or(Ok(()), |fd| mark.apply(fd))
    }

    fn take_raw(&mut self, io: &Submissions) -> Option<RawLink> {
        // A receive in flight would take bytes of the next owner.
        self.cancel(|link| vec![&mut link.read, &mut link.poll]);
        let is_clean = self.ring.with(|state, _| {
            let link = state.link(self.slot);
            link.read.is_idle() && !link.has_received()
        });
        if !is_clean {
            return None;
        }
        // A poll that ends late keeps its own reference to the descriptor.
        let fd = match Arc::try_unwrap(self.fd.take()?) {
            Ok(fd) => fd,
            Err(shared) => shared.try_clone().ok()?,
        };
        Some(RawLink::Socket(RawSocket {
            fd,
            peer: io.peer,
            local: io.local,
            counts: io.counts,
        }))
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        let fd = self.fd.take();
        self.ring.abandon(self.slot, |state| {
            // Closing a socket with unread bytes resets the connection; the ring has read these
            // bytes already, so the reset is requested.
            if let Some(fd) = fd
                && state.link(self.slot).unread_bytes() > 0
            {
                let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
            }
        });
    }
}

/// The ring waits for a socket by itself, unless the socket is non-blocking. Calls outside of the
/// ring are made non-blocking one by one.
fn make_blocking(fd: &OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(fd, false)
        .map_err(|error| Error::from_io(&error.into(), "preparing a connection"))
}

fn os_error(result: i32) -> io::Error {
    io::Error::from_raw_os_error(-result)
}
