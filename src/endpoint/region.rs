//! Regions that belong to endpoints (`fi_mr_bind` with an endpoint; `fi_mr(3)`).

use super::{Endpoint, Inner};
use crate::buf::Payload;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::id::EndpointId;
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
    /// [`ErrorKind::BadState`] once the region has been enabled, [`ErrorKind::InvalidArgument`] if
    /// the endpoint belongs to another domain.
    pub fn bind_endpoint(&self, endpoint: &Endpoint) -> Result<()> {
        let inner = &endpoint.inner;
        self.bind_opened(&inner.domain, inner.port.id(), inner)
    }
}

impl Attachable for Inner {
    fn is_open(&self) -> bool {
        self.port.lifecycle() != Lifecycle::Closed
    }

    fn count(&self, _wakes: &mut WakeList) {}
}

/// Judges the regions among the buffers of an operation: with `FI_MR_LOCAL` they are of this
/// domain, with `FI_MR_ENDPOINT` bound to this endpoint.
pub(super) fn check_regions(
    domain: &Domain,
    endpoint: EndpointId,
    payload: &Payload,
) -> Result<()> {
    for memory in payload.regions() {
        if !memory.attached().admits(endpoint) {
            let message = "with FI_MR_ENDPOINT, a region is bound to the endpoint that uses it";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if domain.wants_local_registration() && !domain.has_registered(memory) {
            let message = "the domain was opened with FI_MR_LOCAL: the region is of another domain";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
    }
    Ok(())
}
