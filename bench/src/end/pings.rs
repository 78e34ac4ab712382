//! The client of a ping-pong keeps every round trip's time.

use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::meter::Meter;
use super::say;
use crate::job::EndConfig;

/// A round trip that took longer counts as this long.
const TIME_MAX_NS: u64 = 10_000_000_000;

/// Round trips, timed.
#[derive(Debug)]
pub struct Pings {
    meter: Meter,
    times: Histogram<u64>,
    since: Instant,
}

impl Pings {
    pub fn new(config: &EndConfig) -> Result<Pings> {
        let times = Histogram::new_with_bounds(1, TIME_MAX_NS, 3)?;
        Ok(Pings {
            meter: Meter::new(config),
            times,
            since: Instant::now(),
        })
    }

    /// A pong has come; the next ping goes right away. True at the end of the measurement; the
    /// figures have been reported then.
    pub fn add(&mut self) -> bool {
        let now = Instant::now();
        if self.meter.is_measuring() {
            self.times
                .saturating_record((now - self.since).as_nanos() as u64);
        }
        self.since = now;
        if !self.meter.add(1) {
            return false;
        }
        say("p50_ns", self.times.value_at_quantile(0.5));
        say("p99_ns", self.times.value_at_quantile(0.99));
        true
    }
}
