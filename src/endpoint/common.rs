//! The part of an endpoint that all kinds have, as its operations use it.

use crate::buf::{IoBufs, Payload};
use crate::cq::CompletionQueue;
use crate::domain::{Domain, EndpointRegions};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::EndpointId;
use crate::info::SideCaps;
use crate::limits::{INJECT_SIZE_MAX, IOV_LIMIT};
use crate::sync::{Dependence, Keep};

use super::defaults::Defaults;

/// The part of an endpoint that is the same for all kinds.
pub(super) struct Common {
    pub(super) id: EndpointId,
    pub(super) domain: Domain,
    /// The endpoint's capabilities, which every post checks.
    pub(super) caps: SideCaps,
    /// Default flags, for operations whose call specifies none.
    pub(super) defaults: Defaults,
    pub(super) transmit_queue: Option<CompletionQueue>,
    pub(super) receive_queue: CompletionQueue,
    pub(super) _keep: Keep,
    pub(super) dependences: Vec<Dependence>,
    /// Regions that are bound to the endpoint, if their number is limited.
    pub(super) regions: Option<EndpointRegions>,
}

impl Common {
    /// Returns the queue to which an operation posted with a context reports.
    pub(super) fn queue_for(&self, operation: OperationKind) -> Option<&CompletionQueue> {
        match operation {
            OperationKind::Receive => Some(&self.receive_queue),
            _ => self.transmit_queue.as_ref(),
        }
    }

    /// Checks the buffers of an operation.
    #[inline]
    pub(super) fn check_buffers<B: IoBufs>(&self, buffers: &B) -> Result<()> {
        let count = buffers.count();
        if count > IOV_LIMIT {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("{count} buffers, an operation takes at most {IOV_LIMIT}"),
            ));
        }
        if self.domain.wants_local_registration() && !buffers.is_registered() {
            return Err(unregistered());
        }
        Ok(())
    }

    /// Returns memory for a message of at most `max` bytes, allocated outside of regions.
    pub(super) fn memory_on_arrival(&self, max: usize) -> Result<Payload> {
        self.check_unregistered()?;
        Ok(Payload::on_arrival(max))
    }

    /// Checks that operations may use memory outside of regions.
    pub(super) fn check_unregistered(&self) -> Result<()> {
        match self.domain.wants_local_registration() {
            true => Err(unregistered()),
            false => Ok(()),
        }
    }

    /// Checks the regions among the buffers of an operation: with `FI_MR_LOCAL` they must be
    /// regions of this domain, with `FI_MR_ENDPOINT` be bound to this endpoint.
    #[inline]
    pub(super) fn check_regions(&self, payload: &Payload) -> Result<()> {
        for memory in payload.regions() {
            if !memory.attached().admits(self.id) {
                let message = "with FI_MR_ENDPOINT, a region is bound to the endpoint that uses it";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            if self.domain.wants_local_registration() && !self.domain.has_registered(memory) {
                let message =
                    "the domain was opened with FI_MR_LOCAL: the region is of another domain";
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        Ok(())
    }
}

fn unregistered() -> Error {
    let what = "the domain was opened with FI_MR_LOCAL: local buffers must be slices of regions";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Refuses more bytes than an injected operation may copy.
pub(super) fn check_inject(bytes: &[u8]) -> Result<()> {
    if bytes.len() > INJECT_SIZE_MAX {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} bytes injected, at most {INJECT_SIZE_MAX} are copied",
                bytes.len()
            ),
        )
        .with_operation(OperationKind::Inject));
    }
    Ok(())
}
