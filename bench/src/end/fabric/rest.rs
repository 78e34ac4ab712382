//! Connections with one receive posted each, and nothing to do.

use anyhow::Result;
use tokio_fabric::Endpoint;

use super::super::idle::{Memory, Watch};
use super::super::server_of;
use super::connect::{DomainSetup, Door};
use crate::job::EndConfig;
use crate::subject::Fabric;

pub async fn serve(how: Fabric, told: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &told.job, 1)?;
    let door = Door::open(&side)?;
    let mut endpoints = Vec::new();
    for _ in 0..told.job.connections {
        endpoints.push(door.accept(&side, [], post_receive).await?);
    }
    std::future::pending().await
}

pub async fn call(how: Fabric, told: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &told.job, 1)?;
    let before = Memory::now(&told);
    let mut endpoints = Vec::new();
    for _ in 0..told.job.connections {
        endpoints.push(side.connect(server_of(&told), post_receive).await?);
    }
    tokio::time::sleep(told.job.warm).await;
    Memory::now(&told).tell_since(&before);
    let watch = Watch::start(&told);
    tokio::time::sleep(told.job.run).await;
    watch.tell(&told);
    Ok(())
}

fn post_receive(endpoint: &Endpoint) -> Result<()> {
    endpoint.recv(vec![0; 64]).queue(0_usize).try_post()?;
    Ok(())
}
