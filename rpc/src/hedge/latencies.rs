//! The recent durations of calls.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{HEDGE_CALLS_MIN, HEDGE_PERIOD};

/// Buckets per doubling: a time is measured to a sixteenth.
const PER_DOUBLING: u32 = 16;
/// Times of less than 16 µs have a bucket per microsecond; times of more than an hour share a
/// bucket.
const BUCKETS: usize = 480;

/// The times of the calls of the current period and of the previous one.
#[derive(Default)]
pub(super) struct Latencies {
    periods: [Counts; 2],
    since: Option<Instant>,
}

#[derive(Default)]
struct Counts {
    /// Number of calls in each bucket; ends with the last bucket that is not 0.
    buckets: Vec<u32>,
    calls: u32,
}

impl Latencies {
    pub(super) fn record(&mut self, took: Duration, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now - since >= HEDGE_PERIOD {
            let is_recent = now - since < 2 * HEDGE_PERIOD;
            let last = std::mem::take(&mut self.periods[0]);
            self.periods[1] = if is_recent { last } else { Counts::default() };
            self.since = Some(now);
        }
        let (counts, at) = (&mut self.periods[0], bucket_of(took));
        if counts.buckets.len() <= at {
            counts.buckets.resize(at + 1, 0);
        }
        counts.buckets[at] = counts.buckets[at].saturating_add(1);
        counts.calls = counts.calls.saturating_add(1);
    }

    /// Returns the time within which this share of the calls has ended; `None`: there are too few
    /// calls.
    pub(super) fn percentile(&self, share: f64) -> Option<Duration> {
        let calls: u64 = self.periods.iter().map(|it| u64::from(it.calls)).sum();
        if calls < u64::from(HEDGE_CALLS_MIN) {
            return None;
        }
        let mut left = ((calls as f64 * share).ceil() as u64).max(1);
        for at in 0..BUCKETS {
            let of_bucket = self.periods.iter().filter_map(|it| it.buckets.get(at));
            let count = of_bucket.map(|it| u64::from(*it)).sum();
            match left.checked_sub(count) {
                Some(rest) if rest > 0 => left = rest,
                _ => return Some(end_of(at)),
            }
        }
        Some(end_of(BUCKETS - 1))
    }
}

fn bucket_of(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let Some(doublings) = (micros / u64::from(PER_DOUBLING)).checked_ilog2() else {
        return micros as usize;
    };
    let within = (micros >> doublings) as u32 - PER_DOUBLING;
    let at = PER_DOUBLING * (doublings + 1) + within;
    (at as usize).min(BUCKETS - 1)
}

/// Returns the time at which a bucket ends.
fn end_of(at: usize) -> Duration {
    let (at, per) = (at as u64 + 1, u64::from(PER_DOUBLING));
    Duration::from_micros(match (at / per).checked_sub(1) {
        None => at,
        Some(doublings) => (per + at % per) << doublings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_a_bucket_that_ends_soon_after_it() {
        for micros in (0..100).chain([1000, 12_345, 99_999, 10_000_000, 3_599_000_000]) {
            let took = Duration::from_micros(micros);
            let end = end_of(bucket_of(took));
            let most = Duration::from_micros(micros + 1 + micros / 16);
            assert!(took < end && end <= most, "{took:?} {end:?}");
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert!(end_of(BUCKETS - 1) > Duration::from_secs(3600));
    }

    #[test]
    fn a_percentile_is_of_the_last_two_periods() {
        let (mut latencies, now) = (Latencies::default(), Instant::now());
        let at = |period: u32| now + period * HEDGE_PERIOD;
        for took in 1..HEDGE_CALLS_MIN {
            latencies.record(Duration::from_millis(took.into()), at(0));
        }
        assert_eq!(latencies.percentile(0.5), None);
        latencies.record(Duration::from_millis(1), at(0));
        let about = |share, millis: u64| {
            let time = latencies.percentile(share).unwrap();
            let (least, most) = (millis, millis + 1 + millis / 16);
            assert!(
                (least..=most).contains(&(time.as_millis() as u64)),
                "{time:?}"
            );
        };
        about(0.0, 1);
        about(0.5, 9);
        about(1.0, 19);
        for period in [1, 2] {
            for _ in 0..HEDGE_CALLS_MIN {
                latencies.record(Duration::from_secs(1), at(period));
            }
        }
        assert!(latencies.percentile(0.0).unwrap() >= Duration::from_secs(1));
    }
}
