//! What errors say: which call, where, after what time, and why; each once.

use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;

use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    Channel, Code, Cx, Lend, Listening, Pull, Result, Server, Started, Status, Streaming, service,
};

use super::{Handlers, ProbeClient, ProbeServer, expect, probe, probe_with};

/// Listens at the node "server".
async fn listen(net: &Net, server: Server) -> Listening {
    let node = net.node("server");
    let server = server.fabric(&node.fabric().unwrap());
    server.bind(node.addr(7000)).await.unwrap()
}

#[track_caller]
fn expect_once(text: &str, part: &str) {
    assert_eq!(text.matches(part).count(), 1, "{part:?} in {text:?}");
}

/// "`Store/put at 10.0.0.7:7901 (cache-2:7901): deadline of 500 ms passed after 500.3 ms, may have
/// run`"
#[tokio::test(start_paused = true)]
async fn an_error_names_method_peer_time_and_whether_it_ran_once() {
    let (client, _, server) = probe().await;
    let late = client.wait(None).deadline(Duration::from_millis(500));
    let late = late.await.unwrap_err();
    let call = late.call().unwrap();
    assert_eq!(call.method, "Probe/wait");
    assert_eq!(
        (call.address, &call.name),
        (Some(server.local_addr()), &None)
    );
    assert_eq!(
        (call.limit, call.attempt),
        (Some(Duration::from_millis(500)), 1)
    );
    assert!(call.elapsed >= Duration::from_millis(500), "{call:?}");
    let text = late.to_string();
    let head = format!(
        "Probe/wait at {}: deadline of 500 ms passed after 50",
        server.local_addr()
    );
    assert!(
        text.starts_with(&head) && text.ends_with(" ms, may have run"),
        "{text}"
    );
    // The time stands where it reads, and the method stands once.
    let panicked = client.panic().await.unwrap_err().to_string();
    let head = format!(
        "Probe/panic at {}: the handler panicked (after ",
        server.local_addr()
    );
    assert!(
        panicked.starts_with(&head) && panicked.ends_with("s), may have run"),
        "{panicked}"
    );
    // The error of a handler has run, which goes without saying.
    let failed = client.fail(17).await.unwrap_err().to_string();
    let head = format!(
        "Probe/fail at {}: application error 17 (after ",
        server.local_addr()
    );
    assert!(
        failed.starts_with(&head) && failed.ends_with("s): as it was asked to"),
        "{failed}"
    );
}

/// The name that was looked up is named, before and after the first connection.
#[tokio::test]
async fn an_error_names_the_name_that_was_looked_up() {
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let channel = Channel::connect(("localhost", port)).await.unwrap();
    let failed = ProbeClient::over(channel).fail(3).await.unwrap_err();
    let at = format!("Probe/fail at {} (localhost:{port}): ", server.local_addr());
    assert!(failed.to_string().starts_with(&at), "{failed}");
    let channel = Channel::builder()
        .connect_lazy("no-such-host.invalid:80")
        .unwrap();
    let failed = ProbeClient::over(channel).nothing().await.unwrap_err();
    expect(&failed, Code::Unavailable, Started::NotStarted);
    let text = failed.to_string();
    assert!(
        text.starts_with("Probe/nothing at no-such-host.invalid:80: not connected (after "),
        "{text}"
    );
    expect_once(&text, "no-such-host.invalid:80");
}

/// "`Status` prints its cause once", also with what prints the chain of sources, and as `{:?}`.
#[tokio::test(start_paused = true)]
async fn a_status_prints_its_cause_and_its_peer_once() {
    let net = Net::new(41);
    let server = listen(
        &net,
        Server::new().add(ProbeServer::new(Handlers::default())),
    )
    .await;
    let fabric = net.node("client").fabric().unwrap();
    let channel = Channel::builder()
        .fabric(&fabric)
        .connect(server.local_addr())
        .await
        .unwrap();
    let client = ProbeClient::over(channel);
    let waits = client.wait(None).no_deadline();
    let (lost, ()) = tokio::join!(waits, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        net.crash("server");
    });
    let lost = lost.unwrap_err();
    expect(&lost, Code::ConnectionLost, Started::MaybeRan);
    let cause = lost
        .fabric_error()
        .expect("a cause")
        .clone()
        .nested()
        .to_string();
    let chain = std::iter::successors(Some(&lost as &dyn Error), |it| (*it).source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    expect_once(&texts.join(": "), &cause);
    expect_once(&texts.join(": "), &server.local_addr().to_string());
    expect_once(&format!("{lost:?}"), &cause);
    // So do the calls after it.
    let next = client.nothing().await.unwrap_err();
    expect(&next, Code::Unavailable, Started::NotStarted);
    expect_once(&next.to_string(), &server.local_addr().to_string());
}

/// The errors of a stream, of what cannot be decoded, and of memory that is lent, too.
#[tokio::test(start_paused = true)]
async fn errors_of_streams_and_of_lent_memory_name_their_call() {
    #[service]
    trait Flow {
        async fn numbers(&self, cx: &Cx) -> Result<Streaming<u64>>;
        async fn take(&self, cx: &Cx, from: Pull) -> Result<()>;
    }
    struct Flows;
    impl Flow for Flows {
        async fn numbers(&self, _: &Cx) -> Result<Streaming<u64>> {
            let items = [Ok(1), Err(Status::new(Code::Internal, "no more"))];
            Ok(Streaming::new(futures::stream::iter(items)))
        }
        async fn take(&self, _: &Cx, _: Pull) -> Result<()> {
            Err(Status::new(Code::BadRequest, "not that"))
        }
    }
    let (channel, _server) = tokio_fabric_rpc::testing::pair(FlowServer::new(Flows))
        .await
        .unwrap();
    let flow = FlowClient::over(channel);
    let mut numbers = flow.numbers().await.unwrap();
    assert_eq!(numbers.next().await.unwrap().unwrap(), 1);
    let failed = numbers.next().await.unwrap().unwrap_err();
    assert_eq!(failed.call().unwrap().method, "Flow/numbers");
    let failed = flow.take(Lend::read(vec![1; 9])).await.unwrap_err();
    assert_eq!(failed.error().call().unwrap().method, "Flow/take");
}

/// A handler that passes the error of its own call on says which call that was.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_nested_call_names_both_calls() {
    #[service]
    trait Front {
        async fn ask(&self, cx: &Cx) -> Result<()>;
    }
    struct Asks(ProbeClient);
    impl Front for Asks {
        async fn ask(&self, _: &Cx) -> Result<()> {
            self.0.fail(9).await
        }
    }
    let (back, _, _server) = probe().await;
    let front = FrontServer::new(Asks(back));
    let (channel, _front) = tokio_fabric_rpc::testing::pair(front).await.unwrap();
    let failed = FrontClient::over(channel).ask().await.unwrap_err();
    assert_eq!(failed.call().unwrap().method, "Front/ask");
    let text = failed.to_string();
    let [front, back] = ["Front/ask at ", ": Probe/fail at "].map(|it| text.find(it).unwrap());
    assert!(front < back, "{text}");
}

/// "`Server::bind` on a taken port speaks of no call."
#[tokio::test]
async fn binding_a_taken_port_speaks_of_no_call() {
    let first = Server::new().bind("127.0.0.1:0").await.unwrap();
    let taken = Server::new().bind(first.local_addr()).await.unwrap_err();
    let text = taken.to_string();
    let head = format!(
        "the server cannot listen: address in use: {}: ",
        first.local_addr()
    );
    assert!(text.starts_with(&head) && !text.contains("call"), "{text}");
    assert!(taken.call().is_none());
}

/// Attempts are counted, and the time runs from the first one.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_made_again_says_how_often() {
    use tokio_fabric_rpc::retry;
    use tower::{ServiceBuilder, ServiceExt};

    let (client, _, _server) = probe_with(Server::new().calls_max(0)).await;
    let policy = retry::NotStarted::new().retries_max(2);
    let service = ServiceBuilder::new()
        .retry(policy)
        .service(client.channel().service());
    let full = service.oneshot(client.nothing()).await.unwrap_err();
    expect(&full, Code::Overloaded, Started::NotStarted);
    let call = full.call().unwrap();
    assert_eq!(call.attempt, 3);
    assert!(
        call.limit.is_some_and(|it| it >= Duration::from_secs(9)),
        "{call:?}"
    );
    let pauses = full.retry_after().unwrap() * 2;
    assert!(call.elapsed >= pauses, "{call:?}");
    expect_once(&full.to_string(), ", attempt 3, not started");
}

/// "The channel's runtime has ended."
#[test]
fn a_channel_says_that_its_runtime_has_ended() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (servers, channels) = (runtime(), runtime());
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let server = servers.block_on(server.bind("127.0.0.1:0")).unwrap();
    let channel = channels
        .block_on(Channel::connect(server.local_addr()))
        .unwrap();
    drop(channels);
    let client = ProbeClient::over(channel);
    let gone = servers.block_on(client.nothing()).unwrap_err();
    expect(&gone, Code::Unavailable, Started::NotStarted);
    expect_once(
        &gone.to_string(),
        "the runtime in which the channel was connected has ended",
    );
}

/// No answer to the TCP connect; connected, and no program accepts; no listener.
#[tokio::test(start_paused = true)]
async fn failures_to_connect_differ() {
    let net = Net::new(42);
    let server = listen(&net, Server::new()).await;
    let (fabric, at) = (net.node("client").fabric().unwrap(), server.local_addr());
    let connect = || {
        let limit = Duration::from_secs(3);
        let builder = Channel::builder().fabric(&fabric).connect_timeout(limit);
        builder.connect(at)
    };
    net.partition("server", "client");
    let silent = connect().await.unwrap_err();
    net.heal("server", "client");
    net.hang("server");
    let hangs = connect().await.unwrap_err();
    net.crash("server");
    drop(server);
    net.restart("server");
    let missing = connect().await.unwrap_err();
    let why = [
        (silent, "no answer to the TCP connect"),
        (hangs, "the TCP connection is made, but nothing answers"),
        (missing, "connection refused: "),
    ];
    for (status, why) in why {
        expect(&status, Code::Unavailable, Started::NotStarted);
        let text = status.to_string();
        assert!(text.starts_with(&format!("connecting to {at}: ")), "{text}");
        expect_once(&text, why);
        expect_once(&text, &at.to_string());
        assert!(!text.contains("call"), "{text}");
    }
}

/// The same over real sockets: a listener that never accepts.
#[tokio::test]
async fn a_listener_that_never_accepts_differs_from_one_that_is_not_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let builder = Channel::builder().connect_timeout(Duration::from_millis(200));
    let silent = builder.connect(at).await.unwrap_err().to_string();
    expect_once(&silent, "the TCP connection is made, but nothing answers");
    drop(listener);
    let missing = Channel::connect(at).await.unwrap_err().to_string();
    expect_once(&missing, "no listener at that address");
}

/// "The server drains."
#[tokio::test(start_paused = true)]
async fn a_draining_server_says_so_and_what_to_do() {
    let (client, seen, server) = probe().await;
    let running = tokio::spawn(client.wait(Some(1_000)).into_future());
    seen.wait_for(&seen.started, 1).await;
    let (refused, _) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            client.nothing().await.unwrap_err()
        },
        server.drain(Duration::from_secs(5))
    );
    expect(&refused, Code::Draining, Started::NotStarted);
    expect_once(&refused.to_string(), "it takes no new calls");
    running.await.unwrap().unwrap();
}

/// The limit of the server differs from that of the caller.
#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_server_differs_from_that_of_the_caller() {
    let server = Server::new().deadline_max(Duration::from_secs(2));
    let (client, _, _server) = probe_with(server).await;
    let late = client.wait(None).await.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::MaybeRan);
    let text = late.to_string();
    expect_once(&text, ": the deadline passed after 2");
    expect_once(&text, "the server allows 2s (Server::deadline_max)");
}
