//! Statistics of listeners, drivers, queues and all other objects except endpoints.

use std::time::Duration;

/// The statistics of a [`PassiveEndpoint`](crate::PassiveEndpoint), or of the listener of an
/// [`RdmEndpoint`](crate::RdmEndpoint).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let peer = Net::loopback().peer()?;
/// let listener = peer.fabric.passive_endpoint(&peer.events).listen()?;
/// assert_eq!((listener.stats().requests, listener.stats().half_open), (0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ListenerStats {
    /// Connections that were accepted from the system.
    pub incoming: u64,
    /// Requests that were received completely.
    pub requests: u64,
    /// Requests that were accepted.
    pub accepted: u64,
    /// Requests that were rejected, by the application or on its behalf.
    pub rejected: u64,
    /// Connections closed because they sent no request, or no proof of a key.
    pub invalid: u64,
    /// Connections counted in `invalid` whose certificate was rejected, or that have none although
    /// they were asked for one.
    pub unauthorized: u64,
    /// Connections closed because their request was not complete in time.
    pub timed_out: u64,
    /// Connections closed because too many were half open.
    pub evicted: u64,
    /// Connections whose request is not complete, or whose key is not proven yet.
    pub half_open: usize,
    /// Requests that wait for room in the event queue.
    pub waiting: usize,
}

/// The statistics of a driver, or of all drivers of a domain together. They are counted one by one,
/// so those that are read while the driver runs may be of different moments.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, _b) = Net::loopback().pair().await?;
/// a.send("hello").delivery_complete().await?;
/// let driver = a.domain().stats().driver;
/// assert!(driver.turns > 0 && driver.ports == 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DriverStats {
    /// Times that it was woken, or polled again while it spins.
    pub wakes: u64,
    /// Turns of connections and of datagram sockets.
    pub turns: u64,
    /// Operations that ended within its turns; `completions / wakes` is the average per wake.
    /// Operations that end within a call of the application are not counted.
    pub completions: u64,
    /// Time spent in turns; divided by the elapsed time, it is the share of a processor.
    pub turn_time: Duration,
    /// Duration of the longest turn so far.
    pub longest_turn: Duration,
    /// Connections, datagram sockets and shared receive contexts that it serves.
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

/// The open objects of a [`Domain`](crate::Domain), and the statistics of its drivers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let _region = domain.register(vec![0u8; 64]).await?;
/// assert_eq!((domain.stats().regions, domain.stats().endpoints), (1, 0));
/// # Ok(()) }
/// ```
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
    /// Regions that are registered now.
    pub regions: usize,
    /// Regions that have been registered so far.
    pub registrations: u64,
    /// Peers' accesses to the domain's regions that were granted. An operation counts once for each
    /// region that it names.
    pub accesses: u64,
}

/// The open objects of a [`Fabric`](crate::Fabric).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let fabric = Fabric::open(Hints::new())?;
/// let _domain = fabric.domain().open()?;
/// assert_eq!((fabric.stats().domains, fabric.stats().passive_endpoints), (1, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FabricStats {
    /// Domains that are open.
    pub domains: usize,
    /// Passive endpoints that are open.
    pub passive_endpoints: usize,
}

/// The accesses of peers to a [`MemoryRegion`](crate::MemoryRegion).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0u8; 5]).await?;
/// endpoint.write("hello", region.remote()).await?;
/// assert_eq!((region.stats().accesses, region.stats().bytes), (1, 5));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RegionStats {
    /// Accesses that were granted.
    pub accesses: u64,
    /// Bytes of these accesses.
    pub bytes: u64,
    /// Accesses with its key that were refused, except those that are refused as if the region did
    /// not exist (for example without its authorization key).
    pub refused: u64,
}

/// The entries of a [`CompletionQueue`](crate::CompletionQueue) or an
/// [`EventQueue`](crate::EventQueue).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let queue = Net::loopback().peer()?.domain.completion_queue().size(8).open()?;
/// let stats = queue.stats();
/// assert_eq!((stats.capacity, stats.len, stats.reserved), (8, 0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct QueueStats {
    /// Entries that the queue can hold.
    pub capacity: usize,
    /// Entries that wait to be read.
    pub len: usize,
    /// Slots reserved for outstanding operations and for future events.
    pub reserved: usize,
    /// Entries that were delivered.
    pub delivered: u64,
    /// How often a slot was needed and none was free: posts waited, or were refused.
    pub full: u64,
}

/// The addresses of an [`AddressVector`](crate::AddressVector), and how many this process has
/// inserted and removed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// peers.insert(([127, 0, 0, 1], 7471).into()).await?;
/// assert_eq!((peers.stats().addresses, peers.stats().inserted), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AddressVectorStats {
    /// Addresses in the vector, including those that other processes inserted.
    pub addresses: usize,
    /// Addresses that were inserted.
    pub inserted: u64,
    /// Addresses whose insertion failed.
    pub failed: u64,
    /// Addresses that were removed.
    pub removed: u64,
}

/// The counts of a [`RegistrationCache`](crate::domain::RegistrationCache) at one moment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::SharedBuffer;
/// use tokio_fabric::testing::Net;
///
/// let cache = Net::loopback().peer()?.domain.cache().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 4096]);
/// drop(cache.register(&buffer, ..).await?);
/// let stats = cache.stats();
/// assert_eq!((stats.misses, stats.count, stats.idle_count), (1, 1, 1));
/// # Ok(()) }
/// ```
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
    /// Bytes of the registrations in the cache (`FI_MR_CACHE_MAX_SIZE` bounds them).
    pub size: usize,
    /// Idle registrations in the cache: they have no handle, and are kept for the next request.
    pub idle_count: usize,
    /// Bytes of the idle registrations.
    pub idle_size: usize,
}
