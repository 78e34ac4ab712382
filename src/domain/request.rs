//! What a registration asks for, and how buffers go into it and come back.

use std::fmt;
use std::sync::Arc;

use crate::buf::{Held, IoBufs, LocalUse, Memory, Payload, RegionMemory};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::Context;
use crate::info::MrMode;
use crate::mr::{Access, NewRegion};
use crate::op_error::Failed;
use crate::sync::Keep;

use super::{Domain, RegistrationProgress};

/// What a region is to be.
pub(super) struct Request {
    pub(super) access: Access,
    pub(super) key: Option<u64>,
    pub(super) context: Option<Context>,
    /// Who watches.
    pub(super) progress: Option<RegistrationProgress>,
}

impl Request {
    pub(super) fn tell_ready(&self, bytes: usize) {
        if let Some(progress) = &self.progress {
            progress.add(bytes);
        }
    }
}

/// The key is what protects the region, and the bytes are the user's: neither is shown.
pub(super) fn show(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    domain: &Domain,
    len: usize,
    request: &Request,
) -> fmt::Result {
    f.debug_struct(name)
        .field("domain", domain)
        .field("len", &len)
        .field("access", &request.access)
        .field("has_key", &request.key.is_some())
        .field("context", &request.context)
        .finish()
}

impl Domain {
    /// True if an event queue was bound with `REG_MR`.
    pub(super) fn registers_asynchronously(&self) -> bool {
        self.binding().registers
    }

    pub(super) fn new_region(
        &self,
        memory: Arc<RegionMemory>,
        request: &Request,
        keep: Keep,
    ) -> NewRegion {
        NewRegion {
            memory,
            requested_key: request.key,
            context: request.context,
            table: Arc::clone(&self.inner.regions),
            nudge: self.inner.engine.region_nudge(),
            keep: Arc::new(keep),
        }
    }

    /// How many regions the application said it will have, for tables made ahead.
    pub(super) fn expected_regions(&self) -> usize {
        super::expected_regions(&self.inner.info)
    }

    pub(super) fn faults_in(&self) -> bool {
        self.inner.mr_mode.contains(MrMode::ALLOCATED)
    }
}

pub(super) fn take_buffers<B: IoBufs>(domain: &Domain, buffers: B) -> Result<Vec<Held>, Failed<B>> {
    let limit = domain.info().domain.mr_iov_limit;
    if buffers.count() > limit {
        let error = Error::new(
            ErrorKind::TooLarge,
            format!(
                "{} buffers, a region takes at most {limit}",
                buffers.count()
            ),
        );
        return Err(Failed::new(
            error.with_operation(OperationKind::Register),
            Some(buffers),
        ));
    }
    let payload = buffers
        .into_payload(LocalUse::Receive)
        .map_err(|(error, buffers)| Failed::new(error, Some(buffers)))?;
    payload.into_held().map_err(|_| {
        Failed::new(
            Error::new(ErrorKind::InvalidArgument, "part of another region"),
            None,
        )
    })
}

pub(super) fn give_buffers<B: IoBufs>((error, held): (Error, Vec<Held>)) -> Failed<B> {
    let payload = Payload::from_pieces(held.into_iter().map(Memory::Held).collect());
    let error = error.with_operation(OperationKind::Register);
    Failed::new(error, B::from_payload(payload))
}
