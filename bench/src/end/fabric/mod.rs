//! This library's ends, for each kind of work.

mod all_to_all;
pub mod connect;
mod contexts;
mod death;
mod link_down;
mod neighbours;
mod ping_pong;
mod register;
mod rest;
mod rma;
mod stream;

use anyhow::{Result, bail};

use super::rpc;
use crate::job::{EndConfig, Work};
use crate::subject::Fabric;

pub use contexts::all_to_all as all_to_all_of_contexts;
pub use register::register;
pub use stream::{pair, pairs_of_domains};

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    match config.job.work {
        Work::PingPong => ping_pong::serve(how, config).await,
        Work::Rpc => rpc::fabric::serve(how, config).await,
        Work::Stream => stream::serve(how, config).await,
        Work::Write | Work::Read | Work::LinkDown => rma::serve(how, config).await,
        Work::Death => death::serve(how, config).await,
        Work::Idle => rest::serve(how, config).await,
        Work::AllToAll => all_to_all::serve(how, config).await,
        Work::Neighbours => neighbours::serve(how, config).await,
        work => bail!("{work} has no other end"),
    }
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    match config.job.work {
        Work::PingPong => ping_pong::call(how, config).await,
        Work::Rpc => rpc::fabric::call(how, config).await,
        Work::Stream => stream::call(how, config).await,
        Work::Write | Work::Read => rma::call(how, config).await,
        Work::Death => death::call(how, config).await,
        Work::LinkDown => link_down::call(how, config).await,
        Work::Idle => rest::call(how, config).await,
        Work::AllToAll => all_to_all::call(how, config).await,
        Work::Neighbours => neighbours::call(how, config).await,
        work => bail!("{work} has no other end"),
    }
}
