//! Traffic marks: how the network, and this machine's queues, should treat a socket's packets.

use std::io;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockRef};

use crate::error::{Error, Result};

/// The mark of a socket's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrafficMark {
    /// The differentiated services code point of its packets, 0 to 63.
    pub(crate) dscp: u8,
    /// Its priority in the queues of this machine's interfaces, 0 to 6: a higher one needs a
    /// privilege.
    pub(crate) priority: u8,
}

impl TrafficMark {
    /// Marks everything this socket sends from now on.
    pub(in crate::transport) fn apply(self, fd: &OwnedFd) -> Result<()> {
        self.try_apply(fd)
            .map_err(|error| Error::from_io(&error, "setting the traffic class of a socket"))
    }

    fn try_apply(self, fd: &OwnedFd) -> io::Result<()> {
        let socket = SockRef::from(fd);
        // The code point is above the two bits for congestion notification, which the system keeps.
        let octet = u32::from(self.dscp) << 2;
        match socket.domain()? {
            Domain::IPV6 => socket.set_tclass_v6(octet)?,
            _ => socket.set_tos_v4(octet)?,
        }
        // Set last: for IPv4, setting the code point also sets a priority of the system's choice.
        socket.set_priority(self.priority.into())
    }
}
