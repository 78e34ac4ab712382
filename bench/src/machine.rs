//! What was measured on, and when.

use std::fmt;
use std::fs;

use anyhow::Result;

use crate::options::Options;
use crate::pin::Cpus;

/// The machine, for the head of every result.
#[derive(Debug)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub kernel: String,
    /// The system's algorithm of congestion control: it paces and so changes all that is measured.
    pub congestion: String,
    pub memory_gib: f64,
    /// UTC.
    pub date: String,
    pub commit: String,
    pub pinned_client: usize,
    pub pinned_server: usize,
    pub cpus: Cpus,
}

impl Machine {
    pub fn inspect(options: &Options) -> Result<Machine> {
        let cpus = Cpus::choose(options.cpus.as_deref())?;
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: f64 = field(&meminfo, "MemTotal")
            .trim_end_matches(" kB")
            .parse()
            .unwrap_or(0.0);
        Ok(Machine {
            processor: field(&cpuinfo, "model name").to_owned(),
            processors: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            congestion: fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
                .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned()),
            memory_gib: (kib / 1_048_576.0 * 10.0).round() / 10.0,
            date: said_by("date", &["-u", "+%Y-%m-%d %H:%M"]),
            commit: said_by(
                "git",
                &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always"],
            ),
            pinned_client: cpus.client,
            pinned_server: cpus.server,
            cpus,
        })
    }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let of_line = |line: &'a str| line.strip_prefix(name)?.trim_start().strip_prefix(':');
    text.lines().find_map(of_line).map_or("unknown", str::trim)
}

/// What a program prints; "unknown" if it cannot.
fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {}, {} GiB, Linux {} with {}, {} UTC, commit {}; client on processor {}, server on {}",
            self.processors,
            self.processor,
            self.memory_gib,
            self.kernel,
            self.congestion,
            self.date,
            self.commit,
            self.pinned_client,
            self.pinned_server,
        )
    }
}
