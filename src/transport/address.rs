//! Socket addresses with another port, and the range from which listeners choose their ports.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use crate::error::{Error, ErrorKind, Result};

/// Returns the same address with this port.
pub(super) fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// The ports that a listener at port 0 chooses from, so that a firewall can be configured;
/// `FI_TCP_PORT_LOW_RANGE` and `FI_TCP_PORT_HIGH_RANGE` of `fi_tcp(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    low: u16,
    high: u16,
}

impl PortRange {
    /// Ports `low..=high`. An empty range, or one with port 0 in it, is
    /// [`ErrorKind::InvalidArgument`].
    pub fn new(ports: RangeInclusive<u16>) -> Result<Self> {
        let (low, high) = (*ports.start(), *ports.end());
        if low == 0 || low > high {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("port range {low} to {high} is empty or contains port 0"),
            ));
        }
        Ok(PortRange { low, high })
    }

    /// The range set by the environment. `None` when neither variable is set. Values that form no
    /// range are [`ErrorKind::InvalidArgument`], since a listener outside of the intended range
    /// would be unreachable without an error.
    pub fn from_environment() -> Result<Option<Self>> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let port = |name| match variable(name) {
            None => Ok(None),
            Some(text) => match text.to_str().and_then(|text| text.trim().parse().ok()) {
                // libfabric, too, takes zero for "not set".
                Some(port) => Ok(Some(port).filter(|port| *port > 0)),
                None => Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{name} is {text:?}, which is not a port number"),
                )),
            },
        };
        match (
            port("FI_TCP_PORT_LOW_RANGE")?,
            port("FI_TCP_PORT_HIGH_RANGE")?,
        ) {
            (None, None) => Ok(None),
            (low, high) => Self::new(low.unwrap_or(1)..=high.unwrap_or(u16::MAX)).map(Some),
        }
    }

    /// The lowest port of the range.
    #[cfg(test)]
    pub fn low(&self) -> u16 {
        self.low
    }

    /// The highest port of the range.
    #[cfg(test)]
    pub fn high(&self) -> u16 {
        self.high
    }

    /// Calls `open` with one port after the other until it finds one that is not in use. Starts
    /// somewhere in the range, so that programs on one machine do not race for its first port.
    pub(super) fn first_free<T>(self, open: impl FnMut(u16) -> Result<T>) -> Result<T> {
        // Without a source of randomness the search merely starts at the first port.
        self.first_free_from(getrandom::u32().unwrap_or(0), open)
    }

    /// As [`PortRange::first_free`], but starts `start` ports into the range, modulo its length.
    pub(super) fn first_free_from<T>(
        self,
        start: u32,
        mut open: impl FnMut(u16) -> Result<T>,
    ) -> Result<T> {
        let count = u32::from(self.high - self.low) + 1;
        for step in 0..count {
            let offset = (start % count + step) % count;
            let port = self.low + u16::try_from(offset).expect("within a range of u16");
            match open(port) {
                Err(error) if error.kind() == ErrorKind::AddressInUse => {}
                done => return done,
            }
        }
        Err(Error::new(
            ErrorKind::AddressInUse,
            format!("all ports from {} to {} are in use", self.low, self.high),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_searched_once_and_only_past_ports_in_use() {
        let range = PortRange::new(10..=13).unwrap();
        let mut tried = Vec::new();
        let busy = || Error::new(ErrorKind::AddressInUse, "");
        let all: Result<()> = range.first_free(|port| {
            tried.push(port);
            Err(busy())
        });
        assert_eq!(all.unwrap_err().kind(), ErrorKind::AddressInUse);
        tried.sort_unstable();
        assert_eq!(tried, [10, 11, 12, 13]);

        let found = range.first_free(|port| if port == 12 { Ok(port) } else { Err(busy()) });
        assert_eq!(found.unwrap(), 12);

        let mut calls = 0;
        let other: Result<()> = range.first_free(|_| {
            calls += 1;
            Err(Error::new(ErrorKind::AddressNotAvailable, ""))
        });
        assert_eq!(other.unwrap_err().kind(), ErrorKind::AddressNotAvailable);
        assert_eq!(calls, 1);
    }

    #[test]
    fn the_environment_sets_either_end() {
        let range = |low: Option<&str>, high: Option<&str>| {
            PortRange::from_variables(|name| match name {
                "FI_TCP_PORT_LOW_RANGE" => low.map(OsString::from),
                "FI_TCP_PORT_HIGH_RANGE" => high.map(OsString::from),
                other => panic!("{other} is none of ours"),
            })
        };
        let ends = |low, high| {
            let range = range(low, high).unwrap();
            range.map(|range| (range.low(), range.high()))
        };
        assert_eq!(ends(None, None), None);
        assert_eq!(ends(Some("0"), Some("0")), None);
        assert_eq!(ends(Some("5000"), Some(" 5010 ")), Some((5000, 5010)));
        assert_eq!(ends(Some("5000"), None), Some((5000, u16::MAX)));
        assert_eq!(ends(None, Some("5010")), Some((1, 5010)));
        assert!(range(Some("5010"), Some("5000")).is_err());
        let error = range(Some("many"), None).unwrap_err();
        assert!(error.to_string().contains("FI_TCP_PORT_LOW_RANGE"));
    }

    #[test]
    fn a_range_must_hold_a_port() {
        assert!(PortRange::new(0..=5).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 6..=5;
        assert!(PortRange::new(reversed).is_err());
        assert!(PortRange::new(1..=u16::MAX).is_ok());
    }
}
