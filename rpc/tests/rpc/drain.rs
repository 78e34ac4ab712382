//! The end of a server.

use std::future::{Future, IntoFuture, pending};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;
use tokio_fabric_rpc::{Code, Cx, Result, Server, Started, service, testing};

use super::{expect, probe, probe_with};

/// G11: "new calls NotStarted, running ones end, then the agreed close".
#[tokio::test(start_paused = true)]
async fn a_draining_server_finishes_what_runs_and_takes_nothing_new() {
    let (client, seen, server) = probe().await;
    let running = tokio::spawn(client.wait(Some(500)).into_future());
    seen.wait_for(&seen.started, 1).await;
    let begin = Instant::now();
    let draining = tokio::spawn(server.drain(Duration::from_secs(30)));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let refused = client.nothing().await.unwrap_err();
    expect(&refused, Code::Draining, Started::NotStarted);
    running.await.unwrap().unwrap();
    let last = draining.await.unwrap();
    assert_eq!((last.connections, last.running, last.started), (0, 0, 1));
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(seen.dropped.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// "ends by its deadline whatever peers do".
#[tokio::test(start_paused = true)]
async fn a_drain_ends_by_its_deadline() {
    let (client, seen, server) = probe().await;
    let running = tokio::spawn(client.wait(None).no_deadline().into_future());
    seen.wait_for(&seen.started, 1).await;
    let begin = Instant::now();
    server.drain(Duration::from_secs(2)).await;
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    let ended = running.await.unwrap().unwrap_err();
    expect(&ended, Code::Draining, Started::MaybeRan);
    seen.wait_for(&seen.dropped, 1).await;
}

/// An idle server is gone at once.
#[tokio::test(start_paused = true)]
async fn a_drain_without_calls_ends_at_once() {
    let (_client, _, server) = probe().await;
    let begin = Instant::now();
    server.drain(Duration::from_secs(30)).await;
    assert!(
        begin.elapsed() < Duration::from_millis(100),
        "{:?}",
        begin.elapsed()
    );
}

/// Calls that cross the notice are answered as not started: no call of a client that makes those
/// again elsewhere is lost.
#[tokio::test(start_paused = true)]
async fn no_call_is_lost_to_a_drain() {
    for pause in 0..20 {
        let (client, _, server) = probe_with(Server::new()).await;
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    loop {
                        if let Err(status) = client.wait(Some(1)).await {
                            return status;
                        }
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(500 + 100 * pause)).await;
        server.drain(Duration::from_secs(5)).await;
        for caller in callers {
            let status = caller.await.unwrap();
            assert!(status.is_not_started(), "{status}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn listen_returns_when_its_signal_has_drained_it() {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::new().drain_on(async { drop(stopped.await) });
    let net = tokio_fabric::testing::Net::new(2);
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = tokio::spawn(server.fabric(&net.fabric().unwrap()).listen(any));
    tokio::task::yield_now().await;
    assert!(!listening.is_finished());
    stop.send(()).unwrap();
    listening.await.unwrap().unwrap();
}

/// Its handler is polled for the first time while the drain's time ends: it is cancelled as the
/// others are.
#[tokio::test(start_paused = true)]
async fn a_handler_that_begins_as_the_drain_ends_is_cancelled_by_it() {
    let handlers = DrainingHandler::default();
    let drain = Arc::clone(&handlers.0);
    let (channel, server) = testing::pair(EndsServer::new(handlers)).await.unwrap();
    *drain.lock().unwrap() = Some(Box::pin(server.drain(Duration::ZERO).map(drop)));
    let client = EndsClient::over(channel);
    let cut = client.begin().no_deadline().await.unwrap_err();
    expect(&cut, Code::Draining, Started::MaybeRan);
}

#[service]
trait Ends {
    async fn begin(&self, cx: &Cx) -> Result<()>;
}

type Drain = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls the drain of its own server.
#[derive(Default)]
struct DrainingHandler(Arc<Mutex<Option<Drain>>>);

impl Ends for DrainingHandler {
    async fn begin(&self, _: &Cx) -> Result<()> {
        let drain = self.0.lock().unwrap().take();
        let mut drain = drain.expect("it is called once");
        let polled = drain.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it waits for this call");
        tokio::spawn(drain);
        pending().await
    }
}
