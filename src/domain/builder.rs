//! Opening a domain.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{DomainId, UserContext};
use crate::info::{Driver, Info, MrMode};
use crate::limits::PROGRESS_SHARDS_MAX;
use crate::mr::{KeyPolicy, MappedKeys, MrAddressing, MrTable, RawKeys};
use crate::path::LocalPath;
use crate::progress::{EngineConfig, LocalConfig, Shards};
use crate::sync::{Dependence, Dependents, DomainScope, Keep, Lock, ProgressList};
use crate::transport::{self, Backend, ManualReactor, Runner, TransportOptions, WaitingDriver};

use super::auth::domain_secret;
use super::blocking::BlockingPool;
use super::counts::OpenCounts;
use super::opened::{ManualProgressGuard, Opened};
use super::request::rights_within;
use super::{Binding, Domain, Inner, expected_regions};

/// Opens a [`Domain`] (`fi_domain(3)`), with its driver and its limits.
///
/// You get one from [`Fabric::domain`](crate::Fabric::domain).
///
/// ```
/// use tokio_fabric::{Driver, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new())?;
/// let domain = fabric.domain().driver(Driver::Thread).open()?;
/// assert_eq!(domain.driver(), Driver::Thread);
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct DomainBuilder {
    info: Info,
    source_chosen: bool,
    transport: TransportOptions,
    context: Option<UserContext>,
    driver: Option<Driver>,
    busy_poll: Duration,
    progress_shards: usize,
    are_limits: bool,
    peer: Option<Domain>,
    fabric: Keep,
    dependence: Option<Dependence>,
}

impl DomainBuilder {
    pub(crate) fn new(
        info: Info,
        source_chosen: bool,
        transport: TransportOptions,
        fabric: Keep,
        dependence: Option<Dependence>,
    ) -> Self {
        DomainBuilder {
            info,
            source_chosen,
            transport,
            context: None,
            driver: None,
            busy_poll: Duration::ZERO,
            progress_shards: 1,
            are_limits: false,
            peer: None,
            fabric,
            dependence,
        }
    }

    /// The context of the domain's own events, which go to the event queue that it is
    /// [bound](Domain::bind) to. Default: none; then there are no such events.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Attributes to use instead of the fabric's first choice, for instance another result of
    /// `discover`. Connections are then made from its source address.
    pub fn info(mut self, info: Info) -> Self {
        self.info = info;
        self.source_chosen = true;
        self
    }

    /// The driver of the domain's progress. Default: the Info's choice, which is [`Driver::Task`]
    /// in the results of `discover`.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// How long the driver spins after the last activity before it sleeps. Spinning uses a core,
    /// and saves the wake-up for whatever arrives in that time. Default: zero.
    ///
    /// A [`Driver::Thread`] spins on a core of its own. A [`Driver::Task`] lets the other tasks of
    /// its runtime run in between, every few microseconds; the runtime does not sleep meanwhile. A
    /// [`Driver::Local`] lets the futures of its thread run in the same way.
    pub fn busy_poll(mut self, duration: Duration) -> Self {
        self.busy_poll = duration;
        self
    }

    /// Whether connections to peers on the same host may go through shared memory
    /// ([`Endpoint::path`](crate::Endpoint::path) says which do). Default: the choice of the
    /// [hints](crate::Hints::local_path).
    pub fn local_path(mut self, path: LocalPath) -> Self {
        self.transport.local_path = path;
        self
    }

    /// The number of drivers among which the domain's endpoints are divided, each a task or a
    /// thread of its own (1 to [`PROGRESS_SHARDS_MAX`]). Use several for many connections on many
    /// processors. Default: one, which runs on one processor at a time.
    ///
    /// A new endpoint goes to the driver with the fewest connections and stays there. All
    /// connections of a connectionless endpoint belong to its driver; those of a
    /// [scalable](Domain::scalable_endpoint) one belong to the drivers of its contexts. Regions
    /// belong to the whole domain. Each driver has an incarnation of its own
    /// ([`Endpoint::peer_incarnation`](crate::Endpoint::peer_incarnation)).
    ///
    /// On a `current_thread` runtime, several tasks gain nothing. Each driver that spins
    /// ([`busy_poll`](Self::busy_poll)) uses a core.
    pub fn progress_shards(mut self, drivers: usize) -> Self {
        self.progress_shards = drivers;
        self
    }

    /// Makes the counts of the Info limits: `cq_cnt`, `cntr_cnt`, `tx_ctx_cnt`, `rx_ctx_cnt` and
    /// `mr_cnt` of [`DomainAttr`](crate::info::DomainAttr). One object more than such a count is
    /// refused with [`ErrorKind::LimitReached`], until another one is closed. With
    /// [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT) `mr_cnt` limits the regions that are
    /// bound to each endpoint, otherwise those of the domain.
    ///
    /// Default: these counts are advice (`fi_domain(3)`), and only `ep_cnt` is a limit. Objects
    /// beyond these counts work the same, and share the domain's [drivers](Self::progress_shards).
    pub fn limit(mut self) -> Self {
        self.are_limits = true;
        self
    }

    /// Opens the domain as a peer of another one (`fi_domain2` with `FI_PEER`, `fi_peer(3)`): its
    /// endpoints and regions may also be bound to the other's completion queues, counters, address
    /// vectors and receive contexts, which are otherwise refused. So one queue can report what
    /// comes through several interfaces or backends, for instance from the network and from within
    /// the process. Default: no other domain's objects can be bound.
    ///
    /// This holds for objects that `other` itself has opened, in this direction only, whatever
    /// drives the domains. Reading or awaiting an object that domains share drives each of them
    /// that has [`Driver::Manual`], so that one task that reads a queue is enough. Only a domain's
    /// own objects drive work without shared objects, such as connecting.
    ///
    /// Neither domain keeps the other open, but `other` cannot be closed while its objects are in
    /// use. Regions stay with the domain that they were registered in: peers reach them only
    /// through its endpoints. Both domains' endpoints may use them as local buffers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let network = Fabric::open(Hints::new())?.domain().open()?;
    /// let within = Fabric::open(Hints::new().backend("loopback"))?;
    /// let within = within.domain().peer_of(&network).open()?;
    /// let queue = network.completion_queue().open()?;
    /// let far = network.endpoint().completion_queue(&queue).open()?;
    /// let near = within.endpoint().completion_queue(&queue).open()?;
    /// # drop((far, near));
    /// # Ok(()) }
    /// ```
    #[doc(alias("fi_domain2", "FI_PEER", "fi_peer"))]
    pub fn peer_of(mut self, other: &Domain) -> Self {
        self.peer = Some(other.clone());
        self
    }

    /// Opens the domain and starts its driver: a task on the current Tokio runtime, or a thread.
    ///
    /// # Errors
    /// - [`ErrorKind::NoRuntime`] for a [`Driver::Task`] outside of a runtime, or in a runtime that
    ///   lacks what the backend needs (I/O for sockets, time for loopback).
    /// - [`ErrorKind::LimitReached`] if no more threads or descriptors are available.
    /// - [`ErrorKind::Unsupported`] if a backend was requested that is not available.
    /// - [`ErrorKind::InvalidArgument`] if the number of shards is out of range; a
    ///   [`Driver::Local`] has one.
    /// - [`ErrorKind::BadState`] as a [peer](Self::peer_of) of a closed domain.
    pub fn open(mut self) -> Result<Domain> {
        let driver = self.driver.unwrap_or(self.info.domain.driver);
        self.info.domain.set_driver(driver);
        if self.transport.backend == Some(Backend::Loopback) {
            self.info.reaches_this_process_only();
        }
        if let Some(peer) = &self.peer
            && peer.inner.dependents.is_closed()
        {
            let what = "peer_of: the domain is closed";
            return Err(Error::new(ErrorKind::BadState, what));
        }
        self.transport.runner = runner_of(driver, self.transport.backend)?;
        check_shards(self.progress_shards, driver)?;
        let shards = (0..self.progress_shards).map(|_| transport::open(&self.transport));
        let selections: Vec<_> = shards.collect::<Result<_>>()?;
        let first = &selections[0];
        let span = tracing::info_span!(
            "domain",
            domain = %self.info.domain.name,
            backend = %first.transport.backend(),
        );
        tracing::info!(parent: &span, ?driver, shards = self.progress_shards, "domain opened");
        let mr_mode = self.info.domain.mr_mode.in_force();
        let addressing = if mr_mode.contains(MrMode::VIRT_ADDR) {
            MrAddressing::Virtual
        } else {
            MrAddressing::Offset
        };
        let keys = if mr_mode.contains(MrMode::PROV_KEY) {
            KeyPolicy::Provider
        } else {
            KeyPolicy::Application {
                key_size: self.info.domain.mr_key_size,
            }
        };
        let caps = self.info.caps_of_all_kinds();
        let counts = OpenCounts::new(&self.info.domain, self.are_limits);
        let regions_max = match self.are_limits && !mr_mode.contains(MrMode::ENDPOINT) {
            true => self.info.domain.mr_cnt,
            false => usize::MAX,
        };
        let auth_secret = domain_secret(self.info.domain.auth_key.as_ref());
        let random = self.transport.random.clone();
        let raw = mr_mode.contains(MrMode::RAW);
        let table = MrTable::new(
            addressing,
            keys,
            RawKeys::new(raw, &random)?,
            random.clone(),
        )
        .expecting(expected_regions(&self.info))
        .at_most(regions_max);
        let regions = Arc::new(Lock::new(table));
        let blocking = match first.executor.runtime() {
            Some(runtime) if random.is_seeded() => BlockingPool::tasks(runtime.clone()),
            Some(runtime) => BlockingPool::of_runtime(runtime.clone()),
            None => BlockingPool::threads(),
        };
        let local = LocalConfig::new(self.transport.local_path, self.transport.local_after);
        let shards = Shards::start(selections.into_iter().map(|selection| EngineConfig {
            transport: selection.transport,
            regions: Arc::clone(&regions),
            random: random.clone(),
            executor: selection.executor,
            busy_poll: self.busy_poll,
            local: local.clone(),
            span: span.clone(),
        }))?;
        let manual = self.transport.runner.manual();
        let progress = manual.map(|reactor| Arc::clone(reactor.progress()));
        let driven = ProgressList::new();
        driven.add(progress.as_ref(), || {});
        if let Some(peer) = &self.peer {
            let released = peer.inner.dependents.released();
            (peer.inner.driven).add(progress.as_ref(), || released.notify_waiters());
        }
        let peer = self.peer.map(|it| it.scope().own());
        let inner = Arc::new(Inner {
            source: self.info.source.filter(|_| self.source_chosen),
            info: self.info,
            caps,
            hmem: OnceLock::new(),
            rights: rights_within(caps),
            transport: self.transport,
            shards,
            regions,
            blocking,
            binding: Mutex::new(Binding {
                _fabric: self.dependence,
                ..Binding::default()
            }),
            registers: AtomicBool::new(false),
            dependents: Dependents::new(),
            driven,
            counts,
            context: self.context,
            mr_mode,
            scope: DomainScope::new(DomainId::next(), peer, progress),
            opened: OnceLock::new(),
            auth_secret,
            mapped: MappedKeys::new(raw, random),
            _fabric: self.fabric,
        });
        let is_manual = inner.scope.progress().is_some();
        let _progress_guard = is_manual.then(|| {
            Arc::new(ManualProgressGuard {
                inner: Arc::clone(&inner),
            })
        });
        Opened::list(&inner, _progress_guard.as_ref());
        Ok(Domain {
            inner,
            _progress_guard,
        })
    }
}

/// Returns what runs the transports of a domain, or of a listener, with this driver.
///
/// # Errors
/// [`ErrorKind::LimitReached`] when no descriptor or thread is left.
pub(crate) fn runner_of(driver: Driver, backend: Option<Backend>) -> Result<Runner> {
    Ok(match driver {
        Driver::Task => Runner::Task,
        Driver::Thread => Runner::Thread,
        Driver::Local => Runner::Caller(Arc::<WaitingDriver>::default()),
        Driver::Manual => Runner::Manual(ManualReactor::open(backend)?),
    })
}

fn check_shards(drivers: usize, driver: Driver) -> Result<()> {
    let (max, of) = match driver {
        Driver::Local => (1, "a domain with Driver::Local, one for each thread,"),
        _ => (PROGRESS_SHARDS_MAX, "a domain"),
    };
    if (1..=max).contains(&drivers) {
        return Ok(());
    }
    let message = format!("progress_shards: {drivers}; {of} has 1 to {max}");
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use crate::{Fabric, Hints};

    /// fi_domain(3): "Doing so may allow the provider to optimize any memory registration cache or
    /// lookup tables."
    #[tokio::test]
    async fn tables_are_made_for_the_regions_that_were_announced() {
        let capacity = |hints| {
            let domain = Fabric::open(hints).unwrap().domain().open().unwrap();
            let cache = domain.cache().max_count(usize::MAX).open().unwrap();
            let regions = domain.inner.regions.lock("test").capacity();
            (regions, cache.capacity())
        };
        let (regions, cached) = capacity(Hints::new().domain(|domain| domain.mr_cnt(100_000)));
        assert!(
            regions >= 100_000 && cached >= 100_000,
            "{regions}, {cached}"
        );
        // Tables for the default number of regions are allocated only when they are needed.
        assert_eq!(capacity(Hints::new()), (0, 0));
        // An excessive count allocates no more than a large program needs.
        let (regions, _) = capacity(Hints::new().domain(|domain| domain.mr_cnt(1 << 23)));
        assert!(regions < 4 << 20);
    }
}
