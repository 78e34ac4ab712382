//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use crate::message;
use crate::serve::StatsAddress;

/// Connectionless endpoints (FI_EP_RDM) that all send to all at once, here and in other processes.
///
/// Shows messages per second of each pair while it runs, verifies what arrives, and names the
/// peers that died. Alone it runs in this process; others may join it at any time by --join.
#[derive(Debug, Parser)]
#[command(name = "rdm_all_to_all", version)]
pub struct Options {
    /// Endpoints of this process
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=200))]
    pub endpoints: u16,
    /// Join whom HOST:PORT, any endpoint of another process, knows
    #[arg(long, value_name = "HOST:PORT")]
    pub join: Vec<String>,
    /// The same, for each line of a file
    #[arg(long, value_name = "PATH")]
    pub seeds: Option<PathBuf>,
    /// Where to listen: an address that peers can reach. Endpoints take ports from PORT on, or any
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1", value_parser = listen)]
    pub listen: SocketAddr,
    /// How the endpoints of this process send
    #[arg(long, value_enum, default_value_t = Mode::Message)]
    pub mode: Mode,
    /// Bytes of each message, the same in all processes
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(message::HEADER as i64..=16 << 20))]
    pub size: u32,
    /// Operations that each endpoint has under way to each peer
    #[arg(long, value_name = "COUNT", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub window: u16,
    /// How long to run; 0: until Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub seconds: u32,
    /// After how long a peer that cannot be reached is called gone
    #[arg(long, value_name = "SECONDS", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub give_up: u32,
    /// What moves the bytes: epoll, io-uring or loopback [default: epoll]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Serve statistics at this path, or IP:PORT of this machine, for the example `top`
    #[arg(long, value_name = "PATH")]
    pub stats: Option<StatsAddress>,
    /// Print the result as one JSON object, and what happens meanwhile to standard error
    #[arg(long)]
    pub json: bool,
}

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Untagged messages
    Message,
    /// Tagged messages, whose tag is their number
    Tagged,
    /// Reads of the peers' memory
    Rma,
}

impl Options {
    /// Reads the command line, and appends the addresses of the `--seeds` file to `join`.
    pub fn read() -> Result<Options> {
        let mut options = Options::parse();
        if let Some(path) = &options.seeds {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let lines = text.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            options.join.extend(lines.map(str::to_owned));
        }
        if options.backend.as_deref() == Some("loopback") && !options.join.is_empty() {
            bail!("the loopback backend is within one process: no other process can be joined");
        }
        Ok(options)
    }

    /// Returns where the endpoint of this index listens.
    pub fn listen_at(&self, index: u16) -> Result<SocketAddr> {
        let port = match self.listen.port() {
            0 => 0,
            first => first.checked_add(index).context("ports end at 65535")?,
        };
        Ok(SocketAddr::new(self.listen.ip(), port))
    }

    pub fn size(&self) -> usize {
        self.size as usize
    }

    pub fn window(&self) -> usize {
        self.window.into()
    }

    /// Returns how long to run; `None`: without end.
    pub fn time(&self) -> Option<Duration> {
        (self.seconds > 0).then(|| Duration::from_secs(self.seconds.into()))
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let alone = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0));
    let address = alone.or_else(|_| text.parse::<SocketAddr>());
    let address = address.map_err(|_| "an IP address, or one with a port".to_owned())?;
    match address.ip().is_unspecified() {
        true => Err("an address that peers can reach, not a wildcard".to_owned()),
        false => Ok(address),
    }
}
