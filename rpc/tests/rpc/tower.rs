//! Layers around a server, and around channels.

use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::limits::CALLS_PER_CONNECTION_MAX;
use tokio_fabric_rpc::{
    Balance, Call, Channel, ChannelService, Code, Cx, HedgeLayer, Lend, Pull, Reply, Request,
    Result, Route, RouteFuture, Server, Started, Status, Streaming, retry, service, testing,
};
use tower::load::Load;
use tower::retry::budget::TpsBudget;
use tower::timeout::TimeoutLayer;
use tower::{ServiceBuilder, ServiceExt};
use tower_service::Service;

use super::{expect, probe_with};

#[path = "../../examples/balance.rs"]
#[allow(dead_code, reason = "a test needs no `main`")]
mod balance;

/// "Three servers, one of them killed", one that joins and one that drains: no call fails, and the
/// others take over.
#[test]
fn calls_are_balanced_and_none_fails_when_servers_come_and_go() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let summary = runtime.block_on(balance::run()).unwrap();
    assert_eq!((summary.calls, summary.failed), (1800, 0), "{summary:?}");
    // What the one that dies starts between its count and its end is in no sum.
    assert!(summary.started.iter().all(|it| *it >= 20), "{summary:?}");
}

/// A client over layers can be the state of a web server, or behind the `&self` of a spawned task.
#[tokio::test(start_paused = true)]
async fn a_client_over_layers_is_shared_by_tasks() {
    fn shared<T: Clone + Send + Sync + 'static>(it: T) -> T {
        it
    }
    let mock = StoreMock::new();
    mock.on_count(|to| async move { Ok(Streaming::of(0..to)) });
    let (channel, _server) = testing::pair(StoreServer::new(mock)).await.unwrap();
    let one = ServiceBuilder::new()
        .concurrency_limit(4)
        .retry(retry::NotStarted::new())
        .layer(HedgeLayer::after(SLOWLY))
        .service(channel.service());
    let many = ServiceBuilder::new()
        .load_shed()
        .retry(retry::NotStarted::new())
        .service(Balance::over([channel.clone()]));
    shared(StoreClient::over(channel.clone()).layered(many));
    let client = Arc::new(shared(StoreClient::over(channel).layered(one)));
    let calls = (0..3).map(|_| {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.count(1).await.map(drop) })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
}

/// The deadline covers the time in which no service is ready, and what was to be lent comes back.
#[tokio::test(start_paused = true)]
async fn a_layered_call_waits_for_a_service_until_its_deadline() {
    let net = Net::new(52);
    let fabric = net.node("client").fabric().unwrap();
    let nowhere = net.node("nowhere").addr(7000);
    let builder = Channel::builder().fabric(&fabric);
    let channel = builder.connect_lazy(nowhere).unwrap();
    let client = StoreClient::over(channel.clone()).layered(channel.service());
    let begin = Instant::now();
    let late = client.put(Lend::read(vec![3; 7])).await.unwrap_err();
    assert_eq!(begin.elapsed(), Duration::from_secs(10));
    expect(late.error(), Code::DeadlineExceeded, Started::NotStarted);
    assert_eq!(late.error().call().unwrap().method, "Store/put");
    assert_eq!(late.into_parts().1, Some(vec![3; 7]));
    let soon = Duration::from_millis(30);
    let late = client.count(4).with(|call| call.deadline(soon)).await;
    let late = late.map(drop).unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::NotStarted);
    assert_eq!(begin.elapsed(), Duration::from_secs(10) + soon);
    // It has the words of a call without layers.
    let call = late.call().unwrap();
    assert_eq!((call.method, call.address), ("Store/count", Some(nowhere)));
    assert_eq!((call.elapsed, call.limit), (soon, Some(soon)));
    let plain = StoreClient::over(channel).count(4).deadline(soon);
    let plain = plain.wait_for_ready().await.map(drop).unwrap_err();
    let (late, plain) = (late.to_string(), plain.to_string());
    let cause = "not started: it waited for a service that is ready: connection refused";
    assert!(late.contains(cause), "{late}");
    let cause = "not started: it waited for a connection: connection refused";
    assert!(plain.contains(cause), "{plain}");
}

/// "Readiness belongs to one clone": the room that it has seen is its own.
#[tokio::test(start_paused = true)]
async fn services_do_not_take_each_others_room() {
    let (client, _, server) = probe_with(Server::new().window(2)).await;
    let mut services: Vec<_> = (0..3).map(|_| client.channel().service()).collect();
    let mut poll = |at: usize| {
        let service = &mut services[at];
        poll_fn(|cx| Service::<Call<()>>::poll_ready(service, cx)).now_or_never()
    };
    assert!(poll(0).is_some() && poll(1).is_some());
    assert!(poll(2).is_none(), "both places are taken");
    assert!(poll(0).is_some(), "it stays ready");
    let calls: Vec<_> = services
        .drain(..2)
        .map(|mut it| it.call(client.nothing()))
        .collect();
    assert_eq!(client.channel().service().load(), 2);
    for call in calls {
        call.await.unwrap();
    }
    poll_fn(|cx| Service::<Call<()>>::poll_ready(&mut services[0], cx))
        .await
        .unwrap();
    assert_eq!(client.channel().service().load(), 1);
    // "Once the channel is closed it is ready, and its calls fail", and its place is given back.
    drop(server);
    client.channel().close().await;
    let ready = poll_fn(|cx| Service::<Call<()>>::poll_ready(&mut services[0], cx));
    assert!(ready.now_or_never().is_some());
    assert_eq!(client.channel().service().load(), 0);
    services[0].call(client.nothing()).await.unwrap_err();
}

/// A call whose turn has come, and which is polled no more, gives its place back at its deadline:
/// who waits for room is woken.
#[tokio::test(start_paused = true)]
async fn room_that_was_not_used_is_free_at_the_deadline() {
    let (client, seen, _server) = probe_with(Server::new().window(1)).await;
    let running = tokio::spawn(client.wait(Some(100)).into_future());
    seen.wait_for(&seen.started, 1).await;
    let idle = client.nothing().deadline(Duration::from_secs(1));
    let mut idle = Box::pin(idle.into_future());
    assert!((&mut idle).now_or_never().is_none());
    running.await.unwrap().unwrap();
    let mut service = client.channel().service();
    let ready = poll_fn(|cx| Service::<Call<()>>::poll_ready(&mut service, cx));
    let ready = timeout(Duration::from_secs(5), ready).await;
    ready.expect("there is room").unwrap();
    expect(
        &idle.await.unwrap_err(),
        Code::DeadlineExceeded,
        Started::NotStarted,
    );
}

/// G3: only what has not started is made again, within the call's own deadline.
#[tokio::test(start_paused = true)]
async fn retries_are_of_what_has_not_started() {
    let (client, seen, server) = probe_with(Server::new().calls_max(1)).await;
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(client.channel().service());
    let running = tokio::spawn(client.wait(Some(35)).into_future());
    seen.wait_for(&seen.started, 1).await;
    // Refused as overloaded, which says 10 ms, until the other is done.
    service.clone().oneshot(client.nothing()).await.unwrap();
    running.await.unwrap().unwrap();
    let refused = server.stats().refused;
    assert!((2..=5).contains(&refused), "{refused}");
    // One that has run is not made again.
    let failed = service.clone().oneshot(client.fail(1)).await.unwrap_err();
    expect(&failed, Code::Application(1), Started::Ran);
    // Nor is one whose time is over.
    let running = tokio::spawn(client.wait(Some(5000)).into_future());
    seen.wait_for(&seen.started, 2).await;
    let begin = Instant::now();
    let call = client.nothing().deadline(Duration::from_millis(25));
    let late = service.clone().oneshot(call).await.unwrap_err();
    expect(&late, Code::Overloaded, Started::NotStarted);
    assert!(
        begin.elapsed() <= Duration::from_millis(30),
        "{:?}",
        begin.elapsed()
    );
    // Nor more often than its policy says.
    let policy = retry::NotStarted::new().retries_max(2);
    let before = server.stats().refused;
    let twice = ServiceBuilder::new()
        .retry(policy)
        .service(client.channel().service());
    twice.oneshot(client.nothing()).await.unwrap_err();
    assert_eq!(server.stats().refused - before, 3);
    running.abort();
}

/// What would come to the same end is passed on as it is.
#[tokio::test(start_paused = true)]
async fn retries_are_of_what_may_come_to_another_end() {
    let deny = |call: &Cx| match call.method() {
        "Store/count" => Err(Status::new(Code::PermissionDenied, "not this")),
        _ => Ok(()),
    };
    let server = Server::new().add(StoreServer::new(StoreMock::new()));
    let server = server.authorize(deny).method_calls_max("Store/sum", 0);
    let (channel, server) = testing::connect(&Net::new(62), server).await.unwrap();
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let client = StoreClient::over(channel).layered(service);
    let denied = client.count(3).await.map(drop).unwrap_err();
    expect(&denied, Code::PermissionDenied, Started::NotStarted);
    assert_eq!(server.stats().refused, 1);
    // The stream has gone with the first attempt.
    let refused = client.sum(Streaming::of(0..3)).await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    assert_eq!(server.stats().refused, 2);
}

#[service]
trait Flaky {
    #[rpc(idempotent)]
    async fn read(&self, cx: &Cx) -> Result<u32>;
    async fn write(&self, cx: &Cx) -> Result<u32>;
}

/// "`MaybeRan` only for `#[rpc(idempotent)]`."
#[tokio::test(start_paused = true)]
async fn what_may_have_run_is_made_again_if_it_may_run_twice() {
    let mock = Arc::new(FlakyMock::new());
    mock.on_read({
        let mock = Arc::downgrade(&mock);
        move || {
            let calls = mock.upgrade().map_or(0, |it| it.calls_of_read());
            async move {
                assert!(calls > 2, "as it was asked to");
                Ok(7)
            }
        }
    });
    let server = FlakyServer::from_arc(Arc::clone(&mock));
    let (channel, server) = testing::pair(server).await.unwrap();
    let ledger = testing::Ledger::open(&server, [&channel]);
    let client = FlakyClient::over(channel.clone());
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let begin = Instant::now();
    assert_eq!(service.clone().oneshot(client.read()).await.unwrap(), 7);
    assert_eq!(mock.calls_of_read(), 3);
    // Pauses of 10 and 20 ms, each shortened by up to half.
    let took = begin.elapsed().as_millis();
    assert!((15..=40).contains(&took), "{took}");
    let failed = service.oneshot(client.write()).await.unwrap_err();
    expect(&failed, Code::HandlerPanicked, Started::MaybeRan);
    assert_eq!(mock.calls_of_write(), 1);
    ledger.close().await;
}

/// All calls in flight on a connection with the largest window are retried when its server
/// restarts, "a reserve of 1,030".
#[tokio::test(start_paused = true)]
async fn a_whole_window_is_retried_when_the_server_restarts() {
    let net = Net::new(63);
    let server = |mock| {
        let server = Server::new().add(FlakyServer::new(mock));
        server.window(CALLS_PER_CONNECTION_MAX)
    };
    let bind = |server: Server| {
        let node = net.node("server");
        server.fabric(&node.fabric().unwrap()).bind(node.addr(7000))
    };
    let silent = FlakyMock::new();
    silent.on_read(std::future::pending);
    let first = bind(server(silent)).await.unwrap();
    let builder = Channel::builder().fabric(&net.node("client").fabric().unwrap());
    let channel = builder.connect(first.local_addr()).await.unwrap();
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let client = FlakyClient::over(channel).layered(service);
    let calls = (0..CALLS_PER_CONNECTION_MAX).map(|_| tokio::spawn(client.read().into_future()));
    let calls: Vec<_> = calls.collect();
    while first.stats().running < calls.len() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    net.crash("server");
    drop(first);
    net.restart("server");
    let answers = FlakyMock::new();
    answers.on_read(|| async { Ok(7) });
    let _second = bind(server(answers)).await.unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
}

/// A call that is to be made again ends by its deadline, though the server does not return.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_to_be_made_again_ends_by_its_deadline() {
    let net = Net::new(64);
    let node = net.node("server");
    let silent = FlakyMock::new();
    silent.on_read(std::future::pending);
    let server = Server::new().add(FlakyServer::new(silent));
    let server = server.fabric(&node.fabric().unwrap()).bind(node.addr(7000));
    let server = server.await.unwrap();
    let builder = Channel::builder().fabric(&net.node("client").fabric().unwrap());
    let channel = builder.connect(server.local_addr()).await.unwrap();
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(channel.service());
    let client = FlakyClient::over(channel).layered(service);
    let within = Duration::from_secs(2);
    let call = client.read().with(|it| it.deadline(within));
    let (begin, call) = (Instant::now(), tokio::spawn(call.into_future()));
    while server.stats().running < 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    net.crash("server");
    drop(server);
    let late = timeout(2 * within, call).await.expect("it ends").unwrap();
    let late = late.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(begin.elapsed(), within);
    assert_eq!(late.call().unwrap().method, "Flaky/read");
    let text = late.to_string();
    assert!(text.contains("connection refused"), "{text}");
}

/// "The retry budget is used up."
#[tokio::test(start_paused = true)]
async fn an_error_says_that_the_retry_budget_is_used_up() {
    let (client, _, _server) = probe_with(Server::new().calls_max(0)).await;
    let budget = TpsBudget::new(Duration::from_secs(1), 1, 0.0);
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new().budget(Arc::new(budget)))
        .service(client.channel().service());
    let failed = service.oneshot(client.nothing()).await.unwrap_err();
    expect(&failed, Code::Overloaded, Started::NotStarted);
    assert_eq!(failed.call().unwrap().attempt, 2);
    let text = failed.to_string();
    assert!(text.ends_with("the retry budget is used up"), "{text}");
}

/// A server that sheds recommends 10 ms each time; the policy's own pauses grow all the same, and
/// an error says that no retry is left.
#[tokio::test(start_paused = true)]
async fn pauses_grow_although_the_server_recommends_short_ones() {
    let (client, _, _server) = probe_with(Server::new().calls_max(0)).await;
    let policy = retry::NotStarted::new().pause(Duration::from_millis(100));
    let service = ServiceBuilder::new()
        .retry(policy.retries_max(5))
        .service(client.channel().service());
    let begun = Instant::now();
    let failed = service.oneshot(client.nothing()).await.unwrap_err();
    expect(&failed, Code::Overloaded, Started::NotStarted);
    assert_eq!(failed.call().unwrap().attempt, 6);
    // 100, 200, 400, 800 and 1,600 ms, each shortened by up to half.
    let took = begun.elapsed().as_millis();
    assert!((1550..=3200).contains(&took), "{took} ms");
    let text = failed.to_string();
    assert!(text.ends_with("no retry is left"), "{text}");
}

/// Takes its time to be ready for each call.
struct Slowly {
    service: ChannelService,
    ready_at: Option<Instant>,
}

const SLOWLY: Duration = Duration::from_millis(600);

impl Clone for Slowly {
    fn clone(&self) -> Self {
        Slowly {
            service: self.service.clone(),
            ready_at: None,
        }
    }
}

impl Service<Call<u32>> for Slowly {
    type Response = u32;
    type Error = Status;
    type Future = <ChannelService as Service<Call<u32>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let ready_at = *self.ready_at.get_or_insert_with(|| Instant::now() + SLOWLY);
        if Instant::now() < ready_at {
            let task = cx.waker().clone();
            tokio::spawn(async move {
                sleep_until(ready_at).await;
                task.wake();
            });
            return Poll::Pending;
        }
        Service::<Call<u32>>::poll_ready(&mut self.service, cx)
    }

    fn call(&mut self, call: Call<u32>) -> Self::Future {
        self.ready_at = None;
        self.service.call(call)
    }
}

/// "The call's deadline [...] covers all attempts and pauses", with the time until the
/// service is ready for the next one.
#[tokio::test(start_paused = true)]
async fn attempts_end_by_one_deadline() {
    let mock = Arc::new(FlakyMock::new());
    mock.on_read({
        let mock = Arc::downgrade(&mock);
        move || {
            let calls = mock.upgrade().map_or(0, |it| it.calls_of_read());
            async move {
                assert!(calls > 1, "as it was asked to");
                std::future::pending().await
            }
        }
    });
    let server = FlakyServer::from_arc(Arc::clone(&mock));
    let (channel, _server) = testing::pair(server).await.unwrap();
    let client = FlakyClient::over(channel.clone());
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new().pause(Duration::ZERO))
        .service(Slowly {
            service: channel.service(),
            ready_at: None,
        });
    let begin = Instant::now();
    let call = client.read().deadline(Duration::from_secs(1));
    let late = service.oneshot(call).await.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(mock.calls_of_read(), 2);
    // It begins when the service is ready at first.
    let took = begin.elapsed() - SLOWLY;
    assert!((1000..1010).contains(&took.as_millis()), "{took:?}");
}

#[service]
trait Store {
    async fn put(&self, cx: &Cx, data: Pull) -> Result<u64>;
    async fn count(&self, cx: &Cx, to: u64) -> Result<Streaming<u64>>;
    async fn sum(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<u64>;
}

/// "`HelloClient::over(service)`": methods as ever, through layers; calls that lend and stream too.
#[tokio::test(start_paused = true)]
async fn a_client_calls_through_layers() {
    let mock = StoreMock::new();
    mock.on_put(|data| async move { Ok(data.len()) });
    mock.on_count(|to| async move { Ok(Streaming::of(0..to)) });
    let server = Server::new().add(StoreServer::new(mock)).calls_max(1);
    let (channel, server) = testing::connect(&Net::new(61), server).await.unwrap();
    let limited = ServiceBuilder::new()
        .concurrency_limit(1)
        .service(channel.service());
    let client = StoreClient::over(channel).layered(limited);
    // More at a time than the server takes: the layer lets one through.
    let puts = (0..20).map(|len| client.put(Lend::read(vec![1; len])).into_future());
    for (len, put) in futures::future::join_all(puts)
        .await
        .into_iter()
        .enumerate()
    {
        let (count, buffer) = put.unwrap();
        assert_eq!((count, buffer.len()), (len as u64, len));
    }
    assert_eq!((server.stats().started, server.stats().refused), (20, 0));
    let mut items = client.count(3).await.unwrap();
    assert_eq!(items.next().await.unwrap().unwrap(), 0);
    let late = client
        .put(Lend::read("x"))
        .with(|it| it.deadline(Duration::ZERO));
    let late = late.await.unwrap_err();
    expect(late.error(), Code::DeadlineExceeded, Started::NotStarted);
}

/// "Overload is answered before a body is decoded", by a layer too.
#[tokio::test(start_paused = true)]
async fn layers_of_a_server_limit_and_shed() {
    let layers = ServiceBuilder::new().load_shed().concurrency_limit(2);
    let (client, seen, server) = probe_with(Server::new().layer(layers)).await;
    let running: Vec<_> = (0..2)
        .map(|_| tokio::spawn(client.wait(Some(1000)).into_future()))
        .collect();
    seen.wait_for(&seen.started, 2).await;
    let refused = client.nothing().await.unwrap_err();
    expect(&refused, Code::Overloaded, Started::NotStarted);
    // What is built in is beside the layers.
    assert_eq!(client.channel().check().await.unwrap().stats.running, 3);
    for call in running {
        call.await.unwrap().unwrap();
    }
    client.nothing().await.unwrap();
    assert_eq!(server.stats().running, 0);
}

/// Its error comes when the handler has begun.
#[tokio::test(start_paused = true)]
async fn a_layer_that_gives_up_says_that_the_handler_may_have_run() {
    let layer = TimeoutLayer::new(Duration::from_secs(1));
    let (client, seen, _server) = probe_with(Server::new().layer(layer)).await;
    let late = client.wait(None).await.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(seen.dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    client.nothing().await.unwrap();
}

/// Refuses the method of a name.
#[derive(Clone)]
struct Forbids(Route, &'static str);

impl Service<Request> for Forbids {
    type Response = Reply;
    type Error = Status;
    type Future = futures::future::Either<RouteFuture, std::future::Ready<Result<Reply>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        if request.method().name == self.1 {
            let denied = Status::new(Code::PermissionDenied, "by a layer");
            return futures::future::Either::Right(std::future::ready(Err(denied)));
        }
        assert!(request.cx().peer().ip().is_loopback());
        futures::future::Either::Left(self.0.call(request))
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_of_ones_own_refuses_what_it_likes() {
    let layer = tower::layer::layer_fn(|route| Forbids(route, "Probe/nothing"));
    let (client, _, server) = probe_with(Server::new().layer(layer)).await;
    let denied = client.nothing().await.unwrap_err();
    expect(&denied, Code::PermissionDenied, Started::NotStarted);
    assert_eq!(
        client
            .join(vec!["a".into(), "b".into()], '-')
            .await
            .unwrap(),
        "a-b"
    );
    let fails = client.fail(3).await.unwrap_err();
    expect(&fails, Code::Application(3), Started::Ran);
    assert_eq!(server.stats().running, 0);
}
