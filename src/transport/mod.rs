//! Moves bytes, without knowing what they mean.
//!
//! The interface has the shape of a completion queue: memory is *submitted* by value, an
//! [`Outcome`] brings it back. Readiness (epoll) is the emulation, not the model, so a ring backend
//! implements the same traits. What every backend promises:
//!
//! - **Ownership.** Submitted memory belongs to the link until its outcome. Every submission has
//!   exactly one outcome, also if the submission is cancelled or refused, or the connection breaks.
//!   Dropping the link ends all submissions, then drops their memory.
//! - **At most one** send batch and one receive are submitted at a time (memory-model rule 5);
//!   submitting more is a bug of the caller, and asserted.
//! - **Partial is normal.** A send or receive that moved any bytes has ended; only a ring may let
//!   the kernel gather a direct receive, and a cancelled one reports how many bytes it received.
//!   The caller advances the frame's cursor by the count of [`Outcome::Sent`].
//! - **Bounded work.** One call of [`Link::poll_outcome`] moves at most [`DIRECT_PIECE_MAX`] bytes.
//! - **Idle costs nothing.** No buffer is held for a connection that has nothing to read, and no
//!   timer runs.
//!
//! # Who calls what
//!
//! The driver of a domain is the one task that calls [`Transport::poll_drive`],
//! [`Transport::try_park`], [`Transport::has_completions`] and [`Transport::shutdown`]. Ports call
//! their link under their own lock: from the driver's turns ([`Link::poll_outcome`]) and from the
//! application's posts ([`Link::send`]). Links do not take part in Tokio's cooperative budget: the
//! driver bounds the work.
//!
//! # The waker
//!
//! A link has one waker, given when it is made. The rule, in full:
//!
//! 1. After [`Link::poll_outcome`] has returned `None`, the link wakes the waker when a call may
//!    return an outcome again. After `Some`, poll again. Bytes of a large payload that are too few
//!    to be worth a wake-up ([`wake_bytes`]) may wait in the socket for more: [`Link::try_receive`]
//!    takes them.
//! 2. Submitting outside of a `poll_outcome` loop keeps rule 1 true: the call registers the waker,
//!    or wakes it. The one exception is [`Link::send`]: it does not wake for an outcome that exists
//!    when it returns, since the caller takes that outcome at once.
//! 3. The waker may be woken from within any call on this link, or on the other end of a loopback
//!    connection. The caller holds a connection's lock then, so waking must not take such a lock.
//! 4. Spurious wakes happen; lost ones do not.
//! 5. A link, the reactor and the other end keep clones of the waker. If the waker owns the link's
//!    owner, only dropping the link ends that cycle.
//!
//! # Backends
//!
//! A backend is the system calls behind the trait `Stream`. All backends share the code for
//! submissions and their ends; `stream/submissions.rs` draws the states. `epoll` tries the system
//! call and waits for readiness. `uring` has one ring per driver and listener. `loopback` copies
//! between pipes within the process; between two hosts of a simulated network, a relay carries each
//! connection (`loopback/relay.rs`). `select.rs` opens the requested backend, or else `epoll`.
//! `fault.rs`, for tests only, wraps any backend. A new backend is a new folder, and passes the
//! suite.

mod address;
mod caller;
mod clock;
#[allow(unsafe_code)]
mod epoll;
mod facts;
#[cfg(any(test, feature = "test-util"))]
mod fault;
mod interfaces;
#[allow(unsafe_code)]
mod local;
mod loopback;
mod manual;
mod processor;
mod run;
mod select;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod traffic;
mod udp;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
#[allow(unsafe_code)]
mod uring;
#[cfg(any(test, feature = "test-util", feature = "tls"))]
mod wrapped;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub(crate) use crate::buf::SendBatch;
use crate::buf::{Leases, Payload, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::PeerIdentity;
use crate::limits::{DIRECT_PIECE_MAX, WAKE_BYTES_MIN, WAKES_PER_PAYLOAD};
pub(crate) use caller::{WaitingDriver, is_within_block_on};
pub(crate) use processor::shares_processor;

pub use address::PortRange;
use address::at_port;
pub(crate) use epoll::tcp_info;
pub use facts::{RingInfo, TcpInfo};
#[cfg(any(test, feature = "test-util"))]
pub use fault::FaultPlan;
#[cfg(feature = "test-util")]
pub(crate) use fault::Faults;
pub(crate) use interfaces::interfaces;
pub(crate) use local::{
    Doorbell, Expectation, LocalCarrier, LocalOffer, LocalParts, OnMet, Token, is_of_this_host,
    meet, offer,
};
#[cfg(feature = "test-util")]
pub(crate) use loopback::{Host, LoopbackNet, WireState};
pub(crate) use manual::ManualReactor;
pub(crate) use run::Executor;
pub(crate) use select::{Runner, Selection, TransportOptions, open};
pub(crate) use traffic::TrafficMark;
pub(crate) use udp::{
    DatagramOptions, DatagramSocket, Membership, OutgoingDatagram, ReceivedDatagram, RecvBuffer,
    RecvStatus, too_long,
};

/// The way in which bytes are moved between endpoints; chosen by
/// [`Hints::backend`](crate::Hints::backend).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Backend, Fabric, Hints};
///
/// // A program that prefers io_uring, and works without.
/// let open = |hints| Fabric::open(hints)?.domain().open();
/// let domain = match open(Hints::new().backend("io-uring")) {
///     Ok(domain) => domain,
///     Err(_) => open(Hints::new())?,
/// };
/// assert!(matches!(domain.backend(), Backend::IoUring | Backend::Epoll));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// TCP sockets with readiness from Tokio's reactor. The default.
    Epoll,
    /// TCP sockets through io_uring: Linux 6.1 or later, feature `io-uring`. With a driver that is
    /// a task, it takes about a tenth less processor time than [`Epoll`](Self::Epoll) if 16 to 256
    /// connections are busy, and more if there are fewer or many more. Opening a domain fails with
    /// [`ErrorKind::Unsupported`] if the kernel or a container does not allow it; the error states
    /// the reason.
    IoUring,
    /// Byte pipes within the process: no sockets and no kernel. Time is Tokio's, so a test may
    /// pause it.
    Loopback,
}

impl Backend {
    /// The name that [`Display`](fmt::Display) writes and [`FromStr`] parses.
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

/// Makes listeners, links and datagram sockets of one backend. There is one per listener, domain or
/// shard. It holds the runtime or ring it was made for, so its methods may be called on any thread.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    fn backend(&self) -> Backend;

    /// Listens at `address`; port 0 asks for any free port (of the configured range, if there is
    /// one).
    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>>;

    /// Starts to connect and never blocks; the link reports the end as [`Outcome::Connected`] or
    /// [`Outcome::Failed`].
    ///
    /// # Errors
    /// No descriptor is left, or `from` is not an address of this machine. Nothing was started.
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>>;

    /// Makes an accepted connection a link of this transport, maybe on another runtime than its
    /// listener's. It is connected already: there is no [`Outcome::Connected`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a connection of another kind of backend;
    /// [`ErrorKind::DriverGone`] once the runtime or the ring has ended.
    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>>;

    /// Opens a socket for datagrams; [`udp`] describes its waker.
    fn open_datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>>;

    /// Returns true if the transport's links can move bytes through shared memory.
    fn may_localize(&self) -> bool {
        false
    }

    /// Watches a doorbell on behalf of a link, and wakes the link's waker.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: the transport's links move no bytes through shared memory.
    /// Another error: the transport cannot watch the doorbell.
    fn watch_bell(&self, _bell: OwnedFd, _waker: Waker) -> Result<Box<dyn Doorbell>> {
        let what = "this backend moves no bytes through shared memory";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Does the backend's own work: harvests and submits to a ring. The driver calls this first in
    /// each of its polls, since it makes links ready. Ready if there was anything to do; pending
    /// registers the driver's waker. Backends without such work are always pending and register
    /// nothing.
    ///
    /// # Errors
    /// The transport is lost, with all its links, listeners and sockets. Every later call returns
    /// the same error.
    fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>>;

    /// Called by the driver when it has nothing left to do. Returns true if the driver may sleep,
    /// and later submissions wake it. Returns false if anything was submitted since the last
    /// [`Transport::poll_drive`]; the driver must call that again.
    fn try_park(&self, _driver: &Waker) -> bool {
        true
    }

    /// # Errors
    /// [`ErrorKind::DriverGone`] once the transport's host is down and the driver has not noticed
    /// yet. Only hosts of a simulated network go down.
    fn check_up(&self) -> Result<()> {
        Ok(())
    }

    /// Returns true if [`Transport::poll_drive`] would find work; a driver that spins calls this.
    /// Avoids system calls.
    fn has_completions(&self) -> bool {
        false
    }

    /// Returns the transport's ring, if it has one.
    fn ring(&self) -> Option<RingInfo> {
        None
    }

    /// The driver's last call, made when the driver is dropped. Cancels submitted operations and
    /// waits for their ends, now and whenever a link or listener is dropped later: a ring that is
    /// not driven would keep their sockets open, and their peers waiting, for as long as there are
    /// handles of this transport.
    fn shutdown(&self) {}

    /// Opens a clock for one driver or listener. Sockets use real time, loopback uses Tokio's
    /// (ruling 12).
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] when no descriptor is left for a timer.
    fn open_clock(&self) -> Result<Box<dyn Clock>>;
}

/// The time, and one alarm.
pub(crate) trait Clock: Send {
    fn now(&self) -> Instant;

    /// Ready once `at` has passed, in any case if `at` is not after `now`, a time that the caller
    /// has read lately. Otherwise wakes the task of `cx` at `at`. Another `at` replaces the
    /// previous one. A clock that is not polled wakes no task, except once for a deadline already
    /// set.
    fn poll_deadline(&mut self, at: Instant, now: Instant, cx: &mut Context<'_>) -> Poll<()>;
}

/// Accepts connections at one address.
pub(crate) trait Listener: Send {
    /// Returns the address listened at, with the port that was chosen.
    fn local_addr(&self) -> SocketAddr;

    /// Accepts the next connection. [`ErrorKind::LimitReached`] (descriptors, memory) is temporary:
    /// back off for a while, then poll again. A connection that died in the backlog is skipped.
    /// [`ErrorKind::DriverGone`] is final.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>>;
}

/// Number of bytes that a connection has carried since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteCounts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// A connected TCP socket, blocking or not: each transport sets the mode it needs.
#[derive(Debug)]
pub(crate) struct RawSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) counts: ByteCounts,
}

/// An accepted connection that belongs to no runtime yet; [`Transport::adopt`] gives it one.
#[derive(Debug)]
pub(crate) enum RawLink {
    Socket(RawSocket),
    /// One end of an in-process connection.
    Loopback(loopback::PipeEnd),
    /// A connection with TLS, from its first byte on.
    #[cfg(feature = "tls")]
    Tls(Box<tls::TlsEnd>),
}

impl RawLink {
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]: the connection has no plain socket.
    fn into_socket(self) -> Result<RawSocket> {
        match self {
            RawLink::Socket(socket) => Ok(socket),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                "a connection of another backend cannot become a socket",
            )),
        }
    }
}

#[cfg(test)]
impl RawLink {
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        match self {
            RawLink::Socket(socket) => socket.peer,
            RawLink::Loopback(end) => end.peer_addr(),
            #[cfg(feature = "tls")]
            RawLink::Tls(end) => end.raw().peer_addr(),
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        match self {
            RawLink::Socket(socket) => socket.local,
            RawLink::Loopback(end) => end.local_addr(),
            #[cfg(feature = "tls")]
            RawLink::Tls(end) => end.raw().local_addr(),
        }
    }
}

/// The submissions of a link, by kind. A submission counts until its outcome is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) send: bool,
    pub(crate) receive: bool,
    /// The link watches for the peer's end.
    pub(crate) watch: bool,
    /// The send or the receive holds leases of regions that peers can access.
    pub(crate) leases: bool,
}

/// One connection: moves bytes between submitted memory and the peer. The module's documentation
/// has the rules for all methods.
pub(crate) trait Link: Send {
    /// Returns our address; before [`Outcome::Connected`] it may still lack its port.
    fn local_addr(&self) -> SocketAddr;

    fn peer_addr(&self) -> SocketAddr;

    /// Submits a batch. The link tries the batch at once, so its outcome may exist when this
    /// returns; the next [`Link::poll_outcome`] then returns that outcome before it tries anything
    /// else. A batch that finds no room stays submitted until it moves at least a byte.
    fn send(&mut self, batch: Box<SendBatch>);

    /// Asks for the submitted batch back: the batch ends with `Sent` and `Ok(0)`, or with the
    /// number of bytes it has moved. Otherwise a peer that stops reading could hold the batch's
    /// leases, and so a `revoke`, without a time limit (memory-model rule 4). No effect if nothing
    /// is submitted.
    fn cancel_send(&mut self);

    /// Submits a receive. This call reads nothing.
    fn receive(&mut self, receive: Receive);

    /// Asks for the submitted receive back: its outcome is [`Received::Cancelled`], or its result
    /// if that came first. No effect if no receive is submitted. Ends a [`Link::watch`].
    fn cancel_receive(&mut self);

    /// Returns the submissions whose outcomes have not been taken.
    fn submitted(&self) -> Submitted;

    /// Watches for the peer's end while reading is paused, with no receive submitted: reports once,
    /// by [`Outcome::PeerGone`], that the peer has closed or is gone. Bytes that the peer sent
    /// before stay readable. Ends with the next `receive`.
    fn watch(&mut self);

    /// Tries the submissions until one has an outcome. `None`: none has an outcome now, and the
    /// waker is registered for all of them. Sends and receives take turns, so that neither starves.
    fn poll_outcome(&mut self) -> Option<Outcome>;

    /// Ends the stream to the peer: the peer reads everything that was sent, then end-of-stream.
    /// Call this only while no batch is submitted. Bytes from the peer are still received.
    fn finish(&mut self);

    /// Aborts the connection: the peer sees a reset. Everything submitted, now or later, ends with
    /// [`ErrorKind::ConnectionReset`].
    fn reset(&mut self);

    /// Returns the number of bytes from the peer that no receive has taken, as far as the backend
    /// knows. Once the peer has ended its stream, the rest of a message cannot be longer.
    fn unread_bytes(&self) -> usize;

    /// Returns the system's statistics of the connection, for a heartbeat. `None` for an in-process
    /// connection: there is no system between its ends, and everything sent has arrived.
    fn stats(&self) -> Option<LinkStats>;

    /// Returns the socket, if there is one and the connection is not broken.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Moves the bytes that follow through shared memory, each direction as soon as both sides are
    /// ready for it. Submissions to the link stay submitted. `transport`, which must be the link's
    /// own, watches the doorbell.
    ///
    /// # Errors
    /// As for [`Transport::watch_bell`]; or the link is not connected any more. In both cases
    /// nothing has changed.
    fn localize(&mut self, _parts: LocalParts, _transport: &dyn Transport) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "a link of another kind"))
    }

    /// Begins or ends busy polling by [`Link::try_receive`]. Until its end the peer does not wake
    /// this side for bytes in shared memory; then the waker is registered, or woken.
    fn set_polled(&mut self, _polled: bool) {}

    /// Frees memory that an idle link does not need.
    fn shrink(&mut self) {}

    /// Returns true once the bytes of both directions go through shared memory.
    fn is_local(&self) -> bool {
        false
    }

    /// Makes the system probe the peer's system after a silence (`SO_KEEPALIVE`); without an answer
    /// the connection ends with [`ErrorKind::TimedOut`]. The system does not probe while sent bytes
    /// are unconfirmed: [`LinkStats::unanswered`] covers that case. Returns false if the system
    /// would not notice that the connection is lost.
    fn set_keep_alive(&mut self, keep_alive: KeepAliveConfig) -> bool;

    /// Marks everything sent from now on; without effect within the process, which has no network.
    ///
    /// # Errors
    /// The connection is broken already, or the system refuses.
    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()>;

    /// Takes the connection out of the link, for another transport to adopt. `None` if it is
    /// broken, or while anything is submitted. The link cannot be used afterwards.
    fn take_raw(&mut self) -> Option<RawLink>;

    /// Returns the peer's identity on a secure connection that is up; `None` on a plain connection.
    fn peer_identity(&self) -> Option<PeerIdentity> {
        None
    }

    /// Tries the submitted receive without asking the reactor; for a driver that spins, and before
    /// a heartbeat judges silence. Registrations of [`Link::poll_outcome`] stay. After `Some`, call
    /// that.
    fn try_receive(&mut self) -> Option<Outcome>;

    /// Bounds the bytes of each following send and receive (at least 1 each), for fault injection.
    #[cfg(any(test, feature = "test-util"))]
    fn set_io_sizes(&mut self, sizes: IoSizes);
}

/// The system's statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkStats {
    /// Time since the last byte was received, whether or not a receive has taken it.
    pub(crate) silent: Duration,
    /// Number of sent bytes that the peer's system has confirmed.
    pub(crate) confirmed: u64,
    /// Number of bytes in the socket's send queue: the peer's system has not confirmed them, or has
    /// no room for them.
    pub(crate) unconfirmed: u64,
    /// How long the peer's *system* has not answered bytes, or probes for room, that were sent to
    /// it more than once. Zero while nothing is unanswered. The system of a program that does not
    /// read has no room, but answers each probe.
    pub(crate) unanswered: Duration,
}

/// When the system probes a silent peer's system. Durations are whole seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAliveConfig {
    /// Silence before the first probe.
    pub(crate) idle: Duration,
    /// Time from one probe to the next.
    pub(crate) interval: Duration,
    /// Number of unanswered probes that end the connection.
    pub(crate) count: u32,
}

/// The maximum number of bytes that one send and one receive may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoSizes {
    pub(crate) send: usize,
    pub(crate) receive: usize,
}

impl Default for IoSizes {
    fn default() -> Self {
        IoSizes {
            send: DIRECT_PIECE_MAX,
            receive: DIRECT_PIECE_MAX,
        }
    }
}

/// The destination of the next bytes of the stream.
#[derive(Debug)]
pub(crate) enum Receive {
    /// A staging buffer, which the link takes only when there is something to read.
    Stage,
    /// A staging buffer, for bytes of a payload.
    #[cfg_attr(
        not(feature = "tls"),
        allow(dead_code, reason = "only TLS receives payloads by stages")
    )]
    StageOf { wake_bytes: u32 },
    /// The memory of the message itself.
    Direct(DirectBuffer),
}

impl Receive {
    /// Returns the number of arrived bytes from which on the link wakes its waker.
    fn wake_bytes(&self) -> u32 {
        match self {
            Receive::Stage => 1,
            Receive::StageOf { wake_bytes } => *wake_bytes,
            Receive::Direct(direct) => direct.wake_bytes,
        }
    }
}

/// The destination `payload[offset..offset + len]` for stream bytes; `len` is at least 1. The
/// leases cover its regions for as long as the receive is armed.
#[derive(Debug)]
pub(crate) struct DirectBuffer {
    pub(crate) payload: Payload,
    pub(crate) offset: usize,
    pub(crate) len: u32,
    pub(crate) leases: Leases,
    /// Fewer bytes than this may stay in the socket without a wake-up: see [`wake_bytes`].
    pub(crate) wake_bytes: u32,
}

/// Returns the number of arrived bytes from which on a receiver is woken, while `left` of the `len`
/// bytes of a payload are missing: a fraction of a large payload, at most `left`. The peer sends
/// these bytes whatever this side does.
pub(crate) fn wake_bytes(len: u64, left: u64) -> u32 {
    let worth = len / WAKES_PER_PAYLOAD;
    if worth < WAKE_BYTES_MIN {
        return 1;
    }
    worth.min(DIRECT_PIECE_MAX as u64).min(left).max(1) as u32
}

/// The end of a submission, or a change of the connection.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The connect that [`Transport::connect`] started has succeeded.
    Connected,
    /// The batch is returned. `Ok(n)`: the first `n` of its remaining bytes are on their way; `n`
    /// is usually less than all, and 0 only after [`Link::cancel_send`], or if memory of the batch
    /// has become inaccessible (its region was revoked or quiesced).
    Sent {
        batch: Box<SendBatch>,
        result: Result<usize>,
    },
    /// The armed receive ended.
    Received(Received),
    /// The event that [`Link::watch`] waits for: [`ErrorKind::PeerClosed`] if the peer ended its
    /// stream, another kind if the connection broke.
    PeerGone(Error),
    /// The connect has failed. Everything submitted to the link ends next, with errors.
    Failed(Error),
}

impl Outcome {
    /// Returns how many bytes were moved.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Outcome::Sent { result, .. } => *result.as_ref().unwrap_or(&0),
            Outcome::Received(Received::Stage(stage)) => stage.len(),
            Outcome::Received(Received::Direct { len, .. }) => *len,
            _ => 0,
        }
    }
}

/// The end of a receive, with the memory that was submitted.
#[derive(Debug)]
pub(crate) enum Received {
    /// At least one byte, in a staging buffer.
    Stage(Stage),
    /// `len` bytes, at least one, from `direct.offset` on.
    Direct { direct: DirectBuffer, len: usize },
    /// The peer ended its stream, and everything it sent has been received.
    End { returned: Option<DirectBuffer> },
    /// The connection broke, or the destination could not be written.
    Failed {
        error: Error,
        returned: Option<DirectBuffer>,
    },
    /// The receive was cancelled, or its region refused access. It took no byte from the stream.
    Cancelled { returned: Option<DirectBuffer> },
}
