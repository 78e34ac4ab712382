//! "10^6 cancels leave 0 slots, bytes, regions", and close no connection.

use std::future::{IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::timeout;
use tokio_fabric_rpc::{Lend, Server, Streaming, limits};

use super::work::{Deed, Ledger, WorkClient, WorkServer, Worker, read_all};

const CALLERS: u64 = 64;
const LENT: usize = 256 << 10;
/// More than a frame has room for.
const LARGE: usize = 100_000;
/// Whatever a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls the call so often, with other tasks between, and drops it. True if it had not ended.
async fn give_up_after<F: IntoFuture>(call: F, polls: u64) -> bool {
    let mut call = pin!(call.into_future());
    for _ in 0..polls {
        let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        if polled {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}

/// The number of the call decides what it is, and when it is dropped.
async fn call(client: &WorkClient, id: u64) -> bool {
    let polls = 1 + id * 7919 % 48;
    match id % 11 {
        0 => give_up_after(client.wait(id), polls).await,
        1 => give_up_after(client.give(id, 3000), polls).await,
        2 => give_up_after(client.put(id, Lend::read(vec![1; LENT])), polls).await,
        3 => give_up_after(client.get(id, Lend::write(vec![1; LENT])), polls).await,
        // By the clock, which is slower than all of these.
        4 => {
            let lent = client.put(id, Lend::read(vec![1; LENT])).into_future();
            timeout(Duration::from_micros(id % 3000), lent)
                .await
                .is_err()
        }
        5 => {
            let within = Duration::from_micros(1 + id % 3000);
            client.wait(id).deadline(within).await.is_err()
        }
        6 => give_up_after(client.echo(id, Bytes::from(vec![1; LARGE])), polls).await,
        7 => give_up_after(client.give(id, LARGE), polls).await,
        8 => {
            let read = async { read_all(client.numbers(id, 100).await).await };
            give_up_after(read, polls).await
        }
        9 => give_up_after(client.sum(id, Streaming::of(0..100)), polls).await,
        _ => {
            let doubled = client.double(id, Streaming::of(0..100));
            let read = async { read_all(doubled.await).await };
            give_up_after(read, polls).await
        }
    }
}

#[test]
fn cancelled_calls_leave_nothing_behind() {
    let cancels = super::count("TOKIO_FABRIC_CANCELS", 10_000, 1_000_000);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(soak(cancels));
}

async fn soak(cancels: u64) {
    let ledger = Arc::new(Ledger::default());
    let server = Server::new().add(WorkServer::new(Worker(Arc::clone(&ledger))));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let client = WorkClient::connect(server.local_addr()).await.unwrap();
    let (begin, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (client, done) = (client.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let mut calls = 0;
                while done.load(Ordering::Relaxed) < cancels {
                    let cancelled = call(&client, caller + calls * CALLERS).await;
                    done.fetch_add(cancelled.into(), Ordering::Relaxed);
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += caller.await.unwrap();
    }
    let took = begin.elapsed();
    let quiet = async {
        while client.channel().open_calls() > 0 || ledger.open() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, quiet)
        .await
        .expect("each call ends at both sides");
    let stats = server.stats();
    assert_eq!(
        (stats.running, stats.connections, stats.violations),
        (0, 1, 0),
        "{stats:?}"
    );
    assert_eq!(
        client.channel().domain().region_count(),
        0,
        "regions are left"
    );
    let twice = (0..calls).filter(|id| ledger.times(Deed::Started, *id) > 1);
    assert_eq!(twice.count(), 0, "a call was made twice");
    timeout(PATIENCE, everything_is_free(&client, &ledger))
        .await
        .expect("something is held");
    let made = client.channel().stats().connections;
    assert_eq!((server.stats().connections, made), (1, 1));
    let (done, started) = (done.load(Ordering::Relaxed), ledger.total(Deed::Started));
    println!("{done} of {calls} calls cancelled in {took:?}, {started} handlers started");
}

/// All slots, all bytes of the window and all chunks of the connection can be had at once.
async fn everything_is_free(client: &WorkClient, ledger: &Arc<Ledger>) {
    let started = ledger.total(Deed::Started);
    let slots = u64::from(limits::CALLS_PER_CONNECTION);
    let calls = (0..slots).map(|id| tokio::spawn(client.wait(id).no_deadline().into_future()));
    let calls: Vec<_> = calls.collect();
    ledger.wait_for(Deed::Started, started + slots).await;
    calls.iter().for_each(|call| call.abort());
    while client.channel().open_calls() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (started, len) = (ledger.total(Deed::Started), limits::FRAME_MAX as u64 - 1024);
    // Its header is counted too.
    let held = limits::BYTES_PER_CONNECTION / (len + 512);
    let request = Bytes::from(vec![0; len as usize]);
    let calls = (0..held).map(|_| tokio::spawn(client.hold(request.clone()).into_future()));
    let calls: Vec<_> = calls.collect();
    ledger.wait_for(Deed::Started, started + held).await;
    calls.iter().for_each(|call| call.abort());
    // The small one that is beside them has no room for one of these.
    let lent = Lend::read(vec![0; limits::CHUNKS_PER_CONNECTION * limits::CHUNK]);
    client.keep(lent).await.expect("all chunks are there");
}
