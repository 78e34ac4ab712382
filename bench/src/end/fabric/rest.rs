//! Connections with one receive posted each, or with receives that they share, and nothing to do.

use anyhow::Result;
use tokio_fabric::Endpoint;

use super::super::idle::{Memory, Watch};
use super::super::server_of;
use super::connect::{Acceptor, DomainSetup};
use crate::job::{EndConfig, Job};
use crate::subject::Fabric;

/// Bytes of a message, if one came.
const MESSAGE_SIZE: usize = 64;

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = open(how, &config.job)?;
    let acceptor = Acceptor::open(&side)?;
    let mut endpoints = Vec::new();
    for _ in 0..config.job.connections {
        endpoints.push(acceptor.accept(&side, [], |it| post(&side, it)).await?);
    }
    std::future::pending().await
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = open(how, &config.job)?;
    let before = Memory::now(&config);
    let mut endpoints = Vec::new();
    for _ in 0..config.job.connections {
        endpoints.push(
            side.connect(server_of(&config), |it| post(&side, it))
                .await?,
        );
    }
    tokio::time::sleep(config.job.warm).await;
    Memory::now(&config).report_since(&before);
    let watch = Watch::start(&config);
    tokio::time::sleep(config.job.run).await;
    watch.report(&config);
    Ok(())
}

fn open(how: Fabric, job: &Job) -> Result<DomainSetup> {
    match how.shares_receives {
        true => DomainSetup::open_sharing(how, job, 1, MESSAGE_SIZE),
        false => DomainSetup::open(how, job, 1),
    }
}

/// Posts the one receive of an endpoint that has its own.
fn post(side: &DomainSetup, endpoint: &Endpoint) -> Result<()> {
    if side.receives.is_none() {
        let receive = endpoint.recv(vec![0; MESSAGE_SIZE]);
        receive.queue(0_usize).try_post()?;
    }
    Ok(())
}
