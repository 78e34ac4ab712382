//! Receives are posted, and end when the peer is killed.

use anyhow::{Result, bail};

use super::super::{say, server_of};
use super::connect::{Acceptor, DomainSetup};
use crate::job::EndConfig;
use crate::subject::Fabric;
use crate::sys;

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, config.job.window)?;
    let endpoint = Acceptor::open(&side)?.accept(&side, [], |_| Ok(())).await?;
    endpoint.recv(vec![0; 1]).await?;
    Ok(())
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, config.job.window)?;
    let (endpoint, _) = side.connect(server_of(&config), |_| Ok(())).await?;
    let post = |_| endpoint.recv(vec![0; config.job.size]).post();
    let receives = (0..config.job.window)
        .map(post)
        .collect::<Result<Vec<_>, _>>()?;
    say("READY", "");
    for receive in receives {
        if receive.await.is_ok() {
            bail!("a server that was killed has sent something");
        }
    }
    say("ended_ns", sys::monotonic_ns());
    Ok(())
}
