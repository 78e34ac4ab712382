//! Crowds: many channels that connect at once and call, and that reconnect at once because their
//! server has restarted.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio_fabric::{Fabric, Hints};
use tokio_fabric_rpc::{Channel, Cx, Listening, Result, Server, service};

/// A call of a crowd is given so long: whatever a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

#[service]
trait Count {
    async fn next(&self, cx: &Cx, number: u64) -> Result<u64>;
}

struct Counts;

impl Count for Counts {
    async fn next(&self, _: &Cx, number: u64) -> Result<u64> {
        Ok(number + 1)
    }
}

async fn listen(address: SocketAddr) -> Listening {
    let begun = Instant::now();
    loop {
        let server = Server::new().add(CountServer::new(Counts)).bind(address);
        match server.await {
            Ok(listening) => return listening,
            // A listener ends some time after its handle.
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        assert!(begun.elapsed() < PATIENCE, "the address is free again");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Each channel has a domain of its own, as those of as many programs have.
async fn connect(fabric: Fabric, to: SocketAddr, number: u64) -> CountClient {
    let channel = Channel::builder().fabric(&fabric).deadline(PATIENCE);
    let client = CountClient::over(channel.connect(to).await.expect("it connects"));
    call(&client, number).await;
    client
}

/// Until it is answered: one that was under way when its connection was lost has failed.
async fn call(client: &CountClient, number: u64) {
    let begun = Instant::now();
    loop {
        match client.next(number).wait_for_ready().await {
            Ok(next) => return assert_eq!(next, number + 1),
            Err(status) => assert!(begun.elapsed() < PATIENCE, "{status}"),
        }
    }
}

#[test]
fn channels_that_come_at_once_and_again_after_a_restart_are_all_served() {
    let channels = super::count("TOKIO_FABRIC_CHANNELS", 150, 2_000);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(storm(channels));
}

async fn storm(channels: u64) {
    let mut server = listen(([127, 0, 0, 1], 0).into()).await;
    let (address, begun) = (server.local_addr(), Instant::now());
    let fabric = Fabric::open(Hints::new()).unwrap();
    let connecting = (0..channels).map(|it| tokio::spawn(connect(fabric.clone(), address, it)));
    let clients = join_all(connecting).await;
    let clients: Vec<_> = clients.into_iter().map(|it| it.unwrap()).collect();
    println!("{channels} first calls: {:?}", begun.elapsed());
    assert_eq!(server.stats().connections as u64, channels);
    for is_drained in [false, true] {
        let lost = Instant::now();
        match is_drained {
            true => drop(server.drain(PATIENCE).await),
            false => drop(server),
        }
        server = listen(address).await;
        let back = Instant::now();
        let calls = clients.iter().cloned().zip(0..);
        let calls = calls.map(|(it, number)| tokio::spawn(async move { call(&it, number).await }));
        let called = join_all(calls).await;
        assert!(called.iter().all(|it| it.is_ok()));
        println!(
            "a restart (drained: {is_drained}) of {:?}, all called {:?} later",
            back - lost,
            back.elapsed()
        );
        assert_eq!(server.stats().connections as u64, channels);
    }
    // One connection each time, and no more: none was turned away and came again.
    for client in &clients {
        assert_eq!(client.channel().stats().connections, 3);
    }
}
