//! Domains (`fi_domain(3)`): opening one, registering memory, and caching registrations. A domain
//! owns its driver, its regions and the bindings of its endpoints.

#![forbid(unsafe_code)]

mod auth;
mod available;
mod bind;
mod blocking;
mod builder;
mod cache;
mod control_groups;
mod counts;
mod handle;
mod low_level;
mod opened;
mod ops;
mod raw;
mod refresh;
mod register;
mod register_task;
mod registration;
mod request;
mod stats;
mod watch;

// The documentation lists methods in the order of the modules; methods for few programs come last.
mod atomic;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::av::{AddressVector, AddressVectorBuilder};
use crate::buf::{ReadOnlyBuf, RegionBufs, SharedHmemOps};
use crate::cntr::Counter;
use crate::cq::{CompletionQueue, CompletionQueueBuilder};
use crate::eq::{EventQueue, WeakEventQueue};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::info::{Driver, Info, MrMode, SideCaps};
use crate::limits::{CQ_INTERNAL_SIZE, MR_CAPACITY_AHEAD_MAX, MR_COUNT_MAX};
use crate::mr::{Access, AuthSecret, MappedKeys, MrTable, Parent, SharedTable};
use crate::progress::{EndReport, Engine, Shards};
use crate::sync::{
    Dependence, Dependents, DomainScope, Keep, Lock, ManualProgress, ProgressList, ProgressWaiter,
    await_driving,
};
use crate::transport::{self, Backend, Runner, Selection, TransportOptions, WaitingDriver};

use blocking::BlockingPool;
use counts::OpenCounts;
use opened::{ManualProgressGuard, Opened};

pub use builder::DomainBuilder;
pub(crate) use builder::runner_of;
pub use cache::{CacheRegister, CacheRegistration, RegistrationCache, RegistrationCacheBuilder};
pub(crate) use counts::EndpointRegions;
pub use handle::RegionHandle;
pub(crate) use low_level::OpenSeal;
pub use low_level::{OpenOps, RingOps};
pub(crate) use opened::{check_opened, name_opened};
pub use ops::{DomainOps, SET_OPS_HMEM_OVERRIDE};
pub use register::{Register, RegisterReadOnly};
pub use registration::Registration;
pub use request::RegisterBufs;
pub use watch::RegistrationProgress;

pub use crate::transport::RingInfo;

bitflags::bitflags! {
    /// The events that a domain reports to the event queue that it is bound to (flags of
    /// `fi_domain_bind`, see `fi_domain(3)`).
    ///
    /// Connection events of endpoints without a queue of their own go there in any case.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::domain::DomainBind;
    /// use tokio_fabric::{Event, Fabric, Hints};
    ///
    /// let fabric = Fabric::open(Hints::new())?;
    /// let (events, domain) = (fabric.event_queue().open()?, fabric.domain().open()?);
    /// domain.bind(&events, DomainBind::REG_MR)?;
    /// let region = domain.register(vec![0u8; 64]).context(7u64).await?; // Asks for an event too.
    /// assert!(matches!(events.next().await, Some(Event::MrComplete { .. })));
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DomainBind: u64 {
        /// Memory registration is asynchronous (`FI_REG_MR`): blocking threads fault the pages in,
        /// and the future of a registration completes when they are present. A registration reports
        /// an event only if it requests one, by [`Register::context`] or [`Register::submit`].
        /// [`Register::now`] is refused, also for memory whose pages need no work (read-only
        /// memory, address ranges, [`Register::lazily`]), whose registration ends before the call
        /// returns.
        /// Without this flag a registration completes at its first poll and leaves the pages as
        /// they are.
        #[doc(alias = "FI_REG_MR")]
        const REG_MR = 1 << 59;
    }
}

/// An opened access domain (`struct fid_domain`, `fi_domain(3)`).
///
/// A domain holds memory regions and endpoints, and owns the driver that moves their bytes
/// (`FI_PROGRESS_AUTO`): progress needs no calls from the application. By default the driver is a
/// task on the Tokio runtime in which the domain was opened. The driver stops when this runtime
/// stops, and code that blocks a `current_thread` runtime also blocks the driver and with it the
/// peers. A driver on a thread of its own ([`DomainBuilder::driver`]) has neither limitation. If
/// one CPU core is not enough for all connections, a domain may have several drivers
/// ([`DomainBuilder::progress_shards`]).
///
/// Clones are handles to the same domain. Everything opened in a domain holds it, so handles may be
/// dropped in any order; the domain ends with the last of them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Access, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let region = domain.register(vec![0u8; 4096]).access(Access::REMOTE_READ).await?;
/// assert_eq!(region.len(), 4096);
/// # Ok(()) }
/// ```
#[doc(alias = "fid_domain")]
#[derive(Clone)]
pub struct Domain {
    inner: Arc<Inner>,
    /// Ends manual progress when the application drops its last handle of the domain and of its
    /// endpoints.
    _progress_guard: Option<Arc<ManualProgressGuard>>,
}

struct Inner {
    info: Info,
    /// Capabilities of endpoints of all kinds together.
    caps: SideCaps,
    /// Access rights of regions that are of use with these capabilities.
    rights: Access,
    /// Options for the transports of the listeners of the domain's endpoints.
    transport: TransportOptions,
    /// Source address of connections, if the application chose one; otherwise routing decides.
    source: Option<SocketAddr>,
    shards: Shards,
    regions: SharedTable,
    /// The threads or tasks on which registrations fault pages in.
    blocking: BlockingPool,
    binding: Mutex<Binding>,
    /// True if an event queue is bound with `REG_MR`.
    registers: AtomicBool,
    dependents: Dependents,
    /// The progress that `Domain::closed` drives while it waits: that of this domain, and of its
    /// peers, which use its objects.
    driven: ProgressList,
    counts: OpenCounts,
    context: Option<UserContext>,
    mr_mode: MrMode,
    /// The functions that copy device memory (`FI_SET_OPS_HMEM_OVERRIDE`).
    hmem: OnceLock<SharedHmemOps>,
    scope: DomainScope,
    /// The entry by which discovery finds the domain.
    opened: OnceLock<Arc<Opened>>,
    /// The key of endpoints and regions that have none of their own.
    auth_secret: Option<AuthSecret>,
    mapped: Arc<MappedKeys>,
    /// Keeps the fabric alive as long as the domain.
    _fabric: Keep,
}

/// Objects that the domain is bound to until it is closed.
#[derive(Default)]
struct Binding {
    events: Option<WeakEventQueue>,
    /// Keeps the queue from being closed while the domain is bound to it.
    dependence: Option<Dependence>,
    /// Keeps the fabric from being closed while the domain is open.
    _fabric: Option<Dependence>,
}

/// Returns how many regions to make tables for in advance: as many as the application asked for
/// (`mr_cnt` of `fi_domain(3)`). Otherwise none, since most domains would waste tables for the
/// default number.
fn expected_regions(info: &Info) -> usize {
    match info.domain.mr_cnt {
        asked if asked < MR_COUNT_MAX => asked.min(MR_CAPACITY_AHEAD_MAX),
        _ => 0,
    }
}

impl Inner {
    /// Closes the domain if nothing depends on it, otherwise returns the names of the dependents.
    /// Regions are not among the dependents: their table counts them.
    fn close(&self) -> std::result::Result<(), String> {
        let mut regions = self.regions.lock("close a domain");
        match regions.len() {
            0 => self.dependents.close().inspect(|()| regions.close()),
            count => Err(self.names_with(count)),
        }
    }

    /// Returns the names of the objects that are open in the domain; `None` if there are none.
    fn open_names(&self) -> Option<String> {
        match self.regions.lock("name what is open").len() {
            0 => self.dependents.names(),
            count => Some(self.names_with(count)),
        }
    }

    /// Returns the names of the domain's dependents, including this number of regions.
    fn names_with(&self, regions: usize) -> String {
        let open = match regions {
            1 => "a memory region".to_owned(),
            count => format!("{count} memory regions"),
        };
        match self.dependents.names() {
            Some(names) => format!("{names}, {open}"),
            None => format!("still used by {open}"),
        }
    }

    /// Waits until the drivers of a closed domain have ended, then unbinds the domain from its
    /// event queue and its fabric. If the future is dropped, it unbinds at once.
    async fn ended(&self) {
        let _bound = Bound(self);
        self.shards.stop();
        await_driving(self.scope.progress(), self.shards.wait_gone()).await;
    }
}

/// Unbinds a closed domain from its event queue and its fabric on drop.
struct Bound<'a>(&'a Inner);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let mut binding = self
            .0
            .binding
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let bound = std::mem::take(&mut *binding);
        drop(binding);
        drop(bound);
    }
}

impl Parent for Inner {
    fn table(&self) -> &Lock<MrTable> {
        &self.regions
    }

    fn scope(&self) -> &DomainScope {
        &self.scope
    }

    fn nudge(&self) {
        self.shards.nudge_for_regions();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shards.stop();
    }
}

impl Domain {
    /// Binds an event queue to the domain (`fi_domain_bind`). The queue receives the events,
    /// including connection events, of all endpoints that are opened from now on without a queue of
    /// their own. With [`DomainBind::REG_MR`] every registration from now on is asynchronous. The
    /// domain does not keep the queue alive: once the application drops its last handle of the
    /// queue, registrations continue as before, and their events are not read.
    ///
    /// A domain that was opened with a [context](DomainBuilder::context) reports its own events to
    /// the queue, with that context: an [`Event::Error`](crate::Event::Error) for each of its
    /// drivers that ends while the domain is open, because its runtime ended, it panicked, or its
    /// backend was lost. All operations have completed by then. The domain reserves a slot of the
    /// queue for each driver.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the domain is bound already; `fi_domain(3)` does not define how to
    /// unbind. [`ErrorKind::Again`] if the queue has no slot for the domain's own events.
    #[doc(alias = "fi_domain_bind")]
    pub fn bind(&self, events: &EventQueue, flags: DomainBind) -> Result<()> {
        if let unknown @ 1.. = flags.difference(DomainBind::all()).bits() {
            return Err(Error::new(
                ErrorKind::BadFlags,
                format!("{unknown:#x} for a domain's event queue"),
            ));
        }
        let mut binding = self.binding();
        if binding.events.is_some() {
            return Err(Error::new(
                ErrorKind::Busy,
                "the domain is bound to an event queue already",
            ));
        }
        binding.events = Some(events.downgrade());
        drop(binding);
        // The lock is released, since this wakes readers of the queue.
        let bound = self.end_reports(events).and_then(|reports| {
            let name = format!("domain {}", self.inner.info.domain.name);
            Ok((
                reports,
                events.depend(name.into(), self.progress_by_hand())?,
            ))
        });
        let mut binding = self.binding();
        match bound {
            Ok((reports, dependence)) => {
                binding.dependence = Some(dependence);
                let registers = flags.contains(DomainBind::REG_MR);
                self.inner.registers.store(registers, Ordering::Release);
                drop(binding);
                self.inner.shards.report_ends_by(reports);
                Ok(())
            }
            Err(error) => {
                binding.events = None;
                Err(error)
            }
        }
    }

    /// Reserves slots for the domain's own events, one for each driver, if the domain has a
    /// context, which identifies them.
    fn end_reports(&self, events: &EventQueue) -> Result<Vec<EndReport>> {
        let Some(context) = self.inner.context else {
            return Ok(Vec::new());
        };
        let drivers = self.inner.shards.count();
        let slots = events.try_reserve_many(drivers).ok_or_else(|| {
            let message = format!(
                "the event queue of {} places is full: a domain with a context reserves one for \
                 each of its {drivers} drivers",
                events.capacity()
            );
            Error::new(ErrorKind::Again, message)
        })?;
        let reports = slots.into_iter().map(|slot| EndReport { slot, context });
        Ok(reports.collect())
    }

    fn binding(&self) -> std::sync::MutexGuard<'_, Binding> {
        self.inner
            .binding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The event queue that the domain is bound to, as long as a handle of the queue exists: the
    /// domain does not keep it alive.
    pub fn event_queue(&self) -> Option<EventQueue> {
        self.binding()
            .events
            .as_ref()
            .and_then(WeakEventQueue::upgrade)
    }

    /// Registers memory so that peers may be allowed to access it (`fi_mr_reg`, `fi_mr_regv`;
    /// `fi_mr(3)`): one buffer, or several as one region. The region owns the memory until it is
    /// deregistered. A buffer counts with its length: `Vec::with_capacity(n)` is an empty region.
    ///
    /// Unless an event queue is bound with [`DomainBind::REG_MR`], this completes at its first
    /// poll. With such a queue, blocking threads fault in pages that have never been touched; the
    /// returned future and the event complete when all pages are present, and
    /// [progress](Register::progress) counts them. [`Register::lazily`] skips this.
    #[doc(alias("fi_mr_reg", "fi_mr_regv"))]
    pub fn register<B: RegionBufs>(&self, buffers: B) -> Register<B> {
        Register::new(self.clone(), buffers)
    }

    /// Registers bytes that never change: peers can at most read them, and this process keeps a
    /// safe `&[u8]`. It completes when [`register`](Self::register) would.
    pub fn register_read_only<B: ReadOnlyBuf>(&self, bytes: B) -> RegisterReadOnly<B> {
        Register::new(self.clone(), bytes)
    }

    /// Starts building a completion queue of this domain (`fi_cq_open`, `fi_cq(3)`).
    #[doc(alias = "fi_cq_open")]
    pub fn completion_queue(&self) -> CompletionQueueBuilder {
        let counted = self.inner.counts.queue();
        let keep = counted.and_then(|it| self.keep_counted("completion queue".into(), it));
        CompletionQueue::builder(self.scope(), keep.map(Some))
    }

    /// Opens a counter of this domain (`fi_cntr_open`, `fi_cntr(3)`), at 0.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] if `cntr_cnt` is a [limit](DomainBuilder::limit) that is
    /// reached, [`ErrorKind::BadState`] if the domain is closed.
    #[doc(alias = "fi_cntr_open")]
    pub fn counter(&self) -> Result<Counter> {
        let counted = self.inner.counts.counter()?;
        let keep = self.keep_counted("counter".into(), counted)?;
        Ok(Counter::open(self.scope(), Some(keep)))
    }

    /// Starts building an address vector of this domain (`fi_av_open`, `fi_av(3)`).
    #[doc(alias = "fi_av_open")]
    pub fn address_vector(&self) -> AddressVectorBuilder {
        self.vector_builder(self.keep("address vector").ok())
    }

    /// The backend that transfers the bytes: [`Backend::Epoll`], unless the hints asked for another
    /// one ([`Hints::backend`](crate::Hints::backend)).
    pub fn backend(&self) -> Backend {
        self.inner.shards.transport().backend()
    }

    /// The driver of the domain's progress; [`Domain::info`] contains it too.
    pub fn driver(&self) -> Driver {
        self.inner.info.domain.driver
    }

    /// How many drivers the domain has; its endpoints are divided among them
    /// ([`DomainBuilder::progress_shards`]).
    pub fn progress_shards(&self) -> usize {
        self.inner.shards.count()
    }

    /// Draws a random number from the source of the domain's keys: the operating system. In a test
    /// network with a seed, the seed determines the number, so that a layer above that chooses
    /// random pauses is repeatable too.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the operating system returns none.
    pub fn random_number(&self) -> Result<u64> {
        self.inner.transport.random.number("a layer above")
    }

    /// Makes one turn of progress of a domain with [`Driver::Manual`], within a budget: receives,
    /// sends, reports completions and manages connections. Returns true if it did anything; there
    /// may be more to do. Never blocks.
    ///
    /// A program that calls this in a loop needs no `.await` and no running runtime, and sees data
    /// as soon as the kernel has it. Returns false while another thread drives the domain, and
    /// always for a domain with automatic progress, which needs no calls.
    pub fn progress(&self) -> bool {
        (self.progress_by_hand()).is_some_and(|progress| progress.turn())
    }

    pub(crate) fn progress_by_hand(&self) -> Option<&Arc<ManualProgress>> {
        self.scope().progress()
    }

    /// Runs blocking work apart from the driver, with a queue of its own.
    pub(crate) fn run_blocking(&self, work: impl FnOnce() + Send + 'static) {
        self.inner.blocking.others().run(work);
    }

    /// The attributes the domain was opened with.
    pub fn info(&self) -> &Info {
        &self.inner.info
    }

    /// The context given when the domain was opened.
    pub fn context(&self) -> Option<UserContext> {
        self.inner.context
    }

    /// How many regions are registered now.
    pub fn region_count(&self) -> usize {
        self.inner.regions.lock("count regions").len()
    }

    /// Closes the domain (`fi_close`): stops its driver and waits until the driver has ended, which
    /// includes the end of the connections of dropped endpoints. Remaining handles cannot open
    /// anything, and do not prevent the fabric and the event queue from being closed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while objects of the domain are open; the message names them, and the
    /// domain continues as before. An object is open as long as there is a handle of it, an
    /// endpoint that it is bound to (a dropped endpoint counts until it has ended), or an unread
    /// event or running insertion that holds it. [`closed`](Self::closed) waits for all of them.
    ///
    /// # Cancel safety
    /// From the first poll on the domain is closed, or the result is `Busy`, whether or not the
    /// future is awaited to its end.
    #[doc(alias("fi_close", "FI_EBUSY"))]
    pub async fn close(&self) -> Result<()> {
        self.inner
            .close()
            .map_err(|names| Error::new(ErrorKind::Busy, format!("the domain is {names}")))?;
        self.inner.ended().await;
        Ok(())
    }

    /// Waits until everything that was opened in the domain has ended, then closes it as
    /// [`close`](Self::close) does. Use it instead of calling `close` until it succeeds if other
    /// tasks still have handles. It waits for as long as a handle exists.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// # use tokio_fabric::{Fabric, Hints};
    /// let fabric = Fabric::open(Hints::new())?;
    /// let domain = fabric.domain().open()?;
    /// let queue = domain.completion_queue().open()?;
    /// let user = tokio::spawn(async move { drop(queue) });
    /// domain.closed().await;
    /// fabric.close()?; // The domain no longer keeps it busy.
    /// # user.await.unwrap();
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped while an object is open, nothing has happened; after that, the
    /// domain is closed.
    pub async fn closed(&self) {
        let released = self.inner.dependents.released();
        let regions = &self.inner.regions;
        regions
            .lock("wait for regions")
            .notify_when_emptied(released);
        loop {
            // Registered before the check, so that a release in between is not missed.
            let notified = released.notified();
            if self.inner.close().is_ok() {
                return self.inner.ended().await;
            }
            let (mut notified, mut waiter) = (pin!(notified), ProgressWaiter::default());
            poll_fn(|cx| {
                waiter.poll_reading(&self.inner.driven, cx, |cx| notified.as_mut().poll(cx))
            })
            .await;
        }
    }

    /// Returns a handle that does not keep manual progress going, unlike those of the application.
    fn without_progress_guard(&self) -> Domain {
        Domain {
            inner: Arc::clone(&self.inner),
            _progress_guard: None,
        }
    }

    /// Returns a value that keeps the domain open and that the Busy error of `close` names.
    pub(crate) fn keep(&self, name: &'static str) -> Result<Keep> {
        self.keep_counted(name.into(), ())
    }

    /// As [`Domain::keep`], for an object that `counted` counts as open until it is dropped.
    fn keep_counted(&self, name: Arc<str>, counted: impl Any + Send + Sync) -> Result<Keep> {
        let dependence = self
            .inner
            .dependents
            .depend(name)
            .ok_or_else(|| Error::new(ErrorKind::BadState, "the domain is closed"))?;
        Ok(Box::new((
            dependence,
            self.without_progress_guard(),
            counted,
        )))
    }

    /// As [`Domain::keep`], for an endpoint with these capabilities.
    pub(crate) fn keep_endpoint(&self, name: &Arc<str>, caps: SideCaps) -> Result<Keep> {
        let counted = self.inner.counts.endpoint(caps)?;
        self.keep_counted(Arc::clone(name), counted)
    }

    /// As [`Domain::keep`], for one more context of an endpoint that is open already.
    pub(crate) fn keep_context(&self, name: &Arc<str>, caps: SideCaps) -> Result<Keep> {
        let counted = self.inner.counts.contexts(caps)?;
        self.keep_counted(Arc::clone(name), counted)
    }

    /// Returns the limit of the regions of an endpoint that is opened now.
    pub(crate) fn endpoint_regions(&self) -> Option<EndpointRegions> {
        self.inner.counts.endpoint_regions()
    }

    /// Opens a completion queue for an endpoint that was given none.
    pub(crate) fn internal_queue(&self) -> Result<CompletionQueue> {
        let builder = CompletionQueue::builder(self.scope(), Ok(None));
        builder.size(CQ_INTERNAL_SIZE).open()
    }

    /// Opens an address vector for an endpoint that was given none. It is part of the endpoint, so
    /// a Busy error of the domain names only the endpoint.
    pub(crate) fn internal_vector(&self) -> Result<AddressVector> {
        let keep = Box::new(self.without_progress_guard());
        self.vector_builder(Some(keep)).open()
    }

    fn vector_builder(&self, keep: Option<Keep>) -> AddressVectorBuilder {
        let blocking = self.inner.blocking.others();
        let run = Box::new(move |work| blocking.clone().run(work));
        let info = self.inner.info.clone();
        AddressVectorBuilder::new(self.scope(), info, run, keep)
    }

    /// Returns the local address of connections, if the application chose one.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.inner.source
    }

    /// Opens a transport for a listener, in this domain's backend, with a runner of the same kind
    /// as the domain's driver ([`Runner::for_listener`]).
    pub(crate) fn listener_transport(&self) -> Result<Selection> {
        let mut options = self.inner.transport.clone();
        options.backend = Some(self.backend());
        options.runner = options.runner.for_listener();
        transport::open(&options)
    }

    /// Returns the driver of a domain with [`Driver::Local`], which waits for a thread to run it.
    pub(crate) fn waiting_driver(&self) -> Option<&WaitingDriver> {
        match &self.inner.transport.runner {
            Runner::Caller(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// Returns the engines for this number of contexts of an endpoint that is opened now.
    pub(crate) fn engines_for_contexts(&self, contexts: usize) -> Vec<Arc<Engine>> {
        self.inner.shards.spread(contexts)
    }

    /// Returns the engine for an endpoint that is opened now.
    pub(crate) fn engine_for_endpoint(&self) -> &Arc<Engine> {
        self.inner.shards.least_busy()
    }

    /// Returns the scope: the domains whose objects can be bound to this domain's.
    pub(crate) fn scope(&self) -> &DomainScope {
        &self.inner.scope
    }

    /// Returns whether local buffers must be registered (`FI_MR_LOCAL`).
    pub(crate) fn wants_local_registration(&self) -> bool {
        self.inner.mr_mode.contains(MrMode::LOCAL)
    }
}

debug_fields!(Domain, self =>
    name: self.inner.info.domain.name, backend: self.backend(), driver: self.driver(),
    regions: self.region_count()
);
