//! Large messages on one connection and round trips on another one of the same domain, each in a
//! task of its own.

use anyhow::Result;

use super::super::bulk::{BulkCounter, bulk_job, ping_job};
use super::super::pings::Pings;
use super::super::server_of;
use super::connect::{DomainSetup, Door};
use super::ping_pong::{OPERATIONS, Player};
use super::stream;
use crate::job::EndConfig;
use crate::subject::Fabric;

pub async fn serve(how: Fabric, told: EndConfig) -> Result<()> {
    let (bulk, ping) = (bulk_job(&told.job), ping_job(&told.job));
    let bulk_side = stream::open(how, &bulk)?;
    let ping_side = DomainSetup::within(&bulk_side.fabric, &bulk_side.domain, &ping, OPERATIONS)?;
    let door = Door::open(&bulk_side)?;
    // The client connects for the large messages first.
    let served = stream::accept(&bulk_side, &door, &bulk).await?;
    let endpoint = door.accept(&ping_side, [], |_| Ok(())).await?;
    tokio::spawn(async move { stream::answer(&bulk_side, served, &bulk).await });
    Player::new(endpoint, ping.size)?.serve().await
}

pub async fn call(how: Fabric, told: EndConfig) -> Result<()> {
    let (bulk, ping) = (bulk_job(&told.job), ping_job(&told.job));
    let bulk_side = stream::open(how, &bulk)?;
    let ping_side = DomainSetup::within(&bulk_side.fabric, &bulk_side.domain, &ping, OPERATIONS)?;
    let mut senders = stream::connect(&bulk_side, server_of(&told), &bulk).await?;
    let (endpoint, _) = ping_side.connect(server_of(&told), |_| Ok(())).await?;
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
    counter.measure_alone(&told).await;
    let beside = counter.begin(&told);
    let mut pings = Pings::new(&told)?;
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
