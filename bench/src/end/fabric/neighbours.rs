//! Large messages on one connection and round trips on another one of the same domain, each in a
//! task of its own.

use anyhow::Result;

use super::super::bulk::{BulkCounter, bulk_job, ping_job};
use super::super::pings::Pings;
use super::super::server_of;
use super::connect::{Acceptor, DomainSetup};
use super::ping_pong::{OPERATIONS, Player};
use super::stream;
use crate::job::EndConfig;
use crate::subject::Fabric;

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let (bulk, ping) = (bulk_job(&config.job), ping_job(&config.job));
    let bulk_side = stream::open(how, &bulk)?;
    let ping_side = DomainSetup::within(&bulk_side.fabric, &bulk_side.domain, &ping, OPERATIONS)?;
    let acceptor = Acceptor::open(&bulk_side)?;
    // The client connects for the large messages first.
    let served = stream::accept(&bulk_side, &acceptor, &bulk).await?;
    let endpoint = acceptor.accept(&ping_side, [], |_| Ok(())).await?;
    tokio::spawn(async move { stream::answer(&bulk_side, served, &bulk).await });
    Player::new(endpoint, ping.size)?.serve().await
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let (bulk, ping) = (bulk_job(&config.job), ping_job(&config.job));
    let bulk_side = stream::open(how, &bulk)?;
    let ping_side = DomainSetup::within(&bulk_side.fabric, &bulk_side.domain, &ping, OPERATIONS)?;
    let mut senders = stream::connect(&bulk_side, server_of(&config), &bulk).await?;
    let (endpoint, _) = ping_side.connect(server_of(&config), |_| Ok(())).await?;
    let mut player = Player::new(endpoint, ping.size)?;
    stream::begin(&mut senders, &bulk)?;
    let counter = BulkCounter::default();
    let (counting, batch) = (counter.clone(), bulk.batch() as u64);
    let sending = tokio::spawn(async move {
        let count = |_| {
            counting.add(batch);
            false
        };
        stream::send(&bulk_side, senders, &bulk, count).await
    });
    counter.measure_alone(&config).await;
    let beside = counter.begin(&config);
    let mut pings = Pings::new(&config)?;
    loop {
        player.send().await?;
        player.receive().await?;
        if pings.add() {
            beside.end("beside");
            sending.abort();
            return Ok(());
        }
    }
}
