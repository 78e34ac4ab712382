//! The number of open objects of each kind in a domain, and the limits (`fi_domain(3)`): `ep_cnt`
//! is a limit; `cq_cnt` and the other counts are advice, unless the application makes them limits
//! ([`DomainBuilder::limit`](super::DomainBuilder::limit)).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::info::{DomainAttr, MrMode, SideCaps};

/// Number of open objects of one kind, and its limit.
#[derive(Debug)]
struct Count {
    open: AtomicUsize,
    max: usize,
    /// Name of the attribute that sets the limit.
    attribute: &'static str,
}

impl Count {
    fn new(attribute: &'static str, max: usize) -> Arc<Self> {
        Arc::new(Count {
            open: AtomicUsize::new(0),
            max,
            attribute,
        })
    }

    /// Counts one more object until the returned value is dropped.
    fn take(self: &Arc<Self>) -> Result<Counted> {
        // Relaxed, since the count orders no other memory accesses.
        let more = |open| (open < self.max).then_some(open + 1);
        let taken = (self.open).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match taken {
            Ok(_) => Ok(Counted(Arc::clone(self))),
            Err(open) => Err(beyond(self.attribute, self.max, open)),
        }
    }
}

/// Returns the error for opening one object more than the domain offers.
#[cold]
fn beyond(attribute: &str, max: usize, open: usize) -> Error {
    let what = format!(
        "the domain's {attribute} is {max}, and {open} are open: close one, or ask for more in the \
         hints (Hints::domain)"
    );
    Error::new(ErrorKind::LimitReached, what)
}

/// An open object. Dropping it makes room for another one.
#[derive(Debug)]
pub(super) struct Counted(Arc<Count>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of regions that are bound to one endpoint, if that is limited (`mr_cnt` with
/// `FI_MR_ENDPOINT`).
#[derive(Debug)]
pub(crate) struct EndpointRegions(Arc<Count>);

impl EndpointRegions {
    /// Counts one more region until the returned value is dropped.
    pub(super) fn bind(&self) -> Result<Counted> {
        self.0.take()
    }
}

/// Numbers of a domain's open objects, by kind.
#[derive(Debug)]
pub(super) struct OpenCounts {
    endpoints: Arc<Count>,
    transmit_contexts: Arc<Count>,
    receive_contexts: Arc<Count>,
    queues: Arc<Count>,
    counters: Arc<Count>,
    /// Largest number of regions that may be bound to each endpoint; `None`: any number.
    endpoint_regions_max: Option<usize>,
}

impl OpenCounts {
    /// Starts with no open objects. `are_limits` makes all counts of the attributes limits, not
    /// only `ep_cnt`.
    pub(super) fn new(offered: &DomainAttr, are_limits: bool) -> Self {
        let advised = |attribute, count| match are_limits {
            true => Count::new(attribute, count),
            false => Count::new(attribute, usize::MAX),
        };
        let by_endpoint = are_limits && offered.mr_mode.contains(MrMode::ENDPOINT);
        OpenCounts {
            endpoints: Count::new("ep_cnt", offered.ep_cnt),
            transmit_contexts: advised("tx_ctx_cnt", offered.tx_ctx_cnt),
            receive_contexts: advised("rx_ctx_cnt", offered.rx_ctx_cnt),
            queues: advised("cq_cnt", offered.cq_cnt),
            counters: advised("cntr_cnt", offered.cntr_cnt),
            endpoint_regions_max: by_endpoint.then_some(offered.mr_cnt),
        }
    }

    /// Returns the count for an endpoint that is opened now; `None`: its regions are not limited.
    pub(super) fn endpoint_regions(&self) -> Option<EndpointRegions> {
        let max = self.endpoint_regions_max?;
        Some(EndpointRegions(Count::new("mr_cnt for each endpoint", max)))
    }

    /// Counts an endpoint, and a context for each direction that its capabilities use.
    pub(super) fn endpoint(&self, caps: SideCaps) -> Result<[Option<Counted>; 3]> {
        let endpoint = self.endpoints.take()?;
        let [transmit, receive] = self.contexts(caps)?;
        Ok([Some(endpoint), transmit, receive])
    }

    /// Counts a context for each direction that the capabilities use.
    pub(super) fn contexts(&self, caps: SideCaps) -> Result<[Option<Counted>; 2]> {
        let context = |count: &Arc<Count>, is_used: bool| is_used.then(|| count.take()).transpose();
        Ok([
            context(&self.transmit_contexts, caps.transmits())?,
            context(&self.receive_contexts, caps.receives())?,
        ])
    }

    /// Returns how many endpoints, completion queues and counters are open.
    pub(super) fn open(&self) -> [usize; 3] {
        let counts = [&self.endpoints, &self.queues, &self.counters];
        counts.map(|count| count.open.load(Ordering::Relaxed))
    }

    pub(super) fn queue(&self) -> Result<Counted> {
        self.queues.take()
    }

    pub(super) fn counter(&self) -> Result<Counted> {
        self.counters.take()
    }
}
