//! Where a peer runs that is on this machine.

use std::os::fd::BorrowedFd;

use rustix::net::sockopt::socket_incoming_cpu;
use rustix::thread::sched_getcpu;

/// True if the peer of this socket, which is connected over the loopback interface, has sent last
/// from the processor that runs this: what comes over that interface is delivered on the sender's.
pub(crate) fn shares_processor(socket: BorrowedFd<'_>) -> bool {
    socket_incoming_cpu(socket).is_ok_and(|of_peer| of_peer as usize == sched_getcpu())
}
