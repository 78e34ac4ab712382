//! Facts about a connection and a ring, as the system reports them, for applications.

use std::time::Duration;

/// The kernel's statistics of a TCP connection (`TCP_INFO` of tcp(7)).
///
/// You get one from [`TcpOps::info`](crate::ep::TcpOps::info).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// The smoothed time from sending to its acknowledgement.
    pub round_trip: Duration,
    /// The least round-trip time of the last minutes, without most queues; zero before Linux 4.6.
    pub min_round_trip: Duration,
    /// The variation of `round_trip`.
    pub round_trip_variation: Duration,
    /// Time without an acknowledgement after which bytes are sent again.
    pub retransmit_timeout: Duration,
    /// Bytes per segment that is sent.
    pub send_segment_size: u32,
    /// Bytes per segment that is received, as far as is known.
    pub receive_segment_size: u32,
    /// The largest packet, in bytes, that the path is known to carry.
    pub path_mtu: u32,
    /// Segments that may be in flight.
    pub congestion_window: u32,
    /// Segments that are in flight.
    pub unacknowledged_segments: u32,
    /// Segments in flight that are considered lost.
    pub lost_segments: u32,
    /// Segments that were sent again since the connection was made.
    pub retransmitted_segments: u32,
    /// Bytes that the peer's system has acknowledged since the connection was made.
    pub acknowledged_bytes: u64,
    /// Bytes that were received since the connection was made.
    pub received_bytes: u64,
    /// Maximum rate at which the system sends, in bytes per second.
    pub pacing_rate: u64,
}

/// An io_uring ring, one for each driver of a domain.
///
/// You get one from [`RingOps::rings`](crate::domain::RingOps::rings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingInfo {
    /// Entries of the submission queue.
    pub submission_entries: u32,
    /// Entries of the completion queue.
    pub completion_entries: u32,
    /// Buffers for small receives that the ring provides to the kernel.
    pub provided_buffers: u32,
    /// Bytes per provided buffer.
    pub provided_buffer_size: usize,
    /// The kernel runs completions only in the one thread that submits
    /// (`IORING_SETUP_SINGLE_ISSUER`, `IORING_SETUP_DEFER_TASKRUN`). True for a driver with a
    /// thread of its own.
    pub is_single_issuer: bool,
}
