//! Connections within the process: no sockets and no kernel, but the same guarantees. They serve
//! tests that need no network, and endpoints in the same process.
//!
//! A [`LoopbackNet`] has an address space of its own: a listener in one net is not seen in another.
//! Bytes are copied twice, into a pipe and out of it.

#[cfg(any(test, feature = "test-util"))]
mod attempt;
mod datagrams;
#[cfg(any(test, feature = "test-util"))]
mod hosts;
mod pipe;
#[cfg(any(test, feature = "test-util"))]
mod relay;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use self::datagrams::Inbox;
use self::pipe::Pipe;
use self::stream::{LoopbackStream, PipeConnect};
use super::clock::TokioClock;
use super::manual::RuntimeLife;
use super::stream::StreamLink;
use super::udp::{DatagramOptions, DatagramSocket};
use super::{Backend, Clock, Link, Listener, PortRange, RawLink, Transport, at_port};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::limits::LISTEN_BACKLOG;
use crate::sync::{Lock, WakeList};

#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::hosts::{Host, WireState};

/// An in-process network: the addresses that are listened at.
///
/// Loopback fabrics without a network of their own share [`LoopbackNet::global`].
pub struct LoopbackNet {
    listeners: Lock<HashMap<SocketAddr, Arc<Backlog>>>,
    /// The sockets for datagrams.
    inboxes: Lock<Vec<Weak<Inbox>>>,
    /// The next port to use if none is named.
    next_port: AtomicU16,
    #[cfg(any(test, feature = "test-util"))]
    hosts: hosts::Hosts,
}

impl LoopbackNet {
    /// Makes an empty network, isolated from all others.
    pub fn new() -> Arc<Self> {
        Arc::new(LoopbackNet {
            listeners: Lock::new(HashMap::new()),
            inboxes: Lock::new(Vec::new()),
            next_port: AtomicU16::new(FIRST_EPHEMERAL_PORT),
            #[cfg(any(test, feature = "test-util"))]
            hosts: hosts::Hosts::new(),
        })
    }

    /// Returns the network that a process's loopback fabrics use by default.
    pub fn global() -> Arc<Self> {
        static GLOBAL: LazyLock<Arc<LoopbackNet>> = LazyLock::new(LoopbackNet::new);
        Arc::clone(&GLOBAL)
    }

    fn listen(&self, address: SocketAddr) -> Result<Arc<Backlog>> {
        let mut listeners = self.listeners.lock("listen");
        if listeners.keys().any(|taken| in_conflict(*taken, address)) {
            return Err(
                Error::new(ErrorKind::AddressInUse, format!("listening at {address}"))
                    .with_operation(OperationKind::Listen),
            );
        }
        let backlog = Arc::new(Backlog::default());
        listeners.insert(address, Arc::clone(&backlog));
        Ok(backlog)
    }

    /// Removes this listener. Another listener at the same address stays: it exists if this
    /// listener's host has crashed and restarted.
    fn stop_listening(&self, address: SocketAddr, backlog: &Arc<Backlog>) {
        let mut listeners = self.listeners.lock("stop listening");
        if (listeners.get(&address)).is_some_and(|found| Arc::ptr_eq(found, backlog)) {
            listeners.remove(&address);
        }
    }

    /// Finds the listener for connections to `to`: at that address, or at all addresses.
    fn find(&self, to: SocketAddr) -> Option<Arc<Backlog>> {
        let listeners = self.listeners.lock("find a listener");
        let any_v6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), to.port());
        let any = match to.ip() {
            IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), to.port()),
            IpAddr::V6(_) => any_v6,
        };
        // As with system sockets, a listener at all IPv6 addresses accepts IPv4 too.
        [to, any, any_v6]
            .iter()
            .find_map(|at| listeners.get(at))
            .cloned()
    }

    /// Returns a port if none was named; ports of the connecting side need not be unique.
    fn ephemeral_port(&self) -> u16 {
        let port = self.next_port.fetch_add(1, Ordering::Relaxed);
        // Wraps into the range of dynamic ports.
        port | FIRST_EPHEMERAL_PORT
    }
}

/// The dynamic ports begin here (RFC 6335).
const FIRST_EPHEMERAL_PORT: u16 = 0xC000;

fn in_conflict(taken: SocketAddr, wanted: SocketAddr) -> bool {
    let overlap = taken.ip() == wanted.ip()
        || (taken.ip().is_unspecified() || wanted.ip().is_unspecified())
            && taken.is_ipv4() == wanted.is_ipv4();
    taken.port() == wanted.port() && overlap
}

impl fmt::Debug for LoopbackNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.listeners.lock("debug").len();
        f.debug_struct("LoopbackNet")
            .field("listeners", &count)
            .finish_non_exhaustive()
    }
}

/// One end of a connection, not yet a link. Dropping it closes it: the other end reads the bytes in
/// flight, then the end of the stream.
pub(crate) struct PipeEnd {
    local: SocketAddr,
    peer: SocketAddr,
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    /// True if a wire lies between the ends.
    #[cfg(any(test, feature = "test-util"))]
    is_relayed: bool,
}

impl PipeEnd {
    fn pair(connecting: SocketAddr, accepting: SocketAddr) -> (PipeEnd, PipeEnd) {
        let (there, back) = (Arc::new(Pipe::new()), Arc::new(Pipe::new()));
        let near = PipeEnd {
            local: connecting,
            peer: accepting,
            incoming: Arc::clone(&back),
            outgoing: Arc::clone(&there),
            #[cfg(any(test, feature = "test-util"))]
            is_relayed: false,
        };
        let far = PipeEnd {
            local: accepting,
            peer: connecting,
            incoming: there,
            outgoing: back,
            #[cfg(any(test, feature = "test-util"))]
            is_relayed: false,
        };
        (near, far)
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn unread_bytes(&self) -> usize {
        self.incoming.held()
    }

    /// Returns false between hosts: no system probes such a connection, and a loss goes unnoticed.
    fn is_kept_alive(&self) -> bool {
        #[cfg(any(test, feature = "test-util"))]
        return !self.is_relayed;
        #[cfg(not(any(test, feature = "test-util")))]
        true
    }

    fn reset(&self) {
        self.outgoing.reset();
        self.incoming.reset();
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.outgoing.finish();
        self.incoming.abandon();
    }
}

debug_fields!(PipeEnd, self => local: self.local, peer: self.peer);

/// Connections that wait to be accepted.
#[derive(Debug)]
struct Backlog {
    state: Lock<BacklogState>,
}

#[derive(Debug, Default)]
struct BacklogState {
    waiting: VecDeque<PipeEnd>,
    closed: bool,
    waker: Option<Waker>,
}

impl Default for Backlog {
    fn default() -> Self {
        Backlog {
            state: Lock::new(BacklogState::default()),
        }
    }
}

impl Backlog {
    /// Hands a connection to the listener; returns it if there is no room, or no listener.
    fn push(&self, end: PipeEnd) -> Result<(), PipeEnd> {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock("connect");
        if state.closed || state.waiting.len() >= LISTEN_BACKLOG.into() {
            return Err(end);
        }
        state.waiting.push_back(end);
        if let Some(waker) = state.waker.take() {
            wakes.push(waker);
        }
        // The list wakes when it is dropped, which is after the guard.
        drop(state);
        Ok(())
    }

    fn poll_pop(&self, cx: &Context<'_>) -> Poll<PipeEnd> {
        let mut state = self.state.lock("accept");
        match state.waiting.pop_front() {
            Some(end) => Poll::Ready(end),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn close(&self) {
        let refused = {
            let mut state = self.state.lock("close a listener");
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        for end in refused {
            end.reset();
        }
    }
}

/// Makes links within one [`LoopbackNet`].
pub(super) struct LoopbackTransport {
    net: Arc<LoopbackNet>,
    runtime: Handle,
    /// Set if the application drives by hand.
    life: Option<Arc<RuntimeLife>>,
    ports: Option<PortRange>,
    /// The host, in the network, that the transport belongs to.
    #[cfg(any(test, feature = "test-util"))]
    host: Option<Host>,
}

impl LoopbackTransport {
    pub(super) fn new(net: Arc<LoopbackNet>, runtime: Handle, ports: Option<PortRange>) -> Self {
        LoopbackTransport {
            net,
            runtime,
            life: None,
            ports,
            #[cfg(any(test, feature = "test-util"))]
            host: None,
        }
    }

    /// Sets the life of the runtime, since its clocks are also polled outside of the runtime.
    pub(super) fn with_life(self, life: Option<Arc<RuntimeLife>>) -> Self {
        LoopbackTransport { life, ..self }
    }

    /// Makes a link in the state `connect`: connecting, connected or refused.
    fn connecting(&self, near: PipeEnd, connect: PipeConnect, waker: Waker) -> Box<dyn Link> {
        let (local, peer) = (near.local_addr(), near.peer_addr());
        let stream = LoopbackStream::new(near, connect);
        Box::new(StreamLink::connecting(stream, local, peer, waker))
    }

    /// Translates an address of this transport's own side.
    fn own(&self, address: SocketAddr) -> Result<SocketAddr> {
        #[cfg(any(test, feature = "test-util"))]
        if let Some(host) = &self.host {
            host.check_up()?;
            return Ok(host.localize(address));
        }
        Ok(address)
    }
}

impl Transport for LoopbackTransport {
    fn backend(&self) -> Backend {
        Backend::Loopback
    }

    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>> {
        let address = self.own(address)?;
        let open = |port| {
            let address = at_port(address, port);
            let backlog = self.net.listen(address)?;
            Ok(LoopbackListener {
                net: Arc::clone(&self.net),
                address,
                backlog,
            })
        };
        let listener = match (address.port(), self.ports) {
            (0, Some(ports)) => ports.first_free_from(0, open)?,
            (0, None) => PortRange::new(FIRST_EPHEMERAL_PORT..=u16::MAX)?
                .first_free_from(0, |_| open(self.net.ephemeral_port()))?,
            (port, _) => open(port)?,
        };
        Ok(Box::new(listener))
    }

    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        #[cfg(any(test, feature = "test-util"))]
        if let Some(host) = self.host_for(to) {
            return self.connect_hosts(&host, to, from, waker);
        }
        let to = match to.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, to.port()).into(),
            IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, to.port()).into(),
            _ => to,
        };
        let mut local = from.unwrap_or_else(|| SocketAddr::new(to.ip(), 0));
        if local.ip().is_unspecified() {
            local.set_ip(to.ip());
        }
        if local.port() == 0 {
            local.set_port(self.net.ephemeral_port());
        }
        let (near, far) = PipeEnd::pair(local, to);
        let connect = match self.net.find(to).is_some_and(|to| to.push(far).is_ok()) {
            true => PipeConnect::Accepted,
            false => PipeConnect::Refused,
        };
        Ok(self.connecting(near, connect, waker))
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        let RawLink::Loopback(end) = raw else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a connection of another backend cannot become a loopback link",
            ));
        };
        let (local, peer) = (end.local_addr(), end.peer_addr());
        let stream = LoopbackStream::new(end, PipeConnect::Accepted);
        Ok(Box::new(StreamLink::connected(stream, local, peer, waker)))
    }

    fn open_datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>> {
        let open = |port| {
            let bind = self.own(at_port(options.bind, port))?;
            self.net.open_datagrams(bind, options, waker.clone())
        };
        let socket = match (options.bind.port(), self.ports) {
            (0, Some(ports)) => ports.first_free_from(0, open)?,
            (0, None) => PortRange::new(FIRST_EPHEMERAL_PORT..=u16::MAX)?
                .first_free_from(0, |_| open(self.net.ephemeral_port()))?,
            (port, _) => open(port)?,
        };
        Ok(Box::new(socket))
    }

    #[cfg(any(test, feature = "test-util"))]
    fn check_up(&self) -> Result<()> {
        self.host.as_ref().map_or(Ok(()), Host::check_up)
    }

    fn poll_drive(&self, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn open_clock(&self) -> Result<Box<dyn Clock>> {
        let clock = TokioClock::new(self.runtime.clone(), self.life.clone());
        Ok(Box::new(clock))
    }
}

debug_fields!(LoopbackTransport, self => net: self.net);

/// Listens until it is dropped; connections that were not accepted are then reset.
struct LoopbackListener {
    net: Arc<LoopbackNet>,
    address: SocketAddr,
    backlog: Arc<Backlog>,
}

impl Listener for LoopbackListener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawLink>> {
        self.backlog
            .poll_pop(cx)
            .map(|end| Ok(RawLink::Loopback(end)))
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        self.net.stop_listening(self.address, &self.backlog);
        self.backlog.close();
    }
}
