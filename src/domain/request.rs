//! The parameters of a registration, and the conversion of its buffers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::buf::{
    ConvertMany, OwnedBuffer, OwnedBuffers, RegionMemory, RegionTraits, check_kernel_copies,
};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::UserContext;
use crate::info::{AuthKey, Caps, MrMode, SideCaps};
use crate::mr::{Access, MrFlags, PreparedRegion, RegisterError};
use crate::op_error::Failed;

use super::{Domain, RegistrationProgress};

/// Buffers that a region can be made from: [`RegionBufs`](crate::buf::RegionBufs), or a
/// [`ReadOnlyBuf`](crate::buf::ReadOnlyBuf). Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::domain::{Register, RegisterBufs};
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{MemoryRegion, Result};
///
/// /// Registers within the call; the buffers are dropped on error.
/// fn register_now<B: RegisterBufs>(what: Register<B, MemoryRegion<B>>) -> Result<MemoryRegion<B>>
/// where
///     MemoryRegion<B>: tokio_fabric::domain::RegionHandle,
/// {
///     Ok(what.now()?)
/// }
///
/// let domain = Net::loopback().peer()?.domain;
/// assert_eq!(register_now(domain.register(vec![0u8; 64]))?.len(), 64);
/// # Ok(()) }
/// ```
pub trait RegisterBufs: ConvertMany + Send + Sized + 'static {}

impl<B: ConvertMany + Send + Sized + 'static> RegisterBufs for B {}

/// The description of the region that a registration asks for.
pub(super) struct Request {
    pub(super) access: Access,
    pub(super) key: Option<u64>,
    /// The region's key, in place of the domain's.
    pub(super) auth_key: Option<AuthKey>,
    pub(super) flags: MrFlags,
    pub(super) offset: u64,
    pub(super) context: Option<UserContext>,
    /// Faults pages in, if the domain registers asynchronously, so that the runtime is not blocked.
    pub(super) fault_in: bool,
    /// Keeps the region's pages in memory.
    pub(super) pinned: bool,
    /// Counts the bytes whose registration is done.
    pub(super) progress: Option<RegistrationProgress>,
}

impl Request {
    pub(super) fn new(access: Access) -> Self {
        Request {
            access,
            key: None,
            auth_key: None,
            flags: MrFlags::empty(),
            offset: 0,
            context: None,
            fault_in: false,
            pinned: false,
            progress: None,
        }
    }

    /// Checks everything that does not need the memory.
    pub(super) fn check(&self, domain: &Domain) -> Result<()> {
        if self.offset != 0 {
            let message = "offset is reserved and must be 0 (fi_mr(3))";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let unknown @ 1.. = self.access.difference(Access::all()).bits() {
            let message = format!("access: {unknown:#x} are no access rights");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if let unknown @ 1.. = self.flags.difference(MrFlags::all()).bits() {
            let message = format!("flags: {unknown:#x} are no flags of a registration");
            return Err(Error::new(ErrorKind::BadFlags, message));
        }
        if !domain.inner.rights.contains(self.access) {
            return Err(useless(self.access - domain.inner.rights));
        }
        domain.check_region_key(self.auth_key.as_ref())?;
        if self.flags.is_empty() {
            return Ok(());
        }
        let caps = domain.inner.caps;
        let persists = Caps::RMA_PMEM | Caps::REMOTE_WRITE;
        for (flag, need, name) in [
            (MrFlags::RMA_EVENT, Caps::RMA_EVENT, "RMA_EVENT"),
            (MrFlags::RMA_PMEM, persists, "RMA_PMEM"),
        ] {
            if self.flags.contains(flag) && !caps.has(need) {
                let message = format!(
                    "{name}: the domain was opened without that capability; ask for it in the hints"
                );
                return Err(Error::new(ErrorKind::BadFlags, message));
            }
        }
        Ok(())
    }

    /// Checks the memory.
    pub(super) fn check_memory(&self, owned: &[OwnedBuffer], domain: &Domain) -> Result<()> {
        if self.flags.contains(MrFlags::RMA_PMEM) {
            check_files(owned)?;
        }
        // Ranges and device memory are not mixed with other buffers, so the first one decides.
        match owned.first() {
            Some(first) if first.is_range() => check_address_ranges(),
            Some(first) if first.is_of_device() => check_device_memory(domain),
            _ => Ok(()),
        }
    }

    pub(super) fn add_ready(&self, bytes: usize) {
        if let Some(progress) = &self.progress {
            progress.add(bytes);
        }
    }
}

/// Returns the access rights of regions that are of use to endpoints with these capabilities.
pub(super) fn rights_within(caps: SideCaps) -> Access {
    let mut rights = Access::empty();
    for right in Access::all() {
        // `Access` and `Caps` have the same bits.
        let direction = Caps::from_bits_retain(right.bits());
        let kinds = [Caps::MSG, Caps::TAGGED, Caps::RMA, Caps::ATOMIC];
        if kinds.iter().any(|kind| caps.has(*kind | direction)) {
            rights |= right;
        }
    }
    rights
}

/// Returns the error for rights that no endpoint of the domain could use.
#[cold]
fn useless(rights: Access) -> Error {
    let mut names = String::new();
    // Writing to a string cannot fail.
    let _ = bitflags::parser::to_writer(&rights, &mut names);
    let message = format!(
        "access: {names}, which the capabilities leave no use for that the domain was opened with"
    );
    Error::new(ErrorKind::NoCapability, message)
}

/// Work of a registration on the pages of its memory, in addition to pinning them if the request
/// asks for that. Every variant but `None` takes time proportional to the size of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageWork {
    None,
    /// Only pins the pages, which faults them in.
    Pin,
    /// Records which pages are present. With FI_MR_MMU_NOTIFY the application reports when other
    /// pages become present.
    Record,
    /// Faults all pages in: with FI_MR_ALLOCATED, or by default in a domain that registers
    /// asynchronously.
    FaultIn,
}

/// Shows neither the key, which protects the region, nor the bytes, which are the user's.
pub(super) fn show(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    domain: &Domain,
    len: usize,
    request: &Request,
) -> fmt::Result {
    f.debug_struct(name)
        .field("domain", domain)
        .field("len", &len)
        .field("access", &request.access)
        .field("flags", &request.flags)
        .field("has_key", &request.key.is_some())
        .field("context", &request.context)
        .finish()
}

impl Domain {
    /// Returns whether an event queue was bound with `REG_MR`.
    pub(super) fn registers_asynchronously(&self) -> bool {
        self.inner.registers.load(Ordering::Acquire)
    }

    /// Collects the parts of a region made of this memory. Consumes the domain handle, which the
    /// region keeps.
    pub(super) fn prepared_region(
        self,
        memory: Arc<RegionMemory>,
        request: &Request,
    ) -> PreparedRegion {
        PreparedRegion {
            memory,
            requested_key: request.key,
            auth_key: self.auth_secret(request.auth_key.as_ref()),
            context: request.context,
            parent: self.inner,
        }
    }

    /// Returns the number of regions that the application announced, for tables made in advance.
    pub(super) fn expected_regions(&self) -> usize {
        super::expected_regions(&self.inner.info)
    }

    /// Returns the work that the registration does on the pages of its memory.
    pub(super) fn page_work(&self, request: &Request) -> PageWork {
        let mode = self.inner.mr_mode;
        if mode.contains(MrMode::ALLOCATED) {
            PageWork::FaultIn
        } else if mode.contains(MrMode::MMU_NOTIFY) {
            PageWork::Record
        } else if request.fault_in && self.registers_asynchronously() {
            PageWork::FaultIn
        } else if request.pinned {
            PageWork::Pin
        } else {
            PageWork::None
        }
    }

    /// Returns the properties that the request and the domain's modes give to a region.
    pub(super) fn traits(&self, request: &Request) -> RegionTraits {
        let mode = self.inner.mr_mode;
        let by_endpoint = mode.contains(MrMode::ENDPOINT);
        let by_event = mode.contains(MrMode::RMA_EVENT);
        let for_events = request.flags.contains(MrFlags::RMA_EVENT);
        RegionTraits {
            rights: request.access.bits(),
            flags: request.flags.bits(),
            domain: Some(self.inner.scope.own()),
            counts_events: self.counts_rma_events(),
            lacks_event_flag: by_event && !for_events,
            disabled: by_endpoint || by_event && for_events,
            by_endpoint,
            notified_pages: mode.contains(MrMode::MMU_NOTIFY),
            hmem: self.hmem(),
        }
    }
}

/// Checks the request and converts the buffers to owned ones.
pub(super) fn take_buffers<B: RegisterBufs>(
    domain: &Domain,
    buffers: B,
    request: &Request,
) -> Result<OwnedBuffers, Failed<B>> {
    let checked = request.check(domain).and_then(|()| {
        let (count, limit) = (buffers.count(), domain.info().domain.mr_iov_limit);
        match count <= limit {
            true => Ok(()),
            false => Err(too_many(count, limit)),
        }
    });
    if let Err(error) = checked {
        return Err(refuse(error, buffers));
    }
    let owned = match buffers.into_owned_buffers() {
        Ok(owned) => owned,
        Err((error, buffers)) => return Err(refuse(error, buffers)),
    };
    match request.check_memory(&owned, domain) {
        Ok(()) => Ok(owned),
        Err(error) => Err(give_buffers(RegisterError::new(error, owned))),
    }
}

#[cold]
fn refuse<B>(error: Error, buffers: B) -> Failed<B> {
    let error = error.with_operation(OperationKind::Register);
    Failed::new(error, Some(buffers))
}

#[cold]
fn too_many(count: usize, limit: usize) -> Error {
    let message = format!("{count} buffers: a region takes at most {limit} (mr_iov_limit)");
    Error::new(ErrorKind::TooLarge, message)
}

/// Checks that all buffers are shared mappings of files, which persist what is written.
fn check_files(owned: &[OwnedBuffer]) -> Result<()> {
    for buffer in owned {
        let is_file = buffer.is_shared_file();
        if !is_file.map_err(|error| Error::from_io(&error, "asking what is mapped"))? {
            let message = "RMA_PMEM: the memory is not a shared mapping of a file";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    }
    Ok(())
}

/// Checks that device memory can be registered in this domain.
fn check_device_memory(domain: &Domain) -> Result<()> {
    if !domain.inner.info.caps.contains(Caps::HMEM) {
        let message =
            "HMEM: the domain was opened without that capability; ask for it in the hints";
        return Err(Error::new(ErrorKind::NoCapability, message));
    }
    if domain.hmem().is_none() {
        let message = "device memory is copied by the functions that Domain::set_ops is given, and \
                       there are none";
        return Err(Error::new(ErrorKind::BadState, message));
    }
    Ok(())
}

/// Checks that this system supports the registration of address ranges.
pub(super) fn check_address_ranges() -> Result<()> {
    check_kernel_copies().map_err(|error| {
        let message =
            format!("address ranges need process_vm_readv, which the system refuses: {error}");
        Error::new(ErrorKind::Unsupported, message)
    })
}

#[cold]
#[allow(clippy::boxed_local, reason = "as it comes, for `map_err`")]
pub(super) fn give_buffers<B: RegisterBufs>(refused: Box<RegisterError>) -> Failed<B> {
    let RegisterError { error, buffers } = *refused;
    let error = error.with_operation(OperationKind::Register);
    Failed::new(error, B::from_owned_buffers(buffers))
}
