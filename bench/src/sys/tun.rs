//! TUN devices: what the system sends through one is read from its file, and what is written to the
//! file the system receives.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Bytes at most of what is read or written at once: a packet, before it the header that says how
/// it is cut and summed.
pub const TUN_READ_MAX: usize = (64 << 10) + 256;

/// Makes a device of this name in the network namespace of the calling thread; it is gone when the
/// file is closed. Reads do not block.
///
/// With `is_cut_later`, packets of up to 64 KiB go through it as one, as through a network card
/// that cuts them: the header says into what.
///
/// # Errors
/// There is no `/dev/net/tun`, or this process may not use it.
pub fn open_tun(name: &str, is_cut_later: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let file = options
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: an `ifreq` is plain numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the call reads and writes one `ifreq`, and keeps no pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    let offloads = match is_cut_later {
        true => libc::TUN_F_CSUM | libc::TUN_F_TSO4,
        false => 0,
    };
    // SAFETY: the argument of this call is a number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads as usize) })?;
    Ok(file)
}

/// The calling thread runs as soon as it can, whatever else wants its processor.
///
/// # Errors
/// This process may not ask for it.
pub fn run_in_real_time() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`, and keeps no pointer.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) })
}

fn check(returned: libc::c_int) -> Result<()> {
    match returned {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}
