//! TCP sockets, driven by readiness: Tokio's reactor reports when a socket may be read or written,
//! and `sendmsg`/`recvmsg` on raw iovecs move the bytes.
//!
//! Readiness is edge-triggered, so every path follows one rule ([`poll_io`]): a socket counts as
//! ready until a call on it would block. Then Tokio's readiness is cleared, and the waker
//! registered. Tokio ignores the clear if a newer event came meanwhile, so no edge is lost in
//! between.
//!
//! # Unsafe code
//!
//! Five things need it: system calls on raw iovecs, because no Rust slice may be formed over the
//! bytes of a region (memory-model rule 2; see [`calls`] and, for datagrams, [`mmsg`]); the
//! registration of descriptors ([`Watched::new`]), where the object that registers a descriptor
//! owns it; and three calls on a connection that have no safe form: [`tcp_info()`], [`low_water`]
//! and [`source_port`].

mod calls;
mod clock;
mod doorbell;
mod listener;
mod low_water;
mod mmsg;
mod readiness;
mod source_port;
mod stream;
mod tcp_info;
mod udp;
mod watched;

// Shared with the ring backend.
pub(super) use self::calls::{interrupted, local_addr, would_block};
pub(super) use self::clock::TimerClock;
pub(crate) use self::tcp_info::tcp_info;
pub(super) use self::watched::Poller;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
pub(super) use self::{
    calls::{connect_result, send_some},
    listener::{accept_error, accepted, died_in_backlog},
    stream::receive,
    tcp_info::{set_keep_alive, stats},
    udp::{Moved, Readiness, UdpSocket, open as open_datagrams},
};

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::runtime::Handle;

use self::watched::{ReadyGuard, Watched};
use super::stream::StreamLink;
use super::udp::{DatagramOptions, DatagramSocket};
use super::{Backend, Clock, Doorbell, Link, Listener, PortRange, RawLink, Transport, at_port};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::limits::LISTEN_BACKLOG;

/// TCP on the reactor of one Tokio runtime.
pub(super) struct EpollTransport {
    runtime: Handle,
    /// Set if the application drives by hand.
    poller: Option<Arc<Poller>>,
    ports: Option<PortRange>,
}

impl EpollTransport {
    /// Makes a transport on `runtime`, which must have I/O enabled
    /// ([`runtime_for`](super::select::runtime_for) ensures it). All links, listeners and sockets
    /// of the transport belong to that runtime. A listener on port 0 chooses from `ports`.
    pub(super) fn new(runtime: Handle, ports: Option<PortRange>) -> Self {
        EpollTransport {
            runtime,
            poller: None,
            ports,
        }
    }

    /// Registers sockets with this poller as well.
    pub(super) fn with_poller(self, poller: Option<Arc<Poller>>) -> Self {
        EpollTransport { poller, ..self }
    }
}

impl EpollTransport {
    fn stream(&self, fd: OwnedFd) -> Result<stream::EpollStream> {
        stream::EpollStream::new(fd, self.poller.as_ref())
    }
}

impl Transport for EpollTransport {
    fn backend(&self) -> Backend {
        Backend::Epoll
    }

    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>> {
        let socket = bound_listener(address, self.ports)?;
        let _runtime = self.runtime.enter();
        Ok(Box::new(listener::EpollListener::new(
            socket.into(),
            self.poller.as_ref(),
        )?))
    }

    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        let (fd, local) = started_connect(to, from)?;
        let _runtime = self.runtime.enter();
        let stream = self.stream(fd)?;
        Ok(Box::new(StreamLink::connecting(stream, local, to, waker)))
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        let raw = raw.into_socket()?;
        let _runtime = self.runtime.enter();
        let stream = self.stream(raw.fd)?;
        let link = StreamLink::connected(stream, raw.local, raw.peer, waker);
        Ok(Box::new(link.with_counts(raw.counts)))
    }

    fn open_datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>> {
        let fd = udp::open(options, self.ports)?;
        let readiness =
            readiness::EpollReadiness::new(&self.runtime, self.poller.clone(), fd, waker)?;
        Ok(Box::new(udp::UdpSocket::new(readiness)?))
    }

    fn may_localize(&self) -> bool {
        true
    }

    fn watch_bell(&self, bell: OwnedFd, waker: Waker) -> Result<Box<dyn Doorbell>> {
        let _runtime = self.runtime.enter();
        let poller = self.poller.as_ref();
        let bell = register_for(bell, Interest::READABLE, poller, "watching a doorbell")?;
        Ok(Box::new(doorbell::EpollDoorbell { bell, waker }))
    }

    fn poll_drive(&self, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Pending
    }

    fn open_clock(&self) -> Result<Box<dyn Clock>> {
        let _runtime = self.runtime.enter();
        Ok(Box::new(TimerClock::new()?))
    }
}

debug_fields!(EpollTransport, self => ports: self.ports);

/// Fails if no descriptor can be registered with the reactor of the current runtime. Tokio panics
/// if the runtime has I/O disabled.
pub(super) fn probe_reactor() -> Result<()> {
    TimerClock::new().map(drop)
}

/// Makes a socket that listens at `address`. If the address has no port and a range is given,
/// chooses a port of the range.
pub(super) fn bound_listener(address: SocketAddr, ports: Option<PortRange>) -> Result<Socket> {
    match ports {
        Some(ports) if address.port() == 0 => {
            ports.first_free(|port| bind_listener(at_port(address, port)))
        }
        _ => bind_listener(address),
    }
}

fn bind_listener(address: SocketAddr) -> Result<Socket> {
    let socket = stream_socket(address)?;
    (|| {
        // A restarted server need not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // Set in any case, whatever the system's default is (`net.ipv6.bindv6only`).
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG.into())
    })()
    .map_err(|error| listen_error(&error, "listening"))?;
    Ok(socket)
}

/// Makes a non-blocking socket on which a connect has begun; returns the socket and its local
/// address, which may lack the port. The socket becomes writable when the connect has ended.
pub(super) fn started_connect(
    to: SocketAddr,
    from: Option<SocketAddr>,
) -> Result<(OwnedFd, SocketAddr)> {
    let named = |error: Error| error.with_operation(OperationKind::Connect).with_peer(to);
    let socket = stream_socket(to).map_err(named)?;
    let bound = (|| {
        socket.set_tcp_nodelay(true)?;
        let Some(from) = from else {
            return Ok(());
        };
        match from.port() {
            0 => source_port::leave_to_connect(&socket)?,
            _ => socket.set_reuse_address(true)?,
        }
        socket.bind(&from.into())
    })();
    bound.map_err(|error| named(Error::from_io(&error, "binding the source address")))?;
    match socket.connect(&to.into()) {
        Err(error) if is_in_progress(&error) => {}
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            return Err(named(source_port::none_left(&error, to, from)));
        }
        Err(error) => return Err(named(Error::from_io(&error, "connecting"))),
        Ok(()) => {}
    }
    let fd = OwnedFd::from(socket);
    let unspecified = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let local = local_addr(&fd).ok().or(from).unwrap_or(unspecified);
    Ok((fd, local))
}

/// Makes a non-blocking, close-on-exec TCP socket of the address's family.
fn stream_socket(address: SocketAddr) -> Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))
        .map_err(|error| Error::from_io(&error, "opening a socket"))
}

pub(super) fn listen_error(error: &io::Error, doing: &'static str) -> Error {
    Error::from_io(error, doing).with_operation(OperationKind::Listen)
}

/// Returns true if the connect continues in the background, also after `EINTR` (connect(2)).
fn is_in_progress(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR))
}

/// Registers a descriptor with the reactor of the current runtime, and a poller.
fn register(fd: OwnedFd, poller: Option<&Arc<Poller>>, doing: &'static str) -> Result<Watched> {
    register_for(fd, Interest::READABLE | Interest::WRITABLE, poller, doing)
}

fn register_for(
    fd: OwnedFd,
    interest: Interest,
    poller: Option<&Arc<Poller>>,
    doing: &'static str,
) -> Result<Watched> {
    Watched::new(fd, interest, poller).map_err(|error| match error.raw_os_error() {
        Some(_) => Error::from_io(&error, doing),
        // An error without a number is Tokio's, and Tokio has only this one.
        None => driver_gone(),
    })
}

/// A direction of readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoDirection {
    Read,
    Write,
}

/// Polls the readiness of one direction; pending registers `waker` for it.
///
/// Ignores Tokio's cooperative budget: once that is spent, Tokio would report a ready socket as
/// pending and wake the waker from within this call. The caller bounds its work itself, and often
/// does not run in the task that owns the budget.
fn poll_ready<'a>(
    fd: &'a Watched,
    direction: IoDirection,
    waker: &Waker,
) -> Poll<Result<ReadyGuard<'a>>> {
    if let Some(ready) = fd.poll_polled(direction, waker) {
        return Poll::Ready(Ok(ready));
    }
    let reactor = fd.reactor();
    let ready = tokio::task::unconstrained(poll_fn(|cx| match direction {
        IoDirection::Read => reactor.poll_read_ready(cx),
        IoDirection::Write => reactor.poll_write_ready(cx),
    }));
    pin!(ready)
        .poll(&mut Context::from_waker(waker))
        .map_ok(|guard| fd.ready_by_reactor(guard))
        .map_err(|_| driver_gone())
}

/// Makes the call each time the reactor reports the socket ready, until a call does not block.
/// `call` returns its value, and whether the next call would block. Pending: the waker is
/// registered. The outer error is the reactor's, the inner error the call's.
fn poll_io<T>(
    fd: &Watched,
    direction: IoDirection,
    waker: &Waker,
    mut call: impl FnMut(&OwnedFd) -> io::Result<(T, bool)>,
) -> Poll<Result<io::Result<T>>> {
    loop {
        match fd.try_io(direction, &mut call) {
            Err(error) if would_block(&error) => {}
            Err(error) if interrupted(&error) => continue,
            result => return Poll::Ready(Ok(result)),
        }
        match poll_ready(fd, direction, waker) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(mut guard)) => guard.retain_ready(),
        }
    }
}

/// Makes the error of a reactor whose runtime has been shut down; Tokio's readiness fails for no
/// other reason.
fn driver_gone() -> Error {
    Error::new(
        ErrorKind::DriverGone,
        "the runtime that watches this socket has been shut down",
    )
}
