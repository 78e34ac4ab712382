//! Bytes in, bytes out; nothing here knows what the bytes mean.
//!
//! The interface has the shape of a completion queue: memory is *submitted* by value, an
//! [`Outcome`] brings it back. Readiness (epoll) is the emulation, not the model, so a ring backend
//! implements the same traits. What every backend promises:
//!
//! - **Ownership.** Submitted memory belongs to the link until its outcome; every submission has
//!   exactly one outcome, also when it is cancelled, refused, or the connection breaks. Dropping
//!   the link ends whatever is submitted, then drops its memory.
//! - **At most one** send batch and one receive are submitted at a time (memory-model rule 5);
//!   more is a bug of the caller's and asserted.
//! - **Partial is normal.** A send or receive that moved any bytes has ended; only a ring may let
//!   the kernel gather a direct receive, and a cancelled one tells how far it came. The cursor of a
//!   frame is not touched here: who submitted the batch moves it, by the count of
//!   [`Outcome::Sent`].
//! - **Bounded work.** One call of [`Link::poll_outcome`] moves at most
//!   [`DIRECT_PIECE_MAX`](crate::limits::DIRECT_PIECE_MAX) bytes.
//! - **Idle costs nothing.** No buffer is held for a connection that has nothing to read, and no
//!   timer runs.
//!
//! # The waker
//!
//! A link has one waker, given when it is made. The rule, in full:
//!
//! 1. Once [`Link::poll_outcome`] has returned `None`, the waker is woken when it may return
//!    something again. After `Some`, ask again.
//! 2. Submitting outside of a `poll_outcome` loop keeps rule 1 true: the call registers the waker,
//!    or wakes it. The one exception is [`Link::send`]: an outcome that is there when it returns is
//!    not announced, since its caller is expected to take it at once.
//! 3. The waker may be woken from within any call on this link, or on the other end of a loopback
//!    connection. The caller holds a connection's lock then, so waking must not take such a lock.
//! 4. Spurious wakes happen; lost ones do not.
//! 5. A link, the reactor and the other end keep clones of the waker. If the waker owns what owns
//!    the link, only dropping the link ends that circle.
//!
//! Links are driven by `&mut` under their connection's lock, from any thread, inside or outside of
//! a runtime. They do not take part in Tokio's cooperative budget: whoever drives them bounds the
//! work.

mod address;
mod clock;
#[allow(unsafe_code)]
mod epoll;
#[cfg(any(test, feature = "test-util"))]
mod fault;
mod interfaces;
mod loopback;
mod run;
mod select;
mod submitted;
mod udp;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
#[allow(unsafe_code)]
mod uring;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::buf::{Frame, Leases, Payload, SpanList, Stage};
use crate::error::{Error, ErrorKind, Result};

pub use address::PortRange;
#[cfg(any(test, feature = "test-util"))]
pub use fault::FaultPlan;
#[cfg(feature = "test-util")]
pub(crate) use fault::Faults;
pub(crate) use interfaces::interfaces;
#[cfg(feature = "test-util")]
pub(crate) use loopback::{Host, LoopbackNet, WireState};
pub(crate) use run::Runner;
pub(crate) use select::{Selection, TransportOptions, open, open_many};
pub(crate) use udp::{
    Arrived, DATAGRAMS_PER_CALL, DatagramOptions, DatagramSocket, Departing, Membership, More,
    Place, too_long,
};

/// Frees what this thread keeps to wake others by.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    #[cfg(all(feature = "io-uring", target_os = "linux"))]
    uring::drop_kept();
}

/// How bytes travel between endpoints; chosen when a fabric is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// TCP sockets, their readiness told by Tokio's own reactor. The default for
    /// [`Driver::Task`](crate::Driver::Task), and for a thread where io_uring cannot be had.
    Epoll,
    /// TCP sockets, driven by an io_uring: Linux 6.1 or later, feature `io-uring`. The default for
    /// [`Driver::Thread`](crate::Driver::Thread), whose thread sleeps in the ring. A task gains by
    /// it with a dozen connections at work or more, and loses with few. For who names it, opening a
    /// domain fails with [`ErrorKind::Unsupported`] where it cannot be had.
    IoUring,
    /// In-process byte pipes: no sockets, no kernel. Time is Tokio's, so a test may pause it.
    Loopback,
}

impl Backend {
    /// The name that [`Display`](fmt::Display) writes and [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Epoll => "epoll",
            Backend::IoUring => "io-uring",
            Backend::Loopback => "loopback",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = Error;

    /// Reads a backend's name, in any letter case; anything else is
    /// [`ErrorKind::InvalidArgument`].
    fn from_str(text: &str) -> Result<Self> {
        [Backend::Epoll, Backend::IoUring, Backend::Loopback]
            .into_iter()
            .find(|backend| text.eq_ignore_ascii_case(backend.name()))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidArgument,
                    format!("backend {text:?} is none of \"epoll\", \"io-uring\", \"loopback\""),
                )
            })
    }
}

/// A way to reach others: makes listeners and links. One per fabric or domain; it remembers the
/// runtime it was made for, so its methods may be called from anywhere.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    fn backend(&self) -> Backend;

    /// Listens at `address`; port 0 asks for any free port (of the configured range, if there is
    /// one).
    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>>;

    /// Starts to connect and never blocks. The end comes as [`Outcome::Connected`] or
    /// [`Outcome::Failed`]; an error here means that nothing was started (no descriptor left, a
    /// source address that is not ours).
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>>;

    /// Makes an accepted connection a link of this transport, maybe on another runtime than its
    /// listener's. The link is connected; there is no [`Outcome::Connected`] for it.
    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>>;

    /// Opens a socket for datagrams; its waker's rule is told by [`udp`].
    fn datagrams(&self, options: &DatagramOptions, waker: Waker)
    -> Result<Box<dyn DatagramSocket>>;

    /// Lends a staging buffer.
    fn stage(&self) -> Stage;

    /// The backend's own work (harvesting a ring), to be polled by the one task that drives the
    /// transport: first in each of its polls, since it makes links ready. Registers that task;
    /// ready when there was something to do. Backends without such work are pending for ever and
    /// register nothing. An error says, at each call from then on, that the transport is lost, with
    /// everything that was made by it: nothing of that makes progress any more.
    fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>>;

    /// The task that drives has nothing left to do. True: it may sleep, and what is submitted from
    /// now on wakes it. False: something was submitted since its [`Transport::poll_drive`], which
    /// is to be polled again.
    fn rest(&self, _driver: &Waker) -> bool {
        true
    }

    /// The task that drives spins: whether [`Transport::poll_drive`] would find anything.
    fn look(&self) -> bool {
        false
    }

    /// The task that drives has gone, and nobody drives again. What is in flight is cancelled and
    /// waited for, now and whenever a link or listener is dropped later: it would keep its sockets
    /// open, and their peers in the dark, for as long as somebody holds this transport.
    fn driver_gone(&self) {}

    /// A clock with one alarm, for one driver. Sockets live in real time, loopback in Tokio's
    /// (ruling 12). Fails when there is no descriptor left for a timer.
    fn clock(&self) -> Result<Box<dyn Clock>>;
}

/// Tells the time and rings once.
pub(crate) trait Clock: Send {
    fn now(&self) -> Instant;

    /// Ready once `at` has passed; else the task of `cx` is woken then. Another `at` replaces the
    /// one before. A clock that is not polled wakes nobody, save once for a deadline already set.
    fn poll_deadline(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()>;
}

/// Where peers arrive.
pub(crate) trait Listener: Send {
    /// The address listened at, with the port that was chosen.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection. [`ErrorKind::LimitReached`] (descriptors, memory) passes when others
    /// close theirs: back off for a while, then poll again. A connection that died in the backlog
    /// is skipped. [`ErrorKind::DriverGone`] is final.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>>;
}

/// An accepted connection that belongs to no runtime yet; [`Transport::adopt`] gives it one.
#[derive(Debug)]
pub(crate) enum RawLink {
    /// A connected TCP socket, which may block or not: each transport sees to what it needs.
    Socket {
        fd: OwnedFd,
        peer: SocketAddr,
        local: SocketAddr,
    },
    /// One end of an in-process connection.
    Loopback(loopback::End),
}

#[cfg(test)]
impl RawLink {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match self {
            RawLink::Socket { peer, .. } => *peer,
            RawLink::Loopback(end) => end.peer_addr(),
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        match self {
            RawLink::Socket { local, .. } => *local,
            RawLink::Loopback(end) => end.local_addr(),
        }
    }
}

/// One connection: moves bytes between submitted memory and the peer. The module's head has the
/// rules that hold for all methods.
pub(crate) trait Link: Send {
    /// Our address; before [`Outcome::Connected`] it may still lack its port.
    fn local_addr(&self) -> SocketAddr;

    fn peer_addr(&self) -> SocketAddr;

    /// Submits a batch. It is tried at once, so its outcome may be there when this returns, and
    /// the next [`Link::poll_outcome`] gives it before anything else is tried. A batch that finds
    /// no room waits inside until it moves at least a byte.
    fn send(&mut self, batch: SendBatch);

    /// Takes back a batch that waits for room: it ends by `Sent` with `Ok(0)`, or with what it
    /// moved. Without it a peer that stops reading could hold the leases of a batch, and so a
    /// `revoke`, for ever (memory-model rule 4). No effect when nothing is submitted.
    fn cancel_send(&mut self);

    /// Arms a receive. Nothing is read inside this call.
    fn receive(&mut self, receive: Receive);

    /// Asks for the armed receive back: its outcome is [`Received::Cancelled`], or its result if
    /// that came first. No effect when none is armed; ends a [`Link::watch`].
    fn cancel_receive(&mut self);

    /// While reading is paused (no receive is armed): tells by [`Outcome::PeerGone`], once, that
    /// the peer has closed or is gone. Bytes it sent before stay readable. Ends by the next
    /// `receive`.
    fn watch(&mut self);

    /// Tries what is submitted and may make progress; the first end of something is the answer.
    /// `None`: nothing now, and the waker is registered for everything submitted. Sends and
    /// receives take turns, so that neither starves.
    fn poll_outcome(&mut self) -> Option<Outcome>;

    /// Orderly end of what we send: the peer reads all of it, then end-of-stream. To be called with
    /// no batch submitted; what the peer sends still arrives.
    fn finish(&mut self);

    /// Aborts: the peer sees a reset. Everything submitted ends with
    /// [`ErrorKind::ConnectionReset`], and so does everything submitted later.
    fn reset(&mut self);

    /// Bytes of the peer's that wait to be received, as far as the backend can tell; what bounds a
    /// message once the peer has ended its stream.
    fn unread(&self) -> usize;

    /// What the system knows of the peer's life. `None` where no system stands between: in the
    /// process, what the peer has sent is there.
    fn vitals(&self) -> Option<Vitals>;

    /// Lets the system ask the peer's system for a sign of life when the connection has been
    /// silent; without one the connection ends by [`ErrorKind::TimedOut`]. It does not ask while
    /// bytes of ours are unconfirmed: see [`Vitals::unanswered`] for those. False if nobody
    /// notices that the connection is lost.
    fn keep_alive(&mut self, keep_alive: KeepAlive) -> bool;

    /// Takes the connection out of the link, for another transport to adopt. `None` when it is
    /// broken, or while something is submitted. The link is of no use any more.
    fn take_raw(&mut self) -> Option<RawLink>;

    /// The caller spins: tries the armed receive, whether or not the reactor has told of anything.
    /// What [`Link::poll_outcome`] has registered stays so. After `Some`, ask that.
    fn look(&mut self) -> Option<Outcome> {
        None
    }

    /// Nothing is to be expected for a while: gives back what is kept for what may end next.
    fn shrink(&mut self) {}

    /// Bounds the bytes of each following send and receive (at least 1 each). Only the fault
    /// injector has a use for it.
    #[cfg(any(test, feature = "test-util"))]
    fn limit(&mut self, sizes: IoSizes);
}

/// What the system can tell of the peer and of the peer's system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vitals {
    /// How long ago the last byte came, whether or not it has been received by anyone here.
    pub(crate) silent: Duration,
    /// Bytes of ours that the peer's system has confirmed.
    pub(crate) confirmed: u64,
    /// Bytes of ours that it has not, those included that found no room there.
    pub(crate) unconfirmed: u64,
    /// For so long the peer's *system* has not reacted to what ours sent it more than once: bytes,
    /// or probes for room. Zero while nothing is unanswered. A system whose program does not read
    /// has no room, and says so each time it is asked: that is an answer.
    pub(crate) unanswered: Duration,
}

/// When the system asks a silent peer's system for a sign of life. Whole seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAlive {
    /// Silence before the first question.
    pub(crate) idle: Duration,
    /// From one question to the next.
    pub(crate) interval: Duration,
    /// Unanswered questions that end the connection.
    pub(crate) count: u32,
}

/// The most bytes that one send and one receive may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoSizes {
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

impl Default for IoSizes {
    fn default() -> Self {
        IoSizes {
            send: crate::limits::DIRECT_PIECE_MAX,
            receive: crate::limits::DIRECT_PIECE_MAX,
        }
    }
}

/// Frames to be sent in this order, by as few system calls as possible. Owned by the link while
/// submitted; it comes back with [`Outcome::Sent`].
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    pub(crate) frames: VecDeque<Frame>,
    /// Held while the kernel may read region memory of these frames; dropped by the owner of the
    /// batch when it comes back.
    pub(crate) leases: Vec<Leases>,
}

impl SendBatch {
    /// Appends the spans of up to `len` bytes that come next, as many as fit into the list.
    fn spans(&self, len: usize, into: &mut SpanList) {
        let mut left = len;
        for frame in &self.frames {
            if left == 0 || into.is_full() {
                break;
            }
            frame.spans(left, into);
            left -= frame.remaining().min(left);
        }
    }

    /// Bytes not sent yet, over all frames.
    #[cfg(test)]
    pub(crate) fn remaining(&self) -> usize {
        self.frames.iter().map(Frame::remaining).sum()
    }

    /// Accounts for `count` sent bytes: frames that are sent in full leave the batch, in order,
    /// through `sent`; the cursor of the first one left moves on.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, mut count: usize, mut sent: impl FnMut(Frame)) {
        while let Some(frame) = self.frames.front_mut() {
            let moved = frame.remaining().min(count);
            frame.advance(moved);
            count -= moved;
            if frame.remaining() > 0 {
                break;
            }
            sent(self.frames.pop_front().expect("the front was just seen"));
        }
        debug_assert_eq!(count, 0, "no more can be sent than was submitted");
    }
}

/// Where the next bytes of the stream shall land.
#[derive(Debug)]
pub(crate) enum Receive {
    /// Into a staging buffer, taken from the pool only when there is something to read.
    Stage,
    /// Straight into their destination.
    Direct(Direct),
}

/// `payload[offset..offset + len]`, a destination for stream bytes; `len` is at least 1. The leases
/// cover the regions among it for as long as the receive is armed.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) payload: Payload,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) leases: Leases,
}

/// The end of something submitted, or news of the connection.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The connection that [`Transport::connect`] started is made.
    Connected,
    /// The batch is back. `Ok(n)`: the first `n` bytes of what remained of it are on their way;
    /// `n` is less than all as a rule, and 0 only after [`Link::cancel_send`] or when memory of
    /// the batch is refused meanwhile (its region was revoked or quiesced).
    Sent {
        batch: SendBatch,
        result: Result<usize>,
    },
    /// The armed receive ended.
    Received(Received),
    /// What [`Link::watch`] waits for: [`ErrorKind::PeerClosed`] when the peer ended its stream,
    /// another kind when the connection broke.
    PeerGone(Error),
    /// The connection could not be made. What is submitted to the link ends next, by errors.
    Failed(Error),
}

impl Outcome {
    /// How many bytes have moved.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Outcome::Sent { result, .. } => *result.as_ref().unwrap_or(&0),
            Outcome::Received(Received::Stage(stage)) => stage.len(),
            Outcome::Received(Received::Direct { len, .. }) => *len,
            _ => 0,
        }
    }
}

/// How a receive ended. Memory submitted with it is always in here.
#[derive(Debug)]
pub(crate) enum Received {
    /// At least one byte, in a staging buffer.
    Stage(Stage),
    /// `len` bytes, at least one, from `direct.offset` on.
    Direct { direct: Direct, len: usize },
    /// The peer ended its stream, and all it sent has been read.
    End { returned: Option<Direct> },
    /// The connection broke, or the destination could not be written.
    Failed {
        error: Error,
        returned: Option<Direct>,
    },
    /// Cancelled, or its region is refused meanwhile; no byte was taken from the stream for it.
    Cancelled { returned: Option<Direct> },
}
