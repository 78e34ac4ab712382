//! A reference to an opened domain, by which hints and results name it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::id::DomainId;

/// A reference to an opened domain that does not keep it open
/// ([`Domain::downgrade`](crate::Domain::downgrade); `struct fid_domain` in the `fi_domain_attr` of
/// `fi_domain(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let weak = domain.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(domain);
/// assert!(weak.upgrade().is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct WeakDomain {
    id: DomainId,
    /// The entry by which the domain is found, which keeps no part of it alive.
    pub(crate) found_by: Arc<dyn Any + Send + Sync>,
}

impl WeakDomain {
    pub(crate) fn new(id: DomainId, found_by: Arc<dyn Any + Send + Sync>) -> Self {
        WeakDomain { id, found_by }
    }
}

/// References are equal if they refer to the same domain.
impl PartialEq for WeakDomain {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for WeakDomain {}

impl fmt::Debug for WeakDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}
