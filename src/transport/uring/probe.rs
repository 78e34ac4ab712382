//! Whether the kernel has, and permits, what this backend needs.

use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::error::{Error, ErrorKind};

/// Fails with `ENOSYS` when the kernel lacks an operation.
pub(super) fn check(ring: &IoUring) -> io::Result<()> {
    #[cfg(test)]
    refusal::check()?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Recv::CODE,
        opcode::RecvMsg::CODE,
        opcode::Send::CODE,
        opcode::SendMsg::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel::CODE,
        opcode::Accept::CODE,
        // Not used; its presence tells a kernel of 6.1 or later, in which receives are multishot
        // (6.0) and a cancelled one tells of the bytes it has moved (6.1).
        opcode::SendMsgZc::CODE,
    ];
    match needed.into_iter().find(|code| !probe.is_supported(*code)) {
        None => Ok(()),
        Some(_) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    }
}

/// Why there is no ring, in words for the log and the error.
pub(super) fn refusal_of(error: &io::Error) -> Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "this process may not use io_uring",
        Some(libc::ENOSYS | libc::EINVAL) => "the kernel is older than Linux 6.1 or lacks io_uring",
        Some(libc::ENOMEM) => "the limit on locked memory, or memory itself, leaves no room",
        Some(libc::EMFILE | libc::ENFILE) => return Error::from_io(error, "opening a ring"),
        _ => "setting up a ring failed",
    };
    Error::new(ErrorKind::Unsupported, format!("{why} ({error})"))
}

/// Lets a test be refused, as a kernel or a container may do.
#[cfg(test)]
pub(in crate::transport) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static ERRNO: Cell<Option<i32>> = const { Cell::new(None) };
    }

    pub(super) fn check() -> io::Result<()> {
        match ERRNO.get() {
            None => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Rings made by this thread within `act` are refused with `errno`.
    pub(in crate::transport) fn with<T>(errno: i32, act: impl FnOnce() -> T) -> T {
        ERRNO.set(Some(errno));
        let result = act();
        ERRNO.set(None);
        result
    }
}
