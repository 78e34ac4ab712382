//! Functions of the application's in place of the domain's own (`fi_set_ops` of `fi_domain(3)`).

use std::fmt;
use std::sync::Arc;

use crate::buf::{HmemOps, SharedHmemOps};
use crate::error::{Error, ErrorKind, Result};
use crate::info::Caps;

use super::Domain;

/// The name under which [`DomainOps::Hmem`] is set (`FI_SET_OPS_HMEM_OVERRIDE`).
pub const SET_OPS_HMEM_OVERRIDE: &str = "hmem_override_ops";

/// What may be set by [`Domain::set_ops`], each under its name (the `ops` parameter of
/// `fi_set_ops`, whose format depends on that). In place of `size`, by which the C structures say
/// how many fields they have, new functions of a trait come with a default.
#[derive(Clone)]
#[non_exhaustive]
pub enum DomainOps {
    /// How memory is copied that only its owner can copy, under the name
    /// [`SET_OPS_HMEM_OVERRIDE`] (`struct fi_hmem_override_ops`).
    Hmem(Arc<dyn HmemOps>),
}

impl DomainOps {
    fn name(&self) -> &'static str {
        match self {
            DomainOps::Hmem(_) => SET_OPS_HMEM_OVERRIDE,
        }
    }
}

impl fmt::Debug for DomainOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainOps({})", self.name())
    }
}

impl Domain {
    /// Has the domain call these functions of the application's in place of its own (`fi_set_ops`,
    /// [`fi_domain(3)`](https://ofiwg.github.io/libfabric/v1.17.0/man/fi_domain.3.html)), under the
    /// name they are known by. All that is opened in the domain inherits them; so they are set
    /// first, and once. The call has no flags, and no context: the functions have their own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use std::{io, sync::{Arc, Mutex}};
    /// use tokio_fabric::buf::{DeviceBuffer, HmemIface, HmemIov, HmemOps};
    /// use tokio_fabric::domain::{DomainOps, SET_OPS_HMEM_OVERRIDE};
    /// use tokio_fabric::{Caps, Fabric, Hints};
    ///
    /// /// A device whose addresses are places in a table.
    /// struct Device(Mutex<Vec<u8>>);
    ///
    /// impl HmemOps for Device {
    ///     fn copy_to_host(&self, into: &mut [u8], iov: &HmemIov, at: u64) -> io::Result<usize> {
    ///         let (memory, mut done) = (self.0.lock().unwrap(), 0);
    ///         for part in iov.parts(at, into.len()) {
    ///             let from = part.address as usize;
    ///             into[done..done + part.len].copy_from_slice(&memory[from..from + part.len]);
    ///             done += part.len;
    ///         }
    ///         Ok(done)
    ///     }
    ///     fn copy_from_host(&self, iov: &HmemIov, at: u64, from: &[u8]) -> io::Result<usize> {
    ///         let (mut memory, mut done) = (self.0.lock().unwrap(), 0);
    ///         for part in iov.parts(at, from.len()) {
    ///             let into = part.address as usize;
    ///             memory[into..into + part.len].copy_from_slice(&from[done..done + part.len]);
    ///             done += part.len;
    ///         }
    ///         Ok(done)
    ///     }
    /// }
    ///
    /// let hints = Hints::new().caps(Caps::MSG | Caps::RMA | Caps::HMEM);
    /// let domain = Fabric::open(hints)?.domain().open()?;
    /// let device = Arc::new(Device(Mutex::new(vec![0; 1 << 20])));
    /// domain.set_ops(SET_OPS_HMEM_OVERRIDE, DomainOps::Hmem(device))?;
    /// let region = domain.register(DeviceBuffer::new(HmemIface::Other(1), 0, 4096, 64)).await?;
    /// region.write_at(0, b"over there")?; // Operations take `region.slice(..)`.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if nothing is known by this name (`FI_ENOSYS`);
    /// [`ErrorKind::InvalidArgument`] if what is given is known by another;
    /// [`ErrorKind::NoCapability`] if the domain was opened without [`Caps::HMEM`];
    /// [`ErrorKind::Busy`] if anything is open in the domain, or it was set before.
    #[doc(alias("fi_set_ops", "FI_SET_OPS_HMEM_OVERRIDE"))]
    pub fn set_ops(&self, name: &str, ops: DomainOps) -> Result<()> {
        if name != SET_OPS_HMEM_OVERRIDE {
            let message = format!("{name:?}: no functions of a domain are known by this name");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if name != ops.name() {
            let message = format!("{name:?}: given were those of {:?}", ops.name());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let DomainOps::Hmem(hmem) = ops;
        if !self.inner.info.caps.contains(Caps::HMEM) {
            let message = "HMEM: the domain was opened without that capability; ask for it in the \
                           hints";
            return Err(Error::new(ErrorKind::NoCapability, message));
        }
        if let Some(open) = self.inner.open_names() {
            let message = format!("functions are set before anything is opened: {open}");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let may_block = hmem.may_block();
        let set = self.inner.hmem.set(SharedHmemOps(hmem));
        if may_block && set.is_ok() {
            self.inner.shards.set_copies_block();
        }
        set.map_err(|_| Error::new(ErrorKind::Busy, "these functions have been set already"))
    }

    /// How the memory of a device is copied, if that was said.
    pub(super) fn hmem(&self) -> Option<SharedHmemOps> {
        self.inner.hmem.get().cloned()
    }
}
