//! Servers that move: names, several addresses, and channels that are there before their servers.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    Backoff, Channel, ChannelBuilder, Code, Listening, Resolve, Server, Started,
};

use super::{Handlers, ProbeClient, ProbeServer, Seen, expect};

/// A resolver whose table the test changes.
#[derive(Clone, Debug, Default)]
pub struct Table(Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>);

impl Table {
    pub fn set(&self, name: &str, addresses: &[SocketAddr]) {
        let mut table = self.0.lock().unwrap();
        table.insert(name.to_owned(), addresses.to_vec());
    }
}

impl Resolve for Table {
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let found = self.0.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| io::Error::other(format!("no {name} in the table")))
    }
}

async fn listen(net: &Net, node: &str) -> (Listening, Arc<Seen>) {
    let node = net.node(node);
    loop {
        let handlers = Handlers::default();
        let server = Server::new().connections_max(8);
        let server = server.add(ProbeServer::new(handlers.clone()));
        let server = server.fabric(&node.fabric().unwrap());
        match server.bind(node.addr(7000)).await {
            Ok(listening) => return (listening, handlers.0),
            Err(status) => assert!(status.message().contains("in use"), "{status}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
}

fn builder(net: &Net) -> ChannelBuilder {
    Channel::builder().fabric(&net.node("client").fabric().unwrap())
}

/// Waits until the channel knows that its server is gone.
async fn until_lost(channel: &Channel) {
    while channel.is_ready() {
        sleep(Duration::from_micros(100)).await;
    }
}

/// "A front starts before its back; the first call waits or fails as `wait_for_ready` says."
#[tokio::test(start_paused = true)]
async fn a_lazy_channel_is_there_before_its_server() {
    let net = Net::new(40);
    let to = net.node("server").addr(7000);
    let client = ProbeClient::over(builder(&net).connect_lazy(to).unwrap());
    let failed = client.nothing().await.unwrap_err();
    expect(&failed, Code::Unavailable, Started::NotStarted);
    assert!(failed.message().contains("refused"), "says why: {failed}");
    let waits = tokio::spawn(client.nothing().wait_for_ready().into_future());
    sleep(Duration::from_secs(3)).await;
    let (_server, _) = listen(&net, "server").await;
    waits.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lazy_channel_connects_when_it_is_used() {
    let net = Net::new(41);
    let (server, _) = listen(&net, "server").await;
    let to = net.node("server").addr(7000);
    let channel = builder(&net).connect_lazy(to).unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!((server.stats().connections, channel.peer_addr()), (0, None));
    assert!(!channel.is_ready());
    // Without `wait_for_ready`: the first attempt is waited for in any case.
    let client = ProbeClient::over(channel.clone());
    client.nothing().await.unwrap();
    assert_eq!(
        (server.stats().connections, channel.peer_addr()),
        (1, Some(to))
    );
    let ready = builder(&net).connect_lazy(to).unwrap();
    ready.ready().await;
    assert!(ready.is_ready());
    // One that is dropped before it was used leaves nothing behind.
    drop(builder(&net).connect_lazy(to).unwrap());
    let closed = builder(&net).connect_lazy(to).unwrap();
    closed.close().await;
    let failed = ProbeClient::over(closed).nothing().await.unwrap_err();
    expect(&failed, Code::Unavailable, Started::NotStarted);
    assert_eq!(server.stats().connections, 2);
}

/// "Names are looked up again at every reconnect."
#[tokio::test(start_paused = true)]
async fn a_channel_follows_a_name_to_another_address() {
    let net = Net::new(42);
    let table = Table::default();
    let (first, _) = listen(&net, "one").await;
    table.set("store", &[first.local_addr()]);
    let channel = builder(&net).resolver(table.clone()).connect("store");
    let client = ProbeClient::over(channel.await.unwrap());
    client.nothing().await.unwrap();
    net.crash("one");
    drop(first);
    until_lost(client.channel()).await;
    let waits = tokio::spawn(client.nothing().wait_for_ready().into_future());
    sleep(Duration::from_millis(500)).await;
    let (second, _) = listen(&net, "other").await;
    table.set("store", &[second.local_addr()]);
    waits.await.unwrap().unwrap();
    assert_eq!(client.channel().peer_addr(), Some(second.local_addr()));
    assert_eq!(client.channel().target().name(), Some("store"));
    // What cannot be looked up any more is where it was.
    table.0.lock().unwrap().clear();
    second.drain(Duration::ZERO).await;
    let (_third, _) = listen(&net, "other").await;
    client.nothing().wait_for_ready().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_known_is_named() {
    let net = Net::new(43);
    let nowhere = builder(&net).resolver(Table::default()).connect("store");
    let status = nowhere.await.unwrap_err();
    expect(&status, Code::Unavailable, Started::NotStarted);
    assert!(
        status.message().contains("no store in the table"),
        "{status}"
    );
    let table = Table::default();
    table.set("store", &[]);
    let status = builder(&net).resolver(table).connect("store").await;
    let status = status.unwrap_err();
    assert!(status.message().contains("no address"), "{status}");
}

/// "And when `refresh()` is called": the server at the old address goes on, and no call fails.
#[tokio::test(start_paused = true)]
async fn a_refresh_moves_a_channel_and_fails_no_call() {
    let net = Net::new(44);
    let table = Table::default();
    let (first, _) = listen(&net, "one").await;
    let (second, _) = listen(&net, "other").await;
    table.set("store", &[first.local_addr()]);
    let channel = builder(&net).resolver(table.clone()).connect("store");
    let client = ProbeClient::over(channel.await.unwrap());
    // More calls than the window takes: some have not been sent when the channel moves.
    first.set_window(4, 1 << 20);
    sleep(Duration::from_millis(10)).await;
    let calls: Vec<_> = (0..20)
        .map(|_| tokio::spawn(client.wait(Some(100)).into_future()))
        .collect();
    sleep(Duration::from_millis(10)).await;
    client.channel().refresh().await.unwrap();
    assert_eq!(
        client.channel().peer_addr(),
        Some(first.local_addr()),
        "it is still there"
    );
    table.set("store", &[second.local_addr()]);
    client.channel().refresh().await.unwrap();
    assert_eq!(client.channel().peer_addr(), Some(second.local_addr()));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let started = (first.stats().started, second.stats().started);
    assert_eq!(started, (4, 16));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first.stats().connections, 0, "the old connection has ended");
    // An address where vacant is changes nothing.
    table.set("store", &[net.node("vacant").addr(7000)]);
    let status = client.channel().refresh().await.unwrap_err();
    expect(&status, Code::Unavailable, Started::NotStarted);
    client.nothing().await.unwrap();
}

/// "Several addresses are tried as RFC 8305 says: one dead address costs 250 ms, not 10 s", and one
/// that refuses costs nothing.
#[tokio::test(start_paused = true)]
async fn a_dead_address_among_several_costs_a_quarter_of_a_second() {
    let net = Net::new(45);
    let (server, _) = listen(&net, "server").await;
    let there = server.local_addr();
    let refuses = net.node("refuses").addr(7000);
    let silent = ["dead", "gone"].map(|name| {
        let node = net.node(name);
        net.partition(name, net.node("client").name());
        node.addr(7000)
    });
    for (addresses, millis) in [
        (vec![silent[0], there], 250),
        (vec![silent[0], silent[1], there], 500),
        (vec![refuses, there], 0),
        (vec![silent[0], refuses, there], 250),
    ] {
        let begin = Instant::now();
        let channel = builder(&net).connect(addresses.clone()).await.unwrap();
        let took = begin.elapsed().as_millis();
        assert!(
            (millis..millis + 20).contains(&took),
            "{addresses:?}: {took} ms"
        );
        assert_eq!(channel.peer_addr(), Some(there));
    }
    // If none answers, the limit is that of the last.
    let begin = Instant::now();
    let limit = Duration::from_secs(2);
    let nowhere = builder(&net).connect_timeout(limit).connect(silent).await;
    expect(
        &nowhere.unwrap_err(),
        Code::Unavailable,
        Started::NotStarted,
    );
    let (took, least) = (begin.elapsed(), limit + Duration::from_millis(250));
    assert!(
        took >= least && took < least + Duration::from_millis(20),
        "{took:?}"
    );
    // Attempts that were given up leave nothing behind.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(server.stats().connections, 0);
}

/// "After a server's return of 2 s a call succeeds within 100 ms of it at the defaults."
#[test]
fn a_server_that_returns_is_found_within_a_tenth_of_a_second() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(async {
            let net = Net::new(seed);
            let (server, _) = listen(&net, "server").await;
            let channel = builder(&net).connect(server.local_addr()).await.unwrap();
            let client = ProbeClient::over(channel);
            net.crash("server");
            drop(server);
            until_lost(client.channel()).await;
            let waits = tokio::spawn(client.nothing().wait_for_ready().into_future());
            sleep(Duration::from_secs(2)).await;
            net.restart("server");
            let _server = listen(&net, "server").await;
            let begin = Instant::now();
            waits.await.unwrap().unwrap();
            begin.elapsed()
        })
    };
    let mut took: Vec<_> = (0..200).map(run).collect();
    took.sort();
    println!("p50 {:?}, max {:?}", took[100], took[199]);
    assert!(took[199] < Duration::from_millis(100), "{took:?}");
    // By chance, so that not all clients return at once.
    assert!(took[199] > took[0] + Duration::from_millis(20), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_channel_connects_at_once_when_it_is_told_to() {
    let net = Net::new(46);
    let (server, _) = listen(&net, "server").await;
    let hour = Duration::from_secs(3600);
    let seldom = Backoff::default().first(hour).max(hour).jitter(0.0);
    let channel = builder(&net).backoff(seldom).connect(server.local_addr());
    let client = ProbeClient::over(channel.await.unwrap());
    // Connected for longer than the first pause, so that the first attempt is at once.
    sleep(hour).await;
    net.crash("server");
    drop(server);
    sleep(Duration::from_secs(60)).await;
    net.restart("server");
    let (_server, _) = listen(&net, "server").await;
    let long = Duration::from_secs(60);
    let late = client.nothing().wait_for_ready().deadline(long).await;
    expect(
        &late.unwrap_err(),
        Code::DeadlineExceeded,
        Started::NotStarted,
    );
    let begin = Instant::now();
    client.channel().reconnect_now();
    client.nothing().wait_for_ready().await.unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    // Connected, it stays as it is.
    client.channel().reconnect_now();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(client.channel().stats().connections, 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_found_as_soon_as_the_settings_say() {
    for is_keepalive in [false, true] {
        let net = Net::new(47);
        let (_server, _) = listen(&net, "server").await;
        let second = Duration::from_secs(1);
        let fast = Liveness::default().interval(second / 10).rounds(3);
        let fast = fast.idle_interval(second);
        let (builder, liveness) = match is_keepalive {
            true => (builder(&net).keepalive(fast), fast),
            false => {
                let idle = Liveness::default().idle_interval(second);
                (builder(&net).idle_interval(second), idle)
            }
        };
        let channel = builder
            .connect(net.node("server").addr(7000))
            .await
            .unwrap();
        let client = ProbeClient::over(channel);
        let waits = tokio::spawn(client.wait(None).no_deadline().into_future());
        sleep(Duration::from_secs(5)).await;
        net.hang("server");
        let begin = Instant::now();
        let lost = waits.await.unwrap().unwrap_err();
        expect(&lost, Code::ConnectionLost, Started::MaybeRan);
        let limit = 2 * second + liveness.found_within().unwrap();
        assert!(begin.elapsed() <= limit, "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn any_limit_is_one_and_other_settings_out_of_range_are_refused() {
    let net = Net::new(48);
    let to = net.node("server").addr(7000);
    for limit in [Duration::ZERO, Duration::MAX] {
        let nowhere = builder(&net).connect_timeout(limit).connect(to).await;
        expect(
            &nowhere.unwrap_err(),
            Code::Unavailable,
            Started::NotStarted,
        );
    }
    let backoff = Backoff::default().factor(0.5);
    let refused = builder(&net).backoff(backoff).connect_lazy(to).unwrap_err();
    assert!(refused.message().contains("factor of 0.5"), "{refused}");
    let idle = builder(&net).idle_interval(Duration::from_millis(1));
    assert!(idle.connect_lazy(to).is_err());
}

/// The system's resolver: a file of hosts of a namespace of the test's own, which changes while a
/// channel lives.
#[test]
fn a_channel_follows_a_name_in_the_file_of_hosts() {
    let hosts = std::env::temp_dir().join(format!("hosts-{}", std::process::id()));
    std::fs::write(&hosts, "127.0.0.2 moving-store\n").unwrap();
    let script = "mount --bind \"$HOSTS\" /etc/hosts && exec \"$0\" \
                  --exact moving::in_a_namespace_with_hosts --ignored --nocapture";
    let itself = std::env::current_exe().unwrap();
    let mut namespace = Command::new("unshare");
    let namespace = namespace.args(["-rm", "sh", "-c", script]).arg(itself);
    let is_possible = Command::new("unshare").args(["-rm", "true"]).status();
    if !is_possible.is_ok_and(|it| it.success()) {
        println!("skipped: there may be no namespaces");
        return;
    }
    let output = namespace.env("HOSTS", &hosts).output().unwrap();
    std::fs::remove_file(&hosts).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}

#[tokio::test]
#[ignore = "it runs in a namespace, which another test makes"]
async fn in_a_namespace_with_hosts() {
    let hosts = std::env::var_os("HOSTS").expect("the file that is mounted");
    let serve = async |at: SocketAddr| {
        let server = Server::new().add(ProbeServer::new(Handlers::default()));
        server.bind(at).await.unwrap()
    };
    let first = serve(([127, 0, 0, 2], 0).into()).await;
    let port = first.local_addr().port();
    let client = ProbeClient::connect(("moving-store", port)).await.unwrap();
    client.nothing().await.unwrap();
    assert_eq!(client.channel().peer_addr(), Some(first.local_addr()));
    let second = serve(([127, 0, 0, 3], port).into()).await;
    std::fs::write(hosts, "127.0.0.3 moving-store\n").unwrap();
    first.drain(Duration::ZERO).await;
    client.nothing().wait_for_ready().await.unwrap();
    assert_eq!(client.channel().peer_addr(), Some(second.local_addr()));
}
