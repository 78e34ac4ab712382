//! Calls that are given up: by their callers, by their deadlines, by their connections.

use std::future::IntoFuture;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, timeout};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{CancelReason, Channel, Code, Server, Started, testing};

use super::{Handlers, ProbeClient, ProbeServer, expect, probe, until_closed_calls};

/// G6: "dropping a call reaches the handler".
#[tokio::test(start_paused = true)]
async fn a_dropped_call_drops_its_handler() {
    let (client, seen, server) = probe().await;
    let ledger = testing::Ledger::open(&server, [client.channel()]);
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.wait(None).no_deadline().await }
    });
    seen.wait_for(&seen.started, 1).await;
    assert_eq!(client.channel().open_calls(), 1);
    call.abort();
    seen.wait_for(&seen.dropped, 1).await;
    until_closed_calls(client.channel()).await;
    client.nothing().await.unwrap();
    ledger.close().await;
}

/// G7: "the client ends first".
#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call_on_both_sides() {
    let (client, seen, server) = probe().await;
    let ledger = testing::Ledger::open(&server, [client.channel()]);
    let begin = Instant::now();
    let late = client
        .wait(None)
        .deadline(Duration::from_millis(50))
        .await
        .unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    assert!(begin.elapsed() < Duration::from_millis(60));
    seen.wait_for(&seen.dropped, 1).await;
    until_closed_calls(client.channel()).await;
    // Without a word of its own a call has 10 s.
    let begin = Instant::now();
    let late = client.wait(None).await.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(begin.elapsed().as_secs(), 10);
    let none = client.nothing().deadline(Duration::ZERO).await.unwrap_err();
    expect(&none, Code::DeadlineExceeded, Started::NotStarted);
    seen.wait_for(&seen.dropped, 2).await;
    ledger.close().await;
}

/// A deadline that is sooner than those known before is kept too.
#[tokio::test(start_paused = true)]
async fn each_call_has_its_own_deadline() {
    let (client, _, _server) = probe().await;
    let begin = Instant::now();
    let call = |seconds| {
        let call = client
            .wait(None)
            .deadline(Duration::from_secs(seconds))
            .into_future();
        async move {
            call.await.unwrap_err();
            begin.elapsed().as_secs()
        }
    };
    let (a, b, c) = tokio::join!(call(8), call(2), call(5));
    assert_eq!((a, b, c), (8, 2, 5));
}

#[tokio::test(start_paused = true)]
async fn a_method_to_end_goes_on_and_knows() {
    let (client, seen, server) = probe().await;
    let late = client
        .insist(1000)
        .deadline(Duration::from_millis(10))
        .await
        .unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    // It is answered at once, but counts until it is done.
    until_closed_calls(client.channel()).await;
    assert_eq!(server.stats().running, 1);
    seen.wait_for(&seen.ended, 1).await;
    let reason = *seen.reason.lock().unwrap();
    assert!(
        matches!(reason, Some(CancelReason::Caller | CancelReason::Deadline)),
        "{reason:?}"
    );
}

/// A call that was never polled, or not sent yet, is never made.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_awaited_is_not_made() {
    let (client, seen, server) = probe_small().await;
    drop(client.wait(Some(1)));
    drop(client.wait(Some(1)).into_future());
    let running = client.wait(None).into_future().shared();
    assert!(running.clone().now_or_never().is_none());
    let waits = timeout(Duration::from_millis(5), client.wait(Some(1)).into_future()).await;
    assert!(waits.is_err(), "there is room for one");
    drop(running);
    seen.wait_for(&seen.dropped, 1).await;
    client.nothing().await.unwrap();
    assert_eq!(server.stats().started, 2);
}

async fn probe_small() -> (
    ProbeClient,
    std::sync::Arc<super::Seen>,
    tokio_fabric_rpc::Listening,
) {
    super::probe_with(Server::new().window(1)).await
}

/// G3: "sent and lost → MaybeRan"; what waits has not started.
#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_each_call_once_and_says_how_far_it_was() {
    let net = Net::new(3);
    let handlers = Handlers::default();
    let seen = handlers.0.clone();
    let server = Server::new().add(ProbeServer::new(handlers)).window(1);
    let fabric = net.node("server").fabric().unwrap();
    let server = server
        .fabric(&fabric)
        .bind(net.node("server").addr(7000))
        .await
        .unwrap();
    let fabric = net.node("client").fabric().unwrap();
    let channel = Channel::builder().fabric(&fabric);
    let client = ProbeClient::over(channel.connect(server.local_addr()).await.unwrap());
    let (sent, waits) = (
        client.wait(None).into_future(),
        client.wait(None).into_future(),
    );
    let lost = async {
        seen.wait_for(&seen.started, 1).await;
        net.crash("server");
    };
    let (sent, waits, ()) = tokio::join!(sent, waits, lost);
    expect(&sent.unwrap_err(), Code::ConnectionLost, Started::MaybeRan);
    expect(
        &waits.unwrap_err(),
        Code::ConnectionLost,
        Started::NotStarted,
    );
    let later = client.nothing().await.unwrap_err();
    assert!(later.is_not_started(), "{later}");
    assert_eq!(client.channel().open_calls(), 0);
}

/// The client's end reaches handlers as a cancellation does.
#[tokio::test(start_paused = true)]
async fn a_client_that_goes_takes_its_handlers_along() {
    let (client, seen, server) = probe().await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.wait(None).await }
    });
    seen.wait_for(&seen.started, 1).await;
    client.channel().close().await;
    let ended = call.await.unwrap().unwrap_err();
    expect(&ended, Code::ConnectionLost, Started::MaybeRan);
    seen.wait_for(&seen.dropped, 1).await;
    drop(client);
    while server.stats().connections > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
