//! TCP sockets by completions: one io_uring per transport, its descriptor in Tokio's reactor, and
//! whoever polls [`Transport::poll_drive`] takes in what has ended and submits what was pushed. Or
//! a thread of its own sleeps in the ring itself: [`thread`].
//!
//! Sends are tried in the call that submits them, as most find room, unless many connections are at
//! work: [`active`]. The rest and all receives are the ring's. See [`ring`] for locks, [`teardown`]
//! for the end of operations, [`op`] for who owns which memory when, [`bufs`] for the buffers of
//! staged receives, [`link`] for the rule of one receive per socket.
//!
//! # Unsafe code
//!
//! The kernel follows pointers long after the call that gave them, so each lies in a slot that
//! lives until the operation's completion (memory-model rules 1 and 7), also when its link is
//! dropped or leaked: [`op`]. The queues are shared with the kernel, and used under one lock:
//! [`ring`]. Region bytes are named by raw lists only (rule 2), under the leases that came with
//! them (rule 4).

mod active;
mod bufs;
mod completions;
mod deferred;
#[cfg(test)]
pub(in crate::transport) mod filter;
mod harvest;
mod link;
mod listener;
mod op;
pub(in crate::transport) mod probe;
mod readiness;
mod ring;
mod submit;
mod teardown;
mod thread;
mod thread_id;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

#[cfg(feature = "test-util")]
pub(super) use deferred::drop_kept;

use super::epoll::{TimerClock, UdpSocket, bound_listener, open_datagrams, started_connect};
use super::udp::{DatagramOptions, DatagramSocket};
use super::{Backend, Clock, Link, Listener, PortRange, RawLink, Transport};
use crate::buf::{Stage, StagePool};
use crate::error::{Error, ErrorKind, Result};

/// TCP on a ring.
pub(super) struct UringTransport {
    driven_by: RingDriver,
    ports: Option<PortRange>,
    stages: Arc<StagePool>,
    ring: Arc<ring::Ring>,
}

/// Where the ring is looked after.
enum RingDriver {
    /// In the reactor of a runtime.
    Runtime(Handle),
    /// By a thread of its own.
    Thread(Arc<thread::WakeState>),
}

impl UringTransport {
    /// A transport that belongs to a thread: that of the reactor, once it has begun.
    ///
    /// # Errors
    /// As for [`UringTransport::new`].
    pub(super) fn for_thread(
        ports: Option<PortRange>,
        stages: Arc<StagePool>,
    ) -> Result<(Self, thread::RingThread)> {
        Self::for_thread_with_sizes(ports, stages, ring::SUBMISSIONS, ring::COMPLETIONS)
    }

    /// The same with queues of these sizes, each a power of two.
    pub(super) fn for_thread_with_sizes(
        ports: Option<PortRange>,
        stages: Arc<StagePool>,
        submissions: u32,
        completions: u32,
    ) -> Result<(Self, thread::RingThread)> {
        let refused = |error| probe::refusal_of(&error);
        let wake_state = thread::WakeState::new().map_err(refused)?;
        let ring = ring::Ring::for_thread(submissions, completions).map_err(refused)?;
        let reactor = thread::RingThread::new(Arc::clone(&ring), Arc::clone(&wake_state));
        let driven_by = RingDriver::Thread(wake_state);
        let transport = UringTransport {
            driven_by,
            ports,
            stages,
            ring,
        };
        Ok((transport, reactor))
    }

    /// Everything made by this transport lives on `runtime`, which must have I/O enabled and whose
    /// driver polls [`Transport::poll_drive`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the kernel lacks or refuses what is needed.
    pub(super) fn new(
        runtime: Handle,
        ports: Option<PortRange>,
        stages: Arc<StagePool>,
    ) -> Result<Self> {
        Self::with_sizes(runtime, ports, stages, ring::SUBMISSIONS, ring::COMPLETIONS)
    }

    /// The same with queues of these sizes, each a power of two.
    pub(super) fn with_sizes(
        runtime: Handle,
        ports: Option<PortRange>,
        stages: Arc<StagePool>,
        submissions: u32,
        completions: u32,
    ) -> Result<Self> {
        let ring = {
            let _runtime = runtime.enter();
            ring::Ring::new(submissions, completions).map_err(|error| probe::refusal_of(&error))?
        };
        Ok(UringTransport {
            driven_by: RingDriver::Runtime(runtime),
            ports,
            stages,
            ring,
        })
    }

    /// How many staged receives this thread has submitted.
    #[cfg(test)]
    pub(super) fn armed_here(&self) -> usize {
        self.ring.armed_here()
    }

    /// The operations that the kernel has.
    #[cfg(test)]
    pub(super) fn ops(&self) -> Vec<crate::slab::Key> {
        self.ring.with(|state, _| state.ops.keys())
    }

    /// True while several connections are at work.
    #[cfg(test)]
    pub(super) fn batches_sends(&self) -> bool {
        self.ring.batches_sends()
    }

    /// How many operations the kernel has.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Tells whether the ring still lives.
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
        let fd = started_connect(to, from)?.into();
        let stages = Arc::clone(&self.stages);
        let link = link::UringLink::connecting(&self.ring, fd, from, to, waker, stages);
        Ok(Box::new(link))
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        self.ring.check()?;
        let RawLink::Socket { fd, peer, local } = raw else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a connection of another backend cannot become a socket",
            ));
        };
        let stages = Arc::clone(&self.stages);
        let link = link::UringLink::connected(&self.ring, fd, local, peer, waker, stages)?;
        Ok(Box::new(link))
    }

    fn datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>> {
        self.ring.check()?;
        let fd = open_datagrams(options, self.ports)?;
        let readiness = readiness::UringReadiness::new(&self.ring, fd, waker);
        Ok(Box::new(UdpSocket::new(readiness)?))
    }

    fn stage(&self) -> Stage {
        self.stages.take()
    }

    fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.ring.poll_drive(cx)
    }

    fn rest(&self, driver: &Waker) -> bool {
        self.ring.rest(driver)
    }

    fn look(&self) -> bool {
        self.ring.look()
    }

    fn driver_gone(&self) {
        self.ring.driver_gone();
    }

    fn clock(&self) -> Result<Box<dyn Clock>> {
        match &self.driven_by {
            RingDriver::Runtime(runtime) => {
                let _runtime = runtime.enter();
                Ok(Box::new(TimerClock::new()?))
            }
            RingDriver::Thread(wake_state) => {
                Ok(Box::new(thread::ThreadClock::new(Arc::clone(wake_state))))
            }
        }
    }
}

impl fmt::Debug for UringTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringTransport")
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}
