//! One reading: what the program has counted so far, and what it holds now.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Where a program serves its statistics.
#[derive(Clone, Debug)]
pub enum StatsAddress {
    Port(SocketAddr),
    Path(PathBuf),
}

impl FromStr for StatsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<StatsAddress, String> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(StatsAddress::Port(address)),
            Ok(address) => Err(format!("{address}: only an address of 127.0.0.0/8, or ::1")),
            Err(_) => Ok(StatsAddress::Path(text.into())),
        }
    }
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// The connection to the program.
pub struct Source(BufReader<Box<dyn Stream>>);

impl Source {
    pub fn open(place: &StatsAddress) -> Result<Source> {
        let stream: Box<dyn Stream> = match place {
            StatsAddress::Port(address) => {
                let stream = TcpStream::connect(address);
                Box::new(stream.with_context(|| format!("no statistics at {address}"))?)
            }
            StatsAddress::Path(path) => {
                let stream = UnixStream::connect(path);
                Box::new(stream.with_context(|| format!("no statistics at {}", path.display()))?)
            }
        };
        Ok(Source(BufReader::new(stream)))
    }

    pub fn read(&mut self) -> Result<Reading> {
        self.0.get_mut().write_all(b"\n")?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            bail!("the program has ended");
        }
        Ok(Reading(serde_json::from_str(&line)?))
    }
}

pub struct Reading(Value);

impl Reading {
    pub fn value(&self, at: &str) -> Option<&Value> {
        self.0.pointer(at)
    }

    pub fn text(&self, at: &str) -> &str {
        self.0.pointer(at).and_then(Value::as_str).unwrap_or("-")
    }

    /// Returns a number; 0 if the program does not report it.
    pub fn number(&self, at: &str) -> f64 {
        number(self.0.pointer(at))
    }

    pub fn list(&self, at: &str) -> &[Value] {
        let list = self.0.pointer(at).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// The sum of a statistic over all endpoints.
    pub fn sum(&self, at: &str) -> f64 {
        let endpoints = self.list("/endpoints").iter();
        endpoints.map(|endpoint| number(endpoint.pointer(at))).sum()
    }

    /// Seconds since the program began.
    pub fn seconds(&self) -> f64 {
        self.number("/seconds")
    }
}

/// A number, or a duration in seconds.
pub fn number(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Object(time)) => {
            let part = |name: &str| time.get(name).and_then(Value::as_f64).unwrap_or_default();
            part("secs") + part("nanos") / 1e9
        }
        value => value.and_then(Value::as_f64).unwrap_or_default(),
    }
}
