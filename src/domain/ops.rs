//! Replaces functions of a domain by functions of the application (`fi_set_ops` of `fi_domain(3)`).

use std::fmt;
use std::sync::Arc;

use crate::buf::{HmemOps, SharedHmemOps};
use crate::error::{Error, ErrorKind, Result};
use crate::info::Caps;

use super::Domain;

/// The name under which [`DomainOps::Hmem`] is set (`FI_SET_OPS_HMEM_OVERRIDE`).
pub const SET_OPS_HMEM_OVERRIDE: &str = "hmem_override_ops";

/// The sets of functions that [`Domain::set_ops`] can replace, each under its name (the `ops`
/// parameter of `fi_set_ops`, whose format depends on the name).
///
/// The C structures state their number of fields in `size`; here, new functions of a trait have a
/// default.
///
/// ```
/// use std::{io, sync::Arc};
/// use tokio_fabric::buf::{HmemIov, HmemOps};
/// use tokio_fabric::domain::DomainOps;
///
/// struct Nothing; // A device that can copy nothing; `HmemOps` has a real one.
///
/// impl HmemOps for Nothing {
///     fn copy_to_host(&self, _: &mut [u8], _: &HmemIov, _: u64) -> io::Result<usize> {
///         Err(io::ErrorKind::Unsupported.into())
///     }
///     fn copy_from_host(&self, _: &HmemIov, _: u64, _: &[u8]) -> io::Result<usize> {
///         Err(io::ErrorKind::Unsupported.into())
///     }
/// }
///
/// let ops = DomainOps::Hmem(Arc::new(Nothing));
/// assert_eq!(format!("{ops:?}"), "DomainOps(hmem_override_ops)");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum DomainOps {
    /// Functions that copy memory which only its owner can copy, under the name
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
    /// Replaces functions of the domain by the application's (`fi_set_ops`,
    /// [`fi_domain(3)`](https://ofiwg.github.io/libfabric/v1.17.0/man/fi_domain.3.html)). `name`
    /// identifies the set of functions. Everything that is opened in the domain uses them, so they
    /// can be set only once, before anything is opened. The C call's flags and context do not exist
    /// here: the functions have their own state. [`HmemOps`] has an example.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an unknown name (`FI_ENOSYS`); [`ErrorKind::InvalidArgument`]
    /// if the functions belong to another name; [`ErrorKind::NoCapability`] if the domain was
    /// opened without [`Caps::HMEM`]; [`ErrorKind::Busy`] if anything is open in the domain, or if
    /// the functions were set before.
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

    /// Returns the functions that copy device memory, if the application has set any.
    pub(super) fn hmem(&self) -> Option<SharedHmemOps> {
        self.inner.hmem.get().cloned()
    }
}
