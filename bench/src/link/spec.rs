//! What a link is like, as it is written on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A link between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkSpec {
    /// Bits per second, each way.
    pub rate: u64,
    /// On top of what the system takes, each way.
    pub delay: Duration,
    /// Packets out of a million that are lost, each way.
    pub lost: u32,
    /// Bytes of a packet at most.
    pub mtu: u32,
}

/// Why something is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkSpecError {
    #[error("{0:?} is no rate: it has to be as 100mbit, 1gbit or 2.5gbit, and not 0")]
    Rate(String),
    #[error("{0:?} is no delay: it has to be as 5ms, 250us or 0, and at most 1s")]
    Delay(String),
    #[error("{0:?} is no loss: it has to be as 0.1%, of less than 50%")]
    Loss(String),
    #[error("{0:?} is too much: a link is RATE[,DELAY][,LOSS], as 1gbit,5ms,0.1%")]
    More(String),
}

/// Beyond these a run would not end.
const DELAY_MAX: Duration = Duration::from_secs(1);
const LOST_MAX: u32 = 500_000;

pub const MTU_DEFAULT: u32 = 1500;
/// The least that IPv4 asks for, and the most that a device has.
pub const MTU_RANGE: std::ops::RangeInclusive<i64> = 576..=65_535;

const RATE_UNITS: &[(&str, f64)] = &[("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
const DELAY_UNITS: &[(&str, f64)] = &[("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<LinkSpec, LinkSpecError> {
        let mut parts = text.split(',').peekable();
        let rate = parts.next().unwrap_or_default();
        let is_loss = |part: &&str| part.ends_with('%');
        let delay = match parts.next_if(|part| !is_loss(part)) {
            Some("0") | None => Duration::ZERO,
            Some(part) => delay(part).ok_or_else(|| LinkSpecError::Delay(part.to_owned()))?,
        };
        let lost = match parts.next() {
            Some(part) => lost(part).ok_or_else(|| LinkSpecError::Loss(part.to_owned()))?,
            None => 0,
        };
        if let Some(part) = parts.next() {
            return Err(LinkSpecError::More(part.to_owned()));
        }
        Ok(LinkSpec {
            rate: scaled(rate, RATE_UNITS)
                .map(|bits| bits as u64)
                .filter(|bits| *bits > 0)
                .ok_or_else(|| LinkSpecError::Rate(rate.to_owned()))?,
            delay,
            lost,
            mtu: MTU_DEFAULT,
        })
    }
}

fn delay(part: &str) -> Option<Duration> {
    let delay = Duration::try_from_secs_f64(scaled(part, DELAY_UNITS)?).ok()?;
    (delay <= DELAY_MAX).then_some(delay)
}

fn lost(part: &str) -> Option<u32> {
    let lost = (scaled(part, &[("%", 1e4)])?).round() as u32;
    (lost < LOST_MAX).then_some(lost)
}

/// A number with one of these units behind it.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, scale) = units
        .iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * scale)
}

impl LinkSpec {
    /// Whether packets have to be delayed or dropped, which the kernel does not do by itself.
    pub fn needs_relay(&self) -> bool {
        !self.delay.is_zero() || self.lost > 0
    }

    /// Until TCP has found out how much the link carries.
    pub fn settling(&self) -> Duration {
        // Slow start doubles with each round trip; what it misses grows more slowly.
        self.delay * 2 * 60
    }
}

/// What tables call it.
impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            rate @ 1_000_000_000.. => write!(f, "{} Gbit/s", rate as f64 / 1e9)?,
            rate => write!(f, "{} Mbit/s", rate as f64 / 1e6)?,
        }
        if !self.delay.is_zero() {
            write!(f, ", {} ms each way", self.delay.as_secs_f64() * 1e3)?;
        }
        if self.lost > 0 {
            write!(f, ", {} % lost", f64::from(self.lost) / 1e4)?;
        }
        if self.mtu != MTU_DEFAULT {
            write!(f, ", MTU {}", self.mtu)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_rate_and_perhaps_a_delay_and_a_loss() {
        let ms = Duration::from_millis;
        for (text, rate, delay, lost, name) in [
            ("1gbit", 1_000_000_000, ms(0), 0, "1 Gbit/s"),
            ("2.5gbit,0", 2_500_000_000, ms(0), 0, "2.5 Gbit/s"),
            (
                "1gbit,5ms",
                1_000_000_000,
                ms(5),
                0,
                "1 Gbit/s, 5 ms each way",
            ),
            (
                "10mbit,0.1%",
                10_000_000,
                ms(0),
                1000,
                "10 Mbit/s, 0.1 % lost",
            ),
            (
                "100mbit,250us,2%",
                100_000_000,
                Duration::from_micros(250),
                20_000,
                "100 Mbit/s, 0.25 ms each way, 2 % lost",
            ),
        ] {
            let spec: LinkSpec = text.parse().expect(text);
            assert_eq!((spec.rate, spec.delay, spec.lost), (rate, delay, lost));
            assert_eq!(spec.to_string(), name);
        }
    }

    #[test]
    fn what_is_no_link_is_refused_with_the_part_that_is_wrong() {
        use LinkSpecError::{Delay, Loss, More, Rate};
        type Kind = fn(String) -> LinkSpecError;
        let check = |text: &str, kind: Kind, part: &str| {
            let refused = text.parse::<LinkSpec>();
            assert_eq!(refused, Err(kind(part.to_owned())), "{text}");
        };
        for rate in ["", "1", "0gbit", "-1gbit", "gbit", "infgbit"] {
            check(rate, Rate, rate);
        }
        for delay in ["", "5", "2s", "-1ms", "nanms", "1e400s"] {
            check(&format!("1gbit,{delay}"), Delay, delay);
        }
        check("1gbit,5ms,1", Loss, "1");
        check("1gbit,50%", Loss, "50%");
        check("1gbit,5ms,1%,9", More, "9");
    }
}
