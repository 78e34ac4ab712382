//! Refused callers: counted, and logged at a bounded rate, since strangers cause these events.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::caught::{BoundedLog, log};
use crate::cx::Cx;
use crate::status::Status;

/// Counts of calls and connections that were refused because the caller is not authorized.
#[derive(Debug, Default)]
pub(crate) struct Unauthorized {
    calls: AtomicU64,
    connections: AtomicU64,
    logged: BoundedLog,
}

impl Unauthorized {
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a call that is not authorized.
    #[cold]
    pub(super) fn note_call(&self, call: &Cx, status: &Status) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.logged.admit() {
            let (peer, method) = (call.peer(), call.method());
            log(|| tracing::info!(%peer, method, %status, left_out, "a call is not authorized"));
        }
    }

    /// Counts a connection whose client has no key, a wrong key, or a key name that is unknown
    /// here.
    #[cold]
    pub(super) fn note_connection(&self, peer: SocketAddr, status: &Status) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.logged.admit() {
            log(|| tracing::info!(%peer, %status, left_out, "a client is not authorized"));
        }
    }
}
