//! What idle connections cost: memory before and after they are made, CPU time while nothing is
//! done.

use std::time::{Duration, Instant};

use super::say;
use crate::job::EndConfig;
use crate::sys;

/// Memory of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    resident_client: u64,
    resident_server: u64,
    heap_client: u64,
}

impl Memory {
    pub fn now(config: &EndConfig) -> Memory {
        Memory {
            resident_client: resident(std::process::id()),
            resident_server: resident(config.peer),
            heap_client: sys::heap_in_use(),
        }
    }

    /// Reports the memory that was added since `before`.
    pub fn report_since(&self, before: &Memory) {
        say(
            "resident_client",
            self.resident_client.saturating_sub(before.resident_client),
        );
        say(
            "resident_server",
            self.resident_server.saturating_sub(before.resident_server),
        );
        say(
            "heap_client",
            self.heap_client.saturating_sub(before.heap_client),
        );
    }
}

/// The CPU time of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    begin: Instant,
    cpu: Duration,
}

impl Watch {
    pub fn start(config: &EndConfig) -> Watch {
        Watch {
            begin: Instant::now(),
            cpu: both(config),
        }
    }

    pub fn report(&self, config: &EndConfig) {
        say("elapsed_ns", self.begin.elapsed().as_nanos());
        say("cpu_ns", both(config).saturating_sub(self.cpu).as_nanos());
    }
}

fn both(config: &EndConfig) -> Duration {
    sys::process_cpu(std::process::id()) + sys::process_cpu(config.peer)
}

/// Bytes of memory that a process has in use; 0 if the system does not say.
fn resident(process: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages: u64 = pages
        .split(' ')
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
