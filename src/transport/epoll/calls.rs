//! The system calls on a connected socket.
//!
//! Raw iovecs are used because the destination of a direct receive and the payload of a send may be
//! bytes of a region, which peers, other operations and the kernel write at any time; a Rust slice
//! over them would be undefined behaviour (memory-model rule 2). The two system calls below are
//! given the addresses, and only the kernel follows them.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{RecvFlags, getpeername, getsockname, recv, sockopt};

use crate::buf::{SpanList, Stage};
use crate::id::canonical;
use crate::transport::{DirectBuffer, SendBatch};

/// Returns how a connect that made the socket writable has ended: the local address, or the error.
/// `WouldBlock`: the connect has not ended yet.
pub(in crate::transport) fn connect_result(
    fd: &OwnedFd,
    peer: SocketAddr,
) -> io::Result<SocketAddr> {
    if let Err(error) = sockopt::socket_error(fd)? {
        return Err(error.into());
    }
    match getpeername(fd) {
        Ok(Some(_)) => {}
        Ok(None) | Err(rustix::io::Errno::NOTCONN) => {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Err(error) => return Err(error.into()),
    }
    let local = local_addr(fd)?;
    // If no socket listens on a port of this machine, the system may choose that very port for this
    // side; TCP's simultaneous open then connects the socket to itself.
    if local == peer {
        return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    Ok(local)
}

/// The result of one receive.
pub(in crate::transport) struct ReceivedBytes {
    /// Zero: the peer's stream has ended.
    pub(in crate::transport) len: usize,
    /// Set exactly if no destination was given.
    pub(in crate::transport) stage: Option<Stage>,
    /// True if the socket holds no more bytes.
    pub(in crate::transport) drained: bool,
}

pub(super) fn receive_stage(fd: &OwnedFd, size_max: usize) -> io::Result<ReceivedBytes> {
    let mut stage = Stage::take();
    let room = stage.spare();
    let room_len = room.len().min(size_max);
    let (len, _) = recv(fd, &mut room[..room_len], RecvFlags::DONTWAIT)?;
    stage.fill(len);
    Ok(ReceivedBytes {
        len,
        stage: Some(stage),
        // A stream socket that returns fewer bytes than asked has no more (epoll(7)). Clearing the
        // readiness keeps the mark of the stream's end. Urgent data would break this rule, but only
        // for the connection of the peer that sent it.
        drained: 0 < len && len < room_len,
    })
}

pub(super) fn receive_direct(
    fd: &OwnedFd,
    direct: &DirectBuffer,
    size_max: usize,
) -> io::Result<ReceivedBytes> {
    let mut spans = SpanList::new();
    let len = (direct.len as usize).min(size_max);
    direct.payload.spans(direct.offset, len, &mut spans);
    let len = receive_spans(fd, direct, &spans)?;
    // A short receive into the application's memory does not prove that the socket is empty: it may
    // have met a page that cannot be written. The next call finds out.
    Ok(ReceivedBytes {
        len,
        stage: None,
        drained: false,
    })
}

/// Receives into `spans`, which are spans of `direct`.
fn receive_spans(fd: &OwnedFd, direct: &DirectBuffer, spans: &SpanList) -> io::Result<usize> {
    debug_assert!(!spans.is_empty(), "a direct receive has room");
    let _keeps_alive = direct;
    let mut message = message_of(spans);
    // SAFETY:
    // - `message` names the iovecs in `spans` and nothing else; both outlive this non-blocking
    //   call, and the kernel keeps no pointer after it.
    // - The iovecs were made from `direct.payload`, which is borrowed here and owned by this link
    //   until its outcome, so the memory stays allocated (memory-model rule 1). It is writable: a
    //   payload is submitted to a receive only if made of writable memory.
    // - No Rust reference covers those bytes. A buffer is taken apart into raw parts while held
    //   (rule 1); region bytes are never Rust places, and `direct.leases` keeps exclusive guards
    //   out (rules 2 to 4). The writer is the kernel.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Sends as much from the front of `batch` as fits into one span list, `size_max` and the socket.
pub(in crate::transport) fn send_some(
    fd: &OwnedFd,
    batch: &SendBatch,
    size_max: usize,
) -> io::Result<usize> {
    let mut spans = SpanList::new();
    batch.spans(size_max, &mut spans);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let message = message_of(&spans);
    // SAFETY:
    // - `message` names the iovecs in `spans` and nothing else; both outlive this non-blocking
    //   call, after which the kernel holds copies and no pointer (there is no zero-copy flag).
    // - The iovecs were made from the headers and payloads of `batch`, which is borrowed here and
    //   owned by this link until its outcome, so the memory stays allocated (memory-model rule 1).
    // - The kernel only reads it, and no Rust code forms a reference to region bytes; if a peer
    //   writes them meanwhile, bytes mix, which is no memory error (rule 2). `batch.leases` keeps
    //   exclusive guards out (rules 3 and 4).
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Makes a message header that names these spans, without address and control data.
fn message_of(spans: &SpanList) -> libc::msghdr {
    let iovecs = spans.as_iovecs();
    // SAFETY: `msghdr` is a plain C struct of numbers and pointers, for which all zeros is a value:
    // no address, no control data, no vectors, no flags.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // The kernel's type has no const form; it never writes to the vector itself.
    message.msg_iov = iovecs.as_ptr().cast_mut();
    message.msg_iovlen = iovecs.len() as _;
    message
}

pub(in crate::transport) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

pub(in crate::transport) fn interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Returns the address that a socket is bound to.
pub(in crate::transport) fn local_addr(fd: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(canonical(SocketAddr::try_from(getsockname(fd)?)?))
}
