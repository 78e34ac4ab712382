//! One end of a run, in a process of its own. It says on its output `PORT n` (the server, once it
//! listens), `READY` (the client, where the parent has to act), then the client's figures as
//! `name number` lines, or `ERROR why`.

mod blocking;
mod bulk;
mod connection_stats;
mod fabric;
mod idle;
mod meter;
mod pairs;
mod pings;
mod receive_buffers;
mod rpc;
mod spinning;
mod streams;
pub mod ucx;

use std::fmt::Display;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};

use crate::job::{EndConfig, Role, Work};
use crate::options;
use crate::pin;
use crate::subject::{self, Kind, Rpc, Tcp};
use crate::sys;

/// Plays the end, and tells the parent, on failure too.
pub fn run(end: &options::End) -> Result<()> {
    // Nobody waits for an end whose parent has gone.
    let killed = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(killed))?;
    sys::raise_descriptor_limit();
    let played = play(end);
    if let Err(error) = &played {
        let words: Vec<String> = format!("{error:#}")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        say("ERROR", words.join(" "));
    }
    // The parent has heard it; nobody reads what a failing end prints besides.
    Ok(())
}

fn play(end: &options::End) -> Result<()> {
    let told = EndConfig::parse(&end.job)?;
    let subject = subject::named(&end.subject_name).context("no such subject")?;
    pin::to(&[told.cpu])?;
    if !told.job.work.is_alone() {
        sys::count_allocations();
    }
    if end.role == Role::Server {
        sys::share_allocations()?;
    }
    if matches!(told.job.work, Work::Pairs | Work::Shards) {
        return pairs::run(subject.kind, &told);
    }
    match (subject.kind, end.role) {
        (Kind::Tcp(Tcp::Spin), Role::Server) => spinning::serve(&told),
        (Kind::Tcp(Tcp::Spin), Role::Client) => spinning::call(&told),
        (Kind::Tcp(_), Role::Server) => blocking::serve(&told),
        (Kind::Tcp(how), Role::Client) => blocking::call(&told, how == Tcp::Gather),
        (Kind::Tokio { .. }, role) if told.job.work == Work::Rpc => match role {
            Role::Server => on_runtime(rpc::plain::serve(told)),
            Role::Client => on_runtime(rpc::plain::call(told)),
        },
        (Kind::Rpc(Rpc::Tonic), Role::Server) => on_runtime(rpc::tonic::serve(told)),
        (Kind::Rpc(Rpc::Tonic), Role::Client) => on_runtime(rpc::tonic::call(told)),
        (Kind::Rpc(Rpc::Tarpc), Role::Server) => on_runtime(rpc::tarpc::serve(told)),
        (Kind::Rpc(Rpc::Tarpc), Role::Client) => on_runtime(rpc::tarpc::call(told)),
        (Kind::Tokio { .. }, Role::Server) => on_runtime(streams::serve(told)),
        (Kind::Tokio { gather }, Role::Client) => on_runtime(streams::call(told, gather)),
        (Kind::Fabric(how), Role::Server) => on_runtime(fabric::serve(how, told)),
        (Kind::Fabric(how), Role::Client) if told.job.work.is_alone() => {
            runtime()?.block_on(fabric::register(how, told))
        }
        (Kind::Fabric(how), Role::Client) => on_runtime(fabric::call(how, told)),
        (Kind::Ucx { spin }, Role::Server) => ucx::serve(&told, spin),
        (Kind::Ucx { spin }, Role::Client) => ucx::call(&told, spin),
        (Kind::Libfabric { .. }, _) => anyhow::bail!("libfabric's ends are a program in C"),
    }
}

/// One thread for the application and for progress, and the work in a task of its own: the runtime
/// looks for I/O before it polls a `main` that was woken, but not before a task that was.
fn on_runtime(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    runtime()?.block_on(async { tokio::spawn(work).await? })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()
}

/// Where servers listen.
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn server_of(told: &EndConfig) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, told.port).into()
}

/// A line for the parent.
fn say(name: &str, value: impl Display) {
    let mut out = std::io::stdout().lock();
    // A parent that has gone needs nothing.
    let _ = writeln!(out, "{name} {value}");
    let _ = out.flush();
}
