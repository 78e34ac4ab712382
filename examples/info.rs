//! Lists what is available on this machine, and why the rest is not, like fi_info(1).

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use tokio_fabric::{Backend, EndpointType, Fabric, Hints, Info, discover};

/// Lists interfaces, kinds of endpoint and backends.
#[derive(Parser)]
struct Options {
    /// Only this kind of endpoint.
    #[arg(long, value_enum)]
    endpoint: Option<Kind>,
    /// Only this network interface.
    #[arg(long)]
    interface: Option<String>,
    /// Only what reaches this address.
    #[arg(long)]
    dest: Option<std::net::SocketAddr>,
    /// All attributes of each answer.
    #[arg(short, long)]
    verbose: bool,
    /// One JSON object, for programs.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Msg,
    Rdm,
    Dgram,
}

impl Options {
    /// Returns hints for each kind of endpoint to list.
    fn hints(&self) -> Vec<Hints> {
        let kinds = match self.endpoint {
            Some(kind) => vec![kind],
            None => vec![Kind::Msg, Kind::Rdm, Kind::Dgram],
        };
        let hints = kinds.into_iter().map(|kind| {
            let mut hints = Hints::new().endpoint(match kind {
                Kind::Msg => EndpointType::Msg,
                Kind::Rdm => EndpointType::Rdm,
                Kind::Dgram => EndpointType::Dgram,
            });
            if let Some(interface) = &self.interface {
                hints = hints.interface(interface);
            }
            if let Some(dest) = self.dest {
                hints = hints.dest(dest);
            }
            hints
        });
        hints.collect()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    // The errors of all kinds say the same, so only the last is shown, if nothing is found.
    let (mut infos, mut refusal) = (Vec::new(), None);
    for hints in options.hints() {
        match discover(&hints) {
            Ok(found) => infos.extend(found),
            Err(error) => refusal = Some(error),
        }
    }
    if let Some(error) = refusal.filter(|_| infos.is_empty()) {
        return Err(error.into());
    }
    let backends = [Backend::Epoll, Backend::IoUring, Backend::Loopback];
    let backends = backends.map(|backend| (backend, why_not(backend)));
    if options.json {
        let infos: Vec<Value> = infos.iter().map(as_json).collect();
        let backends: Vec<Value> = backends
            .iter()
            .map(|(backend, why)| json!({ "name": backend.name(), "why_not": why }))
            .collect();
        return print(&format!(
            "{}\n",
            json!({ "backends": backends, "infos": infos })
        ));
    }
    let mut table = String::new();
    for (backend, why) in backends {
        match why {
            None => writeln!(table, "backend {:<9} yes", backend.name())?,
            Some(why) => writeln!(table, "backend {:<9} no: {why}", backend.name())?,
        }
    }
    writeln!(
        table,
        "\n{:<9} {:<6} {:<6} {:<20} ADDRESS",
        "INTERFACE", "KIND", "PROV", "FABRIC"
    )?;
    for info in &infos {
        writeln!(
            table,
            "{:<9} {:<6} {:<6} {:<20} {}",
            info.domain.name,
            format!("{:?}", info.endpoint.endpoint_type).to_lowercase(),
            info.fabric.provider,
            info.fabric.name,
            info.interface.address
        )?;
        if options.verbose {
            writeln!(table, "{info:#?}\n")?;
        }
    }
    print(&table)
}

/// Prints to the standard output. A reader that closes the pipe early is not an error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns why this backend is not available; `None`: it is available.
fn why_not(backend: Backend) -> Option<String> {
    let fabric = Fabric::open(Hints::new().backend(backend.name()));
    let opened = fabric.and_then(|fabric| fabric.domain().open());
    opened.err().map(|error| error.to_string())
}

fn as_json(info: &Info) -> Value {
    json!({
        "interface": info.domain.name,
        "kind": format!("{:?}", info.endpoint.endpoint_type).to_lowercase(),
        "provider": info.fabric.provider,
        "fabric": info.fabric.name,
        "address": info.interface.address,
        "mtu": info.interface.mtu,
        "speed_mbps": info.interface.speed_mbps,
        "max_msg_size": info.endpoint.max_msg_size,
        "inject_size": info.tx.inject_size,
        "tx_size": info.tx.size,
        "rx_size": info.rx.size,
        "caps": info.caps.iter_names().map(|(name, _)| name).collect::<Vec<_>>(),
    })
}
