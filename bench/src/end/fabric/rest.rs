//! Connections with one receive posted each, and nothing to do.

use anyhow::Result;
use tokio_fabric::Endpoint;

use super::super::idle::{Memory, Watch};
use super::super::server_of;
use super::connect::{Acceptor, DomainSetup};
use crate::job::EndConfig;
use crate::subject::Fabric;

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, 1)?;
    let acceptor = Acceptor::open(&side)?;
    let mut endpoints = Vec::new();
    for _ in 0..config.job.connections {
        endpoints.push(acceptor.accept(&side, [], post_receive).await?);
    }
    std::future::pending().await
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, 1)?;
    let before = Memory::now(&config);
    let mut endpoints = Vec::new();
    for _ in 0..config.job.connections {
        endpoints.push(side.connect(server_of(&config), post_receive).await?);
    }
    tokio::time::sleep(config.job.warm).await;
    Memory::now(&config).report_since(&before);
    let watch = Watch::start(&config);
    tokio::time::sleep(config.job.run).await;
    watch.report(&config);
    Ok(())
}

fn post_receive(endpoint: &Endpoint) -> Result<()> {
    endpoint.recv(vec![0; 64]).queue(0_usize).try_post()?;
    Ok(())
}
