//! Why bytes of a region could not be touched.

use std::io;

use crate::error::{Error, ErrorKind, Refusal};
use crate::sync::GateError;

/// Why a copy from or to memory did not happen, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The region's gate is shut.
    Closed(GateError),
    /// The system's number; `EFAULT` where a page is not there. Only address ranges have this.
    Fault(i32),
}

impl Denied {
    pub(crate) fn fault(error: &io::Error) -> Self {
        Denied::Fault(error.raw_os_error().unwrap_or(libc::EFAULT))
    }

    /// The error of whoever wanted to touch the bytes; `doing` follows "while".
    pub(crate) fn error(self, doing: &'static str) -> Error {
        match self {
            Denied::Closed(closed) => Error::new(
                ErrorKind::AccessDenied,
                format!("a region was {closed:?} while {doing}"),
            ),
            Denied::Fault(os) => Error::from_io(&io::Error::from_raw_os_error(os), doing),
        }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Closed(closed) => closed.into(),
            Denied::Fault(_) => Refusal::Fault,
        }
    }
}

impl From<GateError> for Denied {
    fn from(closed: GateError) -> Self {
        Denied::Closed(closed)
    }
}
