//! Requests to a cache, and the registration of a range that the cache does not have.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use smallvec::smallvec;
use tokio::task::coop;

use crate::buf::{OwnedBuffer, OwnedBuffers, SharedMemory};
use crate::domain::RegistrationProgress;
use crate::domain::register_task::{
    AwaitedResult, RegisterEnd, RegisterResult, register_now, start_task,
};
use crate::domain::request::{Request, check_address_ranges};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::mr::{Access, CacheKind, CacheShared, CachedRegion, FreshRegion};
use crate::sync::ProgressWaiter;

use super::{RegistrationCache, outside};

/// A request to a [`RegistrationCache`] that has not started yet. Await it, or finish it with
/// [`now`](Self::now).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::SharedBuffer;
/// use tokio_fabric::{Access, Fabric, Hints};
///
/// let cache = Fabric::open(Hints::new())?.domain().open()?.cache().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 4096]);
/// let lent = cache.register(&buffer, 0..1024).access(Access::REMOTE_WRITE).await?;
/// assert_eq!(lent.remote().len, 1024);
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until it is awaited, or ended by `now`"]
pub struct CacheRegister<'a, M: SharedMemory> {
    cache: &'a RegistrationCache,
    memory: &'a M,
    range: Option<Range<usize>>,
    access: Access,
    progress: Option<RegistrationProgress>,
}

/// A range that the cache does not have, and what is needed to register it.
struct Miss {
    kind: CacheKind,
    asked: Range<usize>,
    addresses: Range<usize>,
    windows: OwnedBuffers,
    request: Request,
}

impl<'a, M: SharedMemory> CacheRegister<'a, M> {
    /// Creates a request for checked addresses; `None`: the range is not entirely within the
    /// memory.
    pub(super) fn new(
        cache: &'a RegistrationCache,
        memory: &'a M,
        range: Option<Range<usize>>,
    ) -> Self {
        let access = match memory.is_writable() {
            true => Access::LOCAL,
            false => Access::LOCAL & Access::READ_ONLY,
        };
        let access = access & cache.domain.rights();
        CacheRegister {
            cache,
            memory,
            range,
            access,
            progress: None,
        }
    }

    /// The rights to use the region. Default: everything that this process's operations can do with
    /// such memory, and nothing for peers.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Counts the ready bytes in `progress`, if a registration is necessary; see
    /// [`Register::progress`](crate::domain::Register::progress).
    pub fn progress(mut self, progress: &RegistrationProgress) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Returns the region within this call.
    ///
    /// # Errors
    /// The errors of awaiting the request, and [`ErrorKind::BadState`] if a registration is
    /// necessary and the domain is bound with `REG_MR`, which makes all registrations asynchronous.
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
            writable: self.memory.is_writable(),
            unowned: self.memory.is_unowned(),
        }
    }

    #[cold]
    fn register_now(self) -> Result<CachedRegion> {
        let RegistrationCache { domain, shared } = self.cache;
        if domain.registers_asynchronously() {
            let what =
                "the domain is bound with REG_MR and registers asynchronously: await the request";
            let error = Error::new(ErrorKind::BadState, what);
            return Err(error.with_operation(OperationKind::Register));
        }
        let miss = self.miss()?;
        let create = FreshRegion::create;
        let registered = register_now(domain.clone(), miss.windows, miss.request, create);
        // A failed registration drops its windows.
        let fresh = registered.map_err(|it| it.error.with_operation(OperationKind::Register))?;
        Ok(shared.insert(miss.kind, &miss.asked, miss.addresses, fresh))
    }

    fn miss(&self) -> Result<Miss> {
        let mut request = Request::new(self.access);
        request.progress = self.progress.clone();
        let domain = &self.cache.domain;
        let checked = request
            .check(domain)
            .and_then(|()| match self.memory.is_unowned() {
                true => check_address_ranges(),
                false => Ok(()),
            });
        checked.map_err(|error| error.with_operation(OperationKind::Register))?;
        let (kind, shared) = (self.kind(), &self.cache.shared);
        let asked = self.range.clone().ok_or_else(outside)?;
        let offset = asked.start - self.memory.addresses().start;
        let (owner, len) = (self.memory.owner(), asked.len());
        self.memory.notify_on_release(shared.listener());
        let window = OwnedBuffer::window(&owner, offset, len);
        let (addresses, windows) = match shared.settings().merges {
            true => shared.extent(kind, &asked, window),
            false => (asked.clone(), smallvec![window]),
        };
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
        let (end, registered) = RegisterEnd::awaited();
        let (buffers, create) = (miss.windows, FreshRegion::create);
        start_task(domain.clone(), buffers, miss.request, create, end);
        Ok(Waiting {
            registered,
            waiter: ProgressWaiter::new(domain.progress_by_hand()),
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

    /// Looks the range up and starts its registration if the cache does not have it; polling only
    /// waits.
    fn into_future(self) -> CacheRegistration<M> {
        let state = match self.find() {
            Ok(None) if self.cache.domain.registers_asynchronously() => match self.start() {
                Ok(waiting) => State::Waiting(waiting),
                Err(error) => State::Ready(Err(error)),
            },
            Ok(None) => State::Ready(self.register_now()),
            Ok(Some(region)) => State::Ready(Ok(region)),
            Err(error) => State::Ready(Err(error)),
        };
        CacheRegistration { state }
    }
}

/// The future of a request to a cache.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::future::IntoFuture;
/// use tokio_fabric::buf::SharedBuffer;
/// use tokio_fabric::domain::CacheRegistration;
/// use tokio_fabric::{Fabric, Hints};
///
/// let cache = Fabric::open(Hints::new())?.domain().open()?.cache().open()?;
/// let buffer = SharedBuffer::new(vec![0u8; 4096]);
/// let registration: CacheRegistration<_> = cache.register(&buffer, 0..1024).into_future();
/// assert_eq!(registration.await?.len(), 1024);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the range is not entirely within the memory or the memory
/// cannot grant the rights; otherwise the errors of a registration.
///
/// # Cancel safety
/// If the future is dropped before it completes, the registration is undone and nothing is cached.
#[must_use = "a registration that is dropped is undone"]
pub struct CacheRegistration<M: SharedMemory> {
    state: State<M>,
}

enum State<M> {
    Ready(Result<CachedRegion>),
    Waiting(Waiting<M>),
    Done,
}

/// A registration that will be entered into the cache.
struct Waiting<M> {
    registered: Arc<AwaitedResult<FreshRegion>>,
    waiter: ProgressWaiter,
    kind: CacheKind,
    asked: Range<usize>,
    addresses: Range<usize>,
    shared: Arc<CacheShared>,
    /// Keeps the memory alive, so that the cache is notified of its release only after the cache
    /// has the registration.
    _memory: M,
}

impl<M> Waiting<M> {
    fn enter(&self, registered: RegisterResult<FreshRegion>) -> Result<CachedRegion> {
        let fresh = registered.map_err(|it| it.error.with_operation(OperationKind::Register))?;
        let addresses = self.addresses.clone();
        Ok(self.shared.insert(self.kind, &self.asked, addresses, fresh))
    }
}

impl<M: SharedMemory> Future for CacheRegistration<M> {
    type Output = Result<CachedRegion>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let budget = ready!(coop::poll_proceed(cx));
        if let State::Waiting(waiting) = &mut self.state {
            let Waiting {
                registered, waiter, ..
            } = &mut *waiting;
            let ended = ready!(waiter.poll(cx, |cx| registered.poll(cx)));
            self.state = State::Ready(waiting.enter(ended));
        }
        let State::Ready(result) = mem::replace(&mut self.state, State::Done) else {
            panic!("a request was polled after it ended");
        };
        budget.made_progress();
        Poll::Ready(result)
    }
}

// Nothing in the future is pinned.
impl<M: SharedMemory> Unpin for CacheRegistration<M> {}

impl<M: SharedMemory> fmt::Debug for CacheRegistration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheRegistration").finish_non_exhaustive()
    }
}
