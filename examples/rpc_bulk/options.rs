//! The command line. An error in it is reported in one line.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

/// RDMA-style bulk RPC: a client registers memory and sends a small request that names it; the
/// server reads it by RMA (or has the client write it) and answers when its digest is right.
///
/// Without a command, server and client run in this process and move this program's own file over
/// TCP.
#[derive(Debug, Parser)]
#[command(name = "rpc_bulk", version)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The file to move [default: this program]
    #[arg(long, global = true, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Move so many bytes of generated data instead of a file (suffixes K, M, G, T)
    #[arg(long, global = true, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// The client writes into the server's memory, instead of the server reading the client's
    #[arg(long, global = true)]
    pub push: bool,
    /// Empty calls whose latency is measured, half of them before the transfer and half after
    #[arg(long, global = true, value_name = "COUNT", default_value_t = 4000)]
    pub calls: u32,
    /// What moves the bytes: epoll, io-uring or loopback [default: epoll]
    #[arg(long, global = true, value_name = "NAME")]
    pub backend: Option<String>,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
}

/// One half of the job.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve clients at HOST:PORT until killed; port 0 lets the system choose
    Serve {
        /// Where to listen, HOST:PORT
        address: String,
    },
    /// Move the file or data to the server at HOST:PORT
    Call {
        /// The server, HOST:PORT
        address: String,
    },
}

impl Options {
    /// Reads the command line; help and version are printed and end the program.
    pub fn read() -> Result<Options> {
        let options = match Options::try_parse() {
            Ok(options) => options,
            Err(error) if !error.use_stderr() => error.exit(),
            Err(error) => bail!("{}", one_line(&error.to_string())),
        };
        if options.file.is_some() && options.size.is_some() {
            bail!("--file and --size exclude each other");
        }
        if matches!(options.command, Some(Command::Serve { .. })) {
            let given = [
                (options.file.is_some(), "--file"),
                (options.size.is_some(), "--size"),
                (options.push, "--push"),
                (options.json, "--json"),
            ];
            if let Some((_, name)) = given.into_iter().find(|(given, _)| *given) {
                bail!("{name} is for the client, not for serve");
            }
        }
        Ok(options)
    }
}

/// What clap says, without the usage that follows.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let said: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:"))
        .collect();
    let said = said
        .into_iter()
        .filter(|line| !line.is_empty() && !line.starts_with("For more"));
    let said = said.collect::<Vec<_>>().join(" ");
    said.strip_prefix("error: ").unwrap_or(&said).to_owned()
}

/// A count of bytes, with a suffix of 1024 to the first, second, third or fourth power.
fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a number of bytes such as 4096, 64K, 256M, 64G or 1T");
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let bytes = number.checked_mul(1 << shift);
    bytes.ok_or_else(|| format!("{text:?} is more than 64 bits count"))
}

/// The addresses that HOST:PORT stands for, at least one.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>> {
    let found = text
        .to_socket_addrs()
        .with_context(|| format!("no such address: {text}"))?;
    let found: Vec<SocketAddr> = found.collect();
    if found.is_empty() {
        bail!("no such address: {text}");
    }
    Ok(found)
}
