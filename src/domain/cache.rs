//! A domain's registration cache: asking it, and what a miss registers.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::{Bound, Range, RangeBounds};
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::Poll;

use crate::buf::{Held, SharedMemory, can_watch};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::info::MrMode;
use crate::mr::{
    Access, CacheKind, CacheSettings, CacheShared, CacheStats, CacheWatch, CachedRegion,
    FreshRegion,
};

use super::job::{Job, register_now, start_job};
use super::request::{Request, check_address_ranges};
use super::{Domain, RegistrationProgress};

impl Domain {
    /// Starts a registration cache of this domain (`fi_mr(3)`, "memory registration cache"). A
    /// domain has none unless it is asked for, and may have several.
    pub fn cache(&self) -> RegistrationCacheBuilder {
        RegistrationCacheBuilder {
            domain: self.clone(),
            size_max: None,
            count_max: None,
            merges: None,
            watch: None,
        }
    }
}

/// Opens a [`RegistrationCache`]; made by [`Domain::cache`]. What is not said here is taken from the
/// environment.
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct RegistrationCacheBuilder {
    domain: Domain,
    size_max: Option<usize>,
    count_max: Option<usize>,
    merges: Option<bool>,
    watch: Option<CacheWatch>,
}

impl RegistrationCacheBuilder {
    /// Bytes of all regions that it keeps track of, as `FI_MR_CACHE_MAX_SIZE`. Default: no limit.
    /// Larger regions, and those for which only regions in use could make room, are registered and
    /// end with their last handle.
    pub fn max_size(mut self, bytes: usize) -> Self {
        self.size_max = Some(bytes);
        self
    }

    /// Regions that it keeps track of, whatever their size, as `FI_MR_CACHE_MAX_COUNT`. Default:
    /// [`limits::CACHE_COUNT_DEFAULT`](crate::limits::CACHE_COUNT_DEFAULT). Zero turns caching off:
    /// every request is a registration of its own.
    pub fn max_count(mut self, regions: usize) -> Self {
        self.count_max = Some(regions);
        self
    }

    /// Whether ranges that overlap or lie side by side are registered as one, as
    /// `FI_MR_CACHE_MERGE_REGIONS`. Default: no. Peers then reach all of what was merged by one
    /// key.
    pub fn merge_regions(mut self, merge: bool) -> Self {
        self.merges = Some(merge);
        self
    }

    /// Who tells that address ranges go away. Default: the system where it does, else the caller;
    /// [`RegistrationCache::watch`] says which. Of no meaning for memory that its owners keep.
    pub fn watch(mut self, watch: CacheWatch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Opens the cache. Variables of the environment that mean nothing are told by one warning of the
    /// process and change nothing.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain is closed; [`ErrorKind::Unsupported`] in a domain with
    /// [`MrMode::ENDPOINT`], whose regions are bound one by one before their use, and for
    /// [`CacheWatch::System`] where the system does not tell.
    pub fn open(self) -> Result<RegistrationCache> {
        // A cache by itself does not keep the domain from being closed; its registrations do.
        drop(self.domain.keep_open("registration cache")?);
        if self.domain.inner.mr_mode.contains(MrMode::ENDPOINT) {
            let what = "regions of this domain are bound to endpoints one by one (FI_MR_ENDPOINT)";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let watch = match (self.watch, can_watch()) {
            (Some(CacheWatch::System), Err(why)) => {
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            (None, Err(why)) => {
                tracing::debug!(
                    why,
                    "callers tell a registration cache of ranges that go away"
                );
                CacheWatch::Caller
            }
            (chosen, _) => chosen.unwrap_or(CacheWatch::System),
        };
        let (mut settings, wrong) = CacheSettings::from_environment();
        static TOLD: Once = Once::new();
        if !wrong.is_empty() {
            let variables = wrong.join("; ");
            TOLD.call_once(|| tracing::warn!(%variables, "ignored by registration caches"));
        }
        settings.size_max = self.size_max.unwrap_or(settings.size_max);
        settings.count_max = self.count_max.unwrap_or(settings.count_max);
        settings.merges = self.merges.unwrap_or(settings.merges);
        settings.watch = watch;
        let expected = self.domain.expected_regions();
        let shared = CacheShared::new(self.domain.lock_kind(), settings, expected);
        Ok(RegistrationCache {
            domain: self.domain,
            shared,
        })
    }
}

/// Registrations that are kept when nobody uses them any more, and found again by their addresses:
/// it "avoids the overhead of registering and unregistering a data buffer with each transfer"
/// (`fi_mr(3)`). It is also the way to meet [`MrMode::LOCAL`] in a program
/// whose buffers come and go.
///
/// It is explicit, and memory is given to it that its owners share ([`SharedMemory`]), so that a
/// registration found by its addresses is always of the memory that is there now: no function of
/// the C library is replaced, and any allocator will do. (Of an
/// [`AddressRange`](crate::AddressRange), which nobody owns, [`CacheWatch`] says who tells that it
/// has gone.) A registration keeps its memory; the cache lets go of an unused one when
/// - the last handle of its [`SharedBuffer`](crate::SharedBuffer) is dropped, or
/// - nobody but the cache has its `Bytes` or `Arc<[u8]>` any more, which is looked for now and then,
///   or
/// - others need its place ([`max_size`](RegistrationCacheBuilder::max_size),
///   [`max_count`](RegistrationCacheBuilder::max_count)): the one that was not used for the longest
///   time goes first, or
/// - it is told to: [`forget`](Self::forget), [`clear`](Self::clear).
///
/// While nobody has a handle of a registration, neither peers nor operations get at it. A request
/// is served by a registration of the same rights that covers the range; with rights for peers in
/// them, by one of the very same range only (unless regions are merged), since a peer's key opens
/// all of a registration.
///
/// Clones are handles of the same cache. When the last is dropped, registrations in use go on to
/// the end of their last handle.
#[derive(Clone)]
pub struct RegistrationCache {
    domain: Domain,
    shared: Arc<CacheShared>,
}

impl RegistrationCache {
    /// Asks for a registration of a range of this memory, in bytes from its start. Found, it takes
    /// no wait and no allocation; else it is made, as [`Domain::register`] would.
    pub fn register<'a, M: SharedMemory>(
        &'a self,
        memory: &'a M,
        range: impl RangeBounds<usize>,
    ) -> CacheRegister<'a, M> {
        CacheRegister {
            cache: self,
            memory,
            range: resolve(memory.addresses(), range),
            access: if memory.is_writable() {
                Access::LOCAL
            } else {
                Access::LOCAL & Access::READ_ONLY
            },
            progress: None,
        }
    }

    /// Gives up every registration of this range of memory, or of any part of it: an owner's notice
    /// that it changes or goes away. Those in use end with their last handle. Says how many
    /// registrations there were.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the range is not all within the memory.
    pub fn forget<M: SharedMemory>(
        &self,
        memory: &M,
        range: impl RangeBounds<usize>,
    ) -> Result<usize> {
        let range = resolve(memory.addresses(), range).ok_or_else(outside)?;
        Ok(self.shared.forget(&range))
    }

    /// Gives up all registrations that nobody uses. Says how many there were.
    pub fn clear(&self) -> usize {
        self.shared.clear()
    }

    /// What it has done so far, and keeps now.
    pub fn stats(&self) -> CacheStats {
        self.shared.stats()
    }

    /// Bytes of all regions that it keeps track of at most; `None`: no limit.
    pub fn max_size(&self) -> Option<usize> {
        Some(self.shared.settings().size_max).filter(|max| *max < usize::MAX)
    }

    /// Regions that it keeps track of at most.
    pub fn max_count(&self) -> usize {
        self.shared.settings().count_max
    }

    /// Whether ranges that overlap or lie side by side are registered as one.
    pub fn merges_regions(&self) -> bool {
        self.shared.settings().merges
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.shared.capacity()
    }

    /// Who tells that address ranges go away.
    pub fn watch(&self) -> CacheWatch {
        self.shared.settings().watch
    }

    /// The domain whose registrations it keeps.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// The addresses of a range of memory; `None` if it is not all within.
fn resolve(memory: Range<usize>, range: impl RangeBounds<usize>) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1)?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => memory.len(),
    };
    (start <= end && end <= memory.len()).then(|| memory.start + start..memory.start + end)
}

fn outside() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "range is not all within the memory",
    )
    .with_operation(OperationKind::Register)
}

/// A request to a cache. Await it, or end it by [`now`](Self::now).
#[must_use = "a request does nothing until it is awaited, or ended by `now`"]
pub struct CacheRegister<'a, M: SharedMemory> {
    cache: &'a RegistrationCache,
    memory: &'a M,
    range: Option<Range<usize>>,
    access: Access,
    progress: Option<RegistrationProgress>,
}

/// A range that was not found, and all it takes to register it.
struct Miss {
    kind: CacheKind,
    asked: Range<usize>,
    addresses: Range<usize>,
    windows: Vec<Held>,
    request: Request,
}

impl<M: SharedMemory> CacheRegister<'_, M> {
    /// What the region may be used for. Default: all that operations of this process may do with
    /// such memory, and nothing for peers.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Counts the bytes that are ready there, if it takes a registration; see
    /// [`Register::progress`](super::Register::progress).
    pub fn progress(mut self, progress: &RegistrationProgress) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Gives the region within this call.
    ///
    /// # Errors
    /// Those of awaiting; and [`ErrorKind::BadState`] if it takes a registration and the domain is
    /// bound with `REG_MR`, which registers asynchronously only.
    pub fn now(self) -> Result<CachedRegion> {
        match self.find()? {
            Some(region) => Ok(region),
            None => self.register_now(),
        }
    }

    fn find(&self) -> Result<Option<CachedRegion>> {
        let range = self.range.as_ref().ok_or_else(outside)?;
        Ok(self.cache.shared.find(self.kind(), range))
    }

    fn kind(&self) -> CacheKind {
        CacheKind {
            access: self.access,
            vouched: self.memory.is_vouched(),
        }
    }

    #[cold]
    fn register_now(self) -> Result<CachedRegion> {
        let RegistrationCache { domain, shared } = self.cache;
        if domain.registers_asynchronously() {
            let what = "this domain is bound with REG_MR and registers asynchronously";
            let error = Error::new(ErrorKind::BadState, what);
            return Err(error.with_operation(OperationKind::Register));
        }
        let miss = self.miss()?;
        let made: Result<FreshRegion, _> = register_now(domain, miss.windows, &miss.request);
        // What was made for the registration goes away with it.
        let fresh = made.map_err(|(error, _)| error.with_operation(OperationKind::Register))?;
        Ok(shared.insert(miss.kind, &miss.asked, miss.addresses, fresh))
    }

    fn miss(&self) -> Result<Miss> {
        let mut request = Request::new(self.access);
        request.progress = self.progress.clone();
        let domain = &self.cache.domain;
        let checked = request
            .check(domain)
            .and_then(|()| match self.memory.is_vouched() {
                true => check_address_ranges(),
                false => Ok(()),
            });
        checked.map_err(|error| error.with_operation(OperationKind::Register))?;
        let (kind, shared) = (self.kind(), &self.cache.shared);
        let asked = self.range.clone().ok_or_else(outside)?;
        let offset = asked.start - self.memory.addresses().start;
        let window = Held::window(&self.memory.owner(), offset, asked.len());
        self.memory.tell(&shared.told());
        let (addresses, windows) = shared.extent(kind, &asked, window);
        Ok(Miss {
            kind,
            asked,
            addresses,
            windows,
            request,
        })
    }

    fn start(self) -> Result<Waiting<M>> {
        let RegistrationCache { domain, shared } = self.cache;
        let miss = self.miss()?;
        let job = Arc::new(Job::new(None, None, true));
        start_job(domain.clone(), miss.windows, miss.request, Arc::clone(&job));
        Ok(Waiting {
            job,
            kind: miss.kind,
            asked: miss.asked,
            addresses: miss.addresses,
            shared: Arc::clone(shared),
            _memory: self.memory.clone(),
        })
    }
}

impl<M: SharedMemory> fmt::Debug for CacheRegister<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheRegister")
            .field("len", &self.range.as_ref().map(ExactSizeIterator::len))
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl<M: SharedMemory> IntoFuture for CacheRegister<'_, M> {
    type Output = Result<CachedRegion>;
    type IntoFuture = CacheRegistration<M>;

    /// Looks, and begins the registration if it takes one; polling only waits.
    fn into_future(self) -> CacheRegistration<M> {
        let state = match self.find() {
            Ok(None) if self.cache.domain.registers_asynchronously() => match self.start() {
                Ok(waiting) => State::Waiting(waiting),
                Err(error) => State::Ended(Some(Err(error))),
            },
            Ok(None) => State::Ended(Some(self.register_now())),
            Ok(Some(region)) => State::Ended(Some(Ok(region))),
            Err(error) => State::Ended(Some(Err(error))),
        };
        CacheRegistration { state }
    }
}

/// The future of a request to a cache.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a range that is not all within the memory and for rights that
/// the memory cannot grant; else those of a registration.
///
/// # Cancel safety
/// Dropped before its end, the registration is undone if it is not ready, and nothing is cached.
#[must_use = "a registration that is dropped is undone"]
pub struct CacheRegistration<M: SharedMemory> {
    state: State<M>,
}

enum State<M> {
    Ended(Option<Result<CachedRegion>>),
    Waiting(Waiting<M>),
}

/// A job that will give what the cache is to take in.
struct Waiting<M> {
    job: Arc<Job<FreshRegion>>,
    kind: CacheKind,
    asked: Range<usize>,
    addresses: Range<usize>,
    shared: Arc<CacheShared>,
    /// So that the cache has the registration before the memory tells that it goes away.
    _memory: M,
}

impl<M> Drop for Waiting<M> {
    fn drop(&mut self) {
        self.job.abandon();
    }
}

impl<M: SharedMemory> Future for CacheRegistration<M> {
    type Output = Result<CachedRegion>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.state {
            State::Ended(outcome) => outcome
                .take()
                .expect("a future is not polled after its end"),
            State::Waiting(waiting) => {
                let Poll::Ready(made) = waiting.job.poll(cx.waker()) else {
                    return Poll::Pending;
                };
                let addresses = waiting.addresses.clone();
                made.map(|fresh| {
                    let Waiting { shared, kind, .. } = &*waiting;
                    shared.insert(*kind, &waiting.asked, addresses, fresh)
                })
                .map_err(|(error, _)| error.with_operation(OperationKind::Register))
            }
        };
        self.state = State::Ended(None);
        Poll::Ready(outcome)
    }
}

// Nothing in it is pinned.
impl<M: SharedMemory> Unpin for CacheRegistration<M> {}

impl<M: SharedMemory> fmt::Debug for CacheRegistration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheRegistration").finish_non_exhaustive()
    }
}
