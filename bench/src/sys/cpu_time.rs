//! CPU time of this process, of another, and of children that have ended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time, user and system, of a process so far, all its threads together; zero if it is gone, or
/// if there is none (0).
pub fn process_cpu(process: u32) -> Duration {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if process == 0 {
        return Duration::ZERO;
    }
    // SAFETY: both calls write one value to a local of the type they are declared with, and keep
    // no pointer.
    let read = unsafe {
        libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if !read {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time, user and system, of all children that have been waited for.
pub fn children_cpu() -> Duration {
    // SAFETY: a `rusage` is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one `rusage` to the local, and keeps no pointer.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let time = |part: libc::timeval| Duration::new(part.tv_sec as u64, part.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Nanoseconds on the clock that all processes share.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
