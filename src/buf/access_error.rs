//! The reasons why an access to the bytes of a region fails.

use std::io;

use crate::error::{Error, ErrorKind, Refusal};
use crate::sync::GateError;

/// The reason why a copy from or to memory failed or ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    /// The region's gate refused the access.
    Closed(GateError),
    /// The system's error number; `EFAULT` if a page is missing. Only accesses to address ranges
    /// fail with it.
    Fault(i32),
    /// The owner's function that copies device memory failed with this error number.
    Owner(i32),
}

impl AccessError {
    /// A page is missing.
    pub(crate) const NO_PAGE: AccessError = AccessError::Fault(libc::EFAULT);

    pub(crate) fn fault(error: &io::Error) -> Self {
        AccessError::Fault(error.raw_os_error().unwrap_or(libc::EFAULT))
    }

    /// The error for the initiator of the access; `doing` follows "while".
    pub(crate) fn error(self, doing: &'static str) -> Error {
        match self {
            AccessError::Closed(closed) => Error::new(
                ErrorKind::AccessDenied,
                format!("a region was {closed:?} while {doing}"),
            ),
            AccessError::Fault(os) => Error::from_io(&io::Error::from_raw_os_error(os), doing),
            AccessError::Owner(os) => Error::from_io(
                &io::Error::from_raw_os_error(os),
                "the owner of device memory copied it",
            ),
        }
    }
}

impl From<AccessError> for Refusal {
    fn from(denied: AccessError) -> Self {
        match denied {
            AccessError::Closed(closed) => closed.into(),
            AccessError::Fault(_) | AccessError::Owner(_) => Refusal::Fault,
        }
    }
}

impl From<GateError> for AccessError {
    fn from(closed: GateError) -> Self {
        AccessError::Closed(closed)
    }
}
