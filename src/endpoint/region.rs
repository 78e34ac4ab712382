//! Regions that belong to endpoints (`fi_mr_bind` with an endpoint; `fi_mr(3)`).

use std::sync::Arc;

use super::common::Common;
use super::shared::ContextInner;
use super::{DgramEndpoint, Endpoint, Inner, RdmEndpoint, SharedReceiveContext, dgram, rdm};
use crate::error::Result;
use crate::mr::MemoryRegion;
use crate::sync::{Attachable, WakeList};

impl<B: 'static> MemoryRegion<B> {
    /// Binds the region to an endpoint of its domain, of any kind (`fi_mr_bind` with an endpoint).
    /// In a domain with [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT), peers and operations
    /// can use the region only through the endpoints that it is bound to, once it is enabled. A
    /// shared receive context counts as an endpoint: slices posted to it must be of a region that
    /// is bound to it. The region cannot be deregistered before those endpoints are closed or
    /// dropped.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`](crate::ErrorKind::BadState) once the region has been enabled,
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the endpoint belongs to
    /// another domain, [`ErrorKind::LimitReached`](crate::ErrorKind::LimitReached) if `mr_cnt` is a
    /// [limit](crate::domain::DomainBuilder::limit) that the endpoint has reached.
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_endpoint(&self, endpoint: &impl RegionEndpoint) -> Result<()> {
        let (common, object) = endpoint.bound();
        let regions = common.regions.as_ref();
        self.bind_opened(&common.domain, common.id, regions, &object)
    }
}

/// An endpoint that regions can be bound to: [`Endpoint`], [`RdmEndpoint`], [`DgramEndpoint`],
/// [`SharedReceiveContext`]. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::MrMode;
/// use tokio_fabric::{Fabric, Hints};
///
/// let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ENDPOINT));
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let endpoint = domain.endpoint().open()?;
/// let region = domain.register(vec![0u8; 64]).await?;
/// region.bind_endpoint(&endpoint)?; // Peers reach it through this endpoint only,
/// region.enable()?; // from now on.
/// # Ok(()) }
/// ```
pub trait RegionEndpoint {
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn bound(&self) -> (&Common, Arc<dyn Attachable>);
}

#[allow(private_interfaces, reason = "as in the trait")]
impl RegionEndpoint for Endpoint {
    fn bound(&self) -> (&Common, Arc<dyn Attachable>) {
        (&self.inner.common, Arc::clone(&self.inner) as _)
    }
}

#[allow(private_interfaces, reason = "as in the trait")]
impl RegionEndpoint for RdmEndpoint {
    fn bound(&self) -> (&Common, Arc<dyn Attachable>) {
        (&self.inner.common, Arc::clone(&self.inner) as _)
    }
}

#[allow(private_interfaces, reason = "as in the trait")]
impl RegionEndpoint for DgramEndpoint {
    fn bound(&self) -> (&Common, Arc<dyn Attachable>) {
        (&self.inner.common, Arc::clone(&self.inner) as _)
    }
}

#[allow(private_interfaces, reason = "as in the trait")]
impl RegionEndpoint for SharedReceiveContext {
    fn bound(&self) -> (&Common, Arc<dyn Attachable>) {
        (&self.inner.common, Arc::clone(&self.inner) as _)
    }
}

impl Attachable for Inner {
    fn is_open(&self) -> bool {
        !self.port.lifecycle().is_closed()
    }

    fn count(&self, _wakes: &mut WakeList) {}
}

impl Attachable for rdm::Inner {
    fn is_open(&self) -> bool {
        !self.is_closed()
    }

    fn count(&self, _wakes: &mut WakeList) {}
}

impl Attachable for dgram::Inner {
    fn is_open(&self) -> bool {
        !self.is_closed()
    }

    fn count(&self, _wakes: &mut WakeList) {}
}

impl Attachable for ContextInner {
    fn is_open(&self) -> bool {
        !self.is_closed()
    }

    fn count(&self, _wakes: &mut WakeList) {}
}
