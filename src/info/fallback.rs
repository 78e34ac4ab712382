//! Why a domain has another backend than the best one.

use std::fmt;

/// A backend that a domain would have had by default, and why it has not: in
/// [`Info::fallback`](super::Info::fallback) of an opened domain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallback {
    /// The name of the backend that could not be had; `io-uring`, so far.
    pub wanted: String,
    /// The reason, for a program.
    pub cause: FallbackCause,
    /// The reason, for a reader: what was refused and the system's own words.
    pub reason: String,
}

/// What kept a backend away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FallbackCause {
    /// This build is without it: another system than Linux, or without the feature `io-uring`.
    NotBuilt,
    /// The process may not use it (`EPERM`, `EACCES`): a container's filter of system calls, or the
    /// setting `kernel.io_uring_disabled`.
    Forbidden,
    /// The kernel has none of it, or lacks an operation that is needed (`ENOSYS`, `EINVAL`).
    KernelTooOld,
    /// The limit on locked memory (`RLIMIT_MEMLOCK`), or memory itself, leaves no room (`ENOMEM`).
    LockedMemory,
    /// Another error of the system.
    Other,
}

impl Fallback {
    /// Of a refusal of `wanted` with this number of the system's.
    pub(crate) fn new(wanted: impl fmt::Display, errno: Option<i32>, reason: String) -> Self {
        let cause = match errno {
            None => FallbackCause::NotBuilt,
            Some(libc::EPERM | libc::EACCES) => FallbackCause::Forbidden,
            Some(libc::ENOSYS | libc::EINVAL) => FallbackCause::KernelTooOld,
            Some(libc::ENOMEM) => FallbackCause::LockedMemory,
            Some(_) => FallbackCause::Other,
        };
        Fallback {
            wanted: wanted.to_string(),
            cause,
            reason,
        }
    }
}

/// One line for a log: what is not used, and why.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not used: {}", self.wanted, self.reason)
    }
}
