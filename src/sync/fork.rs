//! Which process of a family this is. A forked child has a copy of its parent's memory; what must
//! not be the same in both, as random bits drawn ahead, is made anew there.

#![allow(unsafe_code)]

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Times that `fork` was called between the first process of the family and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A number that a child and its parent do not have in common, nor a child and whoever came before
/// its parent. Costs two loads. Who makes a child by the bare system call, without the C library,
/// gets one that takes itself for its parent.
pub(crate) fn forks() -> u32 {
    static COUNTED: OnceLock<bool> = OnceLock::new();
    let counted = COUNTED.get_or_init(|| {
        // SAFETY: the handler is there as long as this code. It runs in the child of a process that
        // may have many threads, and does there what is allowed: one atomic addition.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) == 0 }
    });
    match counted {
        true => FORKS.load(Relaxed),
        // No memory for the handler.
        false => process::id(),
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Relaxed);
}
