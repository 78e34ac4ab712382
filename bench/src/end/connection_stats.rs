//! The client's watch over its connections: the meter of all, and, where each is watched, how long
//! its answers take, how evenly they have their turns, and the memory that they take.

use std::time::Instant;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::idle::Memory;
use super::meter::Meter;
use super::say;
use crate::job::{EndConfig, Job};

/// An answer that took longer counts as this long.
const TIME_MAX_NS: u64 = 10_000_000_000;

/// All connections of a client.
#[derive(Debug)]
pub struct ConnectionStats {
    meter: Meter,
    batch: usize,
    each: Option<Each>,
}

/// What is known of each.
#[derive(Debug)]
struct Each {
    config: EndConfig,
    before: Memory,
    /// Batches that may be on the way at once.
    under_way: usize,
    /// When the batches of each connection that have no answer yet went out.
    sent_at: Vec<Instant>,
    connections: Vec<Turns>,
    times: Histogram<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    /// Batches sent and answered, ever.
    sent: usize,
    answered: usize,
    /// Answers that counted.
    counted: u32,
}

/// Before the connections are made.
#[derive(Debug)]
pub struct StatsBaseline(Option<Each>);

impl StatsBaseline {
    pub fn now(config: &EndConfig) -> Result<StatsBaseline> {
        if !config.job.watches_each {
            return Ok(StatsBaseline(None));
        }
        let (connections, under_way) = (config.job.connections, config.job.answers());
        let mut each = Each {
            config: config.clone(),
            before: Memory::now(config),
            under_way,
            sent_at: vec![Instant::now(); connections * under_way],
            connections: vec![Turns::default(); connections],
            times: Histogram::new_with_bounds(1, TIME_MAX_NS, 3)?,
        };
        // Again, since what watches them is none of their memory.
        each.before = Memory::now(config);
        Ok(StatsBaseline(Some(each)))
    }

    /// All connections are there, and have sent what their windows allow.
    pub fn begin(self, config: &EndConfig) -> ConnectionStats {
        let mut crowd = ConnectionStats {
            meter: Meter::new(config),
            batch: config.job.batch(),
            each: self.0,
        };
        if let Some(each) = &mut crowd.each {
            each.begin(&config.job);
        }
        crowd
    }
}

impl ConnectionStats {
    /// A connection has an answer to so many batches, and sends as many. True at the end of the
    /// measurement; the figures have been reported then.
    pub fn answered(&mut self, connection: usize, batches: usize) -> bool {
        if let Some(each) = &mut self.each {
            each.answered(connection, batches, self.meter.is_measuring());
        }
        let enough = self.meter.add((batches * self.batch) as u64);
        if enough && let Some(each) = self.each.take() {
            each.report();
        }
        enough
    }
}

impl Each {
    fn begin(&mut self, job: &Job) {
        self.sent_at.fill(Instant::now());
        for turns in &mut self.connections {
            turns.sent = job.window / job.batch();
        }
    }

    fn answered(&mut self, connection: usize, batches: usize, counts: bool) {
        let now = Instant::now();
        let turns = &mut self.connections[connection];
        let places = &mut self.sent_at[connection * self.under_way..][..self.under_way];
        for _ in 0..batches {
            let since = places[turns.answered % places.len()];
            turns.answered += 1;
            places[turns.sent % places.len()] = now;
            turns.sent += 1;
            if counts {
                turns.counted += 1;
                self.times
                    .saturating_record((now - since).as_nanos() as u64);
            }
        }
    }

    fn report(&self) {
        Memory::now(&self.config).report_since(&self.before);
        say("p50_ns", self.times.value_at_quantile(0.5));
        say("p99_ns", self.times.value_at_quantile(0.99));
        say(
            "fairness",
            fairness(self.connections.iter().map(|turns| turns.counted)),
        );
    }
}

/// Jain's index: 1 where all have the same, 1 / n where one of n has all.
fn fairness(counts: impl Iterator<Item = u32>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for count in counts.map(f64::from) {
        n += 1.0;
        sum += count;
        squares += count * count;
    }
    sum * sum / (n * squares)
}

#[test]
fn fairness_is_one_where_all_have_the_same() {
    assert_eq!(fairness([5, 5, 5].into_iter()), 1.0);
    assert_eq!(fairness([8, 0, 0, 0].into_iter()), 0.25);
}
