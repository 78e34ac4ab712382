//! Registration of bytes that nobody changes.

use std::fmt;
use std::future::IntoFuture;

use crate::buf::{ConvertMany, Held, LocalUse, Memory, Payload, ReadOnlyBuf};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::mr::{Access, MrFlags, ReadOnlyRegion, prepare, unprepare};
use crate::op_error::Failed;

use super::Domain;
use super::request::{Request, show};

/// A read-only registration; see [`Domain::register_read_only`].
#[must_use = "a registration does nothing until it is awaited, or ended by `now`"]
pub struct RegisterReadOnly<B: ReadOnlyBuf> {
    domain: Domain,
    bytes: B,
    request: Request,
}

impl<B: ReadOnlyBuf> fmt::Debug for RegisterReadOnly<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.bytes.total_len();
        show(f, "RegisterReadOnly", &self.domain, len, &self.request)
    }
}

impl<B: ReadOnlyBuf> RegisterReadOnly<B> {
    pub(super) fn new(domain: Domain, bytes: B) -> Self {
        RegisterReadOnly {
            domain,
            bytes,
            request: Request::new(Access::READ_ONLY),
        }
    }

    /// What the region may be used for: among [`Access::READ_ONLY`], which is the default.
    pub fn access(mut self, access: Access) -> Self {
        self.request.access = access;
        self
    }

    /// The key that peers will use (`requested_key`). Default: 64 random bits.
    pub fn key(mut self, key: u64) -> Self {
        self.request.key = Some(key);
        self
    }

    /// What else it is registered for. Default: nothing.
    pub fn flags(mut self, flags: MrFlags) -> Self {
        self.request.flags = flags;
        self
    }

    /// Registers within this call; there is nothing to wait for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for rights that read-only bytes cannot grant,
    /// [`ErrorKind::KeyInUse`], [`ErrorKind::KeyRejected`]. The bytes come back.
    pub fn now(self) -> Result<ReadOnlyRegion, Failed<B>> {
        let RegisterReadOnly {
            domain,
            bytes,
            request,
        } = self;
        let payload = bytes
            .into_payload(LocalUse::Send)
            .map_err(|(error, bytes)| Failed::new(error, Some(bytes)))?;
        let give_back = |(error, held): (Error, Vec<Held>)| {
            let payload = Payload::from_pieces(held.into_iter().map(Memory::Held).collect());
            Failed::new(
                error.with_operation(OperationKind::Register),
                B::from_payload(payload),
            )
        };
        let held = payload.into_held().map_err(|payload| {
            let error = Error::new(ErrorKind::InvalidArgument, "part of another region");
            Failed::new(error, B::from_payload(payload))
        })?;
        let judged = request
            .check(&domain)
            .and_then(|()| request.check_memory(&held));
        if let Err(error) = judged {
            return Err(give_back((error, held)));
        }
        let memory = prepare(held, domain.traits(&request)).map_err(give_back)?;
        let keep = match domain.keep_open("memory region") {
            Ok(keep) => keep,
            Err(error) => return Err(give_back((error, unprepare(&memory)))),
        };
        ReadOnlyRegion::create(domain.new_region(memory, &request, keep)).map_err(give_back)
    }
}

impl<B: ReadOnlyBuf> IntoFuture for RegisterReadOnly<B> {
    type Output = Result<ReadOnlyRegion, Failed<B>>;
    type IntoFuture = std::future::Ready<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        std::future::ready(self.now())
    }
}
