//! Small values that name things: the user's contexts and the library's own identifiers.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value of the user's that comes back with the event or completion it was given for (the
/// `context` argument of libfabric's calls).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Context(pub u64);

impl From<u64> for Context {
    fn from(value: u64) -> Self {
        Context(value)
    }
}

impl From<usize> for Context {
    fn from(value: usize) -> Self {
        Context(value as u64)
    }
}

/// Names an endpoint for as long as the process lives; never reused. Events carry it, and
/// `Endpoint::id` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(NonZeroU64);

impl EndpointId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let value = NEXT.fetch_add(1, Ordering::Relaxed);
        EndpointId(NonZeroU64::new(value).expect("2^64 endpoints are never opened"))
    }

    /// A fraction in [0, 1): those of many endpoints that were opened in a row lie evenly, from
    /// where `seed` says.
    pub(crate) fn spread(self, seed: u64) -> f64 {
        /// 2^64 divided by the golden ratio: its multiples never crowd.
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let at = self.0.get().wrapping_mul(GOLDEN).wrapping_add(seed);
        (at >> 32) as f64 / (1_u64 << 32) as f64
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointId({})", self.0)
    }
}

/// Names a domain within this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainId(u64);

impl DomainId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        DomainId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Names one posted operation of one endpoint; never reused within it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    /// The port that has it; [`OperationId::OWN`] if the endpoint itself has.
    port: u64,
    key: u64,
}

impl OperationId {
    /// No port has this key: there are never so many.
    const OWN: u64 = u64::MAX;

    /// An operation of a connected endpoint, or a receive of a connectionless one.
    pub(crate) fn own(key: u64) -> Self {
        OperationId {
            port: OperationId::OWN,
            key,
        }
    }

    /// An operation that was posted to the port with this key.
    pub(crate) fn of_port(port: u64, key: u64) -> Self {
        debug_assert_ne!(port, OperationId::OWN);
        OperationId { port, key }
    }

    /// The key of its port, unless the endpoint itself has it.
    pub(crate) fn port(self) -> Option<u64> {
        Some(self.port).filter(|port| *port != OperationId::OWN)
    }

    /// Its key there.
    pub(crate) fn key(self) -> u64 {
        self.key
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            None => write!(f, "OperationId({})", self.key),
            Some(port) => write!(f, "OperationId({port}, {})", self.key),
        }
    }
}
