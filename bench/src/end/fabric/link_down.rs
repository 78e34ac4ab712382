//! Reads, one after the other, until the link has gone down. The server is that of all RMA.

use anyhow::Result;
use tokio_fabric::RemoteRegion;

use super::super::{say, server_of};
use super::connect::DomainSetup;
use crate::job::EndConfig;
use crate::subject::Fabric;
use crate::sys;

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, config.job.window)?;
    let (endpoint, data) = side.connect(server_of(&config), |_| Ok(())).await?;
    let remote = RemoteRegion::from_bytes(&data)?;
    let there = || remote.slice(0..config.job.size as u64);
    let (_, mut buffer) = endpoint.read(vec![0; config.job.size], there()?).await?;
    say("READY", "");
    while let Ok((_, read)) = endpoint.read(buffer, there()?).await {
        buffer = read;
    }
    say("ended_ns", sys::monotonic_ns());
    Ok(())
}
