//! Registration: awaited, at once, or reported by an event (`fi_mr(3)`, rulings 7 and 8).
//!
//! In a domain bound with `REG_MR` the work that takes time, faulting pages in, runs on blocking
//! threads (`blocking.rs`), a chunk at a time, so that it can be cancelled between chunks.
//! Registration without such work is O(1) on TCP and done on the spot, whatever the size.
//!
//! A registration ends in one order: result stored, event readable, wakers woken.
//!
//! The buffers are taken apart (`buf/owned_buffer.rs`), joined to the memory of a region
//! (`mr::prepare`) and entered into the domain's table under a key (`mr/table.rs`). A blocking
//! thread (`blocking.rs`) serves the queue for a millisecond, since waking a thread costs more than
//! a short registration. What the system has no memory for is refused (`available.rs`). A dropped
//! future undoes the registration.
//!
//! `deregister` voids the key, shuts the gate, makes the driver take the kernel's operations on the
//! region back, and gives the buffer back when the last entry has left the gate. The driver is not
//! woken if nothing on behalf of a peer is inside. Counters and endpoints that are bound to a
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
use super::register_task::{RegisterTask, register_now, start_task};
use super::registration::Registration;
use super::request::{RegisterBufs, Request, give_buffers, show, take_buffers};
use super::{Domain, RegistrationProgress};

/// A registration being described, of the region `R`. Await it, or end it by [`now`](Self::now) or
/// [`submit`](Self::submit).
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

    /// What the region may be used for, here and by peers (`access` of `fi_mr_reg`). Default:
    /// everything that the domain's capabilities leave a use for, and of a read-only region what
    /// of it is in [`Access::READ_ONLY`], which is all it can be.
    ///
    /// # Errors
    /// [`ErrorKind::NoCapability`] names rights that nothing could use: `REMOTE_WRITE`, say, in a
    /// domain that was opened without RMA and atomic operations, or not to be written by peers.
    pub fn access(mut self, access: Access) -> Self {
        self.request.access = access;
        self
    }

    /// The key that peers will use (`requested_key`). Default: 64 random bits. A key that the
    /// application chooses can be guessed as well as it is chosen.
    #[doc(alias("FI_EKEYREJECTED", "FI_ENOKEY"))]
    pub fn key(mut self, key: u64) -> Self {
        self.request.key = Some(key);
        self
    }

    /// Only peers whose endpoint is connected to one of this domain's with this key may reach the
    /// region (`auth_key`). Default, and for a key without bytes: the domain's, if it has one. In
    /// use since version 1.5 of the interface, and ignored before.
    ///
    /// To all others the region is not there:
    /// [`Refusal::UnknownKey`](crate::error::Refusal::UnknownKey).
    pub fn auth_key(mut self, key: AuthKey) -> Self {
        self.request.auth_key = Some(key);
        self
    }

    /// What else it is registered for. Default: nothing.
    pub fn flags(mut self, flags: MrFlags) -> Self {
        self.request.flags = flags;
        self
    }

    /// Reserved by `fi_mr(3)`, and must be 0, which it is.
    pub fn offset(mut self, offset: u64) -> Self {
        self.request.offset = offset;
        self
    }

    /// Asks for an event besides the future's end: `MrComplete` (`MrReadOnlyComplete` of a
    /// read-only region) with this context and the region, or an error with it. Only in a domain
    /// bound with `REG_MR`; ignored otherwise, as `fi_mr(3)` says of synchronous calls.
    pub fn context(mut self, context: impl Into<UserContext>) -> Self {
        self.request.context = Some(context.into());
        self
    }

    /// Leaves pages that have never been touched as they are, for memory far larger than what will
    /// be used of it. Default: a domain bound with `REG_MR` faults the pages of owned, writable
    /// memory in beside the runtime, and the registration ends when all are there; any other domain
    /// leaves them. More than the system has is refused with [`ErrorKind::LimitReached`]. A domain
    /// with [`MrMode::ALLOCATED`](crate::info::MrMode::ALLOCATED) faults them in always.
    pub fn lazily(mut self) -> Self {
        self.request.fault_in = false;
        self
    }

    /// Keeps the pages of the region in memory (`mlock`) until it has ended and its buffers are
    /// given back or freed. Default: no; over TCP nothing needs it but a program that must not wait
    /// for pages. It takes time by the size, and counts against `RLIMIT_MEMLOCK`: what that does
    /// not allow fails with [`ErrorKind::LimitReached`], and the message names the limit.
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
    /// Those of awaiting; and [`ErrorKind::BadState`] in a domain bound with `REG_MR`, which
    /// registers asynchronously only. The buffers come back with the error.
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
        register_now(domain, owned, request).map_err(give_buffers)
    }

    #[cold]
    pub(super) fn refused(self, kind: ErrorKind, what: &'static str) -> Failed<B> {
        let error = Error::new(kind, what).with_operation(OperationKind::Register);
        Failed::new(error, Some(self.buffers))
    }

    /// Starts the registration and returns; the event carries the region, with this context.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain is not bound with `REG_MR`; [`ErrorKind::Again`] if
    /// the event queue has no slot. No event is written then, and the buffers come back.
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
        let task = RegisterTask::<R>::submitted(slot, context);
        start_task(domain, owned, request, task);
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
