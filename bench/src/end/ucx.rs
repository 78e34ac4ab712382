//! UCX: its own program, `ucx_perftest`, over one of its transports.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::say;
use crate::job::{EndConfig, Job, Work};
use crate::link;

const PROGRAM: &str = "ucx_perftest";
/// The server listens after it has reported its port: for so long the client tries.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds after which a client is ended that hangs.
const HANGS_AFTER: &str = "10";

/// True if the program is there.
pub fn is_installed() -> bool {
    let found = Command::new(PROGRAM).arg("-h").output();
    found.is_ok_and(|output| !output.stdout.is_empty())
}

/// Becomes the program.
pub fn serve(config: &EndConfig, transport: &str, spin: bool) -> Result<()> {
    let port = TcpListener::bind(config.job.any_port())?
        .local_addr()?
        .port();
    say("PORT", port);
    let mut command = Command::new(PROGRAM);
    set_up(&mut command, config, (transport, port), spin);
    Err(command.exec()).context(PROGRAM)
}

/// The arguments that both ends get.
fn set_up(command: &mut Command, config: &EndConfig, (transport, port): (&str, u16), spin: bool) {
    let device = match config.job.host.is_loopback() {
        true => "lo",
        false => link::DEVICE,
    };
    command
        .env("UCX_TLS", transport)
        .env("UCX_NET_DEVICES", device)
        .env("UCX_LOG_LEVEL", "fatal")
        .args(["-p", &port.to_string(), "-c", &config.cpu.to_string()])
        .args(["-E", if spin { "poll" } else { "sleep" }]);
}

pub fn call(config: &EndConfig, transport: &str, spin: bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let job = &config.job;
    let (test, guess) = match job.work {
        Work::PingPong => ("tag_lat", Duration::from_micros(if spin { 20 } else { 80 })),
        Work::Stream => ("tag_bw", Duration::from_micros(2)),
        Work::Write => ("ucp_put_bw", Duration::from_micros(2)),
        Work::Read => ("ucp_get", Duration::from_micros(20)),
        work => bail!("UCX's program does no {work}"),
    };
    // It counts operations, not time.
    let count = |time: Duration| (time.as_nanos() / (guess + moved_in(job)).as_nanos()).max(20);
    loop {
        let mut command = Command::new("timeout");
        command.args([HANGS_AFTER, PROGRAM, &config.job.host.to_string()]);
        set_up(&mut command, config, (transport, config.port), spin);
        command
            .args(["-t", test, "-s", &job.size.to_string(), "-f", "-v"])
            .args(["-n", &count(job.run).to_string()])
            .args(["-w", &count(job.warm).to_string()])
            .args(["-O", &job.window.to_string()]);
        let output = command.output().context(PROGRAM)?;
        if output.status.success() {
            return report(&String::from_utf8_lossy(&output.stdout));
        }
        if Instant::now() > until {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// About how long the bytes of an operation take.
fn moved_in(job: &Job) -> Duration {
    Duration::from_nanos(job.size as u64 / 2)
}

/// Operations, the latency in microseconds of half a round trip, and operations per second are in
/// the first, second and last column of the last line.
fn report(output: &str) -> Result<()> {
    let line = output.lines().last().context("it printed nothing")?;
    let columns: Vec<f64> = line
        .split(',')
        .map_while(|text| text.trim().parse().ok())
        .collect();
    let [count, half, .., rate] = columns[..] else {
        bail!("it printed {line:?}");
    };
    say("count", count);
    say("elapsed_ns", count / rate * 1e9);
    say("p50_ns", half * 2e3);
    Ok(())
}
