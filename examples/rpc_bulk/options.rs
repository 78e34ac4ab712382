//! The command line. An error in it is reported in one line.

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};

/// Remote calls with bulk data: the client lends memory to its calls, and the server reads it by
/// RMA. Without a command, both run in this process and move this program's own file over TCP.
#[derive(Debug, Parser)]
#[command(name = "rpc_bulk", version, args_conflicts_with_subcommands = true)]
pub struct Options {
    /// What moves the bytes: epoll, io-uring or loopback [default: epoll]
    #[arg(long, global = true, value_name = "NAME")]
    pub backend: Option<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub job: Job,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients at HOST:PORT until killed; port 0 lets the system choose
    Serve { address: String },
    /// Move the file or data to the server at HOST:PORT
    Call {
        address: String,
        #[command(flatten)]
        job: Job,
    },
}

#[derive(Debug, Args)]
pub struct Job {
    /// The file to move [default: this program]
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub file: Option<std::path::PathBuf>,
    /// Move so many bytes of generated data instead of a file (suffixes K, M, G, T)
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// The server also writes what it has read back, into memory that the client lends
    #[arg(long)]
    pub push: bool,
    /// Empty calls whose latency is measured, half of them before the transfer and half after
    #[arg(long, value_name = "COUNT", default_value_t = 4000)]
    pub calls: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Reads the command line; prints help and version, which end the program.
pub fn read() -> Result<Options> {
    Options::try_parse().or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        let text = error.to_string();
        let words: Vec<&str> = text.split_whitespace().skip(1).collect();
        bail!("{}", words.join(" "))
    })
}

/// Parses a number of bytes, with a suffix for the first to the fourth power of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let suffixes = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let strip = |(suffix, shift)| Some((text.strip_suffix(suffix)?, shift));
    let (digits, shift) = suffixes.into_iter().find_map(strip).unwrap_or((text, 0));
    let number: Option<u64> = digits.parse().ok();
    let number = number.and_then(|it| it.checked_mul(1 << shift));
    number.ok_or_else(|| "not a number of bytes such as 4096, 64K or 1T".to_owned())
}
