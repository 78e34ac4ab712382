//! More calls than there is room for.

use std::future::IntoFuture;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{Channel, Code, Cx, Result, Server, Started, service, testing};

use super::{Handlers, ProbeClient, ProbeServer, expect, probe_with};

/// G10: "overload is answered within a turn".
#[tokio::test(start_paused = true)]
async fn a_full_server_refuses_at_once_and_says_when_to_come_again() {
    let (client, seen, server) = probe_with(Server::new().calls_max(2)).await;
    let running: Vec<_> = (0..2)
        .map(|_| tokio::spawn(client.wait(Some(1000)).into_future()))
        .collect();
    seen.wait_for(&seen.started, 2).await;
    let begin = Instant::now();
    let refused = client.nothing().await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    assert!(refused.retry_after().is_some());
    assert!(begin.elapsed() < Duration::from_millis(10));
    assert_eq!(server.stats().refused, 1);
    for call in running {
        call.await.unwrap().unwrap();
    }
    client.nothing().await.unwrap();
}

/// "Admission by server, connection and method."
#[tokio::test(start_paused = true)]
async fn a_full_method_leaves_room_for_the_others() {
    let server = Server::new().method_calls_max("Probe/wait", 1);
    let (client, seen, server) = probe_with(server).await;
    let running = tokio::spawn(client.wait(Some(100)).into_future());
    seen.wait_for(&seen.started, 1).await;
    let refused = client.wait(Some(1)).await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    assert!(refused.retry_after().is_some());
    client.nothing().await.unwrap();
    running.await.unwrap().unwrap();
    client.wait(Some(1)).await.unwrap();
    assert_eq!((server.stats().started, server.stats().refused), (3, 1));
    let nothing = Server::new().method_calls_max("Probe/wait", 1);
    let unknown = nothing.bind("127.0.0.1:0").await.unwrap_err();
    assert_eq!(unknown.code(), Code::Internal);
}

/// G7: "the server drops what expired before it starts". By the clock: a handler holds the thread
/// where frames are read.
#[tokio::test]
async fn what_has_expired_behind_others_is_not_started() {
    let (channel, server) = testing::pair(BlockServer::new(Blocker)).await.unwrap();
    let client = BlockClient::over(channel);
    let within = Duration::from_millis(10);
    // Both that come while the first holds the thread are read together.
    let (first, second) = (client.block(50), client.block(50));
    let late = client.block(0).deadline(within).into_future();
    let (first, second, late) = tokio::join!(first.into_future(), second.into_future(), late);
    first.and(second).unwrap();
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    while client.channel().open_calls() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((server.stats().started, server.stats().refused), (2, 1));
    // Who kept the thread is known.
    let mut methods = server.method_stats();
    let (_, block) = methods.find(|it| it.0 == "Block/block").unwrap();
    assert_eq!(block.slow_polls, 2);
}

#[service]
trait Block {
    async fn block(&self, cx: &Cx, millis: u64) -> Result<()>;
}

struct Blocker;

impl Block for Blocker {
    async fn block(&self, _: &Cx, millis: u64) -> Result<()> {
        std::thread::sleep(Duration::from_millis(millis));
        Ok(())
    }
}

/// "At most `calls` open per connection": those beyond wait, in their order.
#[tokio::test(start_paused = true)]
async fn calls_beyond_the_window_wait_in_their_order() {
    let (client, seen, server) = probe_with(Server::new().window(2)).await;
    let begin = Instant::now();
    let calls = (0..6).map(|_| tokio::spawn(client.wait(Some(100)).into_future()));
    let calls: Vec<_> = calls.collect();
    seen.wait_for(&seen.started, 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.stats().running, 2);
    assert!(!client.channel().is_ready());
    // One that has no time to wait ends as not started.
    let late = client
        .nothing()
        .deadline(Duration::from_millis(10))
        .await
        .unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::NotStarted);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!(server.stats().started, 6);
    assert!(client.channel().is_ready());
}

/// G8: callers that do not look at their answers hold up no other.
#[tokio::test(start_paused = true)]
async fn answers_that_are_not_fetched_hold_no_slot() {
    let (client, _, _server) = probe_with(Server::new().window(2)).await;
    let mut idle = Vec::new();
    for _ in 0..10 {
        let mut call = Box::pin(client.nothing().into_future());
        assert!((&mut call).now_or_never().is_none());
        idle.push(call);
        client.nothing().await.unwrap();
    }
    for call in idle {
        call.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_limit_are_rejected_in_words() {
    let net = Net::new(5);
    let server = Server::new()
        .add(ProbeServer::new(Handlers::default()))
        .connections_max(1);
    let (first, server) = testing::connect(&net, server).await.unwrap();
    let builder = Channel::builder().fabric(&net.fabric().unwrap());
    let refused = builder.connect(server.local_addr()).await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    assert!(refused.retry_after().is_some());
    drop(first);
}

/// Those that come at once, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_come_at_once_are_not_more_than_the_limit() {
    let server = Server::new().connections_max(3);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let connects = (0..40).map(|_| tokio::spawn(Channel::connect(server.local_addr())));
    let channels = futures::future::join_all(connects).await;
    let channels = channels.into_iter().map(Result::unwrap);
    assert_eq!(channels.filter(Result::is_ok).count(), 3);
}

/// WINDOW: "moves the windows of calls and bytes".
#[tokio::test(start_paused = true)]
async fn a_window_moves_for_those_who_are_there_and_those_to_come() {
    let net = tokio_fabric::testing::Net::new(51);
    let handlers = Handlers::default();
    let seen = handlers.0.clone();
    let server = Server::new().add(ProbeServer::new(handlers)).window(2);
    let (channel, server) = testing::connect(&net, server).await.unwrap();
    let client = ProbeClient::over(channel);
    let calls: Vec<_> = (0..6)
        .map(|_| client.wait(Some(1000)).into_future())
        .collect();
    let all = tokio::spawn(futures::future::join_all(calls));
    seen.wait_for(&seen.started, 2).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(
        (server.stats().running, client.channel().open_calls()),
        (2, 2)
    );
    // Those who wait have room at once.
    server.set_window(5, 1 << 20);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(
        (server.stats().running, client.channel().open_calls()),
        (5, 5)
    );
    // What is open goes on; nothing more begins until there is room.
    server.set_window(1, 1 << 20);
    assert!(all.await.unwrap().iter().all(|it| it.is_ok()));
    assert_eq!(seen.started.load(std::sync::atomic::Ordering::SeqCst), 6);
    let late = Channel::builder().fabric(&net.fabric().unwrap());
    let late = ProbeClient::over(late.connect(server.local_addr()).await.unwrap());
    for client in [client, late] {
        let both = (client.wait(Some(50)), client.wait(Some(50)));
        let begin = tokio::time::Instant::now();
        let (one, other) = tokio::join!(both.0, both.1);
        one.and(other).unwrap();
        assert_eq!(begin.elapsed().as_millis(), 100, "one after the other");
    }
    assert_eq!(server.stats().violations, 0);
}
