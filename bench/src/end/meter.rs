//! The client's watch: a warm-up, then a stretch from the end of one operation to the end of a
//! later one, so that neither begins in the middle of anything.

use std::time::{Duration, Instant};

use super::say;
use crate::job::EndConfig;
use crate::sys::{self, Allocations, Syscalls};

/// Counts operations as they end.
#[derive(Debug)]
pub struct Meter {
    counters: Counters,
    begin: Instant,
    warm: Duration,
    run: Duration,
    start: Option<Snapshot>,
    /// Operations that ended since the start.
    count: u64,
    /// The figures have been reported.
    done: bool,
}

/// What is counted in both ends.
#[derive(Debug)]
struct Counters {
    peer: u32,
    allocations: Option<Allocations>,
    /// The client's and the server's.
    syscalls: Option<[Syscalls; 2]>,
}

impl Counters {
    fn new(config: &EndConfig) -> Counters {
        Counters {
            peer: config.peer,
            allocations: Allocations::of_both(config.peer),
            syscalls: syscalls(config),
        }
    }

    fn now(&self) -> Snapshot {
        let cpu = sys::process_cpu(std::process::id()) + sys::process_cpu(self.peer);
        Snapshot {
            at: Instant::now(),
            cpu,
            allocations: self.allocations.as_ref().map(Allocations::now),
            syscalls: (self.syscalls.as_ref()).map(|ends| ends.each_ref().map(Syscalls::now)),
        }
    }
}

/// A moment, and what both ends have used and done until then.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    at: Instant,
    cpu: Duration,
    /// The client's and the server's.
    allocations: Option<[u64; 2]>,
    syscalls: Option<[u64; 2]>,
}

fn syscalls(config: &EndConfig) -> Option<[Syscalls; 2]> {
    if !config.job.counts_syscalls {
        return None;
    }
    Some([
        Syscalls::of(std::process::id())?,
        Syscalls::of(config.peer)?,
    ])
}

impl Meter {
    /// Starts to warm up.
    pub fn new(config: &EndConfig) -> Meter {
        Meter {
            counters: Counters::new(config),
            begin: Instant::now(),
            warm: config.job.warm,
            run: config.job.run,
            start: None,
            count: 0,
            done: false,
        }
    }

    /// True once the warm-up is over.
    pub fn is_measuring(&self) -> bool {
        self.start.is_some()
    }

    /// So many operations have just ended. True at the end of the measurement; the figures have
    /// been reported then.
    pub fn add(&mut self, operations: u64) -> bool {
        if self.done {
            return true;
        }
        match self.start {
            None => {
                if self.begin.elapsed() >= self.warm {
                    self.start = Some(self.counters.now());
                }
                false
            }
            Some(start) => {
                self.count += operations;
                if start.at.elapsed() < self.run {
                    return false;
                }
                self.report(start);
                self.done = true;
                true
            }
        }
    }

    fn report(&self, start: Snapshot) {
        let end = self.counters.now();
        say("count", self.count);
        say("elapsed_ns", (end.at - start.at).as_nanos());
        say("cpu_ns", end.cpu.saturating_sub(start.cpu).as_nanos());
        if let (Some(start), Some(end)) = (start.allocations, end.allocations) {
            let [client, server] = [0, 1].map(|at| end[at] - start[at]);
            say("allocations", client + server);
            say("allocations_client", client);
            say("allocations_server", server);
        }
        if let (Some(start), Some(end)) = (start.syscalls, end.syscalls) {
            say("syscalls_client", end[0] - start[0]);
            say("syscalls_server", end[1] - start[1]);
        }
    }
}
