//! Whether what is sent in a turn leaves in parts: the first has the peer work while the rest is
//! gathered. A peer on the same processor cannot, and each part only costs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use rustix::net::sockopt::socket_incoming_cpu;
use rustix::thread::sched_getcpu;
use tokio_fabric::Endpoint;
use tokio_fabric::ep::TcpOps;

use crate::limits::PROCESSOR_CHECK_TURNS;

/// Of a connection; asked by the one task that reads what comes.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Turns until it is looked at again where the peer runs.
    turns: AtomicU32,
    may_split: AtomicBool,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts {
            turns: AtomicU32::new(0),
            may_split: AtomicBool::new(true),
        }
    }
}

impl Parts {
    /// True if what is sent in the next turn may leave in parts.
    pub(crate) fn may_split(&self, endpoint: &Endpoint) -> bool {
        match self.turns.load(Relaxed) {
            0 => {
                self.turns.store(PROCESSOR_CHECK_TURNS, Relaxed);
                let may = !shares_processor(endpoint);
                self.may_split.store(may, Relaxed);
                may
            }
            left => {
                self.turns.store(left - 1, Relaxed);
                self.may_split.load(Relaxed)
            }
        }
    }
}

/// What comes over the loopback interface is delivered on the processor of who sends it.
fn shares_processor(endpoint: &Endpoint) -> bool {
    let is_here = endpoint.peer_addr().is_some_and(|it| it.ip().is_loopback());
    let Some(ops) = is_here.then(|| endpoint.ops::<TcpOps>().ok()).flatten() else {
        return false;
    };
    let of_peer = ops.with_fd(|socket| socket_incoming_cpu(socket));
    matches!(of_peer, Ok(Ok(of_peer)) if of_peer as usize == sched_getcpu())
}
