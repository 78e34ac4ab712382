//! Queries for the atomic operations that a domain offers (`fi_query_atomic`; `fi_atomic(3)`).

use super::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::info::{AtomicAttr, AtomicOp, AtomicType, Caps, CompareOp};

impl Domain {
    /// How many numbers of this type one call of [`Endpoint::atomic`](crate::Endpoint::atomic) can
    /// operate on, and their size (`fi_query_atomic`, `fi_atomicvalid`). The count applies to all
    /// remote ranges of the call together.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the operation is not offered for the type. A domain that was
    /// opened without [`Caps::ATOMIC`] offers none.
    pub fn atomic_attr(&self, datatype: AtomicType, op: AtomicOp) -> Result<AtomicAttr> {
        self.offered(op.attr(datatype, false))
    }

    /// The same for [`Endpoint::fetch_atomic`](crate::Endpoint::fetch_atomic) (`FI_FETCH_ATOMIC`,
    /// `fi_fetch_atomicvalid`).
    ///
    /// # Errors
    /// As for [`atomic_attr`](Self::atomic_attr).
    pub fn fetch_atomic_attr(&self, datatype: AtomicType, op: AtomicOp) -> Result<AtomicAttr> {
        self.offered(op.attr(datatype, true))
    }

    /// The same for [`Endpoint::compare_atomic`](crate::Endpoint::compare_atomic)
    /// (`FI_COMPARE_ATOMIC`, `fi_compare_atomicvalid`).
    ///
    /// # Errors
    /// As for [`atomic_attr`](Self::atomic_attr).
    pub fn compare_atomic_attr(&self, datatype: AtomicType, op: CompareOp) -> Result<AtomicAttr> {
        self.offered(op.attr(datatype))
    }

    fn offered(&self, attr: Option<AtomicAttr>) -> Result<AtomicAttr> {
        let offers = |cap| self.inner.caps.has(Caps::ATOMIC | cap);
        let offered = offers(Caps::READ) || offers(Caps::WRITE);
        attr.filter(|_| offered).ok_or_else(|| {
            let message = "the operation is not offered for this type, or not in this domain";
            Error::new(ErrorKind::Unsupported, message)
        })
    }
}
