//! In-process networks in which programs that use this crate can be tested (feature `test-util`). A
//! seed makes each run repeatable. Networks have named nodes, partitions, crashes, latency and
//! faults.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
//! let net = tokio_fabric::testing::Net::new(7);
//! let (a, b) = net.pair().await?;
//! a.send("hello").await?;
//! let (received, bytes) = b.recv(vec![0; 16]).await?;
//! assert_eq!(&bytes[..received.len], b"hello");
//! # Ok(()) }
//! ```
//!
//! # The same seed, the same run
//!
//! A [`Net::new`] derives all random values from its seed, and its time is Tokio's. So a test in a
//! `current_thread` runtime with `start_paused` never waits in real time, and the same seed gives
//! the same run, to the nanosecond of virtual time: the same completions, events and pauses between
//! attempts to reach a peer. Code of the test must be repeatable too:
//!
//! - `tokio::select!` polls its branches in random order, unless it begins with `biased;`.
//! - `std::collections::HashMap` is iterated in random order; use a `BTreeMap`.
//! - Other threads (`spawn_blocking`, a [`Driver::Thread`]) end at times that no seed determines.
//!   Blocking work of the library (registrations that fault pages in, lookups, commits) is done by
//!   tasks here, with the same results and events.
//! - The system looks up host names; numeric addresses need no lookup.
//! - Memory addresses differ from run to run, and so do values that contain one
//!   (`MrMode::VIRT_ADDR`). Identifiers (`EndpointId`) are counted throughout the process,
//!   so they depend on what other tests have opened.
//!
//! # What a test can do
//!
//! - Create a node, and spawn tasks that end with it: [`Net::node`], [`Node::spawn`].
//! - Cut the connection between nodes, in one direction or both, and restore it:
//!   [`Net::partition`], [`Net::partition_losing_resets`], [`Net::partition_one_way`],
//!   [`Net::isolate`]; [`Net::heal`], [`Net::heal_all`].
//! - End a node's process, and start another one: [`Net::crash`], [`Net::restart`].
//! - Stop a process, and let it continue: [`Net::hang`], [`Net::resume`].
//! - Set the latency and bandwidth between two nodes: [`Net::link`].
//! - Inject short and late operations, connections that are cut at a byte, and lost datagrams:
//!   [`Net::faults`], [`Net::set_faults`].
//!
//! All of this may be changed at any time. A partition loses nothing that TCP would deliver: bytes
//! wait until the partition heals or an end gives up. Objects that are opened without a node
//! ([`Net::peer`], [`Net::pair`]) are all on one machine of the network.
//!
//! # A whole program
//!
//! Three nodes replicate a log as in Raft, while they are partitioned, stopped and crashed. At most
//! one node leads in each term, and no committed entry is ever lost. Each seed gives a run that can
//! be repeated.
//!
//! ````
#![doc = include_str!("../../tests/campaigns/simulation/raft.rs")]
//! # fn main() { for seed in 0..3 { simulate(seed); } }
//! ````

mod node;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use crate::domain::{Domain, DomainBind};
use crate::endpoint::{Endpoint, RdmEndpoint};
use crate::eq::{Event, EventQueue};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Fabric, discover};
use crate::id::FabricAddr;
use crate::info::{Driver, Hints};
use crate::path::LocalPath;
use crate::random::RandomSource;
use crate::transport::{Backend, Faults, Host, LoopbackNet, TransportOptions};

pub use self::node::{Node, Wiring};
pub use crate::transport::FaultPlan;

/// Frees the memory of completed operations that the library keeps for later ones: small, bounded
/// pools of the process and of the calling thread.
///
/// For tests that measure memory.
///
/// ```
/// tokio_fabric::testing::drop_kept_memory();
/// ```
pub fn drop_kept_memory() {
    crate::endpoint::drop_kept();
}

/// A network for tests: a backend, and the faults that it injects.
///
/// ```
/// use tokio_fabric::testing::{Net, connect};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let net = Net::new(7);
/// let (a, b) = (net.node("a").peer()?, net.node("b").peer()?);
/// let (to_b, at_b) = connect(&a, &b).await?;
/// net.partition("a", "b");
/// let send = to_b.send("later").post()?;
/// net.heal("a", "b");
/// send.await?;
/// assert_eq!(at_b.recv(vec![0; 8]).await?.0.len, 5);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Net {
    backend: Backend,
    seed: u64,
    random: RandomSource,
    loopback: Arc<LoopbackNet>,
    faults: Faults,
    /// True if faults are injected into domains that are opened from now on, whatever the backend.
    is_faulty: bool,
    driver: Driver,
    local_path: LocalPath,
    local_after: Option<u64>,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::TlsConfig>,
}

impl Net {
    /// A private in-process network without faults, whose addresses are valid only in it. All its
    /// random values (keys, incarnations, proofs, retry intervals) are derived from the seed, and
    /// its time is Tokio's: in a `current_thread` runtime with `start_paused`, the same seed gives
    /// the same run. Anyone who knows the seed can guess the keys: it is for tests only.
    pub fn new(seed: u64) -> Net {
        Net::with(Backend::Loopback, seed, RandomSource::seeded(seed))
    }

    /// As [`Net::new`] with the seed 0.
    pub fn loopback() -> Net {
        Net::new(0)
    }

    /// A network on this backend, with the properties it has in production: without a seed, with
    /// random numbers of the operating system and blocking work on threads. Sockets stay on this
    /// machine's loopback interface and use real time.
    pub fn on(backend: Backend) -> Net {
        Net::with(backend, 0, RandomSource::default())
    }

    fn with(backend: Backend, seed: u64, random: RandomSource) -> Net {
        Net {
            backend,
            seed,
            is_faulty: random.is_seeded(),
            random,
            loopback: LoopbackNet::new(),
            faults: Faults::new(FaultPlan::seeded(seed)),
            driver: Driver::Task,
            local_path: LocalPath::Auto,
            local_after: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The seed, to be printed; 0 if there is none.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The same network, with these faults on both sides of every connection.
    pub fn faults(mut self, plan: FaultPlan) -> Net {
        self.is_faulty = true;
        self.set_faults(plan);
        self
    }

    /// From now on these faults occur on both sides of every connection, including existing ones.
    /// The bytes until a cut are counted from now on. In a network without a seed ([`Net::on`])
    /// this affects only domains that are opened after [`Net::faults`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> tokio_fabric::Result<()> {
    /// use std::time::Duration;
    /// use tokio_fabric::testing::{FaultPlan, Net};
    ///
    /// let net = Net::new(7);
    /// let (a, b) = net.pair().await?;
    /// let slow = Duration::from_secs(1)..=Duration::from_secs(2);
    /// net.set_faults(FaultPlan::seeded(7).delay(slow));
    /// let start = tokio::time::Instant::now();
    /// a.send("late").await?;
    /// b.recv(vec![0; 16]).await?;
    /// assert!(start.elapsed() >= Duration::from_secs(1));
    /// # Ok(()) }
    /// ```
    pub fn set_faults(&self, plan: FaultPlan) {
        self.faults.set(plan);
    }

    /// The same network, whose domains and listeners have this driver unless their builders set
    /// another.
    pub fn driver(mut self, driver: Driver) -> Net {
        self.driver = driver;
        self
    }

    /// The same network, with this choice whether connections may go through shared memory; the
    /// hints of a fabric override it. Only backends with sockets can use shared memory. Default:
    /// connections may use it, after some traffic ([`Net::local_after`]).
    pub fn local_path(mut self, path: LocalPath) -> Net {
        self.local_path = path;
        self
    }

    /// The same network, in which connections ask for shared memory after this number of sends and
    /// receives; with 0, as soon as they are connected. The default is 64, as in production. In a
    /// program with the feature `test-util` the environment variable `TOKIO_FABRIC_LOCAL_AFTER`
    /// sets the default of every fabric, so that all its tests can run through shared memory.
    pub fn local_after(mut self, moves: u64) -> Net {
        self.local_after = Some(moves);
        self
    }

    /// The same network, whose fabrics use this TLS configuration unless their hints set another.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::tls::TlsConfig) -> Net {
        self.tls = Some(tls);
        self
    }

    /// The backend.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// A fabric in this network.
    ///
    /// # Errors
    /// As for [`Fabric::open`], without a lookup.
    pub fn fabric(&self) -> Result<Fabric> {
        self.fabric_with(Hints::new())
    }

    /// A fabric in this network that matches these hints.
    ///
    /// # Errors
    /// As for [`Fabric::open`].
    pub fn fabric_with(&self, hints: Hints) -> Result<Fabric> {
        self.open(hints, self.random.clone(), None)
    }

    fn open(&self, hints: Hints, random: RandomSource, host: Option<Host>) -> Result<Fabric> {
        #[cfg(feature = "tls")]
        let hints = match &self.tls {
            Some(tls) if hints.tls.is_none() => hints.tls(tls.clone()),
            _ => hints,
        };
        let mut infos = discover(&hints)?;
        for info in &mut infos {
            info.domain.set_driver(self.driver);
        }
        let default = TransportOptions::default();
        let transport = TransportOptions {
            backend: Some(self.backend),
            net: Some(Arc::clone(&self.loopback)),
            faults: self.is_faulty.then(|| self.faults.clone()),
            random,
            host,
            #[cfg(feature = "tls")]
            tls: hints.tls.clone(),
            local_path: match hints.local_path {
                None if self.local_path == LocalPath::Off => LocalPath::Off,
                _ => hints.chosen_local_path(),
            },
            local_after: self.local_after.unwrap_or(default.local_after),
            ..default
        };
        Ok(Fabric::with_transport(&hints, infos, transport))
    }

    /// Two connected endpoints, each in a domain of its own.
    ///
    /// # Errors
    /// The errors of opening, listening and connecting.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it has opened.
    pub async fn pair(&self) -> Result<(Endpoint, Endpoint)> {
        let (a, b) = (self.peer()?, self.peer()?);
        connect(&a, &b).await
    }

    /// Two connectionless endpoints, each in a domain of its own and with the other in its address
    /// vector. They are not connected yet: the first operation connects them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// let net = tokio_fabric::testing::Net::loopback();
    /// let (a, b) = net.rdm_pair()?;
    /// a.endpoint.send_tagged("hello", a.other, 7).await?;
    /// let (received, bytes) = b.endpoint.recv_tagged(vec![0; 16], 7).await?;
    /// assert_eq!(&bytes[..received.len], b"hello");
    /// assert_eq!(received.source, Some(b.other));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of opening.
    pub fn rdm_pair(&self) -> Result<(RdmSide, RdmSide)> {
        let (a, b) = (self.peer()?, self.peer()?);
        let (x, y) = (a.rdm_endpoint()?, b.rdm_endpoint()?);
        let (to_y, to_x) = (x.insert(y.local_addr())?, y.insert(x.local_addr())?);
        Ok((
            RdmSide {
                endpoint: x,
                other: to_y,
                peer: a,
            },
            RdmSide {
                endpoint: y,
                other: to_x,
                peer: b,
            },
        ))
    }

    /// A peer: a domain bound to an event queue, and its fabric.
    ///
    /// # Errors
    /// The errors of opening.
    pub fn peer(&self) -> Result<Peer> {
        Peer::of(self.fabric()?)
    }
}

/// One side of a test: its fabric, its domain, and the event queue the domain is bound to.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (a, b) = (net.peer()?, net.peer()?);
/// let (endpoint, _other) = connect(&a, &b).await?;
/// assert_eq!(endpoint.domain().region_count(), a.domain.region_count());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Peer {
    /// The fabric.
    pub fabric: Fabric,
    /// The domain.
    pub domain: Domain,
    /// The event queue that the domain is bound to.
    pub events: EventQueue,
}

impl Peer {
    /// A peer of this fabric: a domain, bound to an event queue of its own.
    ///
    /// # Errors
    /// The errors of opening.
    pub fn of(fabric: Fabric) -> Result<Peer> {
        let events = fabric.event_queue().open()?;
        let domain = fabric.domain().open()?;
        domain.bind(&events, DomainBind::empty())?;
        Ok(Peer {
            fabric,
            domain,
            events,
        })
    }

    /// A connectionless endpoint of this peer, at a port of its own.
    ///
    /// # Errors
    /// The errors of opening.
    pub fn rdm_endpoint(&self) -> Result<RdmEndpoint> {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        self.domain.rdm_endpoint().listen_at(any).open()
    }
}

/// One side of a pair of connectionless endpoints, which [`Net::rdm_pair`] returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send("hello", a.other).await?;
/// let (received, _) = b.endpoint.recv(vec![0; 8]).await?;
/// assert_eq!(received.source, Some(b.other));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RdmSide {
    /// The endpoint.
    pub endpoint: RdmEndpoint,
    /// The name of the other side's endpoint in this side's address vector.
    pub other: FabricAddr,
    /// The peer that the endpoint belongs to.
    pub peer: Peer,
}

/// Connects a new endpoint of `a` to a new endpoint of `b`, through a listener that exists only
/// during this call. Both Connected events have been reported when it returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (a, b) = connect(&client, &server).await?;
/// assert!(a.is_connected() && b.is_connected());
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of opening, listening and connecting.
///
/// # Cancel safety
/// Dropping the future closes what it has opened.
pub async fn connect(a: &Peer, b: &Peer) -> Result<(Endpoint, Endpoint)> {
    let active = a.domain.endpoint().open()?;
    let passive = b.domain.endpoint().open()?;
    connect_endpoints(&active, &passive, &b.fabric).await?;
    Ok((active, passive))
}

/// Connects two endpoints that are not connected; `fabric` is that of the passive one. Use it for
/// endpoints that are bound to queues or counters.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect_endpoints};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let queue = client.domain.completion_queue().open()?;
/// let a = client.domain.endpoint().completion_queue(&queue).open()?;
/// let b = server.domain.endpoint().open()?;
/// connect_endpoints(&a, &b, &server.fabric).await?;
/// a.send("hello").queue(1).await?;
/// assert!(queue.next().await.expect("it is open").result.is_ok());
/// # Ok(()) }
/// ```
///
/// # Errors
/// The errors of listening and connecting.
///
/// # Cancel safety
/// Dropping the future leaves both endpoints in their current state.
pub async fn connect_endpoints(
    active: &Endpoint,
    passive: &Endpoint,
    fabric: &Fabric,
) -> Result<()> {
    let requests = fabric.event_queue().open()?;
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = fabric.passive_endpoint(&requests).listen_at(any)?;
    let connecting = active.connect(listener.local_addr());
    let accepting = async {
        match requests.next().await {
            Some(Event::ConnRequest(request)) => passive.accept(request).await,
            other => Err(Error::new(
                ErrorKind::BadState,
                format!("{other:?} instead of a request"),
            )),
        }
    };
    // If one side fails, the other side's wait ends too.
    futures::future::try_join(connecting.into_future(), accepting).await?;
    Ok(())
}
