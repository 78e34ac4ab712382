//! Latency samples for histograms: the duration of one in `LATENCY_SAMPLE_EVERY` operations.

use std::time::Instant;

use crate::error::OperationKind;
use crate::limits::{LATENCY_SAMPLE_EVERY, LATENCY_SAMPLES_MAX};
use crate::progress::port::Port;
use crate::proto::OpKey;
use crate::stats::LatencySample;

/// The identifier of an operation in the machine.
#[derive(Clone, Copy, Debug)]
enum SampledOp {
    Recorded(OpKey),
    /// The number of a message that was copied.
    Copied(u64),
}

/// Samples one operation at a time.
#[derive(Debug, Default)]
pub(in crate::progress) struct LatencySampler {
    posts: u32,
    current: Option<(SampledOp, OperationKind, Instant)>,
    /// Finished samples that the application has not taken yet.
    taken: Vec<LatencySample>,
}

impl LatencySampler {
    /// Called when an operation that transmits is posted.
    pub(in crate::progress) fn posted(&mut self, key: OpKey, operation: OperationKind) {
        self.sample(SampledOp::Recorded(key), operation);
    }

    /// Called when an awaited message is posted and copied.
    pub(in crate::progress) fn posted_copied(&mut self, number: u64) {
        self.sample(SampledOp::Copied(number), OperationKind::Send);
    }

    fn sample(&mut self, op: SampledOp, operation: OperationKind) {
        let is_its_turn = self.posts.is_multiple_of(LATENCY_SAMPLE_EVERY);
        self.posts = self.posts.wrapping_add(1);
        let is_free = self.current.is_none() && self.taken.len() < LATENCY_SAMPLES_MAX;
        if is_its_turn && is_free {
            self.current = Some((op, operation, Instant::now()));
        }
    }

    /// Called when operations have ended; `is_ended` says which.
    pub(in crate::progress) fn published(&mut self, is_ended: impl FnOnce(OpKey) -> bool) {
        if let Some((SampledOp::Recorded(key), ..)) = self.current
            && is_ended(key)
        {
            self.take();
        }
    }

    /// Called when copied messages have ended; `is_ended` says which.
    pub(in crate::progress) fn published_copied(&mut self, is_ended: impl FnOnce(u64) -> bool) {
        if let Some((SampledOp::Copied(number), ..)) = self.current
            && is_ended(number)
        {
            self.take();
        }
    }

    fn take(&mut self) {
        if let Some((_, operation, since)) = self.current.take() {
            self.taken.push(LatencySample {
                operation,
                duration: since.elapsed(),
            });
        }
    }
}

impl Port {
    /// Takes the samples since the last call.
    pub(crate) fn take_latencies(&self) -> Vec<LatencySample> {
        std::mem::take(&mut self.lock("take latencies").latencies.taken)
    }
}
