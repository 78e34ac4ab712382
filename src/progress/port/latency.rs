//! The time of one operation in so many, for histograms.

use std::time::Instant;

use crate::error::OperationKind;
use crate::limits::{LATENCY_SAMPLE_EVERY, LATENCY_SAMPLES_MAX};
use crate::progress::port::Port;
use crate::proto::OpKey;
use crate::stats::LatencySample;

/// Follows one operation at a time.
#[derive(Debug, Default)]
pub(in crate::progress) struct LatencySampler {
    posts: u32,
    current: Option<(OpKey, OperationKind, Instant)>,
    /// Until they are asked for.
    taken: Vec<LatencySample>,
}

impl LatencySampler {
    /// An operation for transmission was posted.
    pub(in crate::progress) fn posted(&mut self, key: OpKey, operation: OperationKind) {
        let is_its_turn = self.posts.is_multiple_of(LATENCY_SAMPLE_EVERY);
        self.posts = self.posts.wrapping_add(1);
        let is_free = self.current.is_none() && self.taken.len() < LATENCY_SAMPLES_MAX;
        if is_its_turn && is_free {
            self.current = Some((key, operation, Instant::now()));
        }
    }

    /// Some have ended; `is_ended` knows which.
    pub(in crate::progress) fn published(&mut self, is_ended: impl FnOnce(OpKey) -> bool) {
        let Some((key, operation, since)) = self.current else {
            return;
        };
        if is_ended(key) {
            self.current = None;
            self.taken.push(LatencySample {
                operation,
                duration: since.elapsed(),
            });
        }
    }
}

impl Port {
    /// The samples since the last call.
    pub(crate) fn take_latencies(&self) -> Vec<LatencySample> {
        std::mem::take(&mut self.lock("take latencies").latencies.taken)
    }
}
