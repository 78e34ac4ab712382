//! Registration: awaited, at once, or reported by an event (`fi_mr(3)`, rulings 7 and 8).
//!
//! In a domain bound with `REG_MR` the work that takes time, faulting pages in, runs on blocking
//! threads (`blocking.rs`), a chunk at a time, so that it can be cancelled between chunks.
//! Registration without such work is O(1) on TCP and done on the spot, whatever the size.
//!
//! A registration ends in this order: the result is stored, the event is written, the wakers are
//! woken.
//!
//! The buffers are taken apart (`buf/owned_buffer.rs`), joined to the memory of a region
//! (`mr::prepare`) and entered into the domain's table under a key (`mr/table.rs`). A blocking
//! thread (`blocking.rs`) serves the queue for a millisecond, since waking a thread costs more than
//! a short registration. A registration that the system has no memory for is refused
//! (`available.rs`). A dropped future undoes the registration.
//!
//! `deregister` invalidates the key, closes the gate, makes the driver cancel the kernel's
//! operations on the region, and returns the buffer when the last access has left the gate. The
//! driver is not woken if no peer's access is inside. Counters and endpoints that are bound to a
//! region (`sync/attach.rs`, `buf/attached.rs`) are notified of each access by
//! `progress/publish.rs`.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::UserContext;
use crate::info::AuthKey;
use crate::mr::{Access, MemoryRegion, MrFlags, ReadOnlyRegion};
use crate::op_error::Failed;

use super::handle::RegionHandle;
use super::register_task::{RegisterEnd, register_now, start_task};
use super::registration::Registration;
use super::request::{RegisterBufs, Request, give_buffers, show, take_buffers};
use super::{Domain, RegistrationProgress};

/// A registration that has not started yet; its result is a region of type `R`.
///
/// Await it, or start it with [`now`](Self::now), which does everything within the call, or
/// [`submit`](Self::submit), which reports by an event.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Access, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
/// let region = domain.register(vec![0u8; 4096]).access(rights).await?;
/// assert_eq!(region.remote().len, 4096); // Send `remote()` to the peer.
/// # Ok(()) }
/// ```
#[doc(alias("fi_mr_regattr", "fi_mr_attr"))]
#[must_use = "a registration does nothing until it is awaited, or ended by `now` or `submit`"]
pub struct Register<B: RegisterBufs, R: RegionHandle = MemoryRegion<B>> {
    pub(super) domain: Domain,
    pub(super) buffers: B,
    pub(super) request: Request,
    _region: PhantomData<fn() -> R>,
}

/// A registration of bytes that never change; see
/// [`Domain::register_read_only`](super::Domain::register_read_only).
pub type RegisterReadOnly<B> = Register<B, ReadOnlyRegion<B>>;

impl<B: RegisterBufs, R: RegionHandle> fmt::Debug for Register<B, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(
            f,
            "Register",
            &self.domain,
            self.buffers.total_len(),
            &self.request,
        )
    }
}

impl<B: RegisterBufs, R: RegionHandle> Register<B, R> {
    pub(super) fn new(domain: Domain, buffers: B) -> Self {
        let request = Request::new(R::ACCESS_MAX & domain.inner.rights);
        Register {
            domain,
            buffers,
            request: Request {
                fault_in: R::IS_WRITABLE && B::IS_OWNED,
                ..request
            },
            _region: PhantomData,
        }
    }

    /// The rights of this process and of peers to use the region (`access` of `fi_mr_reg`).
    /// Default: everything that the domain's capabilities can use; for a read-only region, only
    /// those of these rights that are in [`Access::READ_ONLY`], since it can have no others.
    ///
    /// # Errors
    /// Registration fails with [`ErrorKind::NoCapability`] for rights that nothing could use, such
    /// as `REMOTE_WRITE` in a domain that was opened without RMA and atomic operations, or without
    /// [`Caps::REMOTE_WRITE`](crate::Caps::REMOTE_WRITE).
    pub fn access(mut self, access: Access) -> Self {
        self.request.access = access;
        self
    }

    /// The key that peers will use (`requested_key`). Default: 64 random bits. A key that the
    /// application chooses may be easier to guess.
    #[doc(alias("FI_EKEYREJECTED", "FI_ENOKEY"))]
    pub fn key(mut self, key: u64) -> Self {
        self.request.key = Some(key);
        self
    }

    /// Restricts the region to peers whose endpoint is connected to one of this domain's endpoints
    /// with this key (`auth_key`). Default, and for an empty key: the domain's key, if it has one.
    /// Ignored before version 1.5 of the interface.
    ///
    /// For all other peers the region does not exist:
    /// [`Refusal::UnknownKey`](crate::error::Refusal::UnknownKey).
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.request.auth_key = Some(key);
        self
    }

    /// Additional purposes of the registration. Default: none.
    pub fn flags(mut self, flags: MrFlags) -> Self {
        self.request.flags = flags;
        self
    }

    /// Reserved by `fi_mr(3)`. Must be 0, which is the default.
    pub fn offset(mut self, offset: u64) -> Self {
        self.request.offset = offset;
        self
    }

    /// Requests an event in addition to the result of the future: `MrComplete`
    /// (`MrReadOnlyComplete` for a read-only region) with this context and the region, or an error
    /// event with this context. Ignored unless the domain is bound with `REG_MR`, as `fi_mr(3)`
    /// specifies for synchronous calls.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.request.context = Some(context.into());
        self
    }

    /// Does not fault in pages that have never been touched; for memory far larger than the part
    /// that will be used. By default, a domain bound with `REG_MR` faults in the pages of owned,
    /// writable memory on blocking threads, and the registration completes when all are present;
    /// other domains leave the pages as they are. If the system has too little memory, the
    /// registration fails with [`ErrorKind::LimitReached`]. A domain with
    /// [`MrMode::ALLOCATED`](crate::info::MrMode::ALLOCATED) always faults them in.
    pub fn lazily(mut self) -> Self {
        self.request.fault_in = false;
        self
    }

    /// Keeps the pages of the region in memory (`mlock`) until the region has ended and its buffers
    /// have been returned or freed. Default: no; over TCP only programs that must never wait for a
    /// page need this. Pinning takes time proportional to the size, and counts against
    /// `RLIMIT_MEMLOCK`: beyond this limit the registration fails with [`ErrorKind::LimitReached`],
    /// and the message names the limit.
    pub fn pinned(mut self) -> Self {
        self.request.pinned = true;
        self
    }

    /// Counts the ready bytes of a long registration in `progress`. Default: not counted.
    pub fn progress(mut self, progress: &RegistrationProgress) -> Self {
        self.request.progress = Some(progress.clone());
        self
    }

    /// Registers within this call.
    ///
    /// # Errors
    /// The errors of awaiting the registration, and [`ErrorKind::BadState`] in a domain bound with
    /// `REG_MR`, where all registrations are asynchronous. The buffers are returned with the error.
    pub fn now(self) -> Result<R, Failed<B>> {
        if self.domain.registers_asynchronously() {
            let what = "the domain is bound with REG_MR and registers asynchronously: await the registration, or submit it";
            return Err(self.refused(ErrorKind::BadState, what));
        }
        self.within()
    }

    /// Registers within this call, whatever the domain is bound to.
    pub(super) fn within(self) -> Result<R, Failed<B>> {
        let Register {
            domain,
            buffers,
            request,
            ..
        } = self;
        let owned = take_buffers(&domain, buffers, &request)?;
        register_now(domain, owned, request, R::create).map_err(give_buffers)
    }

    #[cold]
    pub(super) fn refused(self, kind: ErrorKind, what: &'static str) -> Failed<B> {
        let error = Error::new(kind, what).with_operation(OperationKind::Register);
        Failed::new(error, Some(self.buffers))
    }

    /// Starts the registration and returns; the event contains the region and this context.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain is not bound with `REG_MR`; [`ErrorKind::Again`] if
    /// the event queue has no free slot. In these cases no event is written, and the buffers are
    /// returned.
    pub fn submit(mut self, context: impl Into<UserContext>) -> Result<(), Failed<B>> {
        let context = context.into();
        self.request.context = Some(context);
        if !self.domain.registers_asynchronously() {
            let what = "the domain is not bound with REG_MR, so no event would be written: await the registration";
            return Err(self.refused(ErrorKind::BadState, what));
        }
        let Some(events) = self.domain.event_queue() else {
            let what = "the event queue of the domain was dropped: keep a handle of it";
            return Err(self.refused(ErrorKind::BadState, what));
        };
        let Some(slot) = events.try_reserve() else {
            return Err(self.refused(ErrorKind::Again, "the event queue is full: read its events"));
        };
        let Register {
            domain,
            buffers,
            request,
            ..
        } = self;
        let owned = take_buffers(&domain, buffers, &request)?;
        let end = RegisterEnd::submitted(slot, context);
        start_task(domain, owned, request, R::create, end);
        Ok(())
    }
}

impl<B: RegisterBufs, R: RegionHandle> IntoFuture for Register<B, R> {
    type Output = Result<R, Failed<B>>;
    type IntoFuture = Registration<B, R>;

    /// Submits the registration; polling only waits.
    fn into_future(self) -> Registration<B, R> {
        Registration::begin(self)
    }
}
