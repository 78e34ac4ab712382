//! A datagram endpoint, shared by handles and driver: its operations, and its socket.
//!
//! One lock guards both, as with a connection. The kernel holds no buffer between two calls, so
//! every operation can be taken back at any moment.

mod posting;
mod shutdown;
mod turn;

use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;

use crate::av::AddressVector;
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::id::EndpointId;
use crate::log::emit_held;
use crate::proto::{Dgram, DgramSizes, OpKey};
use crate::stats::{DgramStats, OperationStats};
use crate::sync::{Lock, MutexGuard, Waiters};
use crate::transport::{DatagramOptions, DatagramSocket, Membership, ReceivedDatagram, RecvBuffer};

use super::closed::CloseWatch;
use super::deferred::Deferred;
use super::engine::Engine;
use super::inline_send::InlineSend;
use super::pollable::Pollable;
use super::port::{CounterSet, PortTimers, PortWaker};
use super::report::Report;
use shutdown::DgramShutdown;

pub(crate) struct DgramConfig {
    pub(crate) socket: DatagramOptions,
    pub(crate) sizes: DgramSizes,
    /// Maximum length of a datagram, in bytes.
    pub(crate) message_max: usize,
    pub(crate) vector: AddressVector,
    pub(crate) counters: CounterSet,
}

/// Everything that the lock guards.
struct State {
    machine: Dgram<Report>,
    /// `None` once it is closed.
    socket: Option<Box<dyn DatagramSocket>>,
    vector: AddressVector,
    counters: CounterSet,
    /// Statistics of operations that have ended.
    operations: OperationStats,
    backend_sends: u64,
    backend_receives: u64,
    /// Number of datagrams that the system had dropped when the socket was closed.
    dropped_before: u64,
    timers: PortTimers,
    shutdown: DgramShutdown,
    /// The wakers of futures that await the end.
    close_waiters: Waiters,
    inline_send: InlineSend,
    /// True if the last receive filled all its places.
    flowing: bool,
    // Empty between calls, kept for their capacity.
    places: Vec<RecvBuffer>,
    keys: Vec<OpKey>,
    arrived: Vec<ReceivedDatagram>,
    departed: Vec<Result<()>>,
    deferred: Deferred,
}

impl State {
    /// Returns the number of datagrams that came and were dropped.
    fn dropped(&self) -> u64 {
        let system = match &self.socket {
            Some(socket) => socket.dropped(),
            None => self.dropped_before,
        };
        self.machine.dropped() + system
    }
}

pub(crate) struct DgramPort {
    id: EndpointId,
    engine: Arc<Engine>,
    local: SocketAddr,
    message_max: usize,
    state: Lock<State>,
    waker: Waker,
    port_waker: Arc<PortWaker>,
}

impl DgramPort {
    /// Opens the socket and enters the port in the engine.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        id: EndpointId,
        config: DgramConfig,
    ) -> Result<Arc<DgramPort>> {
        engine.check_alive()?;
        let port_waker = PortWaker::new(engine);
        let waker = Waker::from(Arc::clone(&port_waker));
        let socket = engine
            .transport
            .open_datagrams(&config.socket, waker.clone())?;
        let local = socket.local_addr();
        let state = State {
            machine: Dgram::new(config.sizes),
            socket: Some(socket),
            vector: config.vector,
            counters: config.counters,
            operations: OperationStats::default(),
            backend_sends: 0,
            backend_receives: 0,
            dropped_before: 0,
            timers: PortTimers::default(),
            shutdown: DgramShutdown::default(),
            close_waiters: Waiters::default(),
            inline_send: InlineSend::default(),
            flowing: false,
            places: Vec::new(),
            keys: Vec::new(),
            arrived: Vec::new(),
            departed: Vec::new(),
            deferred: Deferred::default(),
        };
        let port = Arc::new(DgramPort {
            id,
            engine: Arc::clone(engine),
            local,
            message_max: config.message_max,
            state: Lock::new(state),
            waker,
            port_waker,
        });
        let pollable: Arc<dyn Pollable> = Arc::clone(&port) as _;
        port.port_waker.insert_port(engine, pollable)?;
        // The socket reports datagrams only once it has been polled.
        port.waker.wake_by_ref();
        Ok(port)
    }

    fn lock(&self, purpose: &'static str) -> Guard<'_> {
        Guard {
            state: Some(self.state.lock(purpose)),
        }
    }

    /// Returns the address that the socket is bound to.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the maximum length of a datagram, in bytes.
    pub(crate) fn message_max(&self) -> usize {
        self.message_max
    }

    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        let state = self.lock("phase");
        state.machine.phase(key).unwrap_or(Phase::Ended)
    }

    /// Returns the bytes of datagrams kept for later receives.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").machine.held_bytes()
    }

    /// Returns the number of datagrams that came and were dropped, here or by the system.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock("dropped").dropped()
    }

    pub(crate) fn stats(&self) -> DgramStats {
        let state = self.lock("stats");
        DgramStats {
            operations: state.operations,
            dropped: state.dropped(),
            backend_sends: state.backend_sends,
            backend_receives: state.backend_receives,
            ..state.machine.stats()
        }
    }

    /// Makes the interface of `membership` the one through which datagrams to groups are sent. Also
    /// joins the group if its datagrams are to be received (`hears`).
    pub(crate) fn join_group(&self, membership: Membership, hears: bool) -> Result<()> {
        let here = self.local.ip();
        let same = matches!(
            (here, membership.group),
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))
        );
        if !same {
            let what = format!("the group {} is of another family", membership.group);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if hears && !here.is_unspecified() && here != membership.group {
            let what = format!(
                "an endpoint at {here} hears no group: bind it to all addresses, or join for \
                 sending only"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mut state = self.lock("join a group");
        let socket = state.socket.as_mut().ok_or_else(closed)?;
        if hears {
            socket.join_group(membership)
        } else {
            socket.set_multicast_interface(membership)
        }
    }

    /// Reverts `join_group`.
    pub(crate) fn leave_group(&self, membership: Membership) -> Result<()> {
        match &mut self.lock("leave a group").socket {
            Some(socket) => socket.leave_group(membership),
            None => Ok(()),
        }
    }

    /// Begins the orderly close: queued sends are sent if there is room for them, then everything
    /// ends.
    pub(crate) fn begin_close(&self) {
        self.lock("begin close").shutdown.request();
        self.waker.wake_by_ref();
    }
}

impl CloseWatch for DgramPort {
    fn with_end<R>(&self, run: impl FnOnce(bool, &mut Waiters) -> R) -> R {
        let mut state = self.lock("closed");
        let has_ended = state.shutdown.is_closed();
        run(has_ended, &mut state.close_waiters)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::BadState, "the endpoint is closed")
}

debug_fields!(DgramPort, self => id: self.id, local: self.local);

/// The held lock. Its drop releases the lock, then wakes the wakers collected under it.
struct Guard<'a> {
    state: Option<MutexGuard<'a, State>>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().expect("held until dropped")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("held until dropped")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.state.take() {
            let deferred = state.deferred.take();
            drop(state);
            emit_held();
            deferred.run();
        }
    }
}
