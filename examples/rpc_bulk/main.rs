//! RDMA-style bulk RPC, as Mercury does it, on this crate's public interface alone.
//!
//! The client registers memory with its domain (awaited), fills it with a file's content and sends
//! a small request that carries the `RemoteRegion`. The server reads that region by RMA into its
//! own registered memory, several chunks on the way at a time, digests them in order and answers.
//! With `--push` the server offers memory and the client writes into it. In the end both compare
//! digests: the exit code is 0 only if they agree.
//!
//! ```text
//! cargo run --release --example rpc_bulk                      # both sides in one process
//! cargo run --release --example rpc_bulk -- --size 64G        # in bounded memory
//! cargo run --release --example rpc_bulk -- serve 0.0.0.0:7471
//! cargo run --release --example rpc_bulk -- call HOST:7471 --file PATH
//! ```

mod call;
mod frame;
mod intake;
mod options;
mod report;
mod serve;
mod source;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio_fabric::Hints;

use call::Client;
use options::{Command, Options};
use report::{Report, progress_bar};
use serve::Server;
use source::Source;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: the server's digest is another");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let options = Options::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        match &options.command {
            None => both(&options).await,
            Some(Command::Serve { address }) => serve(&options, address).await.map(|()| true),
            Some(Command::Call { address }) => {
                let source = open_source(&options)?;
                call(&options, &options::resolve(address)?, source).await
            }
        }
    });
    // A thread that waits for a slow disk must not keep the program from ending.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

/// What both sides ask for.
fn hints(options: &Options) -> Hints {
    match &options.backend {
        Some(name) => Hints::new().backend(name),
        None => Hints::new(),
    }
}

fn open_source(options: &Options) -> Result<Source> {
    match (options.size, &options.file) {
        (Some(size), _) => Ok(Source::generated(size)),
        (None, Some(path)) => Source::open(path),
        (None, None) => Source::open(&std::env::current_exe().context("which file am I")?),
    }
}

async fn serve(options: &Options, address: &str) -> Result<()> {
    let address = options::resolve(address)?[0];
    let server = Server::listen(hints(options), address, true)?;
    // The process that started this one may wait for the line, and may have gone since.
    let _ = writeln!(std::io::stdout(), "serving at {}", server.local_addr());
    server.run().await
}

/// Server and client in this process; they meet over TCP all the same.
async fn both(options: &Options) -> Result<bool> {
    let source = open_source(options)?;
    let server = Server::listen(hints(options), (Ipv4Addr::LOCALHOST, 0).into(), false)?;
    let address = server.local_addr();
    let serving = tokio::spawn(server.run());
    let done = call(options, &[address], source).await;
    serving.abort();
    done
}

/// The client's whole job.
async fn call(options: &Options, addresses: &[SocketAddr], source: Source) -> Result<bool> {
    let mut client = Client::connect(&hints(options), addresses).await?;
    // From a nanosecond to a minute, which is longer than a call may take.
    let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let half = options.calls / 2;
    client.ping(half, &mut latency).await?;
    let (name, bar) = (source.name(), progress_bar(source.len(), options.json)?);
    let moved = client
        .transfer(source, options.push, |bytes| bar.inc(bytes))
        .await;
    bar.finish_and_clear();
    let moved = moved?;
    client.ping(options.calls - half, &mut latency).await?;
    let verified = moved.verified;
    let backend = client.backend();
    let report = Report {
        source: name,
        push: options.push,
        backend,
        moved,
        latency,
    };
    report.print(options.json);
    Ok(verified)
}
