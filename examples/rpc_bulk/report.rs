//! What the user sees: the bar while it runs, the result at the end.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use tokio_fabric::Backend;

use crate::call::Moved;

/// The result of a job.
pub struct Report {
    pub source: String,
    pub push: bool,
    pub backend: Backend,
    pub moved: Moved,
    /// Latency of empty calls, in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Report {
    fn gb_per_s(&self) -> f64 {
        let seconds = self.moved.time.as_secs_f64();
        if seconds > 0.0 {
            self.moved.bytes as f64 / seconds / 1e9
        } else {
            0.0
        }
    }

    fn microseconds(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    pub fn print(&self, json: bool) {
        if json {
            let object = serde_json::json!({
                "bytes": self.moved.bytes,
                "digest": self.moved.digest.to_hex().as_str(),
                "verified": self.moved.verified,
                "gb_per_s": self.gb_per_s(),
                "rpc_p50_us": self.microseconds(0.50),
                "rpc_p99_us": self.microseconds(0.99),
                "backend": self.backend.to_string(),
            });
            println!("{object}");
            return;
        }
        let Moved {
            bytes,
            digest,
            verified,
            time,
        } = &self.moved;
        let how = if self.push {
            "written by the client"
        } else {
            "read by the server"
        };
        let verdict = if *verified {
            "verified by the server"
        } else {
            "NOT what the server has"
        };
        println!(
            "moved       {} of {}, {how}",
            HumanBytes(*bytes),
            self.source
        );
        println!("digest      {digest} (BLAKE3), {verdict}");
        println!(
            "throughput  {:.2} GB/s ({:.3} s)",
            self.gb_per_s(),
            time.as_secs_f64()
        );
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
        let quantiles =
            quantiles.map(|(name, at)| format!("{name} {:.1} µs", self.microseconds(at)));
        println!(
            "empty call  {} ({} calls)",
            quantiles.join(", "),
            self.latency.len()
        );
        println!("backend     {}", self.backend);
    }
}

/// A bar on standard error if that is a terminal; nothing otherwise.
pub fn progress_bar(len: Option<u64>, json: bool) -> Result<ProgressBar> {
    if json || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let (bar, template) = match len {
        Some(len) => (
            ProgressBar::new(len),
            "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {bytes}, {bytes_per_sec}",
        ),
    };
    bar.set_style(ProgressStyle::with_template(template)?);
    bar.enable_steady_tick(Duration::from_millis(100));
    Ok(bar)
}
