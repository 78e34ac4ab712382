//! The pauses of a channel between attempts to connect.

use std::time::Duration;

use crate::limits::{BACKOFF_FACTOR, BACKOFF_FIRST_MIN, BACKOFF_JITTER, BACKOFF_MAX, BACKOFF_MIN};
use crate::status::{Code, Result, Status};

/// The pauses between attempts of a [`Channel`](crate::Channel) to connect, for
/// [`ChannelBuilder::backoff`](crate::ChannelBuilder::backoff).
///
/// With the defaults the pauses grow by 2 % each time, from 10 ms to 5 s. If attempts are refused
/// at once, the channel notices a server's return within 10 ms plus 4 % of the server's absence:
/// within 0.1 s after 2 s, and within 5 s after three minutes. A larger factor makes fewer
/// attempts, for a server with very many clients.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric_rpc::{Backoff, Channel};
///
/// let patient = Backoff::default().first(Duration::from_secs(1)).factor(1.6).jitter(0.2);
/// let builder = Channel::builder().backoff(patient.max(Duration::from_secs(120)));
/// # let _ = builder;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: BACKOFF_MIN,
            factor: BACKOFF_FACTOR,
            max: BACKOFF_MAX,
            jitter: BACKOFF_JITTER,
        }
    }
}

impl Backoff {
    /// The pause after the first attempt that fails. Less than 1 ms counts as 1 ms. Default: 10 ms.
    pub fn first(mut self, first: Duration) -> Self {
        self.first = Ord::max(first, BACKOFF_FIRST_MIN);
        self
    }

    /// The factor by which each further pause is longer than the last, 1 to 100. Default: 1.02.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The longest pause; less than [`first`](Self::first) counts as `first`. Default: 5 s.
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// The largest share of a pause, 0 to 1, by which the channel shortens the pause at random, so
    /// that the clients of a server do not all return at once. Default: 0.5.
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Checks the ranges of `factor` and `jitter`.
    pub(super) fn check(self) -> Result<Backoff> {
        let wrong = if !(1.0..=100.0).contains(&self.factor) {
            format!("a factor of {}: 1 to 100", self.factor)
        } else if !(0.0..=1.0).contains(&self.jitter) {
            format!("a jitter of {}: 0 to 1", self.jitter)
        } else {
            return Ok(self);
        };
        let what = format!("the backoff has {wrong}");
        Err(Status::not_started(Code::Internal, what))
    }

    /// Returns whether `elapsed` is shorter than the first pause.
    pub(super) fn is_within_first(&self, elapsed: Duration) -> bool {
        elapsed < self.first
    }

    /// Returns the pause after this number of consecutive failures, which is at least 1.
    pub(super) fn pause_after(&self, failures: u32, random: u64) -> Duration {
        let grown = i32::try_from(failures - 1).map_or(f64::INFINITY, |it| self.factor.powi(it));
        let grown = Duration::try_from_secs_f64(self.first.as_secs_f64() * grown);
        let max = Ord::max(self.first, self.max);
        let pause = grown.map_or(max, |it| it.min(max));
        shorten(pause, self.jitter, random)
    }
}

/// Shortens a pause by a random part of `share`.
pub(crate) fn shorten(pause: Duration, share: f64, random: u64) -> Duration {
    let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
    let less = Duration::try_from_secs_f64(pause.as_secs_f64() * share * unit);
    pause.saturating_sub(less.unwrap_or(pause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let backoff = Backoff::default().check().unwrap();
        for random in [0, 7, 1023 << 50, u64::MAX] {
            for failures in [1, 2, 10, 100, 1000, u32::MAX] {
                let pause = backoff.pause_after(failures, random);
                assert!(pause >= BACKOFF_MIN / 2 && pause <= BACKOFF_MAX);
            }
            assert!(backoff.pause_after(1, random) <= BACKOFF_MIN);
            assert!(backoff.pause_after(500, random) >= BACKOFF_MAX / 2);
        }
        let pauses = (0..20).map(|at| backoff.pause_after(9, at << 59));
        let pauses: std::collections::BTreeSet<_> = pauses.collect();
        assert_eq!(pauses.len(), 20);
    }

    /// "Every duration may be 0 or the greatest."
    #[test]
    fn any_durations_make_a_pause() {
        let (none, all) = (Duration::ZERO, Duration::MAX);
        for (first, max) in [(none, none), (none, all), (all, none), (all, all)] {
            let backoff = Backoff::default().first(first).max(max);
            for (failures, random) in [(1, 0), (u32::MAX, 0), (1, u64::MAX), (9000, u64::MAX)] {
                let pause = backoff.pause_after(failures, random);
                assert!(pause >= BACKOFF_FIRST_MIN / 2, "{pause:?}");
            }
        }
    }

    #[test]
    fn a_backoff_out_of_range_is_refused() {
        let backoff = Backoff::default();
        assert!(backoff.check().is_ok());
        for (wrong, named) in [
            (backoff.factor(0.9), "factor"),
            (backoff.factor(f64::NAN), "factor"),
            (backoff.jitter(1.1), "jitter"),
        ] {
            let status = wrong.check().unwrap_err();
            assert!(status.message().contains(named), "{status}");
        }
    }
}
