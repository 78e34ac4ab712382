//! A link over any byte stream: the order in which submissions are tried. [`Submissions`] keeps
//! them, in drawn states; the backend makes the system calls ([`Stream`]).

mod submissions;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::{Poll, Waker};

pub(super) use submissions::ConnPhase;
pub(super) use submissions::Submissions;
use submissions::{RecvSlot, SendSlot};

#[cfg(any(test, feature = "test-util"))]
use super::IoSizes;
use super::{
    ByteCounts, KeepAliveConfig, Link, LinkStats, LocalCarrier, LocalParts, Outcome, RawLink,
    Receive, SendBatch, Submitted, TrafficMark, Transport,
};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::PeerIdentity;

/// The system calls of one backend for one connection. Methods that get the [`Submissions`] end
/// them there, at once or in a later call.
pub(super) trait Stream: Send {
    /// Ready with the end of the connect. Pending: the waker is registered.
    fn poll_connect(&mut self, io: &mut Submissions) -> Poll<Result<SocketAddr>>;

    /// Sends the submitted batch, or takes the completion of the one in flight.
    fn poll_send(&mut self, io: &mut Submissions);

    /// Receives for the armed receive, or takes the completion of the one in flight.
    fn poll_receive(&mut self, io: &mut Submissions);

    /// Reports the peer's end, without reading.
    fn poll_watch(&mut self, io: &mut Submissions);

    /// Called before bytes go through shared memory. From now on the stream keeps a receive in
    /// flight only while one is submitted: another one would take bytes while the carrier counts
    /// them. From now on one byte in the socket wakes the link: the rest of a payload comes through
    /// shared memory, so the socket may never hold as many bytes as the receive waits for.
    fn localized(&mut self) {}

    /// Ready once the peer has ended its stream, or the connection is broken. Receives nothing: the
    /// bytes that follow come through shared memory. Pending: the waker is registered.
    fn poll_end(&mut self, _io: &mut Submissions) -> Poll<Result<()>> {
        Poll::Pending
    }

    /// Registers the waker for a receive or a watch that was submitted, or wakes it. Reads nothing.
    fn arm(&mut self, io: &mut Submissions);

    /// Advances work that needs no submission. Called while nothing is submitted.
    fn poll_idle(&mut self, _io: &mut Submissions) {}

    /// Tries the armed receive without asking for readiness.
    fn try_receive(&mut self, _io: &mut Submissions) {}

    /// Takes the submitted batch back. Returns how many of its bytes were passed on already.
    fn withdraw_batch(&mut self) -> usize {
        0
    }

    /// Asks the kernel to end the send in flight.
    fn cancel_send(&mut self) {}

    /// Asks the kernel to end the receive in flight.
    fn cancel_receive(&mut self) {}

    /// Closes the connection with a reset, and asks the kernel to end everything in flight.
    fn abort(&mut self);

    fn finish(&mut self, io: &mut Submissions);

    fn unread_bytes(&self) -> usize;

    fn stats(&self) -> Option<LinkStats>;

    /// See [`Link::socket`].
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_keep_alive(&mut self, config: KeepAliveConfig) -> bool;

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()>;

    /// Takes the connection out, if the kernel holds no memory of its operations.
    fn take_raw(&mut self, io: &Submissions) -> Option<RawLink>;

    /// See [`Link::peer_identity`].
    fn identity(&self) -> Option<PeerIdentity> {
        None
    }
}

/// A link over a backend's stream.
pub(super) struct StreamLink<S> {
    io: Submissions,
    stream: S,
    /// Set once bytes may go through shared memory.
    local: Option<Box<LocalCarrier>>,
    /// See [`Link::set_polled`].
    is_polled: bool,
}

impl<S: Stream> StreamLink<S> {
    /// Makes a link that has begun to connect. The waker is registered, or woken.
    pub(super) fn connecting(stream: S, local: SocketAddr, peer: SocketAddr, waker: Waker) -> Self {
        let mut link = StreamLink {
            io: Submissions::new(ConnPhase::Connecting, local, peer, waker),
            stream,
            local: None,
            is_polled: false,
        };
        link.poll_connect();
        if link.io.conn != ConnPhase::Connecting {
            link.io.notify();
        }
        link
    }

    /// Makes a connected link.
    pub(super) fn connected(stream: S, local: SocketAddr, peer: SocketAddr, waker: Waker) -> Self {
        StreamLink {
            io: Submissions::new(ConnPhase::Open, local, peer, waker),
            stream,
            local: None,
            is_polled: false,
        }
    }

    /// Continues the byte counts of a connection that another link has begun.
    pub(super) fn with_counts(mut self, counts: ByteCounts) -> Self {
        self.io.counts = counts;
        self
    }

    fn poll_connect(&mut self) {
        let Poll::Ready(result) = self.stream.poll_connect(&mut self.io) else {
            return;
        };
        if result.is_err() {
            self.stream.abort();
        }
        self.io.end_connect(result);
    }

    fn poll_send(&mut self) {
        if !matches!(self.io.send, SendSlot::Idle | SendSlot::Ended(..)) {
            self.send_now();
        }
    }

    #[inline]
    fn send_now(&mut self) {
        match &mut self.local {
            None => self.stream.poll_send(&mut self.io),
            Some(local) => {
                let done = local.poll_send(&mut self.io, &mut self.stream);
                self.break_if(done);
            }
        }
    }

    fn poll_receive(&mut self) {
        match (&self.io.recv, &mut self.local) {
            (RecvSlot::Idle | RecvSlot::Ended(_), _) => {}
            (RecvSlot::Watching, _) => self.stream.poll_watch(&mut self.io),
            (_, None) => self.stream.poll_receive(&mut self.io),
            (_, Some(local)) => {
                let done = local.poll_receive(&mut self.io, &mut self.stream);
                self.break_if(done);
            }
        }
    }

    /// Resets the connection if the peer has broken the protocol of the memory they share.
    #[inline]
    fn break_if(&mut self, done: Result<()>) {
        if let Err(error) = done {
            self.stream.abort();
            self.io.break_off(error);
            // Not every caller polls for the outcomes.
            self.io.waker.wake_by_ref();
        }
    }

    /// Tries the two directions in turns, until one of them has an outcome.
    fn poll_io(&mut self) -> Option<Outcome> {
        if self.io.is_idle() {
            self.stream.poll_idle(&mut self.io);
        }
        if self.io.send_first {
            self.poll_send();
            if !matches!(self.io.send, SendSlot::Ended(..)) {
                self.poll_receive();
            }
        } else {
            self.poll_receive();
            if !matches!(self.io.recv, RecvSlot::Ended(_)) {
                self.poll_send();
            }
        }
        self.io.take_outcome()
    }

    /// Arms a receive or watch that was submitted.
    fn arm(&mut self, submitted: bool) {
        if !submitted {
            self.io.notify();
        } else if self.io.is_up() && !self.io.will_be_polled {
            match &mut self.local {
                Some(local) if self.io.armed().is_some() => {
                    let done = local.arm(&mut self.io, &mut self.stream);
                    self.break_if(done);
                    self.io.notify_if_received();
                }
                _ => self.stream.arm(&mut self.io),
            }
        }
    }
}

impl<S: Stream> Link for StreamLink<S> {
    fn local_addr(&self) -> SocketAddr {
        self.io.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.io.peer
    }

    fn send(&mut self, batch: Box<SendBatch>) {
        if self.io.submit_send(batch) && self.io.is_up() {
            self.send_now();
        }
    }

    fn cancel_send(&mut self) {
        match self.io.send {
            SendSlot::Submitted(_) => {
                let sent = self.stream.withdraw_batch();
                self.io.end_send(Ok(sent));
                self.io.notify();
            }
            SendSlot::InFlight => {
                self.io.send.go(SendSlot::Cancelling);
                self.stream.cancel_send();
            }
            _ => {}
        }
    }

    fn receive(&mut self, receive: Receive) {
        let submitted = self.io.submit_receive(receive);
        self.arm(submitted);
    }

    fn cancel_receive(&mut self) {
        match self.io.recv {
            RecvSlot::Armed(_) => {
                self.io.end_cancelled();
                self.io.notify();
            }
            RecvSlot::Watching => _ = self.io.recv.go(RecvSlot::Idle),
            RecvSlot::InFlight => {
                self.io.recv.go(RecvSlot::Cancelling);
                self.stream.cancel_receive();
            }
            _ => {}
        }
    }

    fn submitted(&self) -> Submitted {
        self.io.submitted()
    }

    fn watch(&mut self) {
        let submitted = self.io.submit_watch();
        self.arm(submitted);
    }

    fn poll_outcome(&mut self) -> Option<Outcome> {
        // 1. Submissions that ended within the call that submitted them, or by a cancellation.
        if let Some(outcome) = self.io.take_outcome() {
            return Some(outcome);
        }
        // 2. Before the link is connected nothing else can move.
        if self.io.conn == ConnPhase::Connecting {
            self.poll_connect();
            let outcome = self.io.take_outcome();
            self.io.will_be_polled = outcome.is_some();
            return outcome;
        }
        // 3. Send or receive what the kernel can move now. `None`: the waker is registered.
        let outcome = self.poll_io();
        self.io.will_be_polled = outcome.is_some();
        outcome
    }

    fn try_receive(&mut self) -> Option<Outcome> {
        if !self.io.is_up() || self.io.armed().is_none() {
            return None;
        }
        match &mut self.local {
            None => self.stream.try_receive(&mut self.io),
            Some(local) => {
                let done = local.try_receive(&mut self.io, &mut self.stream);
                self.break_if(done);
            }
        }
        let outcome = self.io.take_received()?;
        self.io.will_be_polled = true;
        Some(outcome)
    }

    fn finish(&mut self) {
        debug_assert!(
            matches!(self.io.send, SendSlot::Idle),
            "what is submitted is sent first"
        );
        self.stream.finish(&mut self.io);
    }

    fn reset(&mut self) {
        if self.io.error().is_some() {
            return;
        }
        self.stream.abort();
        let error = Error::new(ErrorKind::ConnectionReset, "by this side");
        match self.io.conn {
            ConnPhase::Connecting => self.io.end_connect(Err(error)),
            _ => self.io.break_off(error),
        }
        self.io.notify();
    }

    fn unread_bytes(&self) -> usize {
        let local = self.local.as_ref().map_or(0, |local| local.unread_bytes());
        self.stream.unread_bytes() + local
    }

    fn stats(&self) -> Option<LinkStats> {
        let stats = self.stream.stats()?;
        Some(match &self.local {
            None => stats,
            Some(local) => local.add_stats(stats),
        })
    }

    fn localize(&mut self, parts: LocalParts, transport: &dyn Transport) -> Result<()> {
        if self.io.conn != ConnPhase::Open {
            return Err(Error::new(ErrorKind::BadState, "the link is not connected"));
        }
        let mut carrier = parts.into_carrier(transport, &self.io.waker)?;
        if self.is_polled {
            carrier.set_polled(true, &self.io)?;
        }
        self.stream.localized();
        carrier.open();
        self.local = Some(Box::new(carrier));
        self.io.waker.wake_by_ref();
        Ok(())
    }

    fn set_polled(&mut self, polled: bool) {
        self.is_polled = polled;
        if let Some(local) = &mut self.local {
            let done = local.set_polled(polled, &self.io);
            self.break_if(done);
        }
    }

    fn shrink(&mut self) {
        if let Some(local) = &mut self.local {
            local.shrink();
        }
    }

    fn is_local(&self) -> bool {
        self.local.as_ref().is_some_and(|local| local.is_complete())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.socket()
    }

    fn set_keep_alive(&mut self, config: KeepAliveConfig) -> bool {
        self.stream.set_keep_alive(config)
    }

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()> {
        self.stream.set_traffic(mark)
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        let is_idle = self.io.conn == ConnPhase::Open
            && matches!(self.io.send, SendSlot::Idle)
            && matches!(self.io.recv, RecvSlot::Idle | RecvSlot::Watching)
            && self.local.is_none();
        match is_idle {
            true => self.stream.take_raw(&self.io),
            false => None,
        }
    }

    fn peer_identity(&self) -> Option<PeerIdentity> {
        self.stream.identity()
    }

    #[cfg(any(test, feature = "test-util"))]
    fn set_io_sizes(&mut self, sizes: IoSizes) {
        debug_assert!(sizes.send > 0 && sizes.receive > 0, "nothing would move");
        self.io.sizes = sizes;
    }
}
