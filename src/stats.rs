//! Statistics of objects: plain values, returned by the `stats()` of each object.
//!
//! A *count* (`u64`, or a duration that is summed up) only grows while the object lives; a *gauge*
//! (`usize`) is a current number. Subtract two readings to get a rate. A reading takes the locks of
//! the object's parts one after the other, so its fields are nearly simultaneous; an endpoint with
//! ten thousand peers has ten thousand such locks. Counting costs an addition under a lock that is
//! held anyway.
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
//! With the feature `serde` all statistics implement `Serialize`. With the feature `metrics` they
//! can be recorded through the crate `metrics` (`record_metrics`), and endpoints measure the time
//! of one operation in 64.

#[cfg(feature = "metrics")]
mod metrics;
mod objects;

use crate::error::{Error, ErrorKind, OperationKind, Refusal};

#[cfg(feature = "metrics")]
pub use self::metrics::describe_metrics;
pub use objects::{
    AddressVectorStats, CacheStats, DomainStats, DriverStats, FabricStats, ListenerStats,
    QueueStats, RegionStats,
};

/// Operations of one kind that have ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("hello").delivery_complete().await?;
/// let sends = a.stats().operations.sends;
/// assert_eq!((sends.succeeded, sends.failed, sends.bytes), (1, 0, 5));
/// # drop(b);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationCounts {
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Operations that ended with [`Canceled`](ErrorKind::Canceled).
    pub canceled: u64,
    /// Operations that ended with any other error.
    pub failed: u64,
    /// Payload of the operations that succeeded, in bytes.
    pub bytes: u64,
}

impl OperationCounts {
    /// The sum of the three counts of operations.
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

/// Completed operations that this side posted, by kind, including those never accepted.
///
/// A message that returns to the endpoint because its receive was dropped is counted with each
/// receive that it completed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("hello").await?;
/// b.recv(vec![0; 8]).await?;
/// assert_eq!((a.stats().operations.ended(), b.stats().operations.receives.bytes), (1, 5));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationStats {
    /// Messages sent, including injected ones.
    pub sends: OperationCounts,
    /// Messages received; in a buffer for several messages, each one counts.
    pub receives: OperationCounts,
    /// Writes into peers' memory.
    pub writes: OperationCounts,
    /// Reads from peers' memory.
    pub reads: OperationCounts,
    /// Atomic operations on peers' memory.
    pub atomics: OperationCounts,
}

impl OperationStats {
    /// All operations that have ended, of all kinds.
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

    /// Returns the counts of this kind of operation, if this side posts operations of this kind.
    #[inline]
    pub(crate) fn of(&mut self, operation: OperationKind) -> Option<&mut OperationCounts> {
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

/// Accesses of peers to this side's memory that were refused, by reason ([`Refusal`]).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, at_server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 8]).await?;
/// region.revoke_now();
/// endpoint.write("too late", region.remote()).await.unwrap_err();
/// assert_eq!(at_server.stats().refusals.revoked, 1);
/// # Ok(()) }
/// ```
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
    /// Refused accesses, for all reasons together.
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

/// Receives of an endpoint or of a receive context, and the messages that wait for them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("early").delivery_complete().await?;
/// assert_eq!(b.stats().receives.unexpected_messages, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiveStats {
    /// Posted receives that no message has matched; a buffer for several messages counts as one.
    /// The messages that streams of a connected endpoint ([`Messages`](crate::op::Messages)) may
    /// still take in advance are counted as receives.
    pub posted: usize,
    /// Receives that wait for room to be posted.
    pub waiting: usize,
    /// Messages that arrived, or were announced, before a matching receive.
    pub unexpected_messages: usize,
    /// Bytes that these messages count against the budget: payloads, and an overhead for each.
    pub unexpected_bytes: usize,
}

/// The statistics of a [`SharedReceiveContext`](crate::ep::SharedReceiveContext).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let context = Net::loopback().peer()?.domain.receive_context().open()?;
/// let _receive = context.recv(vec![0; 8]).post()?;
/// assert_eq!(context.stats().receives.posted, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiveContextStats {
    /// Receives, and the messages that wait for them.
    pub receives: ReceiveStats,
    /// Receives that have ended without a message, or with a message of an endpoint that was closed
    /// before. Any other receive is counted by the endpoint whose connection delivered its message.
    pub ended: OperationCounts,
}

/// The statistics of an [`Endpoint`](crate::Endpoint), or of an [`RdmEndpoint`](crate::RdmEndpoint)
/// over all its connections, including those that have ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, _b) = Net::loopback().pair().await?;
/// a.send("hello").delivery_complete().await?;
/// let stats = a.stats();
/// assert!(stats.bytes_sent > 5 && stats.in_flight == 0 && stats.connections == 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EndpointStats {
    /// Operations that have ended.
    pub operations: OperationStats,
    /// Peers' accesses to this side's memory that were carried out.
    pub accesses: u64,
    /// Accesses of peers that were refused.
    pub refusals: RefusalStats,
    /// Bytes of frames that the backend has accepted.
    pub bytes_sent: u64,
    /// Bytes of frames that were received.
    pub bytes_received: u64,
    /// Batches of frames that were passed to the backend. Each takes one system call or ring entry,
    /// or more if a socket has no room.
    pub backend_sends: u64,
    /// How often the backend returned received bytes.
    pub backend_receives: u64,
    /// Operations for transmission that were accepted and have not completed.
    pub in_flight: usize,
    /// Operations for transmission that wait for room.
    pub waiting: usize,
    /// Receives and unexpected messages. For an endpoint with a shared receive context, the context
    /// counts them.
    pub receives: ReceiveStats,
    /// Bytes that may be sent to peers beyond the receives that they have reported, with the
    /// overhead of each message; for peers with this library's extension.
    pub credit_bytes: u64,
    /// How often a message had to wait because the peer had neither a receive nor room for it.
    pub stalls: u64,
    /// Established connections.
    pub connections: usize,
    /// Established connections whose bytes go through shared memory both ways
    /// ([`Path::Local`](crate::Path::Local)).
    pub connections_local: usize,
    /// Connections that were established so far.
    pub connects: u64,
    /// Connections established to a peer that had been connected before.
    pub reconnects: u64,
    /// Connections that ended with an error: they were lost, or could not be made.
    pub losses: u64,
    /// Probes that were sent to silent peers.
    pub probes: u64,
    /// Intervals in which a peer left a probe unanswered.
    pub probe_misses: u64,
}

impl EndpointStats {
    /// Returns the counts only, without the gauges, for an endpoint that has ended.
    pub(crate) fn counts_only(self) -> Self {
        EndpointStats {
            in_flight: 0,
            waiting: 0,
            receives: ReceiveStats::default(),
            credit_bytes: 0,
            connections: 0,
            connections_local: 0,
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
        let posted = self.receives.posted.saturating_add(other.receives.posted);
        self.receives.posted = posted;
        self.receives.waiting += other.receives.waiting;
        self.receives.unexpected_messages += other.receives.unexpected_messages;
        self.receives.unexpected_bytes += other.receives.unexpected_bytes;
        self.credit_bytes += other.credit_bytes;
        self.stalls += other.stalls;
        self.connections += other.connections;
        self.connections_local += other.connections_local;
        self.connects += other.connects;
        self.reconnects += other.reconnects;
        self.losses += other.losses;
        self.probes += other.probes;
        self.probe_misses += other.probe_misses;
    }
}

/// The latency of one operation that an endpoint has sent.
///
/// With the feature `metrics`, endpoints measure one operation in 64.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, _b) = Net::loopback().pair().await?;
/// a.send("hello").await?;
/// for sample in a.take_latencies() {
///     println!("{:?} took {:?}", sample.operation, sample.duration);
/// }
/// # Ok(()) }
/// ```
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencySample {
    /// The kind of the operation.
    pub operation: OperationKind,
    /// The time from the post until this side knew that the operation had completed.
    pub duration: std::time::Duration,
}

/// The statistics of a [`DgramEndpoint`](crate::DgramEndpoint).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let endpoint = domain.dgram_endpoint().address_vector(&peers).open()?;
/// assert_eq!((endpoint.stats().in_flight, endpoint.stats().dropped), (0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DgramStats {
    /// Operations that have ended.
    pub operations: OperationStats,
    /// Datagrams that arrived and were dropped
    /// ([`DgramEndpoint::dropped`](crate::DgramEndpoint::dropped)).
    pub dropped: u64,
    /// Calls of the backend for sending; each sends many datagrams.
    pub backend_sends: u64,
    /// Calls of the backend for receiving.
    pub backend_receives: u64,
    /// Sends that are queued.
    pub in_flight: usize,
    /// Sends that wait for room.
    pub waiting: usize,
    /// Receives, and datagrams that wait for them.
    pub receives: ReceiveStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind of operation has counts of its own, and each end is one of three.
    #[test]
    fn ends_are_counted_by_kind_and_outcome() {
        let mut stats = OperationStats::default();
        let failed = |kind| Err(Error::new(kind, "a test"));
        let mut count = |operation, result: &Result<(), Error>, len| {
            if let Some(counts) = stats.of(operation) {
                counts.count(result, len);
            }
        };
        count(OperationKind::Send, &Ok(()), 5);
        count(OperationKind::Inject, &Ok(()), 3);
        count(OperationKind::Receive, &failed(ErrorKind::Canceled), 7);
        count(OperationKind::Write, &failed(ErrorKind::TimedOut), 7);
        count(OperationKind::Read, &Ok(()), 1);
        count(OperationKind::FetchAtomic, &Ok(()), 8);
        count(OperationKind::Atomic, &Ok(()), 8);
        // This side posts none of the three.
        count(OperationKind::RemoteRead, &Ok(()), 9);
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
