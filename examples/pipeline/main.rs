//! A data pipeline: sends record batches of an Arrow file to a peer. While one batch is
//! transferred, the next is registered, and the one after is read. The peer reads each batch from
//! this side's memory (RMA), decodes it, and answers with its digest; this side compares the
//! digests.

mod peer;
mod source;
mod stages;
mod timeline;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use tokio_fabric::{Fabric, Hints};

/// Sends the record batches of an Arrow IPC file to a peer, and shows what overlapped.
///
/// Without `--listen` or `--connect` both peers are in this process, and meet over TCP.
#[derive(Debug, Parser)]
#[command(name = "pipeline", version)]
struct Options {
    /// The Arrow IPC file to send [default: one made for the occasion]
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Record batches of a file made for the occasion
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    batches: usize,
    /// Rows in each of them
    #[arg(long, value_name = "COUNT", default_value_t = 50_000)]
    rows: usize,
    /// Be the peer that receives, of one sender; port 0 is any free one, and is printed
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Send to the peer that listens there
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fabric = Fabric::open(Hints::new())?;
    if let Some(address) = options.connect {
        return send(&options, address).await;
    }
    let events = fabric.event_queue().open()?;
    let listener = fabric.passive_endpoint(&events);
    let listener = listener.listen_at(options.listen.unwrap_or(here))?;
    let receive = peer::receive(&fabric, &events);
    if options.listen.is_some() {
        println!("listening on {}", listener.local_addr());
        let received = receive.await?;
        println!("received {received}");
        return Ok(());
    }
    let (received, ()) = tokio::try_join!(receive, send(&options, listener.local_addr()))?;
    println!("The peer received {received}.");
    Ok(())
}

async fn send(options: &Options, address: SocketAddr) -> Result<()> {
    let made = match options.file {
        Some(_) => None,
        None => Some(source::make(options.batches, options.rows)?),
    };
    let path = match (&options.file, &made) {
        (Some(path), _) => path.as_path(),
        (None, Some(made)) => made.path(),
        (None, None) => unreachable!("there is one or the other"),
    };
    let batches = source::open(path).with_context(|| path.display().to_string())?;
    let timeline = stages::run(batches, address).await?;
    print!("{timeline}");
    Ok(())
}
