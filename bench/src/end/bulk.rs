//! The large messages of `Neighbours`, counted while they go: first alone, then beside round trips.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::say;
use crate::job::{EndConfig, Job, Work};

/// Large messages that the other end has answered.
#[derive(Clone, Debug, Default)]
pub struct BulkCounter(Arc<AtomicU64>);

impl BulkCounter {
    pub fn add(&self, messages: u64) {
        self.0.fetch_add(messages, Ordering::Relaxed);
    }

    /// Starts to count the bytes of a phase.
    pub fn begin(&self, config: &EndConfig) -> BulkPhase {
        BulkPhase {
            counter: self.clone(),
            size: config.job.bulk as u64,
            since: Instant::now(),
            before: self.0.load(Ordering::Relaxed),
        }
    }

    /// Measures the bandwidth of the bulk alone, after a warm-up.
    pub async fn measure_alone(&self, config: &EndConfig) {
        tokio::time::sleep(config.job.warm).await;
        let phase = self.begin(config);
        tokio::time::sleep(config.job.run).await;
        phase.end("alone");
    }
}

/// A stretch of time whose large messages are counted.
#[derive(Debug)]
pub struct BulkPhase {
    counter: BulkCounter,
    size: u64,
    since: Instant,
    before: u64,
}

impl BulkPhase {
    /// Reports the bytes and the time.
    pub fn end(self, phase: &str) {
        let messages = self.counter.0.load(Ordering::Relaxed) - self.before;
        say(&format!("{phase}_bytes"), messages * self.size);
        say(&format!("{phase}_ns"), self.since.elapsed().as_nanos());
    }
}

/// The job of the connection that carries the large messages.
pub fn bulk_job(job: &Job) -> Job {
    Job {
        work: Work::Stream,
        size: job.bulk,
        bulk: 0,
        connections: 1,
        ..job.clone()
    }
}

/// The job of the connection that carries the round trips.
pub fn ping_job(job: &Job) -> Job {
    Job {
        work: Work::PingPong,
        window: 1,
        bulk: 0,
        connections: 1,
        ..job.clone()
    }
}
