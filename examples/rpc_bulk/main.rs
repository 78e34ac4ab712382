//! Remote calls with bulk data by RMA, on tokio-fabric-rpc.
//!
//! The client lends windows of a file to its calls; the server reads each by RMA, digests it, and
//! writes it back with `--push`. The exit code is 0 only if both have the same digest.
//!
//! ```text
//! cargo run --release -p examples --example rpc_bulk                # both sides in one process
//! cargo run --release -p examples --example rpc_bulk -- --size 64G  # in bounded memory
//! cargo run --release -p examples --example rpc_bulk -- serve 0.0.0.0:7471
//! cargo run --release -p examples --example rpc_bulk -- call HOST:7471 --file PATH
//! ```

mod options;
mod report;
mod service;
mod source;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::spawn_blocking;
use tokio_fabric::{Fabric, Hints};
use tokio_fabric_rpc::{Channel, Lend, Server};

use options::{Command, Job};
use service::{BulkClient, BulkServer, Transfers};
use source::Source;

const FAILED: &str = "a call of the server failed";

fn main() -> ExitCode {
    match run() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => eprintln!("error: the server's digest is another"),
        Err(error) => eprintln!("error: {error:#}"),
    }
    ExitCode::FAILURE
}

fn run() -> Result<bool> {
    let options = options::read()?;
    let backend = options.backend.map(|name| Hints::new().backend(name));
    let fabric = Fabric::open(backend.unwrap_or_default())?;
    let server = |logs| {
        let service = BulkServer::new(Transfers::new(logs));
        Server::new().fabric(&fabric).add(service)
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(async {
        match &options.command {
            Some(Command::Serve { address }) => {
                let serving = server(true).bind(address).await;
                let serving = serving.with_context(|| format!("cannot listen at {address}"))?;
                // The process that started this one and waits for the line may have ended.
                let _ = writeln!(std::io::stdout(), "serving at {}", serving.local_addr());
                std::future::pending().await
            }
            Some(Command::Call { address, job }) => call(&fabric, address, source(job)?, job).await,
            None => {
                let source = source(&options.job)?;
                let serving = server(false).bind("127.0.0.1:0").await?;
                call(
                    &fabric,
                    &serving.local_addr().to_string(),
                    source,
                    &options.job,
                )
                .await
            }
        }
    });
    // A thread that waits for a slow disk must not keep the program from ending.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

fn source(job: &Job) -> Result<Source> {
    match (job.size, &job.file) {
        (Some(size), _) => Ok(Source::generated(size)),
        (None, Some(path)) => Source::open(path),
        (None, None) => Source::open(&std::env::current_exe()?),
    }
}

async fn call(fabric: &Fabric, to: &str, mut source: Source, job: &Job) -> Result<bool> {
    let channel = Channel::builder().fabric(fabric).connect(to).await;
    let channel = channel.with_context(|| format!("cannot connect to {to}"))?;
    let client = BulkClient::over(channel);
    // Latencies from 1 ns to 1 min, which is longer than a call may take.
    let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    ping(&client, job.calls / 2, &mut latency).await?;
    let (start, bar) = (Instant::now(), ProgressBar::new(source.len.unwrap_or(0)));
    bar.set_style(ProgressStyle::with_template("{bar} {bytes_per_sec}")?);
    let (mut bytes, mut window, mut spare) = (0, Vec::new(), Vec::new());
    (source, window) = spawn_blocking(|| source.fill(window)).await??;
    // The server reads one window while the next is filled.
    while !window.is_empty() {
        let filling = spawn_blocking(|| source.fill(spare));
        let end = bytes + window.len() as u64;
        spare = put(&client, bytes, window, job.push).await?;
        bytes = end;
        bar.set_position(bytes);
        (source, window) = filling.await??;
    }
    let digest = source.hasher.finalize();
    let servers = client.finish(bytes, digest.into()).await.context(FAILED)?;
    let (time, verified) = (start.elapsed(), digest == servers);
    bar.finish_and_clear();
    ping(&client, job.calls - job.calls / 2, &mut latency).await?;
    let microseconds = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    let result = serde_json::json!({
        "bytes": bytes,
        "digest": digest.to_hex().as_str(),
        "verified": verified,
        "gb_per_s": bytes as f64 / time.as_nanos() as f64,
        "rpc_p50_us": microseconds(0.50),
        "rpc_p99_us": microseconds(0.99),
        "backend": client.channel().domain().backend().to_string(),
    });
    match job.json {
        true => println!("{result}"),
        false => report::print(&result, &source.name, job.push, time, &latency),
    }
    Ok(verified)
}

/// Makes empty calls, one after the other.
async fn ping(client: &BulkClient, calls: u32, latency: &mut Histogram<u64>) -> Result<()> {
    for _ in 0..calls {
        let start = Instant::now();
        client.ping().await.context(FAILED)?;
        latency.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
    }
    Ok(())
}

/// Lends a window to a call. When the call ends, however it ends, no peer can access the window.
async fn put(client: &BulkClient, at: u64, window: Vec<u8>, push: bool) -> Result<Vec<u8>> {
    let back = Lend::write(vec![0; if push { window.len() } else { 0 }]);
    let call = client.put(at, Lend::read(window), back);
    let (_, (window, back)) = call.await.context(FAILED)?;
    ensure!(back.is_empty() || back == window, "other bytes came back");
    Ok(window)
}
