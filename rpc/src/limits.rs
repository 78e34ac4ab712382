//! Every bound of the layer, with its reason.

use std::time::Duration;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a trace context in a frame: trace id, span id, flags.
pub const TRACE_LEN: usize = 25;
/// Bytes that name one lent piece of memory in a frame: an encoded `RemoteRegion`.
pub const LENT_LEN: usize = tokio_fabric::RemoteRegion::ENCODED_LEN;

/// Bytes of a frame. Longer messages would be announced and asked for (rendezvous), which costs a
/// round trip; a body that is longer goes by reference.
pub const FRAME_MAX: usize = 64 << 10;
/// Bytes of a body by reference, which its receiver allocates; what is larger is lent, and moves
/// through memory that the receiver chooses.
pub const BODY_MAX: usize = 16 << 20;
/// Bytes of such bodies that are on their way in one direction of a connection: the largest one.
/// What comes beyond waits in its turn.
pub const BODIES_PER_CONNECTION: usize = BODY_MAX;
/// Bytes of such requests that a server reads at a time, of all connections. What comes beyond is
/// refused before a byte has moved: slow clients do not make others wait.
pub const BODIES_PER_SERVER: usize = 16 * BODY_MAX;
/// How long an answer by reference waits to be read; its reader has nothing else to do. At 2 MB/s
/// this is time for the largest one.
pub const BODY_TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Items of a stream that were sent and not read: what a reader that stands still has in memory.
pub const STREAM_ITEMS: u32 = 16;
/// Bytes of such items: four of the largest.
pub const STREAM_BYTES: u32 = 256 << 10;
/// Calls open on a connection: a slot is held from the request to its answer, so a caller that
/// cancels at once gains nothing.
pub const CALLS_PER_CONNECTION: u32 = 256;
/// The most that [`CALLS_PER_CONNECTION`] can be set to: the transmit context, which holds an
/// answer and a cancellation of each, has 4,096 places.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// Bytes of requests whose answers have not come, of one connection: what a server may have to
/// hold of a client.
pub const BYTES_PER_CONNECTION: u64 = 4 << 20;
/// Calls that run at a server, of all connections. What comes beyond is refused, not queued: a
/// queue only adds latency.
pub const CALLS_PER_SERVER: usize = 4096;
/// Connections of a server.
pub const CONNECTIONS_PER_SERVER: usize = 10_240;
/// Bytes of a call's metadata, as encoded.
pub const METADATA_MAX: usize = 1024;
/// Entries of a call's metadata.
pub const METADATA_ENTRIES_MAX: usize = 16;
/// Pieces of memory that a call lends.
pub const LENT_MAX: usize = 4;
/// Bytes of a piece of lent memory. It moves in chunks, so this is no bound of anybody's memory.
pub const LENT_BYTES_MAX: u64 = 1 << 40;
/// Bytes of a status' message on the wire; more is cut off.
pub const MESSAGE_MAX: usize = 1024;

/// The time a call has unless it says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// The longest budget that goes over the wire, in 32 bits of microseconds: 71 minutes. More is
/// kept by the client alone.
pub const BUDGET_US_MAX: u32 = u32::MAX;
/// How long a server lets running calls go on when it drains.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a draining server waits for a client to close a connection without calls: a few round
/// trips, in which requests that crossed the notice are answered.
pub const DRAIN_LINGER: Duration = Duration::from_secs(1);
/// How long calls that a drain has cut short may take to be answered.
pub const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// When a client that overloads the server may come again, as its refusals say.
pub const RETRY_AFTER: Duration = Duration::from_millis(10);
/// How often a call is made again by the policy of retries.
pub const RETRIES_MAX: u32 = 8;
/// What retries may add to the load of calls, as a share of them.
pub const RETRY_BUDGET_SHARE: f32 = 0.2;
/// Retries per second that few calls may have all the same.
pub const RETRY_BUDGET_PER_SECOND: u32 = 10;
/// Over which time calls and retries are weighed; `tower` takes 1 to 60 s.
pub const RETRY_BUDGET_TIME: Duration = Duration::from_secs(10);
/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the first failed attempt to connect anew; it doubles with each.
pub const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest such pause. Each is cut by up to a half, at random, so that the clients of a server
/// that has gone do not come back together.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A peer that was silent for so long is probed while calls wait for it: to the library below, a
/// call that waits is a posted receive.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// A handler that keeps the thread for so long at its first poll, where all frames are read, is
/// reported.
pub const FIRST_POLL_MAX: Duration = Duration::from_millis(1);

/// How long a test's accounts may take to come out even, which is longer than any deadline there
/// is by default.
#[cfg(feature = "test-util")]
pub const LEDGER_WAIT: Duration = Duration::from_secs(30);
/// How often they are looked at.
#[cfg(feature = "test-util")]
pub const LEDGER_PAUSE: Duration = Duration::from_millis(1);

/// Bytes of a transfer's chunk: RMA frames are not interrupted, so a small answer waits behind one
/// of them, 0.2 ms at 3 GB/s.
pub const CHUNK: usize = 512 << 10;
/// Chunks of a transfer on their way: enough that none is waited for.
pub const CHUNK_DEPTH: usize = 4;
/// Chunks that handlers of one connection have at a time, 8 MiB.
pub const CHUNKS_PER_CONNECTION: usize = 16;
/// Chunks that all handlers of a server have at a time, 64 MiB.
pub const CHUNKS_PER_SERVER: usize = 128;

/// Bytes of a buffer that messages of all connections land in, one behind the other.
pub const RECEIVE_BUFFER: usize = 512 << 10;
/// Such buffers: one fills while the other is read.
pub const RECEIVE_BUFFERS: usize = 2;
/// Completions that are taken from the queue at once.
pub const BATCH_MAX: usize = 256;
/// Places of a completion queue: messages that have come and are not read. Its being full stops
/// reading, and loses nothing.
pub const QUEUE_SIZE: usize = 4096;
/// Refused accesses in a minute after which a peer is guessing (the library's own bound).
pub const REFUSALS_MAX: u32 = 4096;
