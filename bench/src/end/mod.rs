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
mod secure;
mod spinning;
mod streams;
pub mod ucx;

use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio_fabric::{Driver, LocalPath};

use crate::job::{EndConfig, Role, Work};
use crate::options;
use crate::pin;
use crate::subject::{self, Kind, Layer, Rpc, Tcp};
use crate::sys;

/// Plays the end, and reports to the parent, on failure too.
pub fn run(end: &options::EndOptions) -> Result<()> {
    // An end whose parent has gone is of no use.
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
    // The parent has the error; what a failing end prints besides is not read.
    Ok(())
}

fn play(end: &options::EndOptions) -> Result<()> {
    let config = EndConfig::parse(&end.job)?;
    let subject = subject::named(&end.subject_name).context("no such subject")?;
    pin::to(&[config.cpu])?;
    if !config.job.work.is_alone() {
        sys::count_allocations();
    }
    if end.role == Role::Server {
        sys::share_allocations()?;
    }
    if matches!(config.job.work, Work::Pairs | Work::Shards | Work::Contexts) {
        return pairs::run(subject.kind, &config);
    }
    match (subject.kind, end.role) {
        (Kind::Tcp(Tcp::Spin), Role::Server) => spinning::serve(&config),
        (Kind::Tcp(Tcp::Spin), Role::Client) => spinning::call(&config),
        (Kind::Tcp(_), Role::Server) => blocking::serve(&config),
        (Kind::Tcp(how), Role::Client) => blocking::call(&config, how == Tcp::Gather),
        (Kind::Tokio { .. } | Kind::TokioTls, role)
            if matches!(config.job.work, Work::Rpc | Work::RpcMixed) =>
        {
            let is_secure = subject.is_secure();
            match role {
                Role::Server => on_runtime(rpc::plain::serve(config, is_secure)),
                Role::Client => on_runtime(rpc::plain::call(config, is_secure)),
            }
        }
        (Kind::Rpc(Rpc::Tonic), Role::Server) => on_runtime(rpc::tonic::serve(config)),
        (Kind::Rpc(Rpc::Tonic), Role::Client) => on_runtime(rpc::tonic::call(config)),
        (Kind::Rpc(Rpc::Layer(how @ Layer::InRing)), role) => {
            let layer = rpc::layer::run(role, config, how);
            fabric::connect::on_own_thread(subject::IN_RING, layer)
        }
        (Kind::Rpc(Rpc::Layer(how)), role) => on_runtime(rpc::layer::run(role, config, how)),
        (Kind::Rpc(Rpc::Ruapc), Role::Server) => on_runtime(rpc::ruapc::serve(config)),
        (Kind::Rpc(Rpc::Ruapc), Role::Client) => on_runtime(rpc::ruapc::call(config)),
        (Kind::Rpc(Rpc::Tarpc), Role::Server) => on_runtime(rpc::tarpc::serve(config)),
        (Kind::Rpc(Rpc::Tarpc), Role::Client) => on_runtime(rpc::tarpc::call(config)),
        (Kind::TokioTls, Role::Server) => on_runtime(secure::serve(config)),
        (Kind::TokioTls, Role::Client) => on_runtime(secure::call(config)),
        (Kind::Tokio { .. }, Role::Server) => on_runtime(streams::serve(config)),
        (Kind::Tokio { gather }, Role::Client) => on_runtime(streams::call(config, gather)),
        (Kind::Fabric(how), role) if how.driver == Driver::Local => {
            fabric::connect::on_own_thread(how, async move {
                match role {
                    Role::Server => fabric::serve(how, config).await,
                    Role::Client => fabric::call(how, config).await,
                }
            })
        }
        (Kind::Fabric(how), Role::Server) => on_runtime(fabric::serve(how, config)),
        (Kind::Fabric(how), Role::Client) if config.job.work.is_alone() => {
            runtime()?.block_on(fabric::register(how, config))
        }
        (Kind::Fabric(how), Role::Client) => on_runtime(fabric::call(how, config)),
        (Kind::Ucx { transport, spin }, Role::Server) => ucx::serve(&config, transport, spin),
        (Kind::Ucx { transport, spin }, Role::Client) => ucx::call(&config, transport, spin),
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

fn server_of(config: &EndConfig) -> SocketAddr {
    (config.job.host, config.port).into()
}

/// Bytes to send. A page that was never written to is one that all share, and stays in the caches.
fn payload(len: usize) -> Vec<u8> {
    vec![1; len]
}

/// A line for the parent.
fn say(name: &str, value: impl Display) {
    let mut out = std::io::stdout().lock();
    // A parent that has gone needs nothing.
    let _ = writeln!(out, "{name} {value}");
    let _ = out.flush();
}

/// Whether bytes may go through shared memory.
fn local_path(is_local: bool) -> LocalPath {
    match is_local {
        true => LocalPath::Auto,
        false => LocalPath::Off,
    }
}
