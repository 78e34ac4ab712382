//! What objects have done and hold: plain values, read by the `stats()` of each object.
//!
//! A *count* (`u64`, or the time of a count) only grows while the object lives; a *gauge* (`usize`)
//! is how many there are at that moment. Rates are the difference of two readings. Reading takes
//! the locks that the object's work takes, one after the other, so the fields of one reading are of
//! nearly the same moment; of an endpoint with ten thousand peers it takes ten thousand locks.
//! Counting costs an addition where a lock is held anyway.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
//! use tokio_fabric::{Access, Fabric, Hints};
//!
//! let domain = Fabric::open(Hints::new())?.domain().open()?;
//! let region = domain.register(vec![0u8; 64]).access(Access::REMOTE_READ).await?;
//! let stats = domain.stats();
//! assert_eq!((stats.regions, stats.registrations), (1, 1));
//! assert_eq!(region.stats().accesses, 0);
//! # Ok(()) }
//! ```
//!
//! With the feature `serde` all of them have `Serialize`. With the feature `metrics` they can be
//! recorded by the facade of that name (`record_metrics`), and endpoints take the time of one
//! operation in 64.

#[cfg(feature = "metrics")]
mod metrics;

use std::time::Duration;

use crate::error::{Error, ErrorKind, OperationKind, Refusal};

#[cfg(feature = "metrics")]
pub use self::metrics::describe_metrics;

/// Operations of one kind that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationCounts {
    /// Those that ended well.
    pub succeeded: u64,
    /// Those that ended as [`Canceled`](ErrorKind::Canceled).
    pub canceled: u64,
    /// Those that ended with any other error.
    pub failed: u64,
    /// Payload of those that succeeded, in bytes.
    pub bytes: u64,
}

impl OperationCounts {
    /// All that have ended.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.canceled + self.failed
    }

    #[inline]
    pub(crate) fn count(&mut self, result: &Result<(), Error>, len: usize) {
        match result {
            Ok(()) => {
                self.succeeded += 1;
                self.bytes += len as u64;
            }
            Err(error) if error.kind() == ErrorKind::Canceled => self.canceled += 1,
            Err(_) => self.failed += 1,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.canceled += other.canceled;
        self.failed += other.failed;
        self.bytes += other.bytes;
    }
}

/// Operations that this side posted and that have ended, by kind. What was posted and never
/// accepted is among them. A message that goes back since its receive was dropped counts with each
/// receive that it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationStats {
    /// Messages sent, injected ones among them. The bytes of those that a connected endpoint
    /// injects count when they are accepted.
    pub sends: OperationCounts,
    /// Messages received; of a buffer for many, each.
    pub receives: OperationCounts,
    /// Writes into peers' memory.
    pub writes: OperationCounts,
    /// Reads from peers' memory.
    pub reads: OperationCounts,
    /// Atomic operations on peers' memory.
    pub atomics: OperationCounts,
}

impl OperationStats {
    /// All that have ended.
    pub fn ended(&self) -> u64 {
        self.each().into_iter().map(OperationCounts::ended).sum()
    }

    fn each(&self) -> [&OperationCounts; 5] {
        let Self {
            sends,
            receives,
            writes,
            reads,
            atomics,
        } = self;
        [sends, receives, writes, reads, atomics]
    }

    /// Counts the end of an operation with a payload of `len` bytes.
    #[inline]
    pub(crate) fn count(
        &mut self,
        operation: OperationKind,
        result: &Result<(), Error>,
        len: usize,
    ) {
        if let Some(counts) = self.of(operation) {
            counts.count(result, len);
        }
    }

    #[inline]
    fn of(&mut self, operation: OperationKind) -> Option<&mut OperationCounts> {
        Some(match operation {
            OperationKind::Send | OperationKind::Inject => &mut self.sends,
            OperationKind::Receive => &mut self.receives,
            OperationKind::Write => &mut self.writes,
            OperationKind::Read => &mut self.reads,
            OperationKind::Atomic | OperationKind::FetchAtomic => &mut self.atomics,
            _ => return None,
        })
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.sends.add(&other.sends);
        self.receives.add(&other.receives);
        self.writes.add(&other.writes);
        self.reads.add(&other.reads);
        self.atomics.add(&other.atomics);
    }
}

/// Accesses of peers to this side's memory that were refused, by reason
/// ([`Refusal`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RefusalStats {
    /// [`Refusal::UnknownKey`].
    pub unknown_key: u64,
    /// [`Refusal::OutOfBounds`].
    pub out_of_bounds: u64,
    /// [`Refusal::AccessDenied`].
    pub access_denied: u64,
    /// [`Refusal::Revoked`].
    pub revoked: u64,
    /// All other reasons.
    pub other: u64,
}

impl RefusalStats {
    /// Those of all reasons.
    pub fn total(&self) -> u64 {
        self.unknown_key + self.out_of_bounds + self.access_denied + self.revoked + self.other
    }

    pub(crate) fn count(&mut self, reason: Refusal) {
        *match reason {
            Refusal::UnknownKey => &mut self.unknown_key,
            Refusal::OutOfBounds => &mut self.out_of_bounds,
            Refusal::AccessDenied => &mut self.access_denied,
            Refusal::Revoked => &mut self.revoked,
            _ => &mut self.other,
        } += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.unknown_key += other.unknown_key;
        self.out_of_bounds += other.out_of_bounds;
        self.access_denied += other.access_denied;
        self.revoked += other.revoked;
        self.other += other.other;
    }
}

/// Receives of an endpoint, or of a receive context, and the messages that wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiveStats {
    /// Receives posted that no message was matched with; a buffer for many is one.
    pub posted: usize,
    /// Receives that wait for room to be posted.
    pub waiting: usize,
    /// Messages held that came before a receive for them, announced ones among them.
    pub unexpected_messages: usize,
    /// What they cost: their bytes, and an overhead for each.
    pub unexpected_bytes: usize,
}

/// What a [`SharedReceiveContext`](crate::ep::SharedReceiveContext) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiveContextStats {
    /// Receives, and the messages that wait for them.
    pub receives: ReceiveStats,
    /// Receives that have ended here: with a message that had waited, or without one. Those that a
    /// connection's message went straight to are counted by the connection's endpoint.
    pub ended: OperationCounts,
}

/// What an [`Endpoint`](crate::Endpoint) has done, or an [`RdmEndpoint`](crate::RdmEndpoint) over
/// all of its connections, those that have ended among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EndpointStats {
    /// Operations that have ended.
    pub operations: OperationStats,
    /// Accesses of peers to this side's memory that were done.
    pub accesses: u64,
    /// Accesses of peers that were refused.
    pub refusals: RefusalStats,
    /// Bytes of frames that the system, or the ring, has taken.
    pub bytes_sent: u64,
    /// Bytes of frames that have come.
    pub bytes_received: u64,
    /// Batches of frames that were handed to the backend: a system call or an entry of the ring
    /// each, and more of them where a socket has no room.
    pub backend_sends: u64,
    /// Times that the backend brought bytes.
    pub backend_receives: u64,
    /// Operations for transmission that were accepted and have not ended.
    pub in_flight: usize,
    /// Operations for transmission that wait for room.
    pub waiting: usize,
    /// Receives and unexpected messages; those of an endpoint with a shared receive context are the
    /// context's.
    pub receives: ReceiveStats,
    /// Bytes of messages that peers take without a receive that they have reported, with the
    /// overhead of each; of peers with this library's extension.
    pub credit_bytes: u64,
    /// Times that a message had to wait since a peer had neither a receive nor room for it.
    pub stalls: u64,
    /// Connections that are up.
    pub connections: usize,
    /// Connections that came up.
    pub connects: u64,
    /// Of these, those with a peer to which one had been up before.
    pub reconnects: u64,
    /// Connections that were lost, or could not be made: that ended with an error.
    pub losses: u64,
    /// Probes sent to see whether a peer is alive.
    pub probes: u64,
    /// Intervals in which a peer left a probe unanswered.
    pub probe_misses: u64,
}

impl EndpointStats {
    /// Without what it holds: it has ended.
    pub(crate) fn counts_only(self) -> Self {
        EndpointStats {
            in_flight: 0,
            waiting: 0,
            receives: ReceiveStats::default(),
            credit_bytes: 0,
            connections: 0,
            ..self
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.operations.add(&other.operations);
        self.accesses += other.accesses;
        self.refusals.add(&other.refusals);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.backend_sends += other.backend_sends;
        self.backend_receives += other.backend_receives;
        self.in_flight += other.in_flight;
        self.waiting += other.waiting;
        self.receives.posted += other.receives.posted;
        self.receives.waiting += other.receives.waiting;
        self.receives.unexpected_messages += other.receives.unexpected_messages;
        self.receives.unexpected_bytes += other.receives.unexpected_bytes;
        self.credit_bytes += other.credit_bytes;
        self.stalls += other.stalls;
        self.connections += other.connections;
        self.connects += other.connects;
        self.reconnects += other.reconnects;
        self.losses += other.losses;
        self.probes += other.probes;
        self.probe_misses += other.probe_misses;
    }
}

/// How long one operation took that an endpoint has sent.
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencySample {
    /// What it was.
    pub operation: OperationKind,
    /// From its post to the moment in which its end was known here.
    pub duration: Duration,
}

/// What a [`DgramEndpoint`](crate::DgramEndpoint) has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DgramStats {
    /// Operations that have ended.
    pub operations: OperationStats,
    /// Datagrams that came and were dropped
    /// ([`DgramEndpoint::dropped`](crate::DgramEndpoint::dropped)).
    pub dropped: u64,
    /// Calls of the backend that send; each takes many datagrams.
    pub backend_sends: u64,
    /// Calls of the backend that receive.
    pub backend_receives: u64,
    /// Sends that are queued.
    pub in_flight: usize,
    /// Sends that wait for room.
    pub waiting: usize,
    /// Receives, and datagrams that wait for them.
    pub receives: ReceiveStats,
}

/// What a [`PassiveEndpoint`](crate::PassiveEndpoint), or the listener of an
/// [`RdmEndpoint`](crate::RdmEndpoint), has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ListenerStats {
    /// Connections that were taken from the system.
    pub incoming: u64,
    /// Requests that came in full.
    pub requests: u64,
    /// Requests that were accepted.
    pub accepted: u64,
    /// Requests that were rejected, by the application or for it.
    pub rejected: u64,
    /// Connections closed since they sent no request, or no proof of a key.
    pub invalid: u64,
    /// Connections closed since their request did not come in time.
    pub timed_out: u64,
    /// Connections closed since too many were half open.
    pub evicted: u64,
    /// Connections that are half open: their request has not come, or their key is to be proven.
    pub half_open: usize,
    /// Requests that wait for room in the event queue.
    pub waiting: usize,
}

/// What a driver has done: of one shard of a domain, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DriverStats {
    /// Times that it was woken, or polled again while it spins.
    pub wakes: u64,
    /// Turns of connections and of datagram sockets.
    pub turns: u64,
    /// Operations that ended within its turns; `completions / wakes` is how many each wake is
    /// shared by. What ends within a call of the application is not among them.
    pub completions: u64,
    /// Time spent in turns; divided by the time that has passed, the share of a processor.
    pub turn_time: Duration,
    /// The longest turn there was.
    pub longest_turn: Duration,
    /// Connections, datagram sockets and shared receive contexts that it has turns of.
    pub ports: usize,
}

impl DriverStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.wakes += other.wakes;
        self.turns += other.turns;
        self.completions += other.completions;
        self.turn_time += other.turn_time;
        self.longest_turn = self.longest_turn.max(other.longest_turn);
        self.ports += other.ports;
    }
}

/// What a [`Domain`](crate::Domain) has open, and what its drivers have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DomainStats {
    /// All of its drivers together ([`Domain::shard_stats`](crate::Domain::shard_stats) has each).
    pub driver: DriverStats,
    /// Endpoints that are open.
    pub endpoints: usize,
    /// Completion queues that are open.
    pub completion_queues: usize,
    /// Counters that are open.
    pub counters: usize,
    /// Regions that are registered.
    pub regions: usize,
    /// Regions that were registered.
    pub registrations: u64,
    /// Accesses of peers to the domain's regions that were granted: one for each region that an
    /// operation names, by the key and the range.
    pub accesses: u64,
}

/// What a [`Fabric`](crate::Fabric) has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FabricStats {
    /// Domains that are open.
    pub domains: usize,
    /// Passive endpoints that are open.
    pub passive_endpoints: usize,
}

/// What peers have done with a [`MemoryRegion`](crate::MemoryRegion).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RegionStats {
    /// Accesses that were granted, by the key and the range.
    pub accesses: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Accesses by its key that were refused, but for those that were not to know that the region
    /// is there.
    pub refused: u64,
}

/// The entries of a [`CompletionQueue`](crate::CompletionQueue) or an
/// [`EventQueue`](crate::EventQueue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QueueStats {
    /// Entries that the queue takes.
    pub capacity: usize,
    /// Entries that wait to be read.
    pub len: usize,
    /// Places that are kept for operations under way, and for events to come.
    pub reserved: usize,
    /// Entries that were delivered.
    pub delivered: u64,
    /// Times that a place was wanted and none was free: posts waited, or were refused.
    pub full: u64,
}

/// The addresses of an [`AddressVector`](crate::AddressVector), as this process has inserted and
/// removed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AddressVectorStats {
    /// Addresses that are in the vector, those of other processes among them.
    pub addresses: usize,
    /// Addresses that were inserted.
    pub inserted: u64,
    /// Addresses whose insertion failed.
    pub failed: u64,
    /// Addresses that were removed.
    pub removed: u64,
}

/// The counts of a [`RegistrationCache`](crate::domain::RegistrationCache) at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a registration of the cache served.
    pub hits: u64,
    /// Requests that took a registration.
    pub misses: u64,
    /// Idle registrations that were removed to make room for others.
    pub evictions: u64,
    /// Registrations removed because their memory was dropped or unmapped, or by `forget`.
    pub forgotten: u64,
    /// Registrations that were merged into larger ones, or covered by them.
    pub superseded: u64,
    /// Registrations that the cache had no room for; each ends with its last handle.
    pub untracked: u64,
    /// Registrations in the cache now (`FI_MR_CACHE_MAX_COUNT` bounds it).
    pub count: usize,
    /// Their bytes (`FI_MR_CACHE_MAX_SIZE` bounds it).
    pub size: usize,
    /// Those of them that are idle: without a handle, kept for the next request.
    pub idle_count: usize,
    /// Their bytes.
    pub idle_size: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of operation has counts of its own, and each end is one of three.
    #[test]
    fn ends_are_counted_by_kind_and_outcome() {
        let mut stats = OperationStats::default();
        let failed = |kind| Err(Error::new(kind, "a test"));
        stats.count(OperationKind::Send, &Ok(()), 5);
        stats.count(OperationKind::Inject, &Ok(()), 3);
        stats.count(OperationKind::Receive, &failed(ErrorKind::Canceled), 7);
        stats.count(OperationKind::Write, &failed(ErrorKind::TimedOut), 7);
        stats.count(OperationKind::Read, &Ok(()), 1);
        stats.count(OperationKind::FetchAtomic, &Ok(()), 8);
        stats.count(OperationKind::Atomic, &Ok(()), 8);
        // None of the three is posted by this side.
        stats.count(OperationKind::RemoteRead, &Ok(()), 9);
        let counts = |it: &OperationCounts| [it.succeeded, it.canceled, it.failed, it.bytes];
        let expected = [
            [2, 0, 0, 8],
            [0, 1, 0, 0],
            [0, 0, 1, 0],
            [1, 0, 0, 1],
            [2, 0, 0, 16],
        ];
        assert_eq!(stats.each().map(counts), expected);
        let mut twice = stats;
        twice.add(&stats);
        assert_eq!((stats.ended(), twice.ended()), (7, 14));
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let mut stats = RefusalStats::default();
        let reasons = [
            Refusal::UnknownKey,
            Refusal::OutOfBounds,
            Refusal::AccessDenied,
            Refusal::Revoked,
            Refusal::Held,
            Refusal::Other(99),
        ];
        reasons.into_iter().for_each(|reason| stats.count(reason));
        let RefusalStats {
            unknown_key,
            out_of_bounds,
            access_denied,
            revoked,
            other,
        } = stats;
        let counts = [unknown_key, out_of_bounds, access_denied, revoked, other];
        assert_eq!((counts, stats.total()), ([1, 1, 1, 1, 2], 6));
    }
}
