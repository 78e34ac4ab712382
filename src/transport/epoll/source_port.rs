//! Leaves the choice of a connection's source port to the connect (`IP_BIND_ADDRESS_NO_PORT`).
//!
//! A bind to port 0 takes a port from all destinations at once, since the system does not know yet
//! where the connection leads. So a source address could have only some 28,000 connections in all,
//! instead of as many to each destination.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{Error, ErrorKind};

/// Makes a bind to port 0 choose no port: the connect chooses it.
pub(super) fn leave_to_connect(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the kernel reads one `int`, of the length named.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the error of a connect for which no source address or port is available (`EADDRNOTAVAIL`).
/// It concerns this machine, not the peer.
pub(super) fn none_left(error: &io::Error, to: SocketAddr, from: Option<SocketAddr>) -> Error {
    let (kind, what) = match (from, to) {
        // The system reports the same error if this machine has no IPv6 address at all.
        (None, SocketAddr::V6(_)) => (
            ErrorKind::AddressNotAvailable,
            "no IPv6 address of this machine, or no source port",
        ),
        _ => (ErrorKind::LimitReached, "no source port"),
    };
    let message = format!(
        "{what} is left for another connection to {to}: close some, or widen \
         net.ipv4.ip_local_port_range"
    );
    Error::new(kind, message).with_os(error.raw_os_error())
}
