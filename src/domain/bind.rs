//! Binding objects to a region, and enabling the region (`fi_mr_bind`, `fi_mr_enable`; `fi_mr(3)`).

use std::sync::Arc;

use super::{Domain, EndpointRegions};
use crate::buf::RegionMemory;
use crate::cntr::Counter;
use crate::error::{Error, ErrorKind, Result};
use crate::id::EndpointId;
use crate::info::Caps;
use crate::mr::{Access, MemoryRegion, MrBind};
use crate::sync::{Attachable, Keep};

impl<B: 'static> MemoryRegion<B> {
    /// Binds a counter that counts peers' accesses to this region (`fi_mr_bind` with a counter), if
    /// they go through endpoints with [`Caps::RMA_EVENT`]. The counter counts until it is closed or
    /// its last handle is dropped; until then the region cannot be deregistered.
    ///
    /// # Errors
    /// [`ErrorKind::BadFlags`] for flags that are not among [`MrBind`]'s,
    /// [`ErrorKind::InvalidArgument`] without a flag, for a region that was registered without
    /// [`MrFlags::RMA_EVENT`](crate::mr::MrFlags::RMA_EVENT) in a domain with
    /// [`MrMode::RMA_EVENT`](crate::info::MrMode::RMA_EVENT), and for a counter of another domain,
    /// unless the region's domain is a [peer](crate::domain::DomainBuilder::peer_of) of that
    /// domain; [`ErrorKind::Unsupported`] (`FI_ENOSYS`) in a domain that was opened without
    /// [`Caps::RMA_EVENT`]; [`ErrorKind::BadState`] if the region is enabled already or the counter
    /// is closed.
    #[doc(alias = "fi_mr_bind")]
    pub fn bind_counter(&self, counter: &Counter, flags: MrBind) -> Result<()> {
        if let unknown @ 1.. = flags.difference(MrBind::all()).bits() {
            let message = format!("{unknown:#x} for a counter of a region");
            return Err(Error::new(ErrorKind::BadFlags, message));
        }
        if flags.is_empty() {
            let message = "flags: a counter is bound for reads, writes, or both";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if !self.memory().traits().counts_events {
            let message = "the domain was opened without the capability RMA_EVENT";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.memory().traits().lacks_event_flag {
            let message = "with FI_MR_RMA_EVENT, a region that a counter is bound to is registered \
                           with the flag RMA_EVENT";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let counter = counter.attachable(self.scope())?;
        let attached = self.memory().attached();
        let bound = attached.bind_counter(flags.bits(), "counter".to_owned(), counter);
        bound.then_some(()).ok_or_else(enabled_already)
    }

    /// Enables the region (`fi_mr_enable`). A region is disabled at first in a domain with
    /// [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT), or if it was registered with
    /// [`MrFlags::RMA_EVENT`](crate::mr::MrFlags::RMA_EVENT) in a domain with
    /// [`MrMode::RMA_EVENT`](crate::info::MrMode::RMA_EVENT). Once it is enabled, nothing can be
    /// bound to it. Enabling a region again has no effect.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain has
    /// [`MrMode::ENDPOINT`](crate::info::MrMode::ENDPOINT) and no endpoint is bound to the region.
    #[doc(alias = "fi_mr_enable")]
    pub fn enable(&self) -> Result<()> {
        let memory = self.memory();
        if memory.traits().by_endpoint && !memory.attached().has_endpoint() {
            let message = "with FI_MR_ENDPOINT, a region is bound to an endpoint and then enabled";
            return Err(Error::new(ErrorKind::BadState, message));
        }
        memory.attached().freeze();
        memory.gate().enable();
        Ok(())
    }

    /// Binds an endpoint to the region, for `bind_endpoint` of the module `endpoint`.
    pub(crate) fn bind_opened(
        &self,
        domain: &Domain,
        id: EndpointId,
        regions: Option<&EndpointRegions>,
        endpoint: &Arc<dyn Attachable>,
    ) -> Result<()> {
        if self.memory().traits().domain != Some(domain.scope().own()) {
            let message = "the endpoint belongs to another domain than the region";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let attached = self.memory().attached();
        // An endpoint that is bound already is not counted again.
        let regions = regions.filter(|_| !attached.admits(id));
        let counted = regions.map(EndpointRegions::bind).transpose()?;
        let counted = counted.map(|counted| Box::new(counted) as Keep);
        let bound = attached.bind_endpoint(id, Arc::downgrade(endpoint), counted);
        bound.then_some(()).ok_or_else(enabled_already)
    }
}

fn enabled_already() -> Error {
    let message = "the region is enabled: nothing can be bound to it any more";
    Error::new(ErrorKind::BadState, message)
}

impl Domain {
    /// Returns whether this memory belongs to a region that endpoints of this domain may use as a
    /// local buffer.
    pub(crate) fn has_registered(&self, memory: &RegionMemory) -> bool {
        let domain = memory.traits().domain;
        domain.is_some_and(|domain| self.scope().contains(domain))
    }

    /// Returns the access rights that the capabilities of the domain's endpoints can use.
    pub(super) fn rights(&self) -> Access {
        self.inner.rights
    }

    /// Returns whether peers' accesses to regions are counted.
    pub(crate) fn counts_rma_events(&self) -> bool {
        self.inner.caps.has(Caps::RMA_EVENT)
    }
}
