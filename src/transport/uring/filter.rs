//! For tests: a filter of system calls in front of the kernel, for the calling thread alone.

use std::io;

/// From now on the calls of these numbers fail with `errno` in this thread and those it starts.
///
/// # Errors
/// Where the system lets no process filter its calls.
pub(in crate::transport) fn refuse(calls: &[libc::c_long], errno: i32) -> io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of what the filter sees.
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    let refusal = libc::SECCOMP_RET_ERRNO | errno as u32;
    for call in calls {
        let is_it = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(step(is_it, 0, 1, *call as u32));
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, refusal));
    }
    let allowed = libc::SECCOMP_RET_ALLOW;
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, allowed));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a plain flag, and a filter whose program outlives the call; the kernel copies it.
    let answers = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ),
        ]
    };
    match answers {
        [0, 0] => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
