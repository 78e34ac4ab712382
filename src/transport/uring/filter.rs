//! A filter of system calls in front of the kernel, for the calling thread only, for tests. The
//! tests of the whole library (`tests/system/uring.rs`) include this file.

use std::io;

/// Makes the calls with these numbers fail with `errno`, in this thread and the threads it starts.
///
/// # Errors
/// The system does not let a process filter its calls.
pub(crate) fn refuse(calls: &[libc::c_long], errno: i32) -> io::Result<()> {
    install(calls, libc::SECCOMP_RET_ERRNO | errno as u32, 0).map(drop)
}

/// Makes the system answer the calls with these numbers by `action`. Returns the result of
/// seccomp(2).
///
/// # Errors
/// As for [`refuse`].
pub(crate) fn install(
    calls: &[libc::c_long],
    action: u32,
    flags: libc::c_ulong,
) -> io::Result<i32> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word that the filter sees.
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(step(is_it, 0, 1, *call as u32));
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, action));
    }
    let allowed = libc::SECCOMP_RET_ALLOW;
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, allowed));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a plain flag, and a filter whose program outlives the call; the kernel copies it.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter)
    };
    match answer {
        0.. => Ok(answer as i32),
        _ => Err(io::Error::last_os_error()),
    }
}
