//! Low-level interfaces of a domain (`fi_open_ops`; `fi_domain(3)`).

use super::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::RingInfo;

/// A low-level interface of an object of type `T`, whose method `ops` opens it. A [`Domain`] has
/// [`RingOps`]; an [`Endpoint`](crate::Endpoint) has [`TcpOps`](crate::ep::TcpOps). Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::domain::{OpenOps, RingOps};
/// use tokio_fabric::{Domain, Fabric, Hints};
///
/// fn is_available<O: OpenOps<Domain>>(domain: &Domain) -> bool {
///     domain.ops::<O>().is_ok()
/// }
///
/// let domain = Fabric::open(Hints::new().backend("epoll"))?.domain().open()?;
/// assert!(!is_available::<RingOps>(&domain));
/// # Ok(()) }
/// ```
pub trait OpenOps<T>: Sized {
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn open_ops(of: &T, seal: OpenSeal) -> Result<Self>;
}

/// Seals [`OpenOps`]: only the library can construct it.
pub(crate) struct OpenSeal;

impl Domain {
    /// Opens a low-level interface of the domain (`fi_open_ops`): [`RingOps`]. The interface is
    /// chosen by its type, where C has a name.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the domain's backend does not have this interface.
    #[doc(alias = "fi_open_ops")]
    pub fn ops<O: OpenOps<Domain>>(&self) -> Result<O> {
        O::open_ops(self, OpenSeal)
    }
}

/// The rings of a domain with the backend io-uring. [`Domain::ops`] opens this interface.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::domain::RingOps;
/// use tokio_fabric::{Fabric, Hints};
///
/// // A kernel or a container may refuse io_uring.
/// if let Ok(domain) = Fabric::open(Hints::new().backend("io-uring"))?.domain().open() {
///     let rings = domain.ops::<RingOps>()?;
///     assert!(rings.rings()[0].submission_entries > 0);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RingOps {
    rings: Vec<RingInfo>,
}

impl RingOps {
    /// The ring of each driver of the domain, at least one.
    pub fn rings(&self) -> &[RingInfo] {
        &self.rings
    }
}

#[allow(private_interfaces, reason = "as in the trait")]
impl OpenOps<Domain> for RingOps {
    fn open_ops(domain: &Domain, _: OpenSeal) -> Result<Self> {
        let rings = domain.inner.shards.rings();
        if rings.is_empty() {
            let what = format!("RingOps: the backend {} has no rings", domain.backend());
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(RingOps { rings })
    }
}
