//! Every bound, default and threshold of the library, with its unit in the name or the comment and
//! its reason beside it. Constants of a format (the wire, the kernel's interface, the layout of a
//! word) stand where the format is read and written; `tests/tidy/constants.rs` lists them.

use std::time::Duration;

// The interface: what one call or object may ask for.

/// Buffers per vectored operation, local side; what libfabric's tcp provider offers too.
pub const IOV_LIMIT: usize = 4;
/// Remote segments per RMA operation; fixed by the wire (a header holds at most four).
pub const RMA_IOV_LIMIT: usize = 4;
/// Largest payload that `inject` copies, in bytes; C peers offer the same by default.
pub const INJECT_SIZE_MAX: usize = 128;
/// Bytes of the array that one atomic operation is about: 512 numbers of 64 bits. The operands, and
/// what is compared, come in one frame, which is held until all of it is there; results wait in
/// memory until the peer takes them, those of [`READ_REQUESTS_MAX`] operations at most.
pub const ATOMIC_SIZE_MAX: usize = 4096;
/// Bytes of a raw key (`FI_MR_RAW`): a 64-bit key, and the tag that proves it.
pub const RAW_KEY_SIZE: usize = 32;
/// Largest private data of connect, accept and reject, in bytes; the control frame's own limit.
pub const CM_DATA_SIZE_MAX: usize = 256;
/// Bytes of `err_data` an error event may carry.
pub const ERR_DATA_SIZE_MAX: usize = CM_DATA_SIZE_MAX;
/// Largest data header on the wire, in bytes: base, CQ data, four RMA segments.
pub const HEADER_SIZE_MAX: usize = 120;
/// Largest HELLO frame of the extension, in bytes: far more than its values need.
pub const HELLO_SIZE_MAX: usize = 4096;
/// Operations a transmit or receive context accepts before it is full.
pub const CONTEXT_SIZE_DEFAULT: usize = 256;
/// Largest transmit context. A peer of this library never has more reads and acknowledgements
/// awaited than this, so that two of them cannot both stop reading because of the other's.
pub const TRANSMIT_SIZE_MAX: usize = READ_REQUESTS_MAX;
/// Largest receive context.
pub const RECEIVE_SIZE_MAX: usize = 65_536;
/// Completions a queue holds.
pub const CQ_SIZE_DEFAULT: usize = 1024;
/// Completions of an endpoint's own queue. Small, since every endpoint without a bound queue has
/// one; an application that queues receives binds a queue of the right size.
pub(crate) const CQ_INTERNAL_SIZE: usize = 64;
/// Events a queue holds.
pub const EQ_SIZE_DEFAULT: usize = 256;
/// Drivers of one domain: more than there are processors gain nothing, and each has a descriptor,
/// and perhaps a ring and a thread.
pub const PROGRESS_SHARDS_MAX: usize = 256;
/// Bits that an address vector may keep for the context of a peer (`rx_ctx_bits`).
pub const RX_CTX_BITS_MAX: u32 = 6;
/// Contexts of one scalable endpoint, at most (`max_ep_tx_ctx`, `max_ep_rx_ctx`).
pub const EP_CONTEXTS_MAX: usize = 1 << RX_CTX_BITS_MAX;
/// Turns that the end of a domain driven by hand takes at most for what goes without waiting: each
/// sends a socket's buffer full, and what the peer has no room for is not waited for.
pub(crate) const MANUAL_END_TURNS: usize = 64;
/// How long a task that was asked to drive has to answer before the next one is asked: far longer
/// than a runtime takes to poll a task, so that a message wakes no other.
pub(crate) const MANUAL_ANSWER_MAX: Duration = Duration::from_millis(10);
/// Sockets that one look at their readiness reports; the next look reports others.
pub(crate) const POLLER_EVENTS_MAX: usize = 64;
/// Names shown in the message of a refused close; more are only counted, so that it stays readable.
pub(crate) const DEPENDENT_NAMES_MAX: usize = 8;

// The numbers of objects that a domain offers, unless its hints ask for fewer. Memory and
// descriptors end sooner; who asks for more asks for what no process of today can have.

/// Buffers per memory region.
pub(crate) const MR_IOV_LIMIT: usize = 16;
/// Completion queues of a domain: one for each endpoint.
pub(crate) const CQ_COUNT_MAX: usize = EP_COUNT_MAX;
/// Endpoints of a domain, and contexts: as many as the system lets a process have descriptors
/// (`fs.nr_open`).
pub(crate) const EP_COUNT_MAX: usize = 1 << 20;
/// Counters of a domain: for each endpoint as many as can be bound to it.
pub(crate) const CNTR_COUNT_MAX: usize = 6 * EP_COUNT_MAX;
/// Memory regions of a domain: 16 for each endpoint; the table alone then takes gigabytes.
pub(crate) const MR_COUNT_MAX: usize = 16 * EP_COUNT_MAX;

// Memory registration.

/// Regions that a table is allocated for at most when the domain is opened; more are entered as
/// into any map. An application that exaggerates `mr_cnt` costs no more than a large one.
pub(crate) const MR_CAPACITY_AHEAD_MAX: usize = 1 << 20;
/// Registrations that a cache keeps track of (`FI_MR_CACHE_MAX_COUNT`); libfabric's default too.
pub const CACHE_COUNT_DEFAULT: usize = 1024;
/// Registrations in use that a cache passes over at most while it looks for one to evict, so that a
/// miss costs no more in a cache full of them.
pub const CACHE_EVICTION_LOOKS_MAX: usize = 64;
/// Registrations that a cache may grow by, beyond twice those after the last sweep, before it
/// sweeps out those  whose memory has no other owner left.
pub const CACHE_SWEEP_COUNT_MIN: usize = 16;
/// The same in bytes.
pub const CACHE_SWEEP_BYTES_MIN: usize = 1 << 20;
/// Buffers that a cache merges into one region; each costs every transfer of the region a little.
pub const CACHE_PIECES_MAX: usize = 64;
/// Notices of unmapped memory kept for a cache that takes none meanwhile; more become one for all
/// addresses. The list is copied on the stack: 2 KiB.
pub(crate) const WATCH_NOTICES_MAX: usize = 128;
/// Caches of one process that can watch memory: the thread that reads the notices must not
/// allocate, so their table is an array.
pub(crate) const WATCH_READERS_MAX: usize = 64;
/// Messages of userfaultfd taken by one `read`: 512 bytes of the thread's stack.
pub(crate) const WATCH_MESSAGES_PER_READ: usize = 16;
/// Authorization keys of one connectionless endpoint (`max_ep_auth_key`). A peer that asks for a
/// connection does not say which it will prove: its answer is judged by each, which takes half a
/// microsecond, so a stranger costs at most some 30 µs.
pub const EP_AUTH_KEY_MAX: usize = 64;
/// Keys of deregistered regions that a domain remembers, so that a peer that comes late (the time
/// limit of its operation took the region away) does not count as guessing. A region that was bound
/// to endpoints (`FI_MR_ENDPOINT`) takes the place of one key more for each. 16 bytes per place,
/// and some 100 more for a region that asked for a proof besides its key: 64 to 512 KiB at most.
pub const RECENT_KEYS_MAX: usize = 4096;
/// Keys that a domain fetches from the operating system's random source at once: enough to share
/// the cost of the system call (0.5 us), few enough that fetching them takes no longer than some
/// microseconds.
pub const KEY_POOL_LEN: usize = 64;
/// Random draws for a key before all keys are tried in turn: with keys of 8 bytes the first draw
/// all but always hits, while a small key space may be nearly full.
pub(crate) const KEY_DRAWS_MAX: usize = 64;
/// Threads that fault in the pages of a domain's registrations at the same time: enough to keep one
/// core of a small machine busy, few enough to leave the runtime's other blocking work its threads.
pub const BLOCKING_THREADS_MAX: usize = 2;
/// How long a blocking thread serves the queue before it asks the runtime for another turn: waking
/// a thread takes 8 us, as long as several short registrations, and a runtime that ends waits for
/// the blocking threads that run.
pub const BLOCKING_TURN_MAX: Duration = Duration::from_millis(1);
/// Bytes of a region that are faulted in before the registration checks whether it was dropped, and
/// before others get their turn: some 4 ms of a processor that clears 4 GB/s.
pub const FAULT_CHUNK: usize = 16 << 20;
/// Bytes of an address range whose pages are checked before it is accessed; of a larger one the
/// first part, since a page takes about 0.1 us: 0.1 ms for this many.
pub(crate) const PROBE_BYTES_MAX: usize = READ_DATA_MAX;
/// Pages whose state one `mincore` reports, into an array on the stack.
pub(crate) const RESIDENT_PAGES_PER_CALL: usize = 1024;

// Messages, and what is held for them.

/// Bytes of unexpected messages an endpoint keeps before it stops reading from its peer.
pub const UNEXPECTED_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of unexpected messages a connectionless endpoint keeps of one peer: two messages that are
/// just not announced, and of all peers together eight such peers'.
pub const UNEXPECTED_BYTES_PER_PEER_DEFAULT: usize = 128 << 10;
/// Bookkeeping counted per unexpected message beside its payload, so that empty ones are bounded
/// too.
pub const UNEXPECTED_OVERHEAD: usize = 128;
/// A connection is promised at most one such part of what is left of the store, so that later ones
/// find some.
pub(crate) const UNEXPECTED_SHARE_DIVISOR: u64 = 16;
/// Smallest promise, in bytes: a few announcements, or small messages.
pub(crate) const UNEXPECTED_SHARE_MIN: u64 = 8 * UNEXPECTED_OVERHEAD as u64;
/// Bytes of an unexpected message that are allocated without first asking whether there is memory
/// for them: zeroed memory cannot be asked for fallibly, and asking twice costs the small ones.
pub(crate) const UNEXPECTED_ALLOCATION_UNCHECKED_MAX: usize = 1 << 20;
/// Messages on their way to no receive that a sender accounts for one by one; with so many it
/// waits, whatever the peer's budget.
pub(crate) const UNCOVERED_MESSAGES_MAX: usize = 1 << 16;
/// Bytes above which a connectionless endpoint announces a message before it sends it: copying less
/// once costs less than an exchange with the peer.
pub const RENDEZVOUS_MIN_DEFAULT: usize = 64 << 10;
/// Bytes that a buffer for several messages keeps free for the next one.
pub const MULTI_RECV_FREE_MIN_DEFAULT: usize = 64;
/// Read requests of a peer that may await their responses; a hostile peer gains nothing by more.
pub const READ_REQUESTS_MAX: usize = 4096;
/// Payload bytes of one frame of a read's answer between extended peers. It bounds what has to be
/// sent in vain when a region is revoked in the middle of it; 16 bytes of header in 4 MiB cost
/// nothing.
pub const READ_DATA_MAX: usize = 4 << 20;
/// Refused operations of a peer that guesses keys, ranges or rights, within [`REFUSALS_PERIOD`],
/// after which its connection is ended whatever was agreed on.
pub const REFUSALS_MAX: u32 = 4096;
/// How long refused operations are counted together, from the first of them: then the count begins
/// again. A program that is in error now and then goes on; one that tries keys makes at most 2^12
/// attempts per minute at keys of 64 random bits.
pub const REFUSALS_PERIOD: Duration = Duration::from_secs(60);
/// Entries of a list with lazily removed ones below which it is not swept: sweeping whenever a list
/// has doubled is O(1) per insertion, and short lists are not worth it.
pub(crate) const STALE_ENTRIES_MIN: usize = 64;
/// Operation cells that a thread keeps for reuse: operations are mostly posted and fetched where
/// they are awaited, so that few serve many.
pub(crate) const CELLS_PER_THREAD_MAX: usize = 256;

/// Bytes of device memory that are copied at a time, and held in the host's on their way. What is
/// not longer fails before any of it is sent.
pub const DEVICE_PIECE_MAX: usize = 1 << 20;

// Sending and receiving on a connection.

/// Bytes gathered into one vectored send before it goes out without waiting for the driver.
pub const GATHER_BYTES_MAX: usize = 64 << 10;
/// Frames gathered before they go out without waiting for the driver: they share a system call, and
/// the peer begins while more are posted.
pub const GATHER_FRAMES_ENOUGH: usize = 64;
/// Frames gathered into one vectored send: two iovecs each, well below the kernel's 1024.
pub const GATHER_FRAMES_MAX: usize = 64;
/// Spans of one system call: two per gathered frame; the kernel takes 1024.
pub(crate) const SPAN_LIST_MAX: usize = 128;
/// Bytes of a header that are kept within the frame: those of a message, of an announcement, and of
/// an RMA with one segment and no completion data. Frames are moved, so a longer header is boxed.
pub(crate) const FRAME_HEADER_INLINE: usize = 40;
/// Bytes already sent at the front of the queue of injected messages from which on the rest is
/// moved to the front.
pub(crate) const INJECTED_COMPACT_MIN: usize = 4096;
/// Bytes of a staging buffer: several hundred small frames per system call.
pub const STAGE_SIZE: usize = 64 << 10;
/// Idle staging buffers that a transport keeps: as many connections as one turn of a busy driver
/// reads from, and no more than a mebibyte.
pub(crate) const IDLE_STAGES_DEFAULT: usize = 16;
/// A payload that lacks at least this many bytes is received straight into its destination;
/// less is cheaper copied from the staging buffer, since one call then brings the next frames too.
pub const DIRECT_RECEIVE_MIN: usize = 16 << 10;
/// Bytes of the largest piece of one direct receive or send: 0.3 ms of a processor that moves 3
/// GB/s. A quarter of it took 16 % more CPU time for each byte of large messages and RMA.
pub const DIRECT_PIECE_MAX: usize = 1 << 20;

// The driver's turns.

/// Bytes that the connections of a driver move before other ready ones, the other tasks of its
/// runtime and its reactor have their turn, and that one call of the application's sends by itself:
/// a newly ready connection waits for no more than this, and a piece in each direction by which it
/// may be exceeded.
pub const TURN_BYTES_MAX: usize = 1 << 20;
/// The same in time, for work that has few bytes, such as a thousand small messages.
pub const TURN_TIME_MAX: Duration = Duration::from_micros(200);
/// What a step of a driver (a system call, a turn, a heartbeat) costs beside its bytes, in bytes:
/// as many as are copied in a microsecond or two.
pub const STEP_BYTES: usize = 4 << 10;
/// How long one poll of a driver that spins (`busy_poll`) and has found nothing goes on polling by
/// itself. A round through the runtime takes almost a microsecond; other tasks wait no longer.
pub(crate) const SPIN_WINDOW: Duration = Duration::from_micros(3);
/// How long a receive context must be idle before it gives back the memory that it keeps for
/// arriving messages.
pub(crate) const RECEIVE_CONTEXT_IDLE_MIN: Duration = Duration::from_secs(5);

// Liveness.

/// Default interval of probes while an operation awaits the peer: with four rounds a dead peer is
/// found in 3 to 4 seconds.
pub(crate) const LIVENESS_INTERVAL_DEFAULT: Duration = Duration::from_millis(750);
/// Default rounds without an answer after which a peer is dead.
pub(crate) const LIVENESS_ROUNDS_DEFAULT: u32 = 4;
/// Default interval of probes while only receives are posted.
pub(crate) const LIVENESS_IDLE_INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
/// Shortest interval: the system counts its silence in steps of up to ten milliseconds.
pub(crate) const LIVENESS_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Longest interval: beyond it a timer says no more than none.
pub(crate) const LIVENESS_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Most rounds; the system takes 127 probes.
pub(crate) const LIVENESS_ROUNDS_MAX: u32 = 100;
/// Longest idle interval: what the system takes for its own keepalive, in seconds.
pub(crate) const LIVENESS_IDLE_INTERVAL_MAX: Duration = Duration::from_secs(32_767);
/// What the system's clocks may be off by when silence is measured.
pub(crate) const LIVENESS_CLOCK_SLACK: Duration = Duration::from_millis(10);
/// The interval that is assumed of a peer that does not state its own.
pub(crate) const LIVENESS_PEER_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Idle intervals are shared among connections to the same domain if they are at least so many
/// times the interval: a shorter one leaves no time to probe anew.
pub(crate) const LIVENESS_SHARED_RATIO_MIN: u32 = 8;
/// Idle intervals in a row for which what comes on other connections to the same domain counts for
/// a connection. Then it probes for itself: a process that claims another's incarnation can hide
/// that one's death for so long, and connections that share cost 1/64 of the probes of those that
/// do not.
pub const SHARED_INTERVALS_MAX: u32 = 64;
/// Step of the heartbeat timer: due times are rounded up to it, so that many share a wake-up.
pub(crate) const HEARTBEAT_STEP_MIN: Duration = Duration::from_millis(16);
/// The same for long intervals, whose 64th part would be longer.
pub(crate) const HEARTBEAT_STEP_MAX: Duration = Duration::from_secs(1);
/// How often bytes or probes must have been sent without an answer before the system's silence
/// counts: one may be lost, or just have been sent.
pub(crate) const UNANSWERED_MIN: u8 = 2;

// Connecting and closing.

/// How long a handshake may take, from the TCP connection to the last byte of the control frame.
pub const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// How long `connect` waits for the peer to accept. A libfabric listener whose program rarely polls
/// it answers late, so this is generous.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Bytes that a peer may send until a TLS handshake is done: rustls takes messages of up to 64 KiB,
/// and a chain of certificates is the only long one.
#[cfg(feature = "tls")]
pub(crate) const TLS_HANDSHAKE_SIZE_MAX: usize = 128 << 10;
/// Bytes that are sealed at a time: four records of the largest size. What is sealed goes out in
/// full, so it also is what a batch that is taken back may have moved meanwhile.
#[cfg(feature = "tls")]
pub(crate) const TLS_SEAL_MAX: usize = STAGE_SIZE;
/// Connections whose request has not come in full yet, per listener.
pub const HALF_OPEN_MAX_DEFAULT: usize = 1024;
/// Connections that the system queues for a listener; it cuts this to `net.core.somaxconn`. Bursts
/// of connects must fit, since a refused one is retried by the peer only after a second.
pub(crate) const LISTEN_BACKLOG: u16 = 4096;
/// Connections accepted in one poll, so that a storm does not starve the requests already here.
pub(crate) const ACCEPTS_PER_POLL: usize = 64;
/// How long accepting pauses when the process has no descriptor left.
pub(crate) const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How long a rejected peer may take to read its rejection.
pub(crate) const REJECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an orderly close waits without progress: for queued frames, their answers and the
/// peer's agreement, then for the peer's end of stream.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what a plain peer still sends is read and dropped after a close, so that its system
/// does not lose our last bytes to a reset.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that are read and dropped so, of a peer that does not stop sending.
pub const LINGER_BYTES_MAX: usize = 16 << 20;

// Connectionless endpoints and their peers.

/// How long a connectionless endpoint tries to reach a peer before what was posted to it ends.
pub const RDM_CONNECT_DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// How long an endpoint that closes waits for connections that something was posted to.
pub(crate) const RDM_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Ports of one peer that a post tries: each refused because its connection had just ended.
pub(crate) const RDM_POST_ATTEMPTS: usize = 4;
/// How often a port whose connection has just been replaced is looked up again before a request
/// goes unanswered.
pub(crate) const RDM_PORT_ATTEMPTS: usize = 4;
/// Rejections in a row after which a peer counts as unreachable: with the pauses between them some
/// ten seconds, in which a peer that still holds an old connection of ours will have seen its end.
pub(crate) const RDM_REJECTIONS_MAX: u32 = 16;
/// The first pause before connecting again, on average three quarters of it; each next is twice as
/// long, up to [`RDM_RECONNECT_PAUSE_MAX`].
pub(crate) const RDM_RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before connecting again.
pub(crate) const RDM_RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Peers that connected by themselves and that nothing has been posted to.
pub(crate) const RDM_UNINVITED_MAX: usize = 65_536;
/// The same of one host, which may claim to listen at every port it likes.
pub(crate) const RDM_UNINVITED_PER_HOST_MAX: usize = 4096;
/// Peers that cannot be reached and are not connected: they are remembered, so that what is posted
/// to them ends at once, while there is room.
pub(crate) const RDM_UNREACHABLE_MAX: usize = 4096;
/// How long an attempt of a host that only claims to be a peer may take while a post waits for that
/// peer, or another attempt claims to be it: a handshake takes two round trips. Time in which this
/// side was late does not count; the endpoint's task counts it, then the driver does once more.
pub(crate) const RDM_CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// The parts in which that time is counted: one at whose end this side is late by half a part or
/// more is not counted.
pub(crate) const RDM_CLAIM_PARTS: u32 = 4;
/// How long a check of such a claim may take.
pub(crate) const RDM_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Such checks at the same time.
pub(crate) const RDM_CHECKS_MAX: usize = 64;
/// How often an idle connection is examined per idle time, which so is exceeded by a quarter.
pub(crate) const RDM_IDLE_CHECKS: u32 = 4;
/// Addresses without a port that the application has not asked for and that are remembered, so that
/// a peer that connects again has the same name. The host with the most makes room first.
pub(crate) const RDM_STRANGERS_MAX: usize = 16_384;
/// Peers that connected and disconnected unread and that are remembered for one reader. The oldest
/// of the host with the most is evicted: as many as names of strangers.
pub(crate) const RDM_UNREAD_STRANGERS_MAX: usize = 16_384;

// Address vectors.

/// Addresses in one address vector that several processes share: 64 MiB of their memory.
pub const SHARED_ADDRESSES_MAX: u32 = 1 << 20;
/// Addresses that a table is allocated for at most when it is opened.
pub(crate) const AV_CAPACITY_AHEAD_MAX: usize = 1 << 20;
/// How long to try for a lock that is held for the time of a few writes, before the caller gets
/// Again: longer than a busy machine keeps the holder from its turn.
pub(crate) const SHARED_AV_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often a record is read again that another process is writing.
pub(crate) const SHARED_AV_READ_ATTEMPTS: u32 = 1000;
/// Records read by one call: 64 KiB.
pub(crate) const SHARED_AV_RECORDS_PER_READ: usize = 1024;

// Datagrams.

/// Datagrams that one call moves: what a turn of a busy socket needs.
pub(crate) const DATAGRAMS_PER_CALL: usize = 32;
/// What a call counts as, in bytes: as much as its datagrams mostly have.
pub(crate) const DATAGRAM_CALL_BYTES: usize = 64 << 10;
/// Staging buffers of one receive, while more comes than is posted for.
pub(crate) const DATAGRAM_STAGES_MAX: usize = 8;
/// Errors of earlier datagrams that are skipped in a row; each call takes the one there is.
pub(crate) const DATAGRAM_ERRORS_SKIPPED_MAX: usize = 8;
/// How long queued sends may wait for room when the endpoint is closed.
pub(crate) const DATAGRAM_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

// The transport within the process.

/// Bytes in flight per direction; of the order of a socket's buffers.
pub(crate) const LOOPBACK_PIPE_SIZE: usize = 256 << 10;
/// Bytes that arrive together at a simulated host: of the order of what a network card gathers.
#[cfg(feature = "test-util")]
pub(crate) const LOOPBACK_SEGMENT_MAX: usize = 16 << 10;
/// Writes up to this size are appended to the last chunk, so that many small ones do not make many
/// allocations; copying so little under the lock is cheaper than that.
pub(crate) const LOOPBACK_APPEND_MAX: usize = 4 << 10;
/// Bytes that an inbox of datagrams holds by default, their bookkeeping included: of the order of a
/// socket's buffer.
pub(crate) const LOOPBACK_INBOX_BYTES: usize = 208 << 10;
/// The bookkeeping of a datagram, as a socket counts it.
pub(crate) const LOOPBACK_DATAGRAM_OVERHEAD: usize = 256;

#[cfg(all(feature = "io-uring", target_os = "linux"))]
pub(crate) use ring::*;

/// The ring.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod ring {
    use std::time::Duration;

    use crate::limits::STAGE_SIZE;

    /// Entries of the submission queue: what one turn of a busy driver pushes, mostly.
    pub(crate) const RING_SUBMISSIONS: u32 = 256;
    /// Entries of the completion queue. A multishot receive may bring many per drain; what does not
    /// fit is kept by the kernel, and fetched.
    pub(crate) const RING_COMPLETIONS: u32 = 4096;
    /// Rounds of one drive before other tasks have their turn.
    pub(crate) const RING_ROUNDS_PER_DRIVE: usize = 4;
    /// Completions of one round. What they give rise to (the stop of a receive that no link reads
    /// from) is submitted before more are taken in, so that a flood ends.
    pub(crate) const RING_COMPLETIONS_PER_ROUND: usize = 64;
    /// Attempts to submit in a row: each takes in at least something, unless it is interrupted.
    pub(crate) const RING_SUBMIT_ATTEMPTS: usize = 16;
    /// Pause between two attempts while the kernel is short of memory.
    pub(crate) const RING_RETRY_PAUSE: Duration = Duration::from_millis(1);
    /// How long the kernel may refuse to be entered for a ring, for want of memory or because of a
    /// signal, before everything in it ends: such a refusal passes within moments, or not at all.
    pub(crate) const RING_REFUSAL_MAX: Duration = Duration::from_secs(5);
    /// How long the drop of a ring waits for its operations to end. Cancelling a socket's operation
    /// takes microseconds; what takes longer is broken.
    pub(crate) const RING_REAP_TIMEOUT: Duration = Duration::from_millis(500);
    /// The same of a ring that has failed, whose driver waits meanwhile.
    pub(crate) const RING_REAP_TIMEOUT_FAILED: Duration = Duration::from_millis(100);
    /// One step of that wait.
    pub(crate) const RING_REAP_STEP: Duration = Duration::from_millis(1);
    /// Memories of operations (a list of spans each, 1 KiB) that are kept for the next ones:
    /// without them each send or direct receive through the ring asks the allocator.
    pub(crate) const RING_SPARE_MAX: usize = 64;
    /// Completions in a row that were harvested by another thread than the one that completed them,
    /// after which a receive is submitted again: its two system calls cost about as much as two of
    /// them.
    pub(crate) const RING_STRAYS_MAX: u8 = 8;
    /// Bytes that may lie in a completion slot before its receive is stopped: a connection that is
    /// not read holds so many, and what the kernel adds until the stop.
    pub(crate) const RING_ARRIVED_MAX: usize = 2 * STAGE_SIZE;
    /// Connections that wait in a completion slot before accepting is stopped.
    pub(crate) const RING_ACCEPTED_MAX: usize = 64;
    /// Connections with something to read in one drive from which on their sends are gathered. With
    /// fewer, gathering saves nothing that could be measured, and delays what is sent.
    pub(crate) const RING_ACTIVE_MIN: usize = 4;
    /// Drives in a row with fewer, after which sends are not gathered any more: the bytes of many
    /// connections come in unequal portions.
    pub(crate) const RING_ACTIVE_DRIVES: u8 = 4;
    /// Buffers provided to the kernel. A burst that finds none ends the multishot receives it met,
    /// which are armed again: with 128 buffers 256 busy connections took 5 to 15 % more CPU.
    pub(crate) const RING_BUFFERS: u16 = 512;
    /// Buffers that wait for their links; what comes beyond is copied out of its buffer at once, so
    /// that slow links cannot starve the others.
    pub(crate) const RING_BUFFERS_HELD_MAX: u16 = 384;
    /// Bytes of a buffer: larger data is mostly the payload of a direct receive, and the memory is
    /// touched only as far as bytes arrive in it.
    pub(crate) const RING_BUFFER_SIZE: usize = 16 << 10;
    /// Staged receives in a row after which the next one is a multishot. A direct receive has to
    /// stop it, which costs more than it saves where the two alternate.
    ///
    /// Measured on loopback, 64-byte ping-pong in one thread: 16.6 us per round trip by multishot,
    /// 19.9 without; a multishot armed in front of 1 MiB payloads, which then come through staging
    /// buffers, halves their rate.
    pub(crate) const RING_STAGES_BEFORE_MULTISHOT: u32 = 8;
}

const _: () = assert!(HEADER_SIZE_MAX == 16 + 8 + RMA_IOV_LIMIT * 24);
const _: () = assert!(DIRECT_RECEIVE_MIN <= STAGE_SIZE);
const _: () = assert!(SPAN_LIST_MAX >= 2 * GATHER_FRAMES_MAX);
// The count of keys left is a byte.
const _: () = assert!(KEY_POOL_LEN <= 255);
const _: () = assert!(ERR_DATA_SIZE_MAX >= CM_DATA_SIZE_MAX);

/// Of so many operations that are posted to a connection the time of one is taken (feature
/// `metrics`): two looks at the clock, some 50 ns, are then less than a nanosecond for each.
#[cfg(feature = "metrics")]
pub(crate) const LATENCY_SAMPLE_EVERY: u32 = 64;

/// Times that a connection keeps until they are asked for: 3 KiB.
#[cfg(feature = "metrics")]
pub(crate) const LATENCY_SAMPLES_MAX: usize = 128;
