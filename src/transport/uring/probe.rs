//! Whether the kernel has the operations that this backend needs, and permits them.

use std::io;

use io_uring::{EnterFlags, IoUring, Probe, opcode};

use crate::error::{Error, ErrorKind};

/// The operations that the backend submits, by the names of the kernel's header; and the operation
/// that marks a kernel of 6.1 or later, in which receives are multishot (6.0) and a cancelled
/// receive reports the bytes it has moved (6.1).
const NEEDED: [(u8, &str); 8] = [
    (opcode::Recv::CODE, "IORING_OP_RECV"),
    (opcode::RecvMsg::CODE, "IORING_OP_RECVMSG"),
    (opcode::Send::CODE, "IORING_OP_SEND"),
    (opcode::SendMsg::CODE, "IORING_OP_SENDMSG"),
    (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
    (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
    (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
    (opcode::SendMsgZc::CODE, "IORING_OP_SENDMSG_ZC"),
];

/// Fails if the kernel lacks an operation; the error names the operation.
pub(super) fn check(ring: &IoUring) -> io::Result<()> {
    #[cfg(test)]
    refusal::check()?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let has = |code| {
        #[cfg(test)]
        if refusal::lacks(code) {
            return false;
        }
        probe.is_supported(code)
    };
    enter(ring)?;
    match NEEDED.into_iter().find(|(code, _)| !has(*code)) {
        None => Ok(()),
        Some((_, name)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("it has no {name}"),
        )),
    }
}

/// Fails if the kernel may not be entered for a ring, although a ring can be created: a filter may
/// permit one call and not the other.
fn enter(ring: &IoUring) -> io::Result<()> {
    let flags = EnterFlags::GETEVENTS.bits();
    // SAFETY: no entries, no argument.
    match unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) } {
        // The ring of a thread is enabled later.
        Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Ok(()),
        entered => entered.map(drop),
    }
}

/// Makes the error of a ring that the system refuses, for the log and the caller, with the system's
/// error number.
pub(super) fn refusal_of(error: &io::Error) -> Error {
    let number = match error.kind() {
        io::ErrorKind::Unsupported => Some(libc::ENOSYS),
        _ => error.raw_os_error(),
    };
    let why = match number {
        Some(libc::EPERM | libc::EACCES) => "this process may not use io_uring",
        Some(libc::ENOSYS | libc::EINVAL) => "the kernel is older than Linux 6.1 or lacks io_uring",
        Some(libc::ENOMEM) => {
            "the limit on locked memory (RLIMIT_MEMLOCK), or memory itself, leaves no room for a ring"
        }
        Some(libc::EMFILE | libc::ENFILE) => return Error::from_io(error, "opening a ring"),
        _ => "setting up a ring failed",
    };
    Error::new(ErrorKind::Unsupported, format!("{why} ({error})")).with_os(number)
}

/// Makes rings fail for a test, as a kernel or a container may refuse them.
#[cfg(test)]
pub(in crate::transport) mod refusal {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static ERRNO: Cell<Option<i32>> = const { Cell::new(None) };
        static LACKING: Cell<Option<u8>> = const { Cell::new(None) };
    }

    pub(super) fn lacks(code: u8) -> bool {
        LACKING.get() == Some(code)
    }

    /// Simulates, for rings made by this thread within `act`, a kernel that lacks the needed
    /// operation with index `which`. `None`: there is no such operation.
    pub(in crate::transport) fn lacking<T>(
        which: usize,
        act: impl FnOnce() -> T,
    ) -> Option<(&'static str, T)> {
        let (code, name) = *super::NEEDED.get(which)?;
        LACKING.set(Some(code));
        let result = act();
        LACKING.set(None);
        Some((name, result))
    }

    pub(super) fn check() -> io::Result<()> {
        match ERRNO.get() {
            None => Ok(()),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Makes rings that this thread opens within `act` fail with `errno`.
    pub(in crate::transport) fn with<T>(errno: i32, act: impl FnOnce() -> T) -> T {
        ERRNO.set(Some(errno));
        let result = act();
        ERRNO.set(None);
        result
    }
}
