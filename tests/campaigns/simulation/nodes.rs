//! What may happen to nodes and to what lies between them.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_fabric::rdm::PeerEventKind;
use tokio_fabric::testing::{Net, Node, connect, connect_endpoints};
use tokio_fabric::{
    Endpoint, ErrorKind, RdmEndpoint, ep::Liveness, info::AuthKey, rdm::ScalableEndpoint,
};

use super::paused;

const MS: Duration = Duration::from_millis(1);

async fn pair(net: &Net) -> (Endpoint, Endpoint) {
    let (a, b) = (net.node("a").peer().unwrap(), net.node("b").peer().unwrap());
    connect(&a, &b).await.unwrap()
}

fn rdm(node: &Node) -> RdmEndpoint {
    let domain = node.peer().unwrap().domain;
    let at = node.addr(7471);
    domain.rdm_endpoint().listen_at(at).open().unwrap()
}

/// `Net::partition`: "data that is on its way, and data that is sent from now on, waits [...] until
/// the partition heals".
#[test]
fn what_is_sent_during_a_partition_arrives_after_it() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        net.link("a", "b").latency(50 * MS);
        let first = a.recv(vec![0; 64]);
        let first = tokio::spawn(async move { first.await.map(|(got, _)| got.len) });
        b.send("on its way").await.unwrap();
        sleep(10 * MS).await;
        net.partition("a", "b");
        for number in 0..10_u8 {
            b.inject(&[number; 100]).unwrap();
        }
        sleep(990 * MS).await;
        assert!(!first.is_finished(), "nothing passes");
        let healed = Instant::now();
        net.heal("a", "b");
        assert_eq!(first.await.unwrap().unwrap(), 10);
        assert_eq!(healed.elapsed(), 50 * MS, "it leaves anew");
        for number in 0..10_u8 {
            let (_, bytes) = a.recv(vec![0; 100]).await.unwrap();
            assert_eq!(bytes, [number; 100]);
        }
    });
}

/// `Net::partition_one_way`: "data that `from` sends does not reach `to`", and nothing else
/// changes.
#[test]
fn a_partition_may_be_one_way() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        net.partition_one_way("a", "b");
        let lost = b.recv(vec![0; 8]);
        let lost = tokio::spawn(async move { lost.await.map(|(got, _)| got.len) });
        a.inject(b"there").unwrap();
        b.inject(b"back").unwrap();
        assert_eq!(a.recv(vec![0; 8]).await.unwrap().0.len, 4);
        sleep(500 * MS).await;
        assert!(!lost.is_finished());
        net.heal("a", "b");
        assert_eq!(lost.await.unwrap().unwrap(), 5);
    });
}

/// `Net::partition`: "or a side gives up (because of `Liveness` [...])": within the time it says.
#[test]
fn a_long_partition_ends_a_connection_by_its_liveness() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        let start = Instant::now();
        net.partition("a", "b");
        let sent = a.send("hello").delivery_complete().await;
        let error = sent.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::TimedOut, "{error}");
        let found = Liveness::default().found_within().unwrap();
        assert!(start.elapsed() <= found, "{:?}", start.elapsed());
        assert!(start.elapsed() >= found / 4, "{:?}", start.elapsed());
        // The other end learns the same by itself, or by the reset that arrives when it heals.
        net.heal("a", "b");
        assert!(b.recv(vec![0; 8]).await.is_err());
    });
}

/// What two connectionless endpoints at these nodes are opened with.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Keyed,
    Contexts,
}

fn rdm_of(kind: Kind, node: &Node) -> (RdmEndpoint, Option<ScalableEndpoint>) {
    let domain = node.peer().unwrap().domain;
    let at = node.addr(7471);
    match kind {
        Kind::Contexts => {
            let vector = domain.address_vector().rx_ctx_bits(1).open().unwrap();
            let builder = domain.scalable_endpoint().contexts(1).listen_at(at);
            let scalable = builder.address_vector(&vector).open().unwrap();
            (scalable.contexts()[0].clone(), Some(scalable))
        }
        _ => {
            let builder = domain.rdm_endpoint().listen_at(at);
            let builder = match kind {
                Kind::Keyed => builder.auth_key(AuthKey::new(*b"the key of one job")),
                _ => builder,
            };
            (builder.open().unwrap(), None)
        }
    }
}

/// `Net::partition_losing_resets`: "a connection that one side gives up meanwhile is not reset at
/// the other, not even after the partition". The side that only receives holds such a connection
/// for up to a minute by itself. The other's request makes it ask at once, and then gives way.
#[test]
fn a_peer_that_has_given_a_connection_up_is_soon_connected_again() {
    for kind in [Kind::Plain, Kind::Keyed, Kind::Contexts] {
        paused(async move {
            let net = Net::new(1);
            let (a, b) = (net.node("a"), net.node("b"));
            let ((x, _all_of_x), (y, _all_of_y)) = (rdm_of(kind, &a), rdm_of(kind, &b));
            let y_at = x.insert(b.addr(7471)).unwrap();
            let sink = tokio::spawn(async move { while y.recv(vec![0; 16]).await.is_ok() {} });
            x.send("before", y_at).delivery_complete().await.unwrap();
            net.partition_losing_resets("a", "b");
            let lost = x.send("lost", y_at).delivery_complete().await;
            assert!(lost.is_err(), "{kind:?}");
            net.heal("a", "b");
            let start = Instant::now();
            // It was lost with its connection, or waits for the next one.
            while let Err(failed) = x.send("after", y_at).delivery_complete().await {
                assert_ne!(failed.kind(), ErrorKind::ConnectionRefused, "{failed}");
            }
            let found = Liveness::default().found_within().unwrap();
            let took = start.elapsed();
            assert!(took <= 2 * found, "{kind:?}: {took:?}");
            sink.abort();
        });
    }
}

/// A request for a connection is asked again until the wire is whole; a refusal takes its time.
#[test]
fn connections_are_made_when_the_wire_is_whole() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = (net.node("a").peer().unwrap(), net.node("b").peer().unwrap());
        net.link("a", "b").latency(20 * MS);
        let endpoint = a.domain.endpoint().open().unwrap();
        let start = Instant::now();
        let refused = endpoint.connect(net.node("b").addr(9)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(start.elapsed(), 40 * MS);

        net.partition("a", "b");
        let connecting = tokio::spawn(async move { connect(&a, &b).await.map(drop) });
        sleep(1_000 * MS).await;
        assert!(!connecting.is_finished());
        net.heal("a", "b");
        connecting.await.unwrap().unwrap();
    });
}

/// `Net::crash`: "its connections are reset at their peers (when the reset arrives), its listeners
/// are gone, its tasks are aborted, and its remaining objects fail with `DriverGone`".
#[test]
fn a_crash_ends_all_that_was_at_the_node() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        net.link("a", "b").latency(30 * MS);
        let node = net.node("b");
        let listener = rdm(&node);
        let task = node.spawn(std::future::pending::<()>());
        let left = tokio::spawn({
            let b = b.clone();
            async move { b.recv(vec![0; 8]).await.map(drop) }
        });
        let at_a = tokio::spawn(async move { a.recv(vec![0; 8]).await.map(drop) });
        sleep(MS).await;
        let start = Instant::now();
        net.crash("b");
        assert!(task.await.unwrap_err().is_cancelled());
        let left = left.await.unwrap().unwrap_err();
        assert!(
            matches!(
                left.error().kind(),
                ErrorKind::DriverGone | ErrorKind::ConnectionReset
            ),
            "{left}"
        );
        assert_eq!(
            b.send("x").await.unwrap_err().error().kind(),
            ErrorKind::DriverGone
        );
        assert_eq!(node.fabric().unwrap_err().kind(), ErrorKind::DriverGone);
        assert_eq!(start.elapsed(), Duration::ZERO);
        let lost = at_a.await.unwrap().unwrap_err();
        assert_eq!(lost.error().kind(), ErrorKind::ConnectionReset, "{lost}");
        assert_eq!(start.elapsed(), 30 * MS);

        let endpoint = net
            .node("a")
            .peer()
            .unwrap()
            .domain
            .endpoint()
            .open()
            .unwrap();
        let refused = endpoint.connect(listener.local_addr()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

        // At once, at the same address, although the old objects are still there.
        let again = rdm(&net.restart("b"));
        assert_eq!(again.local_addr(), listener.local_addr());
    });
}

/// `Net::crash`: "its remaining objects fail with `DriverGone`", from the crash on, and also once
/// another process runs at the node.
#[test]
fn nothing_is_opened_in_a_domain_whose_node_has_crashed() {
    paused(async {
        let net = Net::new(1);
        let peer = net.node("a").peer().unwrap();
        let events = peer.fabric.event_queue().open().unwrap();
        let at = net.node("a").addr(0);
        let opened = || {
            let listener = peer.fabric.passive_endpoint(&events);
            let opened = [
                peer.domain.endpoint().open().map(drop),
                peer.domain.rdm_endpoint().open().map(drop),
                listener.listen_at(at).map(drop),
                peer.fabric.domain().open().map(drop),
            ];
            opened.map(|it| it.map_err(|error| error.kind()))
        };
        net.crash("a");
        assert_eq!(opened(), [Err(ErrorKind::DriverGone); 4]);
        net.restart("a");
        assert_eq!(opened(), [Err(ErrorKind::DriverGone); 4]);
    });
}

/// A connectionless endpoint reaches a peer that has crashed and come again.
#[test]
fn three_nodes_go_on_with_one_that_restarts() {
    paused(async {
        let net = Net::new(1);
        let names = ["a", "b", "c"];
        let mut endpoints = names.map(|name| rdm(&net.node(name)));
        for round in 0..3 {
            for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)] {
                let (near, far) = (&endpoints[from], &endpoints[to]);
                let to = near.insert(far.local_addr()).unwrap();
                let (sent, got) = tokio::join!(near.send("hello", to), far.recv(vec![0; 8]));
                sent.unwrap();
                let source = got.unwrap().0.source_addr.unwrap();
                assert_eq!(source, near.local_addr(), "round {round}");
            }
            let node = net.restart(names[round]);
            endpoints[round] = rdm(&node);
            sleep(100 * MS).await;
        }
    });
}

/// `Net::hang`: "its drivers and tasks do nothing, its sockets accept as much as they have room
/// for, and its peers' `Liveness` detects that it is dead".
#[test]
fn a_node_that_hangs_is_found_dead_and_one_that_hangs_shortly_is_not() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        let ticks = net.node("b").spawn(async {
            for _ in 0..10 {
                sleep(100 * MS).await;
            }
            Instant::now()
        });
        let start = Instant::now();
        sleep(50 * MS).await;
        net.hang("b");
        a.send("hello").await.unwrap();
        sleep(1_500 * MS).await;
        assert!(!ticks.is_finished());
        net.resume("b");
        assert_eq!(b.recv(vec![0; 8]).await.unwrap().0.len, 5);
        // The ticks go on, the first of them late.
        assert_eq!(ticks.await.unwrap() - start, 2_450 * MS);

        net.hang("b");
        let start = Instant::now();
        let sent = a.send("hello").delivery_complete().await;
        assert_eq!(sent.unwrap_err().error().kind(), ErrorKind::TimedOut);
        let found = Liveness::default().found_within().unwrap();
        assert!(start.elapsed() <= found, "{:?}", start.elapsed());
        net.resume("b");
        assert!(b.recv(vec![0; 8]).await.is_err());
    });
}

/// docs/reliability.md: "while only receives are posted, or receives are shared": although a shared
/// receive is no operation of a connection, a peer that falls silent is found. One that lives is
/// left alone.
#[test]
fn a_silent_peer_is_found_dead_where_receives_are_shared() {
    let idle = 2_000 * MS;
    let liveness = Liveness::default().idle_interval(idle);
    let limit = 2 * idle + liveness.found_within().unwrap();
    paused(async {
        let net = Net::new(1);
        let (a, b) = (net.node("a").peer().unwrap(), net.node("b").peer().unwrap());
        let context = a.domain.receive_context().open().unwrap();
        let builder = a.domain.endpoint().receive_context(&context);
        let x = builder.liveness(liveness).open().unwrap();
        let y = b.domain.endpoint().open().unwrap();
        connect_endpoints(&x, &y, &b.fabric).await.unwrap();
        let _receive = context.recv(vec![0; 8]).post().unwrap();
        sleep(10 * limit).await;
        assert!(x.is_connected(), "an idle peer is no dead one");
        net.hang("b");
        sleep(limit).await;
        assert!(!x.is_connected());
    });
    paused(async {
        let net = Net::new(1);
        let a = net.node("a").peer().unwrap();
        let builder = a.domain.rdm_endpoint().liveness(liveness);
        let x = builder.listen_at(net.node("a").addr(7471)).open().unwrap();
        let y = rdm(&net.node("b"));
        let to_x = y.insert(x.local_addr()).unwrap();
        y.send("hello", to_x).await.unwrap();
        x.recv(vec![0; 8]).await.unwrap();
        let mut peers = x.peers();
        let up = peers.next().await.expect("it is open");
        assert!(matches!(up.kind, PeerEventKind::Up), "{up:?}");
        let _receive = x.recv(vec![0; 8]).post().unwrap();
        assert!(timeout(10 * limit, peers.next()).await.is_err(), "it lives");
        net.partition("a", "b");
        let down = timeout(limit, peers.next()).await.expect("it is found");
        let PeerEventKind::Down { error: Some(error) } = down.expect("it is open").kind else {
            panic!("no reason");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    });
}

/// `Wiring`: "How long data is on its way, in each direction"; "Bytes per second in each direction,
/// shared by all connections between the two nodes".
#[test]
fn latency_and_bandwidth_are_as_set() {
    paused(async {
        let net = Net::new(1);
        let (a, b) = pair(&net).await;
        let (c, d) = pair(&net).await;
        net.link("a", "b").latency(10 * MS).bandwidth(1 << 20);
        let len = 512 << 10;
        let start = Instant::now();
        let (_, one, _, other) = tokio::join!(
            a.send(vec![1; len]),
            b.recv(vec![0; len]),
            c.send(vec![2; len]),
            d.recv(vec![0; len]),
        );
        assert_eq!((one.unwrap().0.len, other.unwrap().0.len), (len, len));
        // A mebibyte in all, and some headers.
        let took = start.elapsed();
        assert!(took >= 1_010 * MS && took < 1_030 * MS, "{took:?}");
        // The other direction is free.
        let start = Instant::now();
        b.send("back").await.unwrap();
        a.recv(vec![0; 8]).await.unwrap();
        assert!(start.elapsed() < 12 * MS, "{:?}", start.elapsed());
        // It changes at any time.
        net.link("a", "b").latency(200 * MS);
        let start = Instant::now();
        b.send("back").await.unwrap();
        a.recv(vec![0; 8]).await.unwrap();
        assert!((200..=201).contains(&start.elapsed().as_millis()));
    });
}

/// `Net::partition`: "Datagrams are lost."
#[test]
fn a_partition_loses_datagrams() {
    paused(async {
        let net = Net::new(1);
        let hints = || tokio_fabric::Hints::new().endpoint(tokio_fabric::EndpointType::Dgram);
        let open = |name: &str| {
            let node = net.node(name);
            let domain = node.fabric_with(hints()).unwrap().domain().open().unwrap();
            let vector = domain.address_vector().open().unwrap();
            let builder = domain.dgram_endpoint().address_vector(&vector);
            (builder.bind(node.addr(5000)).open().unwrap(), vector)
        };
        let ((a, vector), (b, _)) = (open("a"), open("b"));
        let to_b = vector.insert(b.local_addr()).now().unwrap();
        net.partition_one_way("a", "b");
        a.send("lost", to_b).await.unwrap();
        net.heal("a", "b");
        net.link("a", "b").latency(5 * MS);
        let start = Instant::now();
        a.send("here", to_b).await.unwrap();
        let (_, bytes) = b.recv(vec![0; 4]).await.unwrap();
        assert_eq!(bytes, b"here");
        assert_eq!(start.elapsed(), 5 * MS);
    });
}

#[test]
#[should_panic(expected = "no node is called \"d\"; there are [\"a\", \"b\"]")]
fn a_name_without_a_node_is_reported() {
    paused(async {
        let net = Net::new(1);
        let _nodes = (net.node("a"), net.node("b"));
        net.partition("a", "d");
    });
}
