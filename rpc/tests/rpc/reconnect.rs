//! Servers that go and come back.

use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_fabric::Event;
use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::limits::IDLE_INTERVAL;
use tokio_fabric_rpc::{Call, Channel, Code, Listening, Server, Started};
use tower_service::Service;

use super::{Handlers, ProbeClient, ProbeServer, expect};

/// Tries again until the address is free: a listener's task ends some time after its handle.
async fn listen(net: &Net) -> Listening {
    let node = net.node("server");
    loop {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        let server = server.fabric(&node.fabric().unwrap());
        match server.bind(node.addr(7000)).await {
            Ok(listening) => return listening,
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn client(net: &Net) -> ProbeClient {
    let fabric = net.node("client").fabric().unwrap();
    let to = net.node("server").addr(7000);
    ProbeClient::over(
        Channel::builder()
            .fabric(&fabric)
            .connect(to)
            .await
            .unwrap(),
    )
}

/// Guide, chapter 9: "the same seed gives the same run, down to the timestamps": also the pauses
/// before a channel connects again, which are chosen at random.
#[test]
fn a_seed_determines_when_a_channel_connects_again() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(async {
            let net = Net::new(seed);
            let server = listen(&net).await;
            let client = client(&net).await;
            let begin = Instant::now();
            net.crash("server");
            drop(server);
            tokio::time::sleep(Duration::from_secs(1)).await;
            net.restart("server");
            let _server = listen(&net).await;
            client.channel().ready().await;
            begin.elapsed()
        })
    };
    let times: Vec<_> = (0..4).map(|seed| (run(seed), run(seed))).collect();
    assert!(times.iter().all(|(one, again)| one == again), "{times:?}");
    assert!(times.iter().any(|(one, _)| *one != times[0].0), "{times:?}");
}

/// "Fail fast with `Unavailable` (NotStarted) unless `wait_for_ready`"; "never Ready for a dead
/// endpoint".
#[tokio::test(start_paused = true)]
async fn a_channel_finds_a_server_that_comes_back() {
    let net = Net::new(31);
    let server = listen(&net).await;
    let client = client(&net).await;
    client.nothing().await.unwrap();
    net.crash("server");
    drop(server);
    // The end is noticed, and from then on a call fails at once.
    let lost = client
        .wait(None)
        .deadline(Duration::from_secs(60))
        .await
        .unwrap_err();
    assert!(
        matches!(lost.code(), Code::ConnectionLost | Code::Unavailable),
        "{lost}"
    );
    assert!(!client.channel().is_ready());
    let begin = Instant::now();
    let failed = client.nothing().await.unwrap_err();
    expect(&failed, Code::Unavailable, Started::NotStarted);
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let begin = Instant::now();
    let within = Duration::from_secs(1);
    let late = client
        .nothing()
        .wait_for_ready()
        .deadline(within)
        .await
        .unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::NotStarted);
    assert_eq!(begin.elapsed().as_secs(), 1);

    let waits = tokio::spawn(
        client
            .nothing()
            .wait_for_ready()
            .no_deadline()
            .into_future(),
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    net.restart("server");
    let server = listen(&net).await;
    let begin = Instant::now();
    waits.await.unwrap().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(6),
        "{:?}",
        begin.elapsed()
    );
    client.nothing().await.unwrap();
    assert_eq!(server.stats().connections, 1);
}

/// A server that is stopped, or cut off, answers no more, and ends
/// no connection. Its calls, one without a deadline too, end when its silence is noticed.
#[tokio::test(start_paused = true)]
async fn calls_to_a_server_that_falls_silent_end() {
    for is_cut_off in [false, true] {
        let net = Net::new(37);
        let server = listen(&net).await;
        let client = client(&net).await;
        let long = Duration::from_secs(1800);
        let waits = tokio::spawn(client.wait(None).no_deadline().into_future());
        tokio::time::sleep(long).await;
        assert!(client.channel().is_ready() && !waits.is_finished());
        match is_cut_off {
            true => net.partition("server", "client"),
            false => net.hang("server"),
        }
        let begin = Instant::now();
        let lost = waits.await.unwrap().unwrap_err();
        expect(&lost, Code::ConnectionLost, Started::MaybeRan);
        let limit = 2 * IDLE_INTERVAL + Liveness::default().found_within().unwrap();
        assert!(begin.elapsed() <= limit, "{:?}", begin.elapsed());
        assert!(!client.channel().is_ready());
        drop(server);
    }
}

/// "Rolling restarts under load with `NotStarted` retries: 0 failed calls".
#[tokio::test(start_paused = true)]
async fn rolling_restarts_fail_no_call_that_is_made_again_if_not_started() {
    let net = Net::new(32);
    let mut server = listen(&net).await;
    let client = client(&net).await;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8_u64)
        .map(|caller| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    match client.wait(Some(1 + caller % 3)).wait_for_ready().await {
                        Ok(()) => calls += 1,
                        Err(status) => assert!(status.is_not_started(), "{status}"),
                    }
                }
                calls
            })
        })
        .collect();
    for pause in 0..30 {
        tokio::time::sleep(Duration::from_micros(5_000 + 300 * pause)).await;
        server.drain(Duration::from_secs(5)).await;
        server = listen(&net).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.unwrap() > 30);
    }
}

/// A channel that is closed comes back no more, and one that is dropped goes.
#[tokio::test(start_paused = true)]
async fn a_closed_channel_stays_closed() {
    let net = Net::new(33);
    let server = listen(&net).await;
    let closed = client(&net).await;
    closed.channel().close().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(closed.nothing().await.unwrap_err().is_not_started());
    assert_eq!(server.stats().connections, 0);
    let dropped = client(&net).await;
    dropped.nothing().await.unwrap();
    drop(dropped);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(server.stats().connections, 0);
}

/// "Makes no other": not the one that is being made, either.
#[tokio::test(start_paused = true)]
async fn a_channel_that_is_closed_while_it_connects_anew_stays_closed() {
    let net = Net::new(35);
    let peer = net.peer().unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let passive = peer.fabric.passive_endpoint(&peer.events);
    let listener = passive.listen_at(any).unwrap();
    let builder = Channel::builder().fabric(&net.fabric().unwrap());
    let connecting = tokio::spawn(builder.connect(listener.local_addr()));
    let request = async || loop {
        if let Some(Event::ConnRequest(request)) = peer.events.next().await {
            break request;
        }
    };
    let hello = super::hostile::hello_with(0);
    let first = request().await.accept(&peer.domain).data(hello.clone());
    let first = first.await.unwrap();
    let channel = connecting.await.unwrap().unwrap();
    first.shutdown().await.unwrap();
    let second = request().await;
    channel.close().await;
    let _second = second.accept(&peer.domain).data(hello).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!channel.is_ready());
    let client = ProbeClient::over(channel);
    assert!(client.nothing().await.unwrap_err().is_not_started());
}

/// A server that accepts each connection and ends it at once is not asked for another one without a
/// pause.
#[tokio::test(start_paused = true)]
async fn connections_that_end_at_once_are_made_at_a_bounded_rate() {
    let net = Net::new(38);
    let peer = net.peer().unwrap();
    let passive = peer.fabric.passive_endpoint(&peer.events);
    let listener = passive.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let builder = Channel::builder().fabric(&net.fabric().unwrap());
    let connecting = tokio::spawn(builder.connect(listener.local_addr()));
    let begin = Instant::now();
    let mut accepted = 0;
    while accepted < 100 {
        if let Some(Event::ConnRequest(request)) = peer.events.next().await {
            let hello = super::hostile::hello_with(0);
            let endpoint = request.accept(&peer.domain).data(hello).await.unwrap();
            let _ = endpoint.shutdown().await;
            accepted += 1;
        }
    }
    assert!(begin.elapsed().as_millis() >= 450, "{:?}", begin.elapsed());
    drop(connecting.await);
}

/// "Its connections end then", with the calls on them.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_dropped_ends_what_runs() {
    let net = Net::new(36);
    let node = net.node("server");
    let handlers = Handlers::default();
    let seen = Arc::clone(&handlers.0);
    let server = Server::new().add(ProbeServer::new(handlers));
    let server = server.fabric(&node.fabric().unwrap());
    let server = server.bind(node.addr(7000)).await.unwrap();
    let client = client(&net).await;
    let call = tokio::spawn(client.wait(None).no_deadline().into_future());
    seen.wait_for(&seen.started, 1).await;
    drop(server);
    let ended = timeout(Duration::from_secs(60), call).await;
    let lost = ended.expect("it ends").unwrap().unwrap_err();
    expect(&lost, Code::ConnectionLost, Started::MaybeRan);
    let dropped = seen.wait_for(&seen.dropped, 1);
    timeout(Duration::from_secs(60), dropped)
        .await
        .expect("its handler too");
}

/// "Readiness = connected and room; down = Pending, never Err".
#[tokio::test(start_paused = true)]
async fn a_service_is_ready_while_a_call_would_be_sent_at_once() {
    let net = Net::new(34);
    let node = net.node("server");
    let handlers = Handlers::default();
    let seen = Arc::clone(&handlers.0);
    let server = Server::new().add(ProbeServer::new(handlers)).window(1);
    let server = server
        .fabric(&node.fabric().unwrap())
        .bind(node.addr(7000))
        .await
        .unwrap();
    let client = client(&net).await;
    // Each is one of its own: what has once been ready stays so.
    let ready = async || {
        let mut service = client.channel().service();
        let ready = poll_fn(|cx| Service::<Call<()>>::poll_ready(&mut service, cx));
        timeout(Duration::from_millis(100), ready)
            .await
            .map(|it| it.expect("never an error"))
    };
    ready().await.unwrap();
    let running = tokio::spawn(client.wait(Some(1000)).into_future());
    seen.wait_for(&seen.started, 1).await;
    assert!(ready().await.is_err(), "the window is full");
    running.await.unwrap().unwrap();
    ready().await.unwrap();
    server.drain(Duration::ZERO).await;
    assert!(ready().await.is_err(), "the server has gone");
    let _server = listen(&net).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    ready().await.unwrap();
    // What it is given goes over its channel, as often as it is given.
    let call = client.check(7);
    let mut service = client.channel().service();
    assert_eq!(service.call(call.clone()).await.unwrap(), 7);
    assert_eq!(service.call(call).await.unwrap(), 7);
}
