//! All limits, defaults and thresholds of the library. The name or the comment of each constant
//! states its unit, and the comment its reason.
//!
//! Where a limit can be changed, a builder or a hint does so, and the constant is its default or
//! its maximum. The others are fixed.

use std::time::Duration;

// The interface: limits of single calls and objects.

/// Local buffers per operation (`iov_limit` of `fi_endpoint(3)`). The same as libfabric's `tcp`
/// provider.
pub const IOV_LIMIT: usize = 4;
/// Remote segments per RMA operation (`rma_iov_limit` of `fi_endpoint(3)`): the most that the
/// header of a frame can hold.
pub const RMA_IOV_LIMIT: usize = 4;
/// Largest payload of an injected operation, in bytes (`inject_size` of `fi_endpoint(3)`). C peers
/// have the same default.
pub const INJECT_SIZE_MAX: usize = 128;
/// Largest array of one atomic operation, in bytes: 512 elements of 64 bits. The target buffers the
/// request until it is complete, and keeps the results of at most [`READ_REQUESTS_MAX`] operations
/// per connection until the initiator has received them.
pub const ATOMIC_SIZE_MAX: usize = 4096;
/// Bytes of a raw key (`FI_MR_RAW` of `fi_mr(3)`): a 64-bit key and a tag that authenticates it.
pub const RAW_KEY_SIZE: usize = 32;
/// Largest private data of `connect`, `accept` and `reject`, in bytes; fixed by the wire format.
pub const CM_DATA_SIZE_MAX: usize = 256;
/// Largest error data of an event, in bytes (`max_err_data` of `fi_domain(3)`). Value: 256.
pub const ERR_DATA_SIZE_MAX: usize = CM_DATA_SIZE_MAX;
/// Largest header of a data frame, in bytes: base header, CQ data and four RMA segments.
pub const HEADER_SIZE_MAX: usize = 120;
/// Largest HELLO frame of the extension, in bytes. The values of this version need far less.
pub const HELLO_SIZE_MAX: usize = 4096;
/// Default size of transmit and receive contexts: the number of operations that can be outstanding.
pub const CONTEXT_SIZE_DEFAULT: usize = 256;
/// Largest transmit context. It equals [`READ_REQUESTS_MAX`], so that two peers never both stop
/// reading because each waits for the other's responses. Value: 4,096.
pub const TRANSMIT_SIZE_MAX: usize = READ_REQUESTS_MAX;
/// Largest receive context, in posted receives.
pub const RECEIVE_SIZE_MAX: usize = 65_536;
/// Default capacity of a completion queue.
pub const CQ_SIZE_DEFAULT: usize = 1024;
/// Capacity of the completion queue that an endpoint has if none is bound to it. Small, because
/// most endpoints never use theirs; an application that queues receives binds a queue of the size
/// that it needs.
pub(crate) const CQ_INTERNAL_SIZE: usize = 64;
/// Default capacity of an event queue.
pub const EQ_SIZE_DEFAULT: usize = 256;
/// Drivers per domain. More drivers than processors do not help, and each needs a descriptor, and
/// possibly a ring and a thread.
pub const PROGRESS_SHARDS_MAX: usize = 256;
/// Bits of a `FabricAddr` that can be reserved for the number of a peer's context (`rx_ctx_bits` of
/// `fi_av(3)`).
pub const RX_CTX_BITS_MAX: u32 = 6;
/// Contexts per scalable endpoint (`max_ep_tx_ctx` and `max_ep_rx_ctx` of `fi_domain(3)`).
/// Value: 64.
pub const EP_CONTEXTS_MAX: usize = 1 << RX_CTX_BITS_MAX;
/// Turns that a domain with manual progress takes when its last handle is dropped, to send the
/// bytes that the sockets accept without waiting. Each turn fills a socket's buffer at most.
pub(crate) const MANUAL_END_TURNS: usize = 64;
/// How long a waiting task that was woken to drive may take to do so before all others are woken.
/// It is far longer than a runtime takes to poll a task, so that one message wakes one task.
pub(crate) const MANUAL_ANSWER_MAX: Duration = Duration::from_millis(10);
/// Ready sockets reported by one poll; the next poll reports others.
pub(crate) const POLLER_EVENTS_MAX: usize = 64;
/// Names listed in the error of a refused close; the rest are only counted.
pub(crate) const DEPENDENT_NAMES_MAX: usize = 8;

// The objects that a domain offers unless its hints ask for fewer. A process runs out of memory or
// descriptors before it reaches these numbers.

/// Buffers per memory region.
pub(crate) const MR_IOV_LIMIT: usize = 16;
/// Completion queues per domain: one for each endpoint.
pub(crate) const CQ_COUNT_MAX: usize = EP_COUNT_MAX;
/// Endpoints, and contexts, per domain: the default of `fs.nr_open`, which limits a process's
/// descriptors.
pub(crate) const EP_COUNT_MAX: usize = 1 << 20;
/// Counters per domain: six for each endpoint, the most that can be bound to it.
pub(crate) const CNTR_COUNT_MAX: usize = 6 * EP_COUNT_MAX;
/// Memory regions per domain: 16 for each endpoint. At this count the table alone takes gigabytes.
pub(crate) const MR_COUNT_MAX: usize = 16 * EP_COUNT_MAX;

// Memory registration.

/// Entries that the region table allocates in advance at most. Further regions make it grow, so an
/// exaggerated `mr_cnt` costs no more than a large one.
pub(crate) const MR_CAPACITY_AHEAD_MAX: usize = 1 << 20;
/// Default number of registrations that a cache holds (`FI_MR_CACHE_MAX_COUNT`); the same as
/// libfabric's.
pub const CACHE_COUNT_DEFAULT: usize = 1024;
/// Registrations in use that a cache skips at most while it searches for one to evict. It bounds
/// the cost of a miss in a cache whose entries are in use.
pub const CACHE_EVICTION_LOOKS_MAX: usize = 64;
/// A sweep of a cache removes registrations whose memory has no other owner left. It begins once
/// the number of registrations exceeds twice the number after the last sweep by more than this.
pub const CACHE_SWEEP_COUNT_MIN: usize = 16;
/// As [`CACHE_SWEEP_COUNT_MIN`], for the bytes that are registered. Value: 1 MiB.
pub const CACHE_SWEEP_BYTES_MIN: usize = 1 << 20;
/// Buffers that a cache merges into one region at most. Each buffer adds a little to the cost of
/// every transfer of the region.
pub const CACHE_PIECES_MAX: usize = 64;
/// Notices of unmapped memory that are kept for a cache until it takes them; any more are replaced
/// by one notice for all addresses. The list is copied to the stack: 2 KiB.
pub(crate) const WATCH_NOTICES_MAX: usize = 128;
/// Caches per process that can watch memory. Their table is an array, because the thread that reads
/// the notices must not allocate.
pub(crate) const WATCH_READERS_MAX: usize = 64;
/// Messages read from userfaultfd by one `read`: 512 bytes on the thread's stack.
pub(crate) const WATCH_MESSAGES_PER_READ: usize = 16;
/// Authorization keys per connectionless endpoint (`max_ep_auth_key` of `fi_domain(3)`). A
/// connection request does not name its key, so the proof is checked against each key, which takes
/// about half a microsecond per key: at most 30 µs per request of an unknown peer.
pub const EP_AUTH_KEY_MAX: usize = 64;
/// Keys of deregistered regions that a domain remembers. An operation that arrives just after its
/// region was deregistered is thus not counted as an attempt to guess a key. A region that was
/// bound to endpoints (`FI_MR_ENDPOINT`) takes one entry more for each of them. An entry takes 16
/// bytes, and about 100 more if the region required a proof besides its key: 64 to 512 KiB at most.
pub const RECENT_KEYS_MAX: usize = 4096;
/// Random keys fetched from the operating system at once. Enough to spread the cost of the system
/// call (0.5 µs), and few enough that fetching them takes only microseconds.
pub const KEY_POOL_LEN: usize = 64;
/// Random draws before all keys are tried in order. With 8-byte keys the first draw almost always
/// succeeds; a small key space may be nearly full.
pub(crate) const KEY_DRAWS_MAX: usize = 64;
/// Threads that fault in pages for a domain's registrations at the same time. Enough to keep one
/// core of a small machine busy, and few enough to leave threads for the runtime's other blocking
/// work.
pub const BLOCKING_THREADS_MAX: usize = 2;
/// How long a blocking thread serves the queue of registrations before it returns to the runtime.
/// Waking a thread takes 8 µs, as long as several short registrations; a runtime that shuts down
/// waits for its blocking threads. Value: 1 ms.
pub const BLOCKING_TURN_MAX: Duration = Duration::from_millis(1);
/// Bytes of a region that are faulted in at a time. Between chunks the registration checks whether
/// it was dropped, and other registrations have their turn. A processor that clears 4 GB/s takes
/// about 4 ms for one. Value: 16 MiB.
pub const FAULT_CHUNK: usize = 16 << 20;
/// Largest number of bytes whose pages are checked before an access; only the beginning of a longer
/// range is checked. A page takes about 0.1 µs, so this many bytes take 0.1 ms.
pub(crate) const PROBE_BYTES_MAX: usize = READ_DATA_MAX;
/// Pages whose state one `mincore` reports, into an array on the stack.
pub(crate) const RESIDENT_PAGES_PER_CALL: usize = 1024;

// Messages, and the memory kept for them.

/// Default limit of the unexpected messages that a connected endpoint keeps, in bytes. Beyond it
/// the endpoint stops reading from its peer. Value: 1 MiB.
pub const UNEXPECTED_BYTES_DEFAULT: usize = 1 << 20;
/// Default limit of the unexpected messages that a connectionless endpoint keeps of one peer, in
/// bytes: two of the longest messages that are sent without an announcement. The limit for all
/// peers together is eight times this. Value: 128 KiB.
pub const UNEXPECTED_BYTES_PER_PEER_DEFAULT: usize = 128 << 10;
/// Bytes that are counted for each unexpected message in addition to its payload, so that the
/// number of empty messages is limited too.
pub const UNEXPECTED_OVERHEAD: usize = 128;
/// A new connection is promised at most this fraction (1/16) of the unpromised budget, so that
/// later connections find some left.
pub(crate) const UNEXPECTED_SHARE_DIVISOR: u64 = 16;
/// Smallest promise to a connection, in bytes: a few announcements or small messages.
pub(crate) const UNEXPECTED_SHARE_MIN: u64 = 8 * UNEXPECTED_OVERHEAD as u64;
/// Unexpected messages up to this many bytes are allocated without a preceding fallible
/// reservation. There is no fallible allocation of zeroed memory, and reserving first would slow
/// down small messages.
pub(crate) const UNEXPECTED_ALLOCATION_UNCHECKED_MAX: usize = 1 << 20;
/// Messages in flight beyond the posted receives that a sender accounts for individually. At this
/// number it waits, whatever credit the peer has granted.
pub(crate) const UNCOVERED_MESSAGES_MAX: usize = 1 << 16;
/// Longest message, in bytes, that a connectionless endpoint sends without announcing it first. For
/// longer ones, saving a copy at the receiver outweighs the additional round trip. Value: 64 KiB.
pub const RENDEZVOUS_MIN_DEFAULT: usize = 64 << 10;
/// Default of `min_multi_recv` (`FI_OPT_MIN_MULTI_RECV` of `fi_endpoint(3)`), in bytes: a buffer
/// for several messages completes when less space than this is left.
pub const MULTI_RECV_FREE_MIN_DEFAULT: usize = 64;
/// Read requests of one peer that may wait for their responses. This limits the memory that a
/// hostile peer can make this side keep.
pub const READ_REQUESTS_MAX: usize = 4096;
/// Payload bytes per frame of a read response between extended peers. When a region is revoked in
/// the middle of a frame, the rest of that frame is sent in vain, so frames are not longer; 16
/// bytes of header per 4 MiB cost nothing. Value: 4 MiB.
pub const READ_DATA_MAX: usize = 4 << 20;
/// Refused operations within [`REFUSALS_PERIOD`] (wrong keys, ranges or rights) after which a
/// peer's connection is closed, whatever [`OnRefusal`](crate::ep::OnRefusal) says.
pub const REFUSALS_MAX: u32 = 4096;
/// Period over which refused operations are counted; it begins with the first of them. A program
/// with an occasional error is not affected. A peer that guesses keys has at most 2^12 attempts per
/// minute against 64 random bits. Value: 60 s.
pub const REFUSALS_PERIOD: Duration = Duration::from_secs(60);
/// Length below which a list with lazily removed entries is not swept. Sweeping whenever a list has
/// doubled costs O(1) per insertion; short lists are not worth it.
pub(crate) const STALE_ENTRIES_MIN: usize = 64;
/// Number of ended operations whose records a thread keeps for later operations. Operations are
/// usually awaited on the thread that posted them, so a few records serve many operations.
pub(crate) const RECORDS_PER_THREAD_MAX: usize = 256;
/// Size of an operation's record, in bytes.
pub(crate) const RECORD_SIZE: usize = 384;

/// Bytes of device memory that are copied at a time, through a buffer in host memory. If the copy
/// of a payload up to this length fails, none of it has been sent. Value: 1 MiB.
pub const DEVICE_PIECE_MAX: usize = 1 << 20;

// Sending and receiving on a connection.

/// Bytes of queued frames at which a vectored send starts without waiting for the driver, and at
/// which no more are added to it. Value: 64 KiB.
pub const GATHER_BYTES_MAX: usize = 64 << 10;
/// Queued frames at which a vectored send starts without waiting for the driver: they share a
/// system call. Not for a peer on the same processor, which could not work meanwhile.
pub const GATHER_FRAMES_ENOUGH: usize = 64;
/// As [`GATHER_FRAMES_ENOUGH`], for the first send of a burst. It wakes a peer that sleeps, and the
/// peer works while the rest is posted; otherwise each side would sleep while the other works.
pub const GATHER_FRAMES_FIRST: usize = 24;
/// Turns of its driver after which a port checks again which processor its peer runs on.
pub(crate) const PROCESSOR_CHECK_TURNS: u8 = 64;
/// Frames per vectored send. Each has up to two `iovec`s; the kernel accepts 1024 per call.
pub const GATHER_FRAMES_MAX: usize = 64;
/// Spans per system call: two per gathered frame. The kernel accepts 1024.
pub(crate) const SPAN_LIST_MAX: usize = 128;
/// Largest header of an injected message, in bytes: with CQ data and a tag.
pub(crate) const INJECTED_HEADER_MAX: usize = 32;
/// When this many bytes at the front of the queue of injected messages are sent, the rest moves to
/// the front.
pub(crate) const INJECTED_COMPACT_MIN: usize = 4096;
/// Bytes of a staging buffer: room for several hundred small frames per system call. Value: 64 KiB.
pub const STAGE_SIZE: usize = 64 << 10;
/// Idle staging buffers that a thread keeps: as many as a datagram socket receives into at once,
/// half a mebibyte.
pub(crate) const STAGES_PER_THREAD_MAX: usize = DATAGRAM_STAGES_MAX;
/// A payload of which at least this many bytes are missing is received directly into its
/// destination. Fewer are received into the staging buffer and copied: the same call then also
/// receives the frames behind them. Value: 16 KiB.
pub const DIRECT_RECEIVE_MIN: usize = 16 << 10;
/// Bytes per direct receive or send: 0.3 ms for a processor that moves 3 GB/s. A quarter of this
/// size took 16 % more CPU time per byte of large messages and RMA. Value: 1 MiB.
pub const DIRECT_PIECE_MAX: usize = 1 << 20;
/// Bytes of the shared ring of one direction between two processes of one host: more than a
/// processor copies during two wake-ups. A ring of a quarter of this size moved a quarter of the
/// bytes. Value: 1 MiB.
pub const LOCAL_RING_LEN: usize = 1 << 20;
pub(crate) const LOCAL_RING_LEN_MIN: usize = 64 << 10;
pub(crate) const LOCAL_RING_LEN_MAX: usize = 4 << 20;
/// The writer of a ring publishes bytes, and the reader frees room, in pieces of this many bytes:
/// thus both sides copy at the same time.
pub(crate) const LOCAL_PIECE_LEN: usize = 64 << 10;
/// Time limit of each step with which two processes set up shared memory.
pub(crate) const LOCAL_STEP_MAX: Duration = Duration::from_secs(2);
/// The side that accepted the connection expects a request for shared memory after the traffic at
/// which the other side asks, divided by this number.
pub(crate) const LOCAL_ACCEPTOR_TRAFFIC_DIVISOR: u64 = 2;
/// How long a side pauses if its peer is not ready yet, and how often.
pub(crate) const LOCAL_PAUSE: Duration = Duration::from_millis(25);
pub(crate) const LOCAL_PAUSES_MAX: usize = 20;
/// Largest number of one domain's connections that go through shared memory.
pub const LOCAL_CONNECTIONS_MAX: usize = 64;
/// How often a connection must have sent and received before it asks for shared memory.
pub(crate) const LOCAL_TRAFFIC_MIN: u64 = 64;
/// Smallest number of wake-ups for a large payload, if the receiver is faster than the sender: one
/// each time an eighth of the payload, or [`DIRECT_PIECE_MAX`], arrives. The sender pays too.
pub(crate) const WAKES_PER_PAYLOAD: u64 = 8;
/// Smallest number of bytes that a receiver waits for before it is woken. Payloads of less than 512
/// KiB, of which an eighth is less, wake it with the first bytes.
pub(crate) const WAKE_BYTES_MIN: u64 = 64 << 10;
/// As [`WAKE_BYTES_MIN`], with TLS: payloads of less than 2 MiB wake the receiver with the first
/// bytes. It decrypts records about as fast as the sender encrypts them; transfers of 1 MiB gained
/// nothing.
#[cfg(feature = "tls")]
pub(crate) const TLS_WAKE_BYTES_MIN: u32 = 256 << 10;

// The driver's turns.

/// Bytes that a driver moves before other ready connections, other tasks of its runtime and the
/// reactor get their turn; also the most that one call of the application sends by itself. A newly
/// ready connection waits for no more than this, plus one piece ([`DIRECT_PIECE_MAX`]) per
/// direction. Value: 1 MiB.
pub const TURN_BYTES_MAX: usize = 1 << 20;
/// Frames of a peer whose acks may wait while more of its bytes arrive: one ack for several frames
/// saves system calls and wake-ups on both sides. A peer with more frames in flight loses no time.
pub(crate) const ACKS_WAITING_MAX: u64 = 4;
/// As [`TURN_BYTES_MAX`], in time: for work with few bytes, such as a thousand small messages.
/// Value: 200 µs.
pub const TURN_TIME_MAX: Duration = Duration::from_micros(200);
/// Smallest number of bytes that a step of a driver (a system call, a turn, a heartbeat) counts
/// against [`TURN_BYTES_MAX`]: as many as are copied in one or two microseconds. Value: 4 KiB.
pub const STEP_BYTES: usize = 4 << 10;
/// How long one poll of a spinning driver (`busy_poll`) that found nothing keeps polling before it
/// yields. A round through the runtime takes almost a microsecond; other tasks wait no longer than
/// this.
pub(crate) const SPIN_WINDOW: Duration = Duration::from_micros(3);
/// How many polls in a row a spinning driver that finds work has before the runtime polls its
/// reactor, which takes half a microsecond. Sockets of other tasks wait for that many polls.
pub(crate) const SPIN_ROUNDS_MAX: u32 = 8;
/// How long a receive context must be idle before it frees the memory that it keeps for arriving
/// messages.
pub(crate) const RECEIVE_CONTEXT_IDLE_MIN: Duration = Duration::from_secs(5);

// Liveness.

/// Default probe interval while an operation waits for the peer. With four rounds a dead peer is
/// found within 4.5 s.
pub(crate) const LIVENESS_INTERVAL_DEFAULT: Duration = Duration::from_millis(750);
/// Default number of unanswered rounds after which a peer is declared dead.
pub(crate) const LIVENESS_ROUNDS_DEFAULT: u32 = 4;
/// Default probe interval while only receives are posted.
pub(crate) const LIVENESS_IDLE_INTERVAL_DEFAULT: Duration = Duration::from_secs(60);
/// Shortest interval: the kernel measures silence in steps of up to 10 ms.
pub(crate) const LIVENESS_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Longest interval: a longer one is as good as no probing.
pub(crate) const LIVENESS_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Largest number of rounds; the kernel accepts 127 keepalive probes.
pub(crate) const LIVENESS_ROUNDS_MAX: u32 = 100;
/// Longest idle interval: the maximum of the kernel's `TCP_KEEPIDLE`.
pub(crate) const LIVENESS_IDLE_INTERVAL_MAX: Duration = Duration::from_secs(32_767);
/// Tolerance for the kernel's clocks when silence is measured.
pub(crate) const LIVENESS_CLOCK_SLACK: Duration = Duration::from_millis(10);
/// Interval assumed for a peer that does not state its own.
pub(crate) const LIVENESS_PEER_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Connections to the same domain share probes if the idle interval is at least this many times the
/// interval: with a shorter one there would be no time left to probe again.
pub(crate) const LIVENESS_SHARED_RATIO_MIN: u32 = 8;
/// Consecutive idle intervals in which data from other connections to the same domain counts as a
/// sign that a connection's peer is alive. Then the connection sends a probe of its own. This
/// limits how long a process that claims another process's incarnation can hide that process's
/// death; connections that share still send only 1/64 of the probes.
pub const SHARED_INTERVALS_MAX: u32 = 64;
/// Shortest step of the heartbeat timer. Due times are rounded up to a step, which is 1/64 of the
/// interval, so that many connections share a wake-up.
pub(crate) const HEARTBEAT_STEP_MIN: Duration = Duration::from_millis(16);
/// Longest step of the heartbeat timer.
pub(crate) const HEARTBEAT_STEP_MAX: Duration = Duration::from_secs(1);
/// Retransmissions or keepalive probes that must be unanswered before the silence of the peer's
/// system counts: one may have been lost, or only just sent.
pub(crate) const UNANSWERED_MIN: u8 = 2;

// Connecting and closing.

/// Default time limit of a handshake, from the TCP connection to the last byte of the control
/// frame. Value: 10 s.
pub const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default time that `connect` waits for the peer to accept. It is generous because a libfabric
/// listener whose program rarely polls it answers late. Value: 60 s.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Bytes accepted from a peer until the TLS handshake is complete. rustls accepts messages of up to
/// 64 KiB, and only one of them, the certificate chain, is long.
#[cfg(feature = "tls")]
pub(crate) const TLS_HANDSHAKE_SIZE_MAX: usize = 128 << 10;
/// Bytes sealed at a time: eight records. Sealed bytes are always sent, so a batch that is
/// withdrawn may have sent this many bytes.
#[cfg(feature = "tls")]
pub(crate) const TLS_SEAL_MAX: usize = 8 * TLS_RECORD_MAX;
/// Bytes of plaintext per record. With the 22 bytes that TLS 1.3 adds (header, type and tag) four
/// records fill a staging buffer, so that few records are split between two buffers.
#[cfg(feature = "tls")]
pub(crate) const TLS_RECORD_MAX: usize = STAGE_SIZE / 4 - 22;
/// Consecutive empty records accepted from a peer; each costs more to process than to send.
#[cfg(feature = "tls")]
pub(crate) const TLS_EMPTY_RECORDS_MAX: u8 = 32;
/// Key updates accepted from a peer that sends no data in between; each costs more to process than
/// to send.
#[cfg(feature = "tls")]
pub(crate) const TLS_KEY_UPDATES_MAX: u8 = 32;
/// Largest handshake message accepted after the handshake, in bytes; rustls has the same limit
/// within the handshake. Tickets are the longest of these messages.
#[cfg(feature = "tls")]
pub(crate) const TLS_MESSAGE_SIZE_MAX: usize = 0xffff;
/// Default limit per listener of connections whose request is not complete yet. Further connections
/// wait in the kernel's backlog.
pub const HALF_OPEN_MAX_DEFAULT: usize = 1024;
/// Connections that the kernel queues for a listener, which it limits to `net.core.somaxconn`. A
/// burst of connects must fit: a peer that is refused retries only after a second.
pub(crate) const LISTEN_BACKLOG: u16 = 4096;
/// Connections accepted per poll, so that a burst does not delay the requests that are already
/// here.
pub(crate) const ACCEPTS_PER_POLL: usize = 64;
/// Ticks without a decision after which accepting no longer pauses at the limit of half-open
/// connections. Together they are half of the handshake's time limit, 5 s by default. Silent
/// strangers can delay other connections by this time, and in a burst of clients the first request
/// may take this long to arrive.
pub(crate) const ACCEPT_PAUSE_TICKS_SILENT: u32 = 10;
/// Ticks of all pauses together after which accepting does not pause for [`EVICTING_TIME`]: 30 s by
/// default, within which a burst of thousands of clients has connected.
pub(crate) const ACCEPT_PAUSE_TICKS: u32 = 60;
/// How long the oldest half-open connections are evicted instead of pausing, so that pauses are a
/// small share of the time, whatever strangers do. Value: 5 min.
pub(crate) const EVICTING_TIME: Duration = Duration::from_secs(300);
/// Peers with rejected certificates that a listener logs per second.
pub(crate) const UNAUTHORIZED_LOGGED_PER_SECOND: u32 = 10;
/// How long accepting pauses when the process has no descriptors left.
pub(crate) const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How long a process has had no descriptors before it refuses peers that wait to be accepted.
pub(crate) const REFUSE_AFTER: Duration = Duration::from_secs(1);
/// How long a rejected peer may take to read the rejection.
pub(crate) const REJECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a graceful close waits without any progress for queued frames, their answers and the
/// peer's agreement; then as long again for the peer's end of stream. Also how long operations wait
/// for a peer that has ended its stream, while the application takes none of the earlier messages
/// because it posts no receives or a completion queue is full. Value: 5 s.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a close the bytes that a plain peer still sends are read and discarded. Otherwise
/// a TCP reset could discard our last bytes at the peer. Value: 2 s.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest number of bytes that are discarded in this way ([`LINGER_TIMEOUT`]), in case the peer
/// keeps sending. Value: 16 MiB.
pub const LINGER_BYTES_MAX: usize = 16 << 20;

// Connectionless endpoints and their peers.

/// Default time that a connectionless endpoint tries to reach a peer before the operations posted
/// to that peer fail. Value: 30 s.
pub const RDM_CONNECT_DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// How long closing an endpoint waits for connections on which operations were posted.
pub(crate) const RDM_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections of one peer a post tries, one after the other, if each has just closed.
pub(crate) const RDM_POST_ATTEMPTS: usize = 4;
/// Attempts to hand a connection request to a peer's port when the port has just been replaced,
/// before the request is dropped.
pub(crate) const RDM_PORT_ATTEMPTS: usize = 4;
/// Consecutive rejections after which a peer counts as unreachable. With the pauses between them
/// this takes about ten seconds, enough for a peer that still has an old connection of ours to
/// notice its end.
pub(crate) const RDM_REJECTIONS_MAX: u32 = 16;
/// First pause before connecting again; three quarters of it on average. It doubles each time, up
/// to [`RDM_RECONNECT_PAUSE_MAX`].
pub(crate) const RDM_RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause before connecting again.
pub(crate) const RDM_RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Default limit of peers that connected by themselves and to which nothing has been posted. A
/// host, which can claim any number of ports, may have as many such peers as are left for all other
/// hosts.
pub(crate) const RDM_STRANGERS_MAX_DEFAULT: usize = 65_536;
/// Unreachable peers that are remembered, so that operations posted to them fail at once.
pub(crate) const RDM_UNREACHABLE_MAX: usize = 4096;
/// Time limit of a connection attempt by a host that claims, without proof, to be a peer, while a
/// post waits for that peer or another attempt makes the same claim. A handshake takes two round
/// trips. Time in which this side was late does not count. The endpoint's task measures the time,
/// then the driver measures it again.
pub(crate) const RDM_CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// Parts into which [`RDM_CLAIM_TIMEOUT`] is divided. A part at whose end this side is late by half
/// a part or more is not counted.
pub(crate) const RDM_CLAIM_PARTS: u32 = 4;
/// How long verifying such a claim may take ([`RDM_CLAIM_TIMEOUT`]).
pub(crate) const RDM_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Claims verified at the same time.
pub(crate) const RDM_CHECKS_MAX: usize = 64;
/// Checks of an idle connection per idle time, which can thus be exceeded by a quarter.
pub(crate) const RDM_IDLE_CHECKS: u32 = 4;
/// When the application has asked a connectionless endpoint for this many peers, the endpoint first
/// searches them for addresses that have been removed.
pub(crate) const RDM_UNPIN_MIN: usize = 64;
/// Remembered addresses, without a port, of peers that the application has not inserted, so that
/// such a peer keeps its name when it reconnects. The host with the most loses addresses first.
pub(crate) const RDM_STRANGERS_MAX: usize = 16_384;
/// Peers remembered per reader that connected and disconnected again before the reader read them.
/// The oldest peer of the host with the most is evicted first. As many as [`RDM_STRANGERS_MAX`].
pub(crate) const RDM_UNREAD_STRANGERS_MAX: usize = 16_384;

// Address vectors.

/// Addresses in an address vector that several processes share: 64 MiB of shared memory.
/// Value: 1,048,576.
pub const SHARED_ADDRESSES_MAX: u32 = 1 << 20;
/// Entries that an address vector allocates in advance at most.
pub(crate) const AV_CAPACITY_AHEAD_MAX: usize = 1 << 20;
/// How long to wait for the lock of a shared address vector before the call fails with `Again`. The
/// lock is held for a few writes; on a busy machine its holder may wait that long for the
/// processor.
pub(crate) const SHARED_AV_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often a record is read again while another process writes it.
pub(crate) const SHARED_AV_READ_ATTEMPTS: u32 = 1000;
/// Records read by one call: 64 KiB.
pub(crate) const SHARED_AV_RECORDS_PER_READ: usize = 1024;

// Datagrams.

/// Datagrams per system call: about as many as a busy socket has ready in a turn.
pub(crate) const DATAGRAMS_PER_CALL: usize = 32;
/// Bytes that such a call counts against the budget of a turn: about as many as its datagrams
/// contain.
pub(crate) const DATAGRAM_CALL_BYTES: usize = 64 << 10;
/// Staging buffers per receive call when more datagrams arrive than receives are posted.
pub(crate) const DATAGRAM_STAGES_MAX: usize = 8;
/// Errors of earlier datagrams that are skipped in a row. A system call reports at most one.
pub(crate) const DATAGRAM_ERRORS_SKIPPED_MAX: usize = 8;
/// How long queued sends may wait for room in the socket when the endpoint is closed.
pub(crate) const DATAGRAM_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

// The transport within the process.

/// Bytes in flight per direction; about the size of a socket's buffers.
pub(crate) const LOOPBACK_PIPE_SIZE: usize = 256 << 10;
/// Bytes that arrive at a simulated host at once: about what a network card coalesces.
#[cfg(feature = "test-util")]
pub(crate) const LOOPBACK_SEGMENT_MAX: usize = 16 << 10;
/// Writes up to this size are appended to the last chunk, so that many small writes need few
/// allocations. Copying so little under the lock costs less than an allocation.
pub(crate) const LOOPBACK_APPEND_MAX: usize = 4 << 10;
/// Default capacity of an inbox for datagrams in bytes, overhead included; about the size of a
/// socket's buffer.
pub(crate) const LOOPBACK_INBOX_BYTES: usize = 208 << 10;
/// Bytes that are counted for each datagram in addition to its payload, as the kernel does.
pub(crate) const LOOPBACK_DATAGRAM_OVERHEAD: usize = 256;

#[cfg(all(feature = "io-uring", target_os = "linux"))]
pub(crate) use ring::*;

/// Limits of the `io-uring` backend.
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod ring {
    use std::time::Duration;

    use crate::limits::STAGE_SIZE;

    /// Entries of the submission queue: about what one turn of a busy driver submits.
    pub(crate) const RING_SUBMISSIONS: u32 = 256;
    /// Entries of the completion queue. Multishot receives may complete many times per harvest; the
    /// kernel keeps what does not fit.
    pub(crate) const RING_COMPLETIONS: u32 = 4096;
    /// Rounds per poll of the driver before other tasks have their turn.
    pub(crate) const RING_ROUNDS_PER_DRIVE: usize = 4;
    /// Completions handled per round. Submissions that they cause (such as stopping a receive that
    /// no link reads from) are made before more are handled, so that a flood ends.
    pub(crate) const RING_COMPLETIONS_PER_ROUND: usize = 64;
    /// Consecutive attempts to submit. Each submits at least one entry unless it is interrupted.
    pub(crate) const RING_SUBMIT_ATTEMPTS: usize = 16;
    /// Pause between two attempts while the kernel is short of memory.
    pub(crate) const RING_RETRY_PAUSE: Duration = Duration::from_millis(1);
    /// How long the kernel may refuse to enter a ring (out of memory, or interrupted) before all
    /// its operations fail. Such a refusal is either over within moments or permanent. The limit is
    /// shorter than the time after which a peer that waits for this side declares it dead, so that
    /// operations end with the true reason.
    pub(crate) const RING_REFUSAL_MAX: Duration = Duration::from_secs(1);
    /// Smallest number of refusals, besides the time [`RING_REFUSAL_MAX`], before all operations
    /// fail: a process that did not run for a second has tried only twice.
    pub(crate) const RING_REFUSALS_MIN: usize = 100;
    /// How long dropping a ring waits for its operations to end. Cancelling an operation of a
    /// socket takes microseconds; anything longer is a malfunction.
    pub(crate) const RING_REAP_TIMEOUT: Duration = Duration::from_millis(500);
    /// As [`RING_REAP_TIMEOUT`], for a ring that has failed: its driver waits meanwhile.
    pub(crate) const RING_REAP_TIMEOUT_FAILED: Duration = Duration::from_millis(100);
    /// Interval at which the drop of a ring polls for completions.
    pub(crate) const RING_REAP_STEP: Duration = Duration::from_millis(1);
    /// Records of operations (a list of spans each, 1 KiB) kept for reuse. Without them each send
    /// or direct receive through the ring would allocate one.
    pub(crate) const RING_SPARE_MAX: usize = 64;
    /// Consecutive completions harvested by a thread other than the one that completed them after
    /// which a receive is submitted again. The two system calls of a new receive cost about as much
    /// as two such completions.
    pub(crate) const RING_FOREIGN_HARVESTS_MAX: u8 = 8;
    /// Bytes in a completion slot at which its receive is stopped. A connection that is not read
    /// holds this much, plus what the kernel adds until the stop.
    pub(crate) const RING_ARRIVED_MAX: usize = 2 * STAGE_SIZE;
    /// Connections waiting in a completion slot at which accepting is stopped.
    pub(crate) const RING_ACCEPTED_MAX: usize = 64;
    /// Readable connections per drive from which on their sends are gathered. With fewer
    /// connections, gathering saves nothing measurable and adds latency.
    pub(crate) const RING_ACTIVE_MIN: usize = 4;
    /// Consecutive drives with fewer connections after which sends are no longer gathered. The
    /// bytes of many connections arrive unevenly.
    pub(crate) const RING_ACTIVE_DRIVES: u8 = 4;
    /// Buffers provided to the kernel. A burst that finds none free ends the multishot receives,
    /// which must be armed again: with 128 buffers, 256 busy connections took 5 to 15 % more CPU
    /// time.
    pub(crate) const RING_BUFFERS: u16 = 512;
    /// Buffers that may wait for their links. Beyond that, data is copied out of its buffer at
    /// once, so that slow links cannot take the buffers from the others.
    pub(crate) const RING_BUFFERS_HELD_MAX: u16 = 384;
    /// Bytes per buffer. Larger data is usually the payload of a direct receive. Only pages in
    /// which data arrives are touched.
    pub(crate) const RING_BUFFER_SIZE: usize = 16 << 10;
    /// Consecutive staged receives after which the next one is a multishot. A direct receive has to
    /// stop the multishot, which costs more than it saves if the two alternate.
    ///
    /// Measured on loopback, 64-byte ping-pong in one thread: 16.6 µs per round trip with
    /// multishot, 19.9 without. If a multishot is armed when 1 MiB payloads arrive, they go through
    /// staging buffers, which halves their rate.
    pub(crate) const RING_STAGES_BEFORE_MULTISHOT: u8 = 8;
}

const _: () = assert!(HEADER_SIZE_MAX == 16 + 8 + RMA_IOV_LIMIT * 24);
const _: () = assert!(DIRECT_RECEIVE_MIN <= STAGE_SIZE);
const _: () = assert!(SPAN_LIST_MAX >= 2 * GATHER_FRAMES_MAX);
// The number of keys left in the pool is stored in a byte.
const _: () = assert!(KEY_POOL_LEN <= 255);
const _: () = assert!(ERR_DATA_SIZE_MAX >= CM_DATA_SIZE_MAX);

/// One in this many operations of a connection is timed (feature `metrics`): the two readings of
/// the clock, about 50 ns, thus add less than a nanosecond per operation.
#[cfg(feature = "metrics")]
pub(crate) const LATENCY_SAMPLE_EVERY: u32 = 64;

/// Measured times that a connection keeps until they are read: 3 KiB.
#[cfg(feature = "metrics")]
pub(crate) const LATENCY_SAMPLES_MAX: usize = 128;
