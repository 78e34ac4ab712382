//! How many system calls a process makes, counted by the kernel's own trace point.

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

/// The file with the trace point's number, if the kernel's trace files are mounted and this user
/// may read them.
const TRACE_POINT: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";
const PERF_TYPE_TRACEPOINT: u32 = 2;

/// The head of the kernel's `perf_event_attr`, version 0, which is all that is needed.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// Counters of all threads of a process that it had when this was made.
#[derive(Debug)]
pub struct Syscalls {
    counters: Vec<OwnedFd>,
}

impl Syscalls {
    /// `None` if this system does not let them be counted.
    pub fn of(process: u32) -> Option<Syscalls> {
        let id: u64 = fs::read_to_string(TRACE_POINT).ok()?.trim().parse().ok()?;
        let mut counters = Vec::new();
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
            let thread = thread.ok()?.file_name();
            counters.push(open(id, thread.to_str()?.parse().ok()?)?);
        }
        Some(Syscalls { counters })
    }

    /// System calls begun since then.
    pub fn now(&self) -> u64 {
        let count = |counter: &OwnedFd| {
            let mut bytes = [0; 8];
            match rustix::io::read(counter, &mut bytes) {
                Ok(8) => u64::from_ne_bytes(bytes),
                _ => 0,
            }
        };
        self.counters.iter().map(count).sum()
    }
}

fn open(trace_point: u64, thread: i32) -> Option<OwnedFd> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: trace_point,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: 0,
        wakeup_events: 0,
        bp_type: 0,
        config1: 0,
    };
    // SAFETY: the call reads as many bytes of the attributes as they say, and keeps no pointer.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            -1,
            -1,
            0,
        )
    };
    let descriptor = i32::try_from(opened).ok().filter(|opened| *opened >= 0)?;
    // SAFETY: the kernel has just made it, and it has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
