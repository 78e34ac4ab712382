//! Every bound and default in one place, with units in the names and the reason beside each.

use std::time::Duration;

/// Buffers per vectored operation, local side; what libfabric's tcp provider offers too.
pub const IOV_LIMIT: usize = 4;
/// Remote segments per RMA operation; fixed by the wire (a header holds at most four).
pub const RMA_IOV_LIMIT: usize = 4;
/// Largest payload that `inject` copies, in bytes; C peers offer the same by default.
pub const INJECT_SIZE_MAX: usize = 128;
/// Bytes of a raw key (`FI_MR_RAW`): a 64-bit key, and the tag that proves it.
pub const RAW_KEY_SIZE: usize = 32;
/// Largest private data of connect, accept and reject, in bytes; the control frame's own limit.
pub const CM_DATA_SIZE_MAX: usize = 256;
/// Largest data header on the wire, in bytes: base, CQ data, four RMA segments.
pub const HEADER_SIZE_MAX: usize = 120;
/// Largest HELLO frame of the extension, in bytes: far more than its values need.
pub const HELLO_SIZE_MAX: usize = 4096;
/// How long the kernel may refuse to be entered for a ring, for want of memory or because of a
/// signal, before everything in it ends: such a refusal passes within moments, or not at all.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
pub(crate) const RING_REFUSAL_MAX: Duration = Duration::from_secs(5);
/// How long one poll of a driver that spins (`busy_poll`) and has found nothing goes on looking by
/// itself. Coming round through the runtime takes almost a microsecond; other tasks wait no longer.
pub(crate) const SPIN_WINDOW: Duration = Duration::from_micros(3);
/// Operations a transmit or receive context accepts before it is full.
pub const CONTEXT_SIZE_DEFAULT: usize = 256;
/// Addresses in one address vector that several processes share: 64 MiB of their memory.
pub const SHARED_ADDRESSES_MAX: u32 = 1 << 20;
/// Largest transmit context. A peer of this library never has more reads and acknowledgements
/// awaited than this, so that two of them cannot both stop reading because of the other's.
pub const TRANSMIT_SIZE_MAX: usize = READ_REQUESTS_MAX;
/// Largest receive context.
pub const RECEIVE_SIZE_MAX: usize = 65_536;
/// Completions a queue holds.
pub const CQ_SIZE_DEFAULT: usize = 1024;
/// Events a queue holds.
pub const EQ_SIZE_DEFAULT: usize = 256;
/// Registrations that a cache keeps track of (`FI_MR_CACHE_MAX_COUNT`); libfabric's default too.
pub const CACHE_COUNT_DEFAULT: usize = 1024;
/// Registrations in use that a cache passes over at most while it looks for one to evict, so that a
/// miss costs no more in a cache full of them.
pub const CACHE_EVICTION_LOOKS_MAX: usize = 64;
/// Registrations that a cache may grow by before it looks for memory that nobody else has any more,
/// beside what it had after the last such look.
pub const CACHE_SWEEP_COUNT_MIN: usize = 16;
/// The same in bytes.
pub const CACHE_SWEEP_BYTES_MIN: usize = 1 << 20;
/// Buffers that a cache merges into one region; each costs every transfer of the region a little.
pub const CACHE_PIECES_MAX: usize = 64;
/// Bytes of early messages an endpoint keeps before it stops reading from its peer.
pub const UNEXPECTED_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of early messages a connectionless endpoint keeps of one peer: two messages that are just
/// not announced, and of all peers together eight such peers'.
pub const UNEXPECTED_BYTES_PER_PEER_DEFAULT: usize = 128 << 10;
/// Bytes above which a connectionless endpoint announces a message before it sends it: copying less
/// once costs less than an exchange with the peer.
pub const RENDEZVOUS_MIN_DEFAULT: usize = 64 << 10;
/// Bytes that a buffer for several messages keeps free for the next one.
pub const MULTI_RECV_FREE_MIN_DEFAULT: usize = 64;
/// Bookkeeping counted per early message beside its payload, so that empty ones are bounded too.
pub const UNEXPECTED_OVERHEAD: usize = 128;
/// Read requests of a peer that may await their responses; a hostile peer gains nothing by more.
pub const READ_REQUESTS_MAX: usize = 4096;
/// Payload bytes of one frame of a read's answer between extended peers. It bounds what has to be
/// sent in vain when a region is revoked in the middle of it; 16 bytes of header in 4 MiB cost
/// nothing.
pub const READ_DATA_MAX: usize = 4 << 20;
/// Drivers of one domain: more than there are processors gain nothing, and each has a descriptor,
/// and perhaps a ring and a thread.
pub const PROGRESS_SHARDS_MAX: usize = 256;
/// Bytes of the array that one atomic operation is about: 512 numbers of 64 bits. The operands, and
/// what is compared, come in one frame, which is held until all of it is there; results wait in
/// memory until the peer takes them, those of [`READ_REQUESTS_MAX`] operations at most.
pub const ATOMIC_SIZE_MAX: usize = 4096;
/// Refused operations of a peer that guesses keys, ranges or rights, within [`REFUSALS_PERIOD`],
/// after which its connection is ended whatever was agreed on.
pub const REFUSALS_MAX: u32 = 4096;
/// How long refused operations are counted together, from the first of them: then the count begins
/// again. A program that is in error now and then goes on for ever; one that tries keys makes at
/// most 2^12 attempts per minute at keys of 64 random bits.
pub const REFUSALS_PERIOD: Duration = Duration::from_secs(60);
/// Keys of deregistered regions that a domain remembers, so that who comes late (its operation's
/// time limit took the region away) does not count as guessing. 64 KiB at most, 16 bytes per key.
pub const RECENT_KEYS_MAX: usize = 4096;
/// Threads that fault in the pages of a domain's registrations at the same time: enough to keep one
/// core of a small machine busy without taking the runtime's blocking threads from everybody else.
pub const BLOCKING_THREADS_MAX: usize = 2;
/// How long a blocking thread serves the queue before it asks the runtime for another turn: waking
/// a thread takes 8 us, as long as several short registrations, and a runtime that ends waits for
/// the blocking threads that run.
pub const BLOCKING_TURN_MAX: Duration = Duration::from_millis(1);
/// Bytes of a region that are faulted in before the registration looks whether it is still wanted,
/// and before others get their turn: some 4 ms of a processor that clears 4 GB/s.
pub const FAULT_CHUNK: usize = 16 << 20;
/// Keys that a domain fetches from the operating system's random source at once: enough to share
/// the cost of the system call (0.5 us), few enough that fetching them takes no longer than some
/// microseconds.
pub const KEY_POOL_LEN: usize = 64;
/// How long a handshake may take, from the TCP connection to the last byte of the control frame.
pub const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long `connect` waits for the peer to accept. A libfabric listener that nobody polls
/// answers late, so this is generous.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// How long a connectionless endpoint tries to reach a peer before what was posted to it ends.
pub const RDM_CONNECT_DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// Connections whose request has not come in full yet, per listener.
pub const HALF_OPEN_MAX_DEFAULT: usize = 1024;
/// Bytes of `err_data` an error event may carry.
pub const ERR_DATA_SIZE_MAX: usize = CM_DATA_SIZE_MAX;
/// Bytes gathered into one vectored send before it goes out without waiting for the driver.
pub const GATHER_BYTES_MAX: usize = 64 << 10;
/// Frames gathered before they go out without waiting for the driver: they share a system call, and
/// the peer begins while more are posted.
pub const GATHER_FRAMES_ENOUGH: usize = 64;
/// Frames gathered into one vectored send: two iovecs each, well below the kernel's 1024.
pub const GATHER_FRAMES_MAX: usize = 64;
/// Bytes of a staging buffer: several hundred small frames per system call.
pub const STAGE_SIZE: usize = 64 << 10;
/// A payload that lacks at least this many bytes is received straight into its destination;
/// less is cheaper copied from the staging buffer, since one call then brings the next frames too.
pub const DIRECT_RECEIVE_MIN: usize = 16 << 10;
/// Bytes of the largest piece of one direct receive or send: 0.3 ms of a processor that moves 3
/// GB/s. A quarter of it took 16 % more CPU time for each byte of large messages and RMA.
pub const DIRECT_PIECE_MAX: usize = 1 << 20;
/// Bytes that the connections of a driver move before other ready ones, the other tasks of its
/// runtime and its reactor have their turn, and that one call of the application's sends by itself:
/// what has just come waits for no more than this, and a piece in each direction by which it may be
/// exceeded.
pub const TURN_BYTES_MAX: usize = 1 << 20;
/// The same in time, for what bytes do not tell, such as a thousand messages in a few of them.
pub const TURN_TIME_MAX: Duration = Duration::from_micros(200);
/// What a step of a driver (a system call, a turn, a heartbeat) costs beside its bytes, in bytes:
/// as many as are copied in a microsecond or two.
pub const STEP_BYTES: usize = 4 << 10;
/// Idle intervals in a row for which a connection takes the signs of life on others to the same
/// domain for its own. Then it probes for itself: a process that claims another's incarnation can
/// hide that one's death for so long, and connections that share cost 1/32 of the probes of those
/// that do not.
pub const SHARED_INTERVALS_MAX: u32 = 32;
/// How long an orderly close waits while nothing gets on: for queued frames, their answers and the
/// peer's agreement, then for the peer's end of stream.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what a plain peer still sends is read and dropped after a close, so that its system
/// does not lose our last bytes to a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped so, of a peer that does not stop sending.
pub const LINGER_BYTES_MAX: usize = 16 << 20;

const _: () = assert!(HEADER_SIZE_MAX == 16 + 8 + RMA_IOV_LIMIT * 24);
const _: () = assert!(DIRECT_RECEIVE_MIN <= STAGE_SIZE);
// The count of keys left is a byte.
const _: () = assert!(KEY_POOL_LEN <= 255);
const _: () = assert!(ERR_DATA_SIZE_MAX >= CM_DATA_SIZE_MAX);
