//! Regions that belong to endpoints (`fi_mr_bind` with an endpoint; `fi_mr(3)`).

use super::{Endpoint, Inner};
use crate::error::Result;
use crate::mr::MemoryRegion;
use crate::proto::Lifecycle;
use crate::sync::{Attachable, WakeList};

impl MemoryRegion {
    /// Binds the region to an endpoint of its domain (`fi_mr_bind` with an endpoint). In a domain
    /// with [`MrMode::ENDPOINT`](crate::MrMode::ENDPOINT), peers and operations then reach the
    /// region through the endpoints it is bound to, once it is enabled, and through no others. The
    /// region cannot be deregistered before those endpoints are closed or dropped.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`](crate::ErrorKind::BadState) once the region has been enabled,
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the endpoint belongs to
    /// another domain.
    pub fn bind_endpoint(&self, endpoint: &Endpoint) -> Result<()> {
        let inner = &endpoint.inner;
        self.bind_opened(&inner.common.domain, inner.common.id, inner)
    }
}

impl Attachable for Inner {
    fn is_open(&self) -> bool {
        self.port.lifecycle() != Lifecycle::Closed
    }

    fn count(&self, _wakes: &mut WakeList) {}
}
