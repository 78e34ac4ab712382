//! UDP sockets, whoever tells of their readiness.
//!
//! What ICMP says of an earlier datagram the system tells at the next call, where it concerns
//! nobody: such errors are passed over ([`is_of_the_past`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::calls::{interrupted, local_addr, would_block};
use super::{Side, mmsg};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::transport::PortRange;
use crate::transport::udp::{
    Arrived, DatagramOptions, DatagramSocket, Departing, Membership, More, Place,
};

/// Errors of the past that are passed over in a row; each call takes the one there is.
const PASSED_OVER_MAX: usize = 8;

/// Opens a bound, non-blocking UDP socket; on a port of the range if the options name none.
pub(in crate::transport) fn open(
    options: &DatagramOptions,
    ports: Option<PortRange>,
) -> Result<OwnedFd> {
    let open = |bind: SocketAddr| {
        let kind = Type::DGRAM.nonblocking();
        let socket = Socket::new(Domain::for_address(bind), kind, Some(Protocol::UDP))
            .map_err(|error| Error::from_io(&error, "opening a socket"))?;
        (|| {
            if bind.is_ipv6() {
                // Its address vector has addresses of one family, and so has what comes.
                socket.set_only_v6(true)?;
            }
            if options.shared {
                socket.set_reuse_address(true)?;
            }
            if let Some(bytes) = options.buffer_bytes {
                socket.set_recv_buffer_size(bytes)?;
                socket.set_send_buffer_size(bytes)?;
            }
            // Only groups that this very socket has joined are heard.
            if bind.is_ipv4() {
                socket.set_multicast_all_v4(false)?;
            } else {
                socket.set_multicast_all_v6(false)?;
            }
            socket.bind(&bind.into())
        })()
        .map_err(|error| Error::from_io(&error, "binding a datagram socket"))?;
        Ok(OwnedFd::from(socket))
    };
    match ports {
        Some(ports) if options.bind.port() == 0 => {
            ports.first_free(|port| open(SocketAddr::new(options.bind.ip(), port)))
        }
        _ => open(options.bind),
    }
}

/// What a call has moved, and whether the next one would block.
pub(in crate::transport) struct Moved {
    pub(in crate::transport) count: usize,
    pub(in crate::transport) drained: bool,
}

/// Tells when a socket is ready, and tries calls on it then.
pub(in crate::transport) trait Readiness: Send {
    fn fd(&self) -> &OwnedFd;

    /// Makes the call if the side is ready, again until it does not block. `None`: it would, and
    /// the waker is registered. The outer error is the reactor's, the inner one the call's.
    fn attempt(
        &mut self,
        side: Side,
        call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Option<Result<io::Result<Moved>>>;

    /// The next call on the reading side is tried in any case.
    fn look(&mut self);
}

/// A UDP socket.
pub(in crate::transport) struct UdpSocket<R> {
    readiness: R,
    local: SocketAddr,
    /// Datagrams alike go to the system as one buffer, until it refuses one.
    couples: bool,
}

impl<R: Readiness> UdpSocket<R> {
    pub(in crate::transport) fn new(readiness: R) -> Result<Self> {
        let local = local_addr(readiness.fd())
            .map_err(|error| Error::from_io(&error, "opening a datagram socket"))?;
        Ok(UdpSocket {
            readiness,
            local,
            couples: true,
        })
    }

    fn option(&self, set: impl FnOnce(SockRef<'_>) -> io::Result<()>) -> Result<()> {
        set(SockRef::from(&self.readiness.fd().as_fd()))
            .map_err(|error| Error::from_io(&error, "a multicast group"))
    }
}

impl<R: Readiness> DatagramSocket for UdpSocket<R> {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn send(&mut self, datagrams: &[Departing<'_>], ended: &mut Vec<Result<()>>) {
        let mut at = 0;
        let mut passed_over = 0;
        while at < datagrams.len() {
            let left = &datagrams[at..];
            let couples = self.couples;
            let tried = self.readiness.attempt(Side::Write, |fd| {
                mmsg::send(fd, left, couples).map(|count| Moved {
                    count,
                    drained: false,
                })
            });
            match tried {
                None => return,
                // Without its reactor nothing moves; the driver is being dropped.
                Some(Err(error)) if error.kind() == ErrorKind::DriverGone => return,
                Some(Err(error)) => {
                    ended.push(Err(error));
                    at += 1;
                }
                Some(Ok(Ok(moved))) => {
                    ended.extend((0..moved.count).map(|_| Ok(())));
                    at += moved.count;
                    passed_over = 0;
                }
                Some(Ok(Err(error))) if is_of_the_past(&error) && passed_over < PASSED_OVER_MAX => {
                    passed_over += 1;
                }
                Some(Ok(Err(error))) if self.couples && left.len() > 1 && cuts_not(&error) => {
                    self.couples = false;
                }
                Some(Ok(Err(error))) => {
                    ended.push(Err(send_error(&error).with_peer(left[0].to)));
                    at += 1;
                }
            }
        }
    }

    fn receive(&mut self, places: &mut [Place], arrived: &mut Vec<Arrived>) -> More {
        for _ in 0..PASSED_OVER_MAX {
            let tried =
                (self.readiness).attempt(Side::Read, |fd| mmsg::receive(fd, &mut *places, arrived));
            match tried {
                None | Some(Err(_)) => return More::No,
                Some(Ok(Ok(_))) => return More::Maybe,
                Some(Ok(Err(error))) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return More::Fault;
                }
                // Told once each; memory that is short for a moment is asked for again.
                Some(Ok(Err(error))) => tracing::debug!(%error, "receiving datagrams goes on"),
            }
        }
        More::Maybe
    }

    fn join(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(group) => socket.join_multicast_v4(&group, &interface_v4(membership)?),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, membership.scope_id),
        })?;
        self.send_by(membership)
    }

    fn send_by(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(_) => socket.set_multicast_if_v4(&interface_v4(membership)?),
            IpAddr::V6(_) => socket.set_multicast_if_v6(membership.scope_id),
        })
    }

    fn leave(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(group) => socket.leave_multicast_v4(&group, &interface_v4(membership)?),
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, membership.scope_id),
        })
    }

    fn dropped(&self) -> u64 {
        mmsg::dropped(self.readiness.fd())
    }

    fn look(&mut self) {
        self.readiness.look();
    }
}

fn interface_v4(membership: Membership) -> io::Result<Ipv4Addr> {
    match membership.interface {
        None => Ok(Ipv4Addr::UNSPECIFIED),
        Some(IpAddr::V4(interface)) => Ok(interface),
        Some(IpAddr::V6(_)) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// True for what the network has said of an earlier datagram, and for interruptions.
fn is_of_the_past(error: &io::Error) -> bool {
    interrupted(error) || error.raw_os_error() == Some(libc::ECONNREFUSED)
}

/// True for what a system or device says that cannot cut a buffer into datagrams; each by itself
/// may find its way.
fn cuts_not(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)
    )
}

fn send_error(error: &io::Error) -> Error {
    debug_assert!(!would_block(error), "that is no end");
    let doing = "sending a datagram";
    let named = match error.raw_os_error() {
        Some(libc::EMSGSIZE) => Error::new(ErrorKind::TooLarge, format!("{doing}: {error}")),
        _ => Error::from_io(error, doing),
    };
    named.with_operation(OperationKind::Send)
}
