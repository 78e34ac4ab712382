//! The part of a [`Status`](crate::Status) that names the failed call, its server, and the time
//! that passed.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// The call that a [`Status`](crate::Status) belongs to: its method, its server, and its time. Only
/// the client knows this, and creates it only when a call fails; see
/// [`Status::call`](crate::Status::call).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallInfo {
    /// The name of the method: `Service/method`, with `#version` if it has one.
    pub method: &'static str,
    /// The address of the server, or the address that was tried first; `None` if no address is
    /// known.
    pub address: Option<SocketAddr>,
    /// The name that was looked up to find the server, if any.
    pub name: Option<String>,
    /// The time from the first poll of the call's first attempt to the error.
    pub elapsed: Duration,
    /// The time limit of the call at its first poll; `None`: no deadline.
    pub limit: Option<Duration>,
    /// The number of the attempt, from 1 on. Policies such as `retry::NotStarted` make further
    /// attempts.
    pub attempt: u32,
}

/// Shows the method and the server: `Store/put at 10.0.0.7:7901 (cache-2:7901)`.
impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at ", self.method)?;
        write_server(f, self.address, self.name.as_deref())
    }
}

fn write_server(
    f: &mut fmt::Formatter<'_>,
    address: Option<SocketAddr>,
    name: Option<&str>,
) -> fmt::Result {
    match (address, name) {
        (Some(address), Some(name)) => write!(f, "{address} ({name})"),
        (Some(address), None) => write!(f, "{address}"),
        (None, Some(name)) => f.write_str(name),
        (None, None) => f.write_str("a server without an address"),
    }
}

/// A duration as text, in the most readable unit: `35 µs`, `500.3 ms`, `10.002 s`.
pub(crate) struct TimeText(pub(crate) Duration);

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.0 {
            time if time < Duration::from_millis(1) => (time.as_micros().to_string(), "µs"),
            time if time < Duration::from_secs(1) => (decimals(time.as_micros(), 3, 1), "ms"),
            time => (decimals(time.as_millis(), 3, 3), "s"),
        };
        write!(f, "{number} {unit}")
    }
}

impl TimeText {
    /// Returns the text of a limit as it was set. A limit of 10 ms or more is rounded up to
    /// milliseconds, since up to a millisecond may have passed before the call began.
    pub(crate) fn of_limit(limit: Duration) -> TimeText {
        let millis = limit.saturating_add(Duration::from_micros(999)).as_millis();
        match u64::try_from(millis) {
            Ok(millis @ 10..) => TimeText(Duration::from_millis(millis)),
            _ => TimeText(limit),
        }
    }
}

/// Returns the number `of` / 10^`places`, with `kept` of its decimals, without trailing zeros.
fn decimals(of: u128, places: u32, kept: usize) -> String {
    let one = 10_u128.pow(places);
    let fraction = format!("{:0width$}", of % one, width = places as usize);
    let fraction = fraction[..kept].trim_end_matches('0');
    match fraction.is_empty() {
        true => (of / one).to_string(),
        false => format!("{}.{fraction}", of / one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_the_unit_that_is_easiest_to_read() {
        let cases = [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1 ms"),
            (500_000, "500 ms"),
            (500_349, "500.3 ms"),
            (1_000_000, "1 s"),
            (10_002_900, "10.002 s"),
            (61_500_000, "61.5 s"),
        ];
        for (micros, text) in cases {
            let time = Duration::from_micros(micros);
            assert_eq!(TimeText(time).to_string(), text);
        }
        assert!(TimeText(Duration::MAX).to_string().ends_with(" s"));
        for (micros, text) in [(499_912, "500 ms"), (500_000, "500 ms"), (1_500, "1.5 ms")] {
            let limit = Duration::from_micros(micros);
            assert_eq!(TimeText::of_limit(limit).to_string(), text);
        }
        let longest = TimeText::of_limit(Duration::MAX);
        assert!(longest.to_string().ends_with(" s"));
    }
}
