//! The table of results, in `fi_pingpong(1)`'s columns.

use std::cmp::Ordering;
use std::io::Write;
use std::time::Duration;

/// Messages of a round trip: ping and pong.
const TRANSFERS: u64 = 2;

/// A table being printed, line by line.
#[derive(Debug, Default)]
pub struct Table {
    begun: bool,
}

impl Table {
    /// Prints the line of one size: `acknowledged` of the `sent` pings were answered.
    pub fn print(
        &mut self,
        size: usize,
        sent: u64,
        acknowledged: u64,
        elapsed: Duration,
    ) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if !std::mem::replace(&mut self.begun, true) {
            writeln!(
                out,
                "{:<8}{:<8}{:<9}{:<8}{:>8} {:>10}{:>13}{:>13}",
                "bytes", "#sent", "#ack", "total", "time", "MB/sec", "usec/xfer", "Mxfers/sec"
            )?;
        }
        let acknowledged = match acknowledged.cmp(&sent) {
            Ordering::Equal => format!("={}", count(acknowledged)),
            Ordering::Greater => format!("-{}", count(acknowledged - sent)),
            Ordering::Less => format!("+{}", count(sent - acknowledged)),
        };
        let transfers = sent * TRANSFERS;
        let total = transfers * size as u64;
        let micros = elapsed.as_secs_f64() * 1e6;
        let each = micros / transfers as f64;
        writeln!(
            out,
            "{:<8}{:<8}{acknowledged:<9}{:<8}{:>8.2}s{:>10.2}{each:>11.2}{:>11.2}",
            bytes(size as u64),
            count(sent),
            bytes(total),
            elapsed.as_secs_f64(),
            total as f64 / micros,
            each.recip(),
        )
    }
}

/// `1536` as `1.5k`: one digit after the point, and only below 10.
fn bytes(size: u64) -> String {
    let (unit, letter) = match size {
        0..0x400 => (1, ""),
        0x400..0x10_0000 => (1 << 10, "k"),
        0x10_0000..0x4000_0000 => (1 << 20, "m"),
        _ => (1 << 30, "g"),
    };
    let (whole, tenths) = (size / unit, size % unit * 10 / unit);
    if whole < 10 && tenths > 0 {
        format!("{whole}.{tenths}{letter}")
    } else {
        format!("{whole}{letter}")
    }
}

/// `20000` as `20k`, rounded down.
fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{}k", n / 1_000),
        1_000_000..1_000_000_000 => format!("{}m", n / 1_000_000),
        _ => format!("{}b", n / 1_000_000_000),
    }
}
