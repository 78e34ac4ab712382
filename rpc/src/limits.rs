//! All limits and defaults of this crate, with their units and reasons. Programs change some of
//! them with methods of [`Server`](crate::Server) and [`ChannelBuilder`](crate::ChannelBuilder).

use std::time::Duration;

/// Length of a frame's header, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a trace context in a frame, in bytes: trace id, span id and flags.
pub const TRACE_LEN: usize = 25;
/// Longest `tracestate` (W3C) that is read and sent on, in bytes: the length that the
/// recommendation requires every participant of a trace to support.
pub const TRACE_STATE_MAX: usize = 512;
/// Length of the description of one piece of lent memory in a frame, in bytes: an encoded
/// `RemoteRegion`. Value: 32.
pub const LENT_LEN: usize = tokio_fabric::RemoteRegion::ENCODED_LEN;

/// Largest frame, in bytes. The library announces longer messages before it sends them
/// (rendezvous), which takes a round trip; longer bodies are sent by reference instead.
/// Value: 64 KiB.
pub const FRAME_MAX: usize = 64 << 10;
/// Largest capacity, in bytes, of a buffer of a frame or body that is kept for reuse: small calls
/// use the same buffers over and over.
pub const SPARE_BUFFER_MAX: usize = 512;
/// Number of reusable buffers that a thread keeps: as many as a window has calls.
pub const SPARE_BUFFERS_MAX: usize = 256;
/// Bytes of a message that are copied in one piece for the bodies in them that are kept: as
/// `Bytes`, or until they are decoded. A handler that keeps a short body keeps the whole piece.
/// Value: 4 KiB.
pub const BODIES_PIECE: usize = 4 << 10;
/// Largest body that shares a piece; a larger body has its own memory. Value: 1 KiB.
pub const SHARED_BODY_MAX: usize = BODIES_PIECE / 4;
/// Bytes of a message that gathers several frames. At this size the cost of the message per frame
/// is negligible. Value: 16 KiB.
pub const BATCH_BYTES_MAX: usize = 16 << 10;
/// Frames of a message that gathers several; the receiver handles them in a row.
pub const BATCH_FRAMES_MAX: usize = 256;
/// Frames of the first message that a turn gathers. This message wakes a sleeping peer, which then
/// works while the rest is gathered; otherwise each side would sleep while the other works. A peer
/// on the same processor gets all frames at once.
pub const FIRST_BATCH_FRAMES: usize = 24;
/// Number of callers woken together from which on their next calls are gathered into one message.
/// With fewer callers, each call is sent at once.
pub const GATHERED_CALLERS_MIN: usize = 2;
/// Largest body by reference, in bytes; the receiver allocates it. Send more as lent memory, which
/// is transferred in chunks of memory that the receiver chooses. Value: 16 MiB.
pub const BODY_MAX: usize = 16 << 20;
/// Longest request, in bytes, that the server decodes in a task of its runtime. Longer requests are
/// decoded on blocking threads, so that other calls do not wait. An element takes about 60 ns and
/// at least one byte: 15 ms. Value: 256 KiB.
pub const DECODED_IN_TASK_MAX: usize = 256 << 10;
/// Bytes of bodies by reference in transit per direction of a connection: one body of the largest
/// size. Further bodies wait. Value: 16 MiB.
pub const BODIES_PER_CONNECTION: usize = BODY_MAX;
/// Bytes of requests by reference that a server holds over all connections, from reading a request
/// to the end of its handler. A connection gets no more of this than it leaves to others: half if
/// it is the only one. Further requests are refused before any data moves. A request that is not
/// read yet is given up, with its memory, in favour of a connection that holds less, so that
/// clients that block the reading of their requests occupy only memory that no other client needs.
/// Value: 256 MiB.
pub const BODIES_PER_SERVER: usize = 16 * BODY_MAX;
/// How long a response by reference waits for the client to read it: enough for the largest
/// response at 2 MB/s. Value: 10 s.
pub const BODY_TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// How deep the values of a body may be nested: decoding is recursive, and a stack overflow would
/// end the program. Other formats' decoders have the same default.
pub const NESTING_MAX: usize = 128;
/// Total number of elements of a body's collections that are encoded in no bytes. Nothing else
/// would limit how many such elements a short body may claim. Decoding this many takes about as
/// long as a call.
pub const ELEMENTS_WITHOUT_BYTES_MAX: usize = 1024;
/// Memory that the elements of a body's collections may take, in bytes per byte of the body. A
/// `Vec` of empty strings takes 24; elements of large types that are mostly absent take the most.
pub const ELEMENT_MEMORY_PER_BYTE: usize = 32;
/// Memory that these elements may take in addition, in bytes: short bodies may have elements of
/// large types. Value: 1 MiB.
pub const ELEMENT_MEMORY_SPARE: usize = 1 << 20;
/// Items of a stream that were sent and are unread. With [`STREAM_BYTES`], this limits the memory
/// of a stream whose reader has stopped.
pub const STREAM_ITEMS: u32 = 16;
/// Bytes of unread items of a stream: four items of the largest size. Value: 256 KiB.
pub const STREAM_BYTES: u32 = 256 << 10;
/// Default limit of open calls per connection. A call occupies its slot from the request to the
/// response, so a caller that cancels at once cannot exceed the limit.
pub const CALLS_PER_CONNECTION: u32 = 256;
/// Windows of requests that a server accepts before it checks that the responses to earlier
/// requests were sent. After one window, a client that reads has read a response; this side notices
/// that once it has sent the next batch, which may take two more windows.
pub const READING_CHECK_SHARE: u32 = 4;
/// Items of a peer's streams that are accepted between two checks, per call of the window. Without
/// reading anything sent since the last check, a peer can send the items of the calls that were
/// open and of one more call in each slot, and the same again with the next batch. Value: 128.
pub const READING_CHECK_ITEMS: u32 = 2 * READING_CHECK_SHARE * STREAM_ITEMS;
/// Maximum of [`CALLS_PER_CONNECTION`]: the transmit context, which must hold a response and a
/// cancellation for each call, has 4,096 slots.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// Bytes of unanswered requests per connection: what a server may have to hold for one client.
/// Value: 4 MiB.
pub const BYTES_PER_CONNECTION: u64 = 4 << 20;
/// Default limit of running calls per server, over all connections. Calls beyond it are refused,
/// not queued: a queue would only add latency.
pub const CALLS_PER_SERVER: usize = 4096;
/// Default limit of connections per server.
pub const CONNECTIONS_PER_SERVER: usize = 10_240;
/// Maximum of [`CONNECTIONS_PER_SERVER`]. The event queue allocates two places for each connection,
/// of a few hundred bytes, from the start. Value: 131,072.
pub const CONNECTIONS_PER_SERVER_MAX: usize = 1 << 17;
/// Largest metadata of a call, in encoded bytes.
pub const METADATA_MAX: usize = 1024;
/// Entries of a call's metadata.
pub const METADATA_ENTRIES_MAX: usize = 16;
/// Pieces of memory that a call can lend.
pub const LENT_MAX: usize = 4;
/// Largest piece of lent memory, in bytes. It is transferred in chunks, so this limit does not
/// bound the memory of either side. Value: 1 TiB.
pub const LENT_BYTES_MAX: u64 = 1 << 40;
/// Longest name of an authorization key, in bytes.
pub const KEY_NAME_MAX: usize = 32;
/// Events per second that a server logs if others can cause any number of them: unauthorized
/// callers, handlers that keep their thread.
pub const LOGGED_PER_SECOND: u32 = 10;
/// Services and versions of methods that a server lists for a client that calls an unknown method:
/// enough to find the mistake, and short.
pub const LISTED_SERVICES_MAX: usize = 8;
/// Longest message of a status, in bytes; longer messages are cut.
pub const MESSAGE_MAX: usize = 1024;

/// Default deadline of a call. Value: 10 s.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Default limit of a server for the time of a call, whatever deadline its client sets: longer than
/// any call except a stream, and an end for calls that wait for an inactive client. Value: 1 h.
pub const DEADLINE_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a handler's transfer may continue after its call's deadline. A client that responds at
/// all has refused the transfer by then. Value: 1 s.
pub const LATE_TRANSFER: Duration = Duration::from_secs(1);
/// How long a peer may leave the operations of an ended transfer unanswered: their memory is kept
/// until then. A live peer answers at once, even if it refuses. Value: 10 s.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Ended transfers of a connection that may be unanswered before further transfers wait for room.
pub const UNANSWERED_MAX: usize = 256;
/// Default time that a draining server lets running calls continue. Value: 30 s.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(30);
/// How long a draining server waits for a client to close a connection without calls: a few round
/// trips, during which requests that crossed the GOAWAY are answered. Value: 1 s.
pub const DRAIN_LINGER: Duration = Duration::from_secs(1);
/// How long the responses to calls cancelled by a drain may take. Value: 100 ms.
pub const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// The pause that a server recommends in its refusals when it is overloaded. Value: 10 ms.
pub const RETRY_AFTER: Duration = Duration::from_millis(10);
/// How long after its deadline a call through layers may continue: by then the call itself has
/// failed, unless layers keep it. For the same time, a service takes a passed deadline for the
/// deadline of a call that is about to be made again. Value: 100 ms.
pub const LAYERS_GRACE: Duration = Duration::from_millis(100);
/// Retries per call of the retry policy.
pub const RETRIES_MAX: u32 = 8;
/// Retries that are allowed, as a share of all calls.
pub const RETRY_BUDGET_SHARE: f32 = 0.2;
/// Retries per second that are always allowed. Over [`RETRY_BUDGET_TIME`] these are 1,030, so that
/// all calls in flight on a connection with the largest window can be retried at once when its
/// server restarts. Value: 103.
pub const RETRY_BUDGET_PER_SECOND: u32 =
    CALLS_PER_CONNECTION_MAX.div_ceil(RETRY_BUDGET_TIME.as_secs() as u32);
/// Period over which calls and retries are counted; `tower` accepts 1 to 60 s. Value: 10 s.
pub const RETRY_BUDGET_TIME: Duration = Duration::from_secs(10);
/// Default time limit of connecting to one address, and of a lookup of a name. Value: 10 s.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an attempt to connect may remain unanswered before the next address is tried as well:
/// the Connection Attempt Delay that RFC 8305 recommends. Value: 250 ms.
pub const CONNECT_ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Simultaneous attempts of a channel to connect.
pub const CONNECT_ATTEMPTS_MAX: usize = 32;
/// Default pause after the first failed attempt to reconnect, and the retry policy's pause before a
/// first retry. Value: 10 ms.
pub const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Shortest first pause that can be set. Value: 1 ms.
pub const BACKOFF_FIRST_MIN: Duration = Duration::from_millis(1);
/// Default factor by which each further pause of a channel grows. A pause is then at most 4 % of
/// the time that the server has been away, and the longest pause is reached after 314 attempts.
pub const BACKOFF_FACTOR: f64 = 1.02;
/// Shortest pause of a channel whose authorization key a server has refused, since further attempts
/// cannot change that. Value: 1 s.
pub const REFUSED_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reconnect. Value: 5 s.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The largest share by which each pause is shortened at random, so that the clients of a restarted
/// server do not all return at once.
pub const BACKOFF_JITTER: f64 = 0.5;
/// Second attempts of hedged calls that are allowed, as a share of all hedged calls.
#[cfg(feature = "tower")]
pub const HEDGE_BUDGET_SHARE: f32 = 0.1;
/// Second attempts per second that are always allowed, for clients with few calls.
#[cfg(feature = "tower")]
pub const HEDGE_BUDGET_PER_SECOND: u32 = 1;
/// Smallest number of a method's calls from which a percentile is computed.
#[cfg(feature = "tower")]
pub const HEDGE_CALLS_MIN: u32 = 20;
/// A percentile covers the calls of the last one to two of these periods. Value: 10 s.
#[cfg(feature = "tower")]
pub const HEDGE_PERIOD: Duration = Duration::from_secs(10);
/// How often two members of a balanced set are drawn for a call before the members are tried in
/// turn for room.
#[cfg(feature = "tower")]
pub const BALANCE_DRAWS: usize = 4;
/// Default time in which the share of a new member of a balanced set grows. Value: 10 s.
#[cfg(feature = "tower")]
pub const SLOW_START: Duration = Duration::from_secs(10);
/// The share with which a new member begins.
#[cfg(feature = "tower")]
pub const SLOW_START_SHARE: f64 = 0.1;
/// Default number of consecutive failures that eject a member of a balanced set.
#[cfg(feature = "tower")]
pub const EJECTION_FAILURES: u32 = 5;
/// Default time of a first ejection. Value: 5 s.
#[cfg(feature = "tower")]
pub const EJECTION: Duration = Duration::from_secs(5);
/// Longest ejection, unless a longer first ejection is set. Value: 60 s.
#[cfg(feature = "tower")]
pub const EJECTION_MAX: Duration = Duration::from_secs(60);
/// Pause after an error in the stream of a set's changes. Value: 1 s.
#[cfg(feature = "tower")]
pub const DISCOVERY_PAUSE: Duration = Duration::from_secs(1);
/// Silence after which a peer is probed while calls wait for it: for the library below, a waiting
/// call is a posted receive. Value: 10 s.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(10);
/// A handler whose first poll takes longer than this is reported in the log. The first poll runs on
/// the task that reads the frames of all connections. Value: 1 ms.
pub const FIRST_POLL_MAX: Duration = Duration::from_millis(1);
/// Resolution of the serving time of a call that is answered at its first poll, behind other calls
/// of the same message. Value: 100 µs.
pub const TIME_RESOLUTION: Duration = Duration::from_micros(100);

/// How long a test's counts may take to balance: longer than any default deadline. Value: 30 s.
#[cfg(feature = "test-util")]
pub const LEDGER_WAIT: Duration = Duration::from_secs(30);
/// Interval between comparisons of a test's counts. Value: 1 ms.
#[cfg(feature = "test-util")]
pub const LEDGER_PAUSE: Duration = Duration::from_millis(1);

/// Bytes of a chunk of a transfer. Smaller chunks take longer: up to 64 KiB at the start of a frame
/// are copied once more at the receiver. Value: 512 KiB.
pub const CHUNK: usize = 512 << 10;
/// Chunks of a transfer in flight on a short path: while one is acknowledged, the other is
/// transferred. A small response waits behind both: 0.4 ms at 3 GB/s.
pub const CHUNK_DEPTH: usize = 2;
/// Chunks of a transfer in flight at most. Those beyond [`CHUNK_DEPTH`] are on the path between the
/// hosts, and delay no response. Value: 8.
pub const CHUNK_DEPTH_MAX: usize = CHUNKS_PER_CONNECTION / 2;
/// Chunks held by the handlers of one connection: 8 MiB. In addition, each piece of lent memory has
/// a small chunk ([`OWN_CHUNK`]).
pub const CHUNKS_PER_CONNECTION: usize = 16;
/// Chunks held by all handlers of a server: 64 MiB.
pub const CHUNKS_PER_SERVER: usize = 128;

/// Bytes of the chunk that each piece of lent memory always has, whatever other handlers hold. The
/// chunks of 256 calls on a connection are then as large in total as the connection's share of
/// chunks. Value: 32 KiB.
pub const OWN_CHUNK: usize = 32 << 10;

/// Bytes of a buffer that receives the messages of all connections, one after another.
/// Value: 512 KiB.
pub const RECEIVE_BUFFER: usize = 512 << 10;
/// Number of receive buffers: one is filled while the other is read.
pub const RECEIVE_BUFFERS: usize = 2;
/// Completions read from the queue at once.
pub const BATCH_MAX: usize = 256;
/// Capacity of a completion queue, in unread messages. When the queue is full, connections are not
/// read; nothing is lost.
pub const QUEUE_SIZE: usize = 4096;
/// Refused accesses per minute after which a peer is assumed to guess keys, as in `tokio-fabric`.
pub const REFUSALS_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The table "What one client can make a server hold" of the README.
    #[test]
    fn the_memory_of_a_client_is_what_the_readme_says() {
        let calls = CALLS_PER_CONNECTION as usize;
        let items = calls * STREAM_BYTES as usize;
        let own = calls * LENT_MAX * OWN_CHUNK + UNANSWERED_MAX * OWN_CHUNK;
        let rows = [
            BYTES_PER_CONNECTION as usize,
            BODIES_PER_CONNECTION,
            items,
            items,
            CHUNKS_PER_CONNECTION * CHUNK + own,
            2 * READING_CHECK_SHARE as usize * calls * FRAME_MAX,
            BODIES_PER_CONNECTION,
        ];
        let all: usize = rows.iter().sum();
        let readme = include_str!("../README.md");
        let table = readme
            .split("What one client can make a server hold")
            .nth(1);
        let lines = table.expect("it is there").lines().skip(4);
        for (bytes, line) in rows.iter().chain([&all]).zip(lines) {
            let said = line.split('|').nth(2).map(str::trim);
            assert_eq!(said, Some(&*(bytes >> 20).to_string()), "{line}");
        }
    }
}
