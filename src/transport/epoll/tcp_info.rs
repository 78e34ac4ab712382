//! TCP's statistics of a connection, and the configuration of keepalive probes.
//!
//! `TCP_USER_TIMEOUT` is not used. It ends a connection whose peer has had no room for that long,
//! even if the peer's system has answered every probe (measured on Linux 6.18: with 3 s the
//! connection was gone after 4), so a program that merely does not read would count as dead.
//! Unanswered probes and bytes count here instead.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

use crate::limits::UNANSWERED_MIN;
use crate::transport::{KeepAliveConfig, LinkStats, TcpInfo};

/// The beginning of the kernel's `struct tcp_info` (linux/tcp.h), which only grows at its end. It
/// has fields up to Linux 4.6; times are in milliseconds unless stated otherwise.
#[repr(C)]
struct KernelTcpInfo {
    _states: [u8; 2],
    /// Number of times that the oldest unconfirmed bytes were sent again.
    retransmits: u8,
    /// Number of unanswered probes for room or for liveness.
    probes: u8,
    _options: [u8; 4],
    /// In microseconds.
    rto: u32,
    _ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    /// Number of segments in flight.
    unacked: u32,
    _sacked: u32,
    lost: u32,
    _segments: [u32; 2],
    _last_sent: [u32; 2],
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    _rcv_ssthresh: u32,
    /// In microseconds.
    rtt: u32,
    /// In microseconds.
    rttvar: u32,
    _snd_ssthresh: u32,
    snd_cwnd: u32,
    _metrics: [u32; 4],
    total_retrans: u32,
    /// In bytes per second.
    pacing_rate: u64,
    _max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    _counts: [u32; 3],
    /// In microseconds; not written before Linux 4.6.
    min_rtt: u32,
}

const _: () = assert!(mem::offset_of!(KernelTcpInfo, unacked) == 24);
const _: () = assert!(mem::offset_of!(KernelTcpInfo, last_data_recv) == 52);
const _: () = assert!(mem::offset_of!(KernelTcpInfo, rtt) == 68);
const _: () = assert!(mem::offset_of!(KernelTcpInfo, total_retrans) == 100);
const _: () = assert!(mem::offset_of!(KernelTcpInfo, bytes_acked) == 120);
const _: () = assert!(mem::offset_of!(KernelTcpInfo, min_rtt) == 148);
const _: () = assert!(mem::size_of::<KernelTcpInfo>() == 152);

/// Returns the statistics of a connected socket.
pub(in crate::transport) fn stats(fd: &OwnedFd) -> io::Result<LinkStats> {
    let info = kernel_tcp_info(fd.as_fd())?;
    let bytes = info.unacked > 0 && info.retransmits >= UNANSWERED_MIN;
    let probes = info.probes >= UNANSWERED_MIN;
    let unanswered_ms = match bytes || probes {
        true => info.last_ack_recv.min(info.last_data_recv),
        false => 0,
    };
    Ok(LinkStats {
        silent: Duration::from_millis(info.last_data_recv.into()),
        confirmed: info.bytes_acked,
        unconfirmed: unconfirmed(fd)?,
        unanswered: Duration::from_millis(unanswered_ms.into()),
    })
}

/// Returns the statistics of a connected socket that applications see.
pub(crate) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let info = kernel_tcp_info(fd)?;
    let micros = |count: u32| Duration::from_micros(count.into());
    Ok(TcpInfo {
        round_trip: micros(info.rtt),
        min_round_trip: micros(info.min_rtt),
        round_trip_variation: micros(info.rttvar),
        retransmit_timeout: micros(info.rto),
        send_segment_size: info.snd_mss,
        receive_segment_size: info.rcv_mss,
        path_mtu: info.pmtu,
        congestion_window: info.snd_cwnd,
        unacknowledged_segments: info.unacked,
        lost_segments: info.lost,
        retransmitted_segments: info.total_retrans,
        acknowledged_bytes: info.bytes_acked,
        received_bytes: info.bytes_received,
        pacing_rate: info.pacing_rate,
    })
}

fn kernel_tcp_info(fd: BorrowedFd<'_>) -> io::Result<KernelTcpInfo> {
    // SAFETY: `KernelTcpInfo` is a plain C struct of numbers, for which all zeros is a value.
    let mut info: KernelTcpInfo = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<KernelTcpInfo>() as libc::socklen_t;
    // SAFETY: the descriptor is open. The kernel writes at most `len` bytes to `info`, which has
    // that length, and every bit pattern is a valid `KernelTcpInfo`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the bytes in the socket's send queue: sent but not confirmed, or not sent for lack of
/// room.
fn unconfirmed(fd: &OwnedFd) -> io::Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open, and this request writes one `int`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    match result {
        0 => Ok(u64::try_from(count).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the system probe the peer's system. Returns true on success; false only on a dead
/// connection, which the next call on it reports.
pub(in crate::transport) fn set_keep_alive(fd: &OwnedFd, config: KeepAliveConfig) -> bool {
    /// The kernel accepts no longer times and no higher count.
    const SECONDS_MAX: u64 = 32_767;
    const COUNT_MAX: u32 = 127;
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, SECONDS_MAX));
    sockopt::set_tcp_keepintvl(fd, seconds(config.interval))
        .and_then(|()| sockopt::set_tcp_keepcnt(fd, config.count.clamp(1, COUNT_MAX)))
        .and_then(|()| sockopt::set_tcp_keepidle(fd, seconds(config.idle)))
        .and_then(|()| sockopt::set_socket_keepalive(fd, true))
        .is_ok()
}
