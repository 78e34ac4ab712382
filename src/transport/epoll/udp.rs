//! UDP sockets, with the readiness of a reactor or a ring.
//!
//! An ICMP error belongs to an earlier datagram, but the system returns it from the next call,
//! which concerns another datagram. Such errors are skipped ([`is_of_the_past`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::task::Poll;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::log::hold_event;

use super::calls::{interrupted, local_addr, would_block};
use super::{IoDirection, mmsg};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::limits::DATAGRAM_ERRORS_SKIPPED_MAX;
use crate::transport::udp::{
    DatagramOptions, DatagramSocket, Membership, OutgoingDatagram, ReceivedDatagram, RecvBuffer,
    RecvStatus,
};
use crate::transport::{PortRange, at_port};

/// Opens a bound, non-blocking UDP socket, on a port of the range if the options name no port.
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
                // Set in any case, whatever the system's default is (`net.ipv6.bindv6only`).
                socket.set_only_v6(false)?;
            }
            if options.shared {
                socket.set_reuse_address(true)?;
            }
            if let Some(bytes) = options.buffer_bytes {
                socket.set_recv_buffer_size(bytes)?;
                socket.set_send_buffer_size(bytes)?;
            }
            // Only datagrams to groups that this very socket has joined are received.
            socket.set_multicast_all_v4(false)?;
            if bind.is_ipv6() {
                socket.set_multicast_all_v6(false)?;
            }
            socket.bind(&bind.into())
        })()
        .map_err(|error| Error::from_io(&error, "binding a datagram socket"))?;
        let fd = OwnedFd::from(socket);
        options.traffic.map_or(Ok(()), |mark| mark.apply(&fd))?;
        Ok(fd)
    };
    match ports {
        Some(ports) if options.bind.port() == 0 => {
            ports.first_free(|port| open(at_port(options.bind, port)))
        }
        _ => open(options.bind),
    }
}

/// How much a call has moved, and whether the next call would block.
pub(in crate::transport) struct Moved {
    pub(in crate::transport) count: usize,
    pub(in crate::transport) drained: bool,
}

/// Reports when a socket is ready, and makes calls on it.
pub(in crate::transport) trait Readiness: Send {
    fn fd(&self) -> &OwnedFd;

    /// Makes the call if the socket is ready, repeatedly until it does not block. Pending: the call
    /// would block, and the waker is registered. The outer error is the reactor's, the inner error
    /// the call's.
    fn try_io(
        &mut self,
        direction: IoDirection,
        call: impl FnMut(&OwnedFd) -> io::Result<Moved>,
    ) -> Poll<Result<io::Result<Moved>>>;

    /// Makes the next read skip asking for readiness.
    fn assume_readable(&mut self);
}

/// A UDP socket.
pub(in crate::transport) struct UdpSocket<R> {
    readiness: R,
    local: SocketAddr,
    /// True if datagrams of one length to one peer go to the system as one buffer (UDP_SEGMENT),
    /// until the system refuses such a buffer.
    segments: bool,
}

impl<R: Readiness> UdpSocket<R> {
    pub(in crate::transport) fn new(readiness: R) -> Result<Self> {
        let local = local_addr(readiness.fd())
            .map_err(|error| Error::from_io(&error, "opening a datagram socket"))?;
        Ok(UdpSocket {
            readiness,
            local,
            segments: true,
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

    fn send(&mut self, datagrams: &[OutgoingDatagram<'_>], ended: &mut Vec<Result<()>>) {
        let mut at = 0;
        let mut skipped = 0;
        while at < datagrams.len() {
            let left = &datagrams[at..];
            let (local, segments) = (self.local, self.segments);
            let tried = self.readiness.try_io(IoDirection::Write, |fd| {
                mmsg::send(fd, local, left, segments).map(|count| Moved {
                    count,
                    drained: false,
                })
            });
            match tried {
                Poll::Pending => return,
                // An error of the reactor means that it has ended; the driver is being dropped.
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::DriverGone => return,
                Poll::Ready(Err(error)) => {
                    ended.push(Err(error));
                    at += 1;
                }
                Poll::Ready(Ok(Ok(moved))) => {
                    ended.extend((0..moved.count).map(|_| Ok(())));
                    at += moved.count;
                    skipped = 0;
                }
                Poll::Ready(Ok(Err(error)))
                    if is_of_the_past(&error) && skipped < DATAGRAM_ERRORS_SKIPPED_MAX =>
                {
                    skipped += 1;
                }
                Poll::Ready(Ok(Err(error)))
                    if self.segments && left.len() > 1 && is_segment_refusal(&error) =>
                {
                    self.segments = false;
                }
                Poll::Ready(Ok(Err(error))) => {
                    ended.push(Err(send_error(&error).with_peer(left[0].to)));
                    at += 1;
                }
            }
        }
    }

    fn receive(
        &mut self,
        places: &mut [RecvBuffer],
        arrived: &mut Vec<ReceivedDatagram>,
    ) -> RecvStatus {
        for _ in 0..DATAGRAM_ERRORS_SKIPPED_MAX {
            let tried = (self.readiness).try_io(IoDirection::Read, |fd| {
                mmsg::receive(fd, &mut *places, arrived)
            });
            match tried {
                Poll::Pending | Poll::Ready(Err(_)) => return RecvStatus::Drained,
                Poll::Ready(Ok(Ok(_))) => return RecvStatus::MayHaveMore,
                Poll::Ready(Ok(Err(error))) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return RecvStatus::Fault;
                }
                // The system reports each error once; a temporary shortage of memory is retried.
                Poll::Ready(Ok(Err(error))) => {
                    hold_event(move || tracing::debug!(%error, "receiving datagrams goes on"));
                }
            }
        }
        RecvStatus::MayHaveMore
    }

    fn join_group(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(group) => socket.join_multicast_v4(&group, &interface_v4(membership)?),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, membership.scope_id),
        })?;
        self.set_multicast_interface(membership)
    }

    fn set_multicast_interface(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(_) => socket.set_multicast_if_v4(&interface_v4(membership)?),
            IpAddr::V6(_) => socket.set_multicast_if_v6(membership.scope_id),
        })
    }

    fn leave_group(&mut self, membership: Membership) -> Result<()> {
        self.option(|socket| match membership.group {
            IpAddr::V4(group) => socket.leave_multicast_v4(&group, &interface_v4(membership)?),
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, membership.scope_id),
        })
    }

    fn dropped(&self) -> u64 {
        mmsg::dropped(self.readiness.fd())
    }

    fn assume_readable(&mut self) {
        self.readiness.assume_readable();
    }
}

fn interface_v4(membership: Membership) -> io::Result<Ipv4Addr> {
    match membership.interface {
        None => Ok(Ipv4Addr::UNSPECIFIED),
        Some(IpAddr::V4(interface)) => Ok(interface),
        Some(IpAddr::V6(_)) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Returns true for an interruption, and for an error that the network has reported about an
/// earlier datagram.
fn is_of_the_past(error: &io::Error) -> bool {
    interrupted(error) || error.raw_os_error() == Some(libc::ECONNREFUSED)
}

/// Returns true for errors of a system or device that cannot cut a buffer into datagrams; the
/// datagrams may still be sent one by one.
fn is_segment_refusal(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(
        errno,
        Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)
    )
}

fn send_error(error: &io::Error) -> Error {
    debug_assert!(!would_block(error), "a send that would block has not ended");
    let doing = "sending a datagram";
    let named = match error.raw_os_error() {
        Some(libc::EMSGSIZE) => Error::new(ErrorKind::TooLarge, format!("{doing}: {error}")),
        _ => Error::from_io(error, doing),
    };
    named.with_operation(OperationKind::Send)
}
