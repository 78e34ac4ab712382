//! The processor on which a peer on this machine runs.

use std::os::fd::BorrowedFd;

use rustix::net::sockopt::socket_incoming_cpu;
use rustix::thread::sched_getcpu;

/// Returns true if the peer of this socket, which is connected over the loopback interface, sent
/// last from the processor that runs this code: that interface delivers bytes on the sender's
/// processor.
pub(crate) fn shares_processor(socket: BorrowedFd<'_>) -> bool {
    socket_incoming_cpu(socket).is_ok_and(|of_peer| of_peer as usize == sched_getcpu())
}
