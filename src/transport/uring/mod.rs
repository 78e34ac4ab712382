//! TCP sockets by completions: one io_uring per transport, whose descriptor is in Tokio's reactor.
//! [`Transport::poll_drive`] harvests completions and submits pushed entries. Alternatively, a
//! dedicated thread sleeps in the ring itself: [`thread`].
//!
//! The call that submits a send tries it, as most sends find room, unless many connections are
//! active and a driver is sure to submit: [`active`]. The other sends and all receives go through
//! the ring. See [`ring`] for locks, [`teardown`] for the end of operations, [`op`] for the
//! ownership of memory, [`bufs`] for the buffers of staged receives, [`stream`] for the rule of one
//! receive per socket.
//!
//! # Unsafe code
//!
//! The kernel follows pointers long after the call that passed them, so each pointer leads to
//! memory that lives until the operation's completion (memory-model rules 1 and 7), even if its
//! link is dropped or leaked: [`op`]. The queues are shared with the kernel, and used under one
//! lock: [`ring`]. Region bytes are named by raw lists only (rule 2), under the leases that came
//! with them (rule 4).
//!
//! # Operations of the ring
//!
//! All receives go through the ring, one per socket at any time: staged receives, into buffers
//! provided to the kernel (multishot if a connection has no others), and direct receives, into
//! their destination. A send goes through the ring only if it finds no room in the socket, or if
//! many connections are active: one system call then submits their sends together. Nothing that the
//! driver submits wakes it (`Transport::try_park`).
//!
//! The kernel completes an operation in the thread that submitted it. A multishot receive that
//! keeps completing in another thread than the driver's is submitted again. If the driver is a
//! thread, only that thread enters the kernel; others push entries and notify it by an eventfd that
//! the ring watches.

mod active;
mod bufs;
mod companion;
mod completions;
mod deferred;
#[cfg(test)]
pub(in crate::transport) mod filter;
mod harvest;
mod listener;
pub(in crate::transport) mod op;
pub(in crate::transport) mod probe;
mod readiness;
pub(in crate::transport) mod ring;
mod stream;
mod submit;
mod teardown;
mod thread;
mod thread_id;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::epoll::{TimerClock, UdpSocket, bound_listener, open_datagrams, started_connect};
use super::stream::StreamLink;
use super::udp::{DatagramOptions, DatagramSocket};
use super::{Backend, Clock, Doorbell, Link, Listener, PortRange, RawLink, RingInfo, Transport};
use crate::error::Result;
use crate::limits::{RING_BUFFER_SIZE, RING_BUFFERS, RING_COMPLETIONS, RING_SUBMISSIONS};

/// TCP on a ring.
pub(super) struct UringTransport {
    driven_by: DrivenBy,
    ports: Option<PortRange>,
    ring: Arc<ring::Ring>,
}

/// The driver of the ring.
enum DrivenBy {
    /// A task, in the reactor of this runtime.
    Runtime(Handle),
    /// A thread of its own.
    Thread(Arc<thread::WakeState>),
}

impl UringTransport {
    /// Makes a transport that belongs to the thread that begins the reactor.
    ///
    /// # Errors
    /// As for [`UringTransport::new`].
    pub(super) fn for_thread(ports: Option<PortRange>) -> Result<(Self, thread::RingThread)> {
        Self::for_thread_with_sizes(ports, RING_SUBMISSIONS, RING_COMPLETIONS)
    }

    /// As [`UringTransport::for_thread`], with queues of these sizes, each a power of two.
    pub(super) fn for_thread_with_sizes(
        ports: Option<PortRange>,
        submissions: u32,
        completions: u32,
    ) -> Result<(Self, thread::RingThread)> {
        let refused = |error| probe::refusal_of(&error);
        let wake_state = thread::WakeState::new().map_err(refused)?;
        let ring = ring::Ring::for_thread(submissions, completions).map_err(refused)?;
        let reactor = thread::RingThread::new(Arc::clone(&ring), Arc::clone(&wake_state));
        let driven_by = DrivenBy::Thread(wake_state);
        let transport = UringTransport {
            driven_by,
            ports,
            ring,
        };
        Ok((transport, reactor))
    }

    /// Makes a transport on `runtime`, which must have I/O enabled and whose driver polls
    /// [`Transport::poll_drive`]. All links, listeners and sockets of the transport belong to that
    /// runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the kernel lacks or refuses
    /// io_uring or a needed operation.
    pub(super) fn new(runtime: Handle, ports: Option<PortRange>) -> Result<Self> {
        Self::with_sizes(runtime, ports, RING_SUBMISSIONS, RING_COMPLETIONS)
    }

    /// As [`UringTransport::new`], with queues of these sizes, each a power of two.
    pub(super) fn with_sizes(
        runtime: Handle,
        ports: Option<PortRange>,
        submissions: u32,
        completions: u32,
    ) -> Result<Self> {
        let ring = {
            let _runtime = runtime.enter();
            ring::Ring::new(submissions, completions).map_err(|error| probe::refusal_of(&error))?
        };
        Ok(UringTransport {
            driven_by: DrivenBy::Runtime(runtime),
            ports,
            ring,
        })
    }

    /// From now on tries each send in the call that submits it: with manual progress, possibly no
    /// task waits to drive.
    pub(super) fn sending_at_once(self) -> Self {
        self.ring.with(|state, _| state.active.turn_off());
        self
    }

    /// Returns how many staged receives this thread has submitted.
    #[cfg(test)]
    pub(super) fn armed_here(&self) -> usize {
        self.ring.armed_here()
    }

    /// Returns the keys of the operations that the kernel has.
    #[cfg(test)]
    pub(super) fn ops(&self) -> Vec<crate::slab::Key> {
        self.ring.with(|state, _| state.ops.keys())
    }

    /// Returns true while sends are gathered.
    #[cfg(test)]
    pub(super) fn batches_sends(&self) -> bool {
        self.ring.batches_sends()
    }

    /// Returns how many operations the kernel has.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns the ring, while it lives.
    #[cfg(test)]
    pub(super) fn ring(&self) -> std::sync::Weak<dyn std::any::Any + Send + Sync> {
        let ring: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(&self.ring) as _;
        Arc::downgrade(&ring)
    }
}

impl Transport for UringTransport {
    fn backend(&self) -> Backend {
        Backend::IoUring
    }

    fn ring(&self) -> Option<RingInfo> {
        let params = self.ring.ring().params();
        Some(RingInfo {
            submission_entries: params.sq_entries(),
            completion_entries: params.cq_entries(),
            provided_buffers: RING_BUFFERS.into(),
            provided_buffer_size: RING_BUFFER_SIZE,
            is_single_issuer: matches!(self.driven_by, DrivenBy::Thread(_)),
        })
    }

    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>> {
        self.ring.check()?;
        let socket = bound_listener(address, self.ports)?;
        let listener = listener::UringListener::new(&self.ring, socket.into())?;
        Ok(Box::new(listener))
    }

    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        self.ring.check()?;
        let (fd, local) = started_connect(to, from)?;
        let stream = stream::UringStream::new(&self.ring, fd, waker.clone());
        Ok(Box::new(StreamLink::connecting(stream, local, to, waker)))
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        self.ring.check()?;
        let raw = raw.into_socket()?;
        let stream = stream::UringStream::connected(&self.ring, raw.fd, waker.clone())?;
        let link = StreamLink::connected(stream, raw.local, raw.peer, waker);
        Ok(Box::new(link.with_counts(raw.counts)))
    }

    fn open_datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>> {
        self.ring.check()?;
        let fd = open_datagrams(options, self.ports)?;
        let readiness = readiness::UringReadiness::new(&self.ring, fd, waker);
        Ok(Box::new(UdpSocket::new(readiness)?))
    }

    fn may_localize(&self) -> bool {
        true
    }

    fn watch_bell(&self, bell: OwnedFd, waker: Waker) -> Result<Box<dyn Doorbell>> {
        self.ring.check()?;
        let readiness = readiness::UringReadiness::new(&self.ring, bell, waker);
        Ok(Box::new(readiness))
    }

    fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.ring.poll_drive(cx)
    }

    fn try_park(&self, driver: &Waker) -> bool {
        self.ring.try_park(driver)
    }

    fn has_completions(&self) -> bool {
        self.ring.has_completions()
    }

    fn shutdown(&self) {
        self.ring.shutdown();
    }

    fn open_clock(&self) -> Result<Box<dyn Clock>> {
        match &self.driven_by {
            DrivenBy::Runtime(runtime) => {
                let _runtime = runtime.enter();
                Ok(Box::new(TimerClock::new()?))
            }
            DrivenBy::Thread(wake_state) => {
                Ok(Box::new(thread::ThreadClock::new(Arc::clone(wake_state))))
            }
        }
    }
}

debug_fields!(UringTransport, self => ports: self.ports);
