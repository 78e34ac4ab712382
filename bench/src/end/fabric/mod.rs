//! This library's ends, for each kind of work.

mod all_to_all;
pub mod connect;
mod death;
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

pub use register::register;
pub use stream::{pair, pairs_of_domains};

pub async fn serve(how: Fabric, told: EndConfig) -> Result<()> {
    match told.job.work {
        Work::PingPong => ping_pong::serve(how, told).await,
        Work::Rpc => rpc::fabric::serve(how, told).await,
        Work::Stream => stream::serve(how, told).await,
        Work::Write | Work::Read => rma::serve(how, told).await,
        Work::Death => death::serve(how, told).await,
        Work::Idle => rest::serve(how, told).await,
        Work::AllToAll => all_to_all::serve(how, told).await,
        Work::Neighbours => neighbours::serve(how, told).await,
        work => bail!("{work} has no other end"),
    }
}

pub async fn call(how: Fabric, told: EndConfig) -> Result<()> {
    match told.job.work {
        Work::PingPong => ping_pong::call(how, told).await,
        Work::Rpc => rpc::fabric::call(how, told).await,
        Work::Stream => stream::call(how, told).await,
        Work::Write | Work::Read => rma::call(how, told).await,
        Work::Death => death::call(how, told).await,
        Work::Idle => rest::call(how, told).await,
        Work::AllToAll => all_to_all::call(how, told).await,
        Work::Neighbours => neighbours::call(how, told).await,
        work => bail!("{work} has no other end"),
    }
}
