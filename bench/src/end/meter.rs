//! The client's watch: a warm-up, then a stretch from the end of one operation to the end of a
//! later one, so that neither begins in the middle of anything.

use std::time::{Duration, Instant};

use super::say;
use crate::job::Told;
use crate::sys;

/// Counts operations as they end.
#[derive(Debug)]
pub struct Meter {
    peer: u32,
    begin: Instant,
    warm: Duration,
    run: Duration,
    start: Option<Mark>,
    /// Operations that ended since the start.
    count: u64,
    /// The figures have been told.
    done: bool,
}

/// A moment, and the CPU time of both ends until then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    cpu: Duration,
}

impl Mark {
    fn now(peer: u32) -> Mark {
        let cpu = sys::process_cpu(std::process::id()) + sys::process_cpu(peer);
        Mark {
            at: Instant::now(),
            cpu,
        }
    }
}

impl Meter {
    /// Starts to warm up.
    pub fn new(told: &Told) -> Meter {
        Meter {
            peer: told.peer,
            begin: Instant::now(),
            warm: told.job.warm,
            run: told.job.run,
            start: None,
            count: 0,
            done: false,
        }
    }

    /// True once the warm-up is over.
    pub fn is_measuring(&self) -> bool {
        self.start.is_some()
    }

    /// So many operations have just ended. True when it is enough; then the figures have been told.
    pub fn add(&mut self, operations: u64) -> bool {
        if self.done {
            return true;
        }
        match self.start {
            None => {
                if self.begin.elapsed() >= self.warm {
                    self.start = Some(Mark::now(self.peer));
                }
                false
            }
            Some(start) => {
                self.count += operations;
                if start.at.elapsed() < self.run {
                    return false;
                }
                self.tell(start);
                self.done = true;
                true
            }
        }
    }

    fn tell(&self, start: Mark) {
        let end = Mark::now(self.peer);
        say("count", self.count);
        say("elapsed_ns", (end.at - start.at).as_nanos());
        say("cpu_ns", end.cpu.saturating_sub(start.cpu).as_nanos());
    }
}
