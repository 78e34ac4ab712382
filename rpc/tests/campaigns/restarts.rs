//! "1,000 rolling restarts under load with `NotStarted` retries: 0 failed calls; never beyond the
//! deadline."

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_fabric_rpc::{Lend, Listening, Server, Streaming};

use super::work::{Deed, Ledger, WorkClient, WorkServer, Worker, read_all};

const CALLERS: u64 = 16;
const LENT: usize = 1 << 20;
/// More than a frame has room for.
const LARGE: usize = 200_000;
/// More than a stream's credit.
const ITEMS: u64 = 50;
/// A drain's deadline, and how much later it may return where two processors have much to do.
const DEADLINE: Duration = Duration::from_secs(5);
const LATE: Duration = Duration::from_secs(2);

/// A server at this address, as soon as that is free: a listener ends some time after its handle.
async fn listen(address: SocketAddr, ledger: &Arc<Ledger>) -> Listening {
    loop {
        let server = Server::new().add(WorkServer::new(Worker(Arc::clone(ledger))));
        match server.bind(address).await {
            Ok(listening) => return listening,
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Each call until it has its result: made again only if it says that it has not started.
async fn call(client: &WorkClient, id: u64) -> u64 {
    let mut again = 0;
    loop {
        let ended = match id % 7 {
            0 => client.give(id, 500).wait_for_ready().await.map(drop),
            1 => {
                let lent = Lend::read(vec![1; LENT]);
                let put = client.put(id, lent).wait_for_ready().await;
                put.map(drop).map_err(Into::into)
            }
            2 => {
                let lent = Lend::write(vec![1; LENT]);
                let got = client.get(id, lent).wait_for_ready().await;
                got.map(drop).map_err(Into::into)
            }
            3 => {
                let bytes = Bytes::from(vec![1; LARGE]);
                let echoed = client.echo(id, bytes).wait_for_ready().await;
                echoed.map(|it| assert_eq!(it.len(), LARGE))
            }
            4 => {
                let numbers = client.numbers(id, ITEMS).wait_for_ready().await;
                read_all(numbers).await.map(|it| assert_eq!(it, ITEMS))
            }
            5 => {
                let sum = client.sum(id, Streaming::of(0..ITEMS));
                sum.wait_for_ready().await.map(drop)
            }
            _ => {
                let doubled = client.double(id, Streaming::of(0..ITEMS));
                let doubled = read_all(doubled.wait_for_ready().await).await;
                doubled.map(|it| assert_eq!(it, ITEMS))
            }
        };
        match ended {
            Ok(()) => return again,
            Err(status) => assert!(status.is_not_started(), "call {id} failed: {status}"),
        }
        again += 1;
    }
}

#[test]
fn rolling_restarts_fail_no_call() {
    let restarts = super::count("TOKIO_FABRIC_RESTARTS", 20, 1000);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(restart(restarts));
}

async fn restart(restarts: u64) {
    let ledger = Arc::new(Ledger::default());
    let mut server = listen(([127, 0, 0, 1], 0).into(), &ledger).await;
    let address = server.local_addr();
    let client = WorkClient::connect(address).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut calls, mut again) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    again += call(&client, caller + calls * CALLERS).await;
                    calls += 1;
                }
                (calls, again)
            })
        })
        .collect();
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    for turn in 0..restarts {
        // Somewhere in the middle of some calls.
        ledger
            .wait_for(Deed::Ended, ledger.total(Deed::Ended) + 20 + turn % 7)
            .await;
        let drain = Instant::now();
        server.drain(DEADLINE).await;
        longest = longest.max(drain.elapsed());
        server = listen(address, &ledger).await;
    }
    ledger
        .wait_for(Deed::Ended, ledger.total(Deed::Ended) + CALLERS)
        .await;
    let took = begin.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (mut calls, mut again) = (0, 0);
    for caller in callers {
        let (made, made_again) = caller.await.expect("no call fails");
        (calls, again) = (calls + made, again + made_again);
    }
    assert!(longest < DEADLINE + LATE, "a drain took {longest:?}");
    // At most once, even so: each ran to its end, and no other run of it began.
    for caller in 0..CALLERS {
        assert_eq!(
            ledger.times(Deed::Started, caller),
            ledger.times(Deed::Ended, caller)
        );
    }
    assert_eq!(ledger.total(Deed::Started), calls);
    assert_eq!((ledger.total(Deed::Ended), ledger.open()), (calls, 0));
    println!(
        "{restarts} restarts in {took:?}: {calls} calls, {again} made again, none failed; \
         longest drain {longest:?}"
    );
}
