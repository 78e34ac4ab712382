//! RMA writes and reads, a window of them under way, each in its own part of the region.

use anyhow::{Context, Result, ensure};
use tokio_fabric::{Access, RemoteRegion};

use super::super::meter::Meter;
use super::super::{payload, server_of};
use super::connect::{Acceptor, DomainSetup};
use crate::job::{EndConfig, Work};
use crate::subject::Fabric;

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, config.job.window)?;
    let memory = payload(config.job.size * config.job.window);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = side.domain.register(memory).access(access).await?;
    let acceptor = Acceptor::open(&side)?;
    let endpoint = acceptor
        .accept(&side, region.remote().to_bytes(), |_| Ok(()))
        .await?;
    // Nothing is left to do here: progress is the domain's own business. Nothing will come.
    endpoint.recv(vec![0; 1]).await?;
    Ok(())
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, config.job.window)?;
    let (endpoint, data) = side.connect(server_of(&config), |_| Ok(())).await?;
    let remote = RemoteRegion::from_bytes(&data)?;
    let size = config.job.size;
    let post = |slot: usize, buffer: Vec<u8>| -> Result<()> {
        let begin = slot * size;
        let there = remote.slice(begin as u64..(begin + size) as u64)?;
        match config.job.work {
            Work::Read => endpoint.read(buffer, there).queue(slot).try_post()?,
            _ => endpoint.write(buffer, there).queue(slot).try_post()?,
        };
        Ok(())
    };
    let mut meter = Meter::new(&config);
    for slot in 0..config.job.window {
        post(
            slot,
            match config.job.work {
                Work::Read => vec![0; size],
                _ => payload(size),
            },
        )?;
    }
    let mut completions = Vec::new();
    loop {
        side.completions(&mut completions).await?;
        for mut completion in completions.drain(..) {
            completion.result.clone().map_err(|failed| failed.error)?;
            let buffer = completion
                .take_buffer()
                .and_then(|buffer| buffer.into_vec().ok());
            let buffer = buffer.context("a completion without its buffer")?;
            if meter.add(1) {
                let is_written = buffer.last().is_some_and(|byte| *byte != 0);
                ensure!(
                    is_written,
                    "the memory of the other end was never written to"
                );
                return Ok(());
            }
            post(completion.context.0 as usize, buffer)?;
        }
    }
}
