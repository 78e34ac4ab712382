//! The low-water mark: how many bytes make a socket readable (`SO_RCVLOWAT`).
//!
//! A receiver that is faster than its sender would sleep after each segment, and waking it costs
//! the sender too. While a large payload is being received, the mark is above one byte. It is set
//! when the receiver is about to sleep, so a receiver that always finds bytes never sets it.
//!
//! The rest relies on the kernel. Reads ignore the mark. Setting a mark that is reached already is
//! an edge, so nothing is lost between a read that found too little and a lower mark. Whatever the
//! mark is, the receiver is woken by the peer's end, a loss of the connection, a nearly full
//! receive buffer or window, and a shortage of memory. The receive buffer grows with the mark; if
//! its limit does not permit that, the kernel lowers the mark (`tcp_set_rcvlowat`,
//! `tcp_epollin_ready`).

use std::mem;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};

/// The mark of one socket; `None`: the mark stays at one byte.
pub(super) struct LowWater(Option<NonZeroU32>);

impl Default for LowWater {
    fn default() -> Self {
        LowWater(Some(NonZeroU32::MIN))
    }
}

impl LowWater {
    /// Makes the socket readable only with this many bytes.
    #[inline]
    pub(super) fn set(&mut self, fd: &OwnedFd, bytes: u32) {
        if self.0.is_some_and(|mark| mark.get() != bytes) {
            self.change(fd, bytes);
        }
    }

    /// Makes the socket readable with any byte, from now on.
    pub(super) fn keep_lowest(&mut self, fd: &OwnedFd) {
        self.set(fd, 1);
        self.0 = None;
    }

    #[cold]
    fn change(&mut self, fd: &OwnedFd, bytes: u32) {
        let mark = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: the descriptor is open, and the kernel reads one `int`, of the length named.
        let result = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const mark).cast(),
                mem::size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if result == 0 {
            self.0 = NonZeroU32::new(bytes);
        }
    }
}
