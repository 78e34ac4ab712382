//! Peers that come, go and restart, as a stream (`RdmEndpoint::peers`).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use futures::stream::FusedStream;
use tokio_fabric::rdm::{IdlePolicy, PeerEvent, PeerEventKind, Peers};
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Backend, Error, ErrorKind, RdmEndpoint};

use crate::common::child::{self, PeerProcess};
use crate::common::peers;
use crate::common::{
    backends, on_each_at_once, on_every_backend, on_every_backend_at_once, on_sockets_at_once,
};

/// An event that can be read at once, if there is one.
fn unread(peers: &mut Peers) -> Option<PeerEvent> {
    peers
        .next()
        .now_or_never()
        .map(|event| event.expect("it is open"))
}

async fn next(peers: &mut Peers) -> PeerEvent {
    peers.next().await.expect("it is open")
}

#[track_caller]
fn is_up(event: PeerEvent, peer: SocketAddr) -> u32 {
    assert!(matches!(event.kind, PeerEventKind::Up), "{event:?}");
    assert_eq!(event.peer, peer);
    event.incarnation.expect("a peer of ours has one")
}

/// The reason for which the peer is down.
#[track_caller]
fn is_down(event: PeerEvent, peer: SocketAddr) -> Option<Error> {
    assert_eq!(event.peer, peer);
    match event.kind {
        PeerEventKind::Down { error } => error,
        _ => panic!("{event:?}"),
    }
}

/// "RDM: events or a stream of peers that come, go and restart": a peer is up before its first
/// message can be read, down without an error after an orderly end, and up in the same life when
/// it is connected anew; a stream that is opened late begins with who is up; unread changes are
/// one. The stream keeps no endpoint open, and ends with it.
#[test]
fn peers_that_come_and_go_are_reported_to_every_stream() {
    on_every_backend(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let (at_x, at_y) = (x.local_addr(), y.local_addr());
        let to_x = y.insert(at_x).unwrap();
        let (mut from_x, mut from_y) = (x.peers(), y.peers());
        y.send("first", to_x).await.unwrap();
        x.recv(vec![0; 8]).await.unwrap();
        let event = unread(&mut from_x).expect("up before its message");
        assert_eq!(event.fabric_addr, None);
        let life = is_up(event, at_y);
        let event = next(&mut from_y).await;
        assert_eq!(event.fabric_addr, Some(to_x));
        assert_ne!(is_up(event, at_x), life);
        let mut late = x.peers();
        assert_eq!(is_up(unread(&mut late).unwrap(), at_y), life);
        // In order, and anew.
        let to_y = x.insert(at_y).unwrap();
        x.disconnect(to_y).unwrap();
        let event = next(&mut from_x).await;
        assert_eq!(
            (event.fabric_addr, event.incarnation),
            (Some(to_y), Some(life))
        );
        assert!(is_down(event, at_y).is_none());
        assert!(is_down(next(&mut from_y).await, at_x).is_none());
        y.send("second", to_x).await.unwrap();
        assert_eq!(is_up(next(&mut from_x).await, at_y), life);
        is_up(next(&mut from_y).await, at_x);
        y.shutdown().await.unwrap();
        assert!(is_down(next(&mut from_x).await, at_y).is_none());
        assert!(is_down(next(&mut from_y).await, at_x).is_none());
        assert!(from_y.next().await.is_none() && from_y.is_terminated());
        // What came before is there all the same; what was not read is one event.
        x.recv(vec![0; 8]).await.unwrap();
        assert!(is_down(unread(&mut late).unwrap(), at_y).is_none());
        assert!(unread(&mut late).is_none());
        drop((x, y));
        assert!(from_x.next().await.is_none() && late.next().await.is_none());
        assert!(late.next().now_or_never().flatten().is_none());
        one.domain.closed().await;
    });
}

/// A connection that either side closes since it is idle says nothing against the peer.
#[test]
fn an_idle_connections_end_is_no_error() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let open = |peer: &Peer, policy| {
            let builder = peer.domain.rdm_endpoint().idle(policy);
            builder.listen_at(peers::any()).open().unwrap()
        };
        let x = open(&one, IdlePolicy::CloseAfter(Duration::from_millis(20)));
        let y = open(&two, IdlePolicy::Keep);
        let to_y = x.insert(y.local_addr()).unwrap();
        let (mut from_x, mut from_y) = (x.peers(), y.peers());
        let mut lives = HashSet::new();
        for _ in 0..3 {
            x.send("word", to_y).await.unwrap();
            y.recv(vec![0; 8]).await.unwrap();
            for events in [&mut from_x, &mut from_y] {
                // On a busy machine the idle time passes before this is read: that is one event.
                let mut event = next(events).await;
                lives.insert(event.incarnation);
                if matches!(event.kind, PeerEventKind::Up) {
                    event = next(events).await;
                }
                let peer = event.peer;
                assert!(is_down(event, peer).is_none());
            }
        }
        assert_eq!(lives.len(), 2, "one life of each");
    });
}

/// "a restart is never lost": who reads each event sees the old life go and another come; who reads
/// nothing meanwhile reads that it has restarted.
#[test]
fn a_restart_is_reported_read_or_unread() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (_held, address) = peers::reserved();
        let x = one.rdm_endpoint().unwrap();
        let y = two.domain.rdm_endpoint().listen_at(address).open().unwrap();
        let to_y = x.insert(address).unwrap();
        let (mut read, mut unread_until_now) = (x.peers(), x.peers());
        x.send("first", to_y).delivery_complete().await.unwrap();
        let old = is_up(next(&mut read).await, address);
        assert_eq!(is_up(next(&mut unread_until_now).await, address), old);
        drop(y);
        let event = next(&mut read).await;
        assert_eq!(event.incarnation, Some(old));
        assert!(is_down(event, address).is_none());
        let three = net.peer().unwrap();
        let y = loop {
            // The old one's listener closes after its handle.
            match three.domain.rdm_endpoint().listen_at(address).open() {
                Ok(endpoint) => break endpoint,
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddressInUse),
            }
            tokio::task::yield_now().await;
        };
        let to_x = y.insert(x.local_addr()).unwrap();
        y.send("second", to_x).delivery_complete().await.unwrap();
        let new = is_up(next(&mut read).await, address);
        assert_ne!(new, old);
        let event = unread(&mut unread_until_now).unwrap();
        assert!(matches!(event.kind, PeerEventKind::Restarted), "{event:?}");
        assert_eq!((event.peer, event.incarnation), (address, Some(new)));
        assert!(unread(&mut unread_until_now).is_none() && unread(&mut read).is_none());
    });
}

/// A peer whose process is killed is down with the reason, after what was posted to it has ended;
/// so it is when no process listens there.
#[test]
fn a_killed_peer_is_down_with_its_reason() {
    on_sockets_at_once(|net| async move {
        let us = net.peer().unwrap();
        let builder = us.domain.rdm_endpoint().listen_at(peers::any());
        let deadline = Duration::from_millis(100);
        let x = builder.connect_deadline(deadline).open().unwrap();
        let test = "peers::events::the_peer_that_is_killed";
        let starting = tokio::task::spawn_blocking(|| PeerProcess::start(test, &[]));
        let (mut process, address) = starting.await.unwrap();
        let address = address.parse().unwrap();
        let to_it = x.insert(address).unwrap();
        let mut events = x.peers();
        x.send("alive?", to_it).delivery_complete().await.unwrap();
        is_up(next(&mut events).await, address);
        let mut waits = x.send(vec![1; 1 << 20], to_it).post().unwrap();
        assert!(unread(&mut events).is_none());
        process.kill();
        let error = is_down(next(&mut events).await, address).expect("a reason");
        assert_eq!(error.peer(), Some(address));
        let failed = (&mut waits).now_or_never().expect("it has ended before");
        assert_eq!(failed.unwrap_err().kind(), error.kind());
        let refused = x.send("again?", to_it).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable);
        let event = next(&mut events).await;
        assert_eq!(event.incarnation, None);
        let error = is_down(event, address).expect("a reason");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    });
}

/// The other process.
#[test]
#[ignore = "the other process of another test"]
fn the_peer_that_is_killed() {
    child::end_with_the_parent();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let us = Net::on(Backend::Epoll).peer().unwrap();
        let builder = us.domain.rdm_endpoint().listen_at(peers::any());
        let y = builder.open().unwrap();
        child::say(y.local_addr());
        y.recv(vec![0; 16]).await.unwrap();
        std::future::pending::<()>().await;
    });
}

/// A peer that hangs is down when its liveness says so; one that has crashed and comes back, at the
/// same address, is another one. From the seed alone.
#[tokio::test(start_paused = true)]
async fn a_silent_death_and_a_crash_are_reported_with_their_reasons() {
    let net = Net::new(11);
    let us = net.node("us").peer().unwrap();
    let builder = us.domain.rdm_endpoint().listen_at(peers::any());
    let x = builder.open().unwrap();
    let mut events = x.peers();
    let open = |peer: Peer| {
        let builder = peer.domain.rdm_endpoint();
        let endpoint = builder.listen_at(([127, 0, 0, 1], 700).into()).open();
        (peer, endpoint.unwrap())
    };
    let talk = async |y: &RdmEndpoint| {
        let to_x = y.insert(x.local_addr()).unwrap();
        y.send("here", to_x).delivery_complete().await.unwrap();
    };
    let (_first, y) = open(net.node("them").peer().unwrap());
    let at_y = y.local_addr();
    talk(&y).await;
    let first = is_up(next(&mut events).await, at_y);
    let to_y = x.insert(at_y).unwrap();
    let mut awaits = x.send(vec![0; 1 << 20], to_y).post().unwrap();
    net.hang("them");
    let error = is_down(next(&mut events).await, at_y).expect("a reason");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let failed = (&mut awaits).now_or_never().expect("it has ended before");
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::TimedOut);

    net.restart("them");
    let (_second, y) = open(net.node("them").peer().unwrap());
    talk(&y).await;
    let second = is_up(next(&mut events).await, at_y);
    assert_ne!(second, first);

    net.crash("them");
    let error = is_down(next(&mut events).await, at_y).expect("a reason");
    assert!(error.is_connection_lost(), "{error}");
    net.restart("them");
    let (_third, y) = open(net.node("them").peer().unwrap());
    talk(&y).await;
    assert_ne!(is_up(next(&mut events).await, at_y), second);
}

/// Each stream reports each of many peers once, and merges the unread events of a peer that has
/// gone into one; what it reported before is not reported again.
#[test]
fn each_of_many_peers_is_reported_once() {
    const PEERS: usize = 60;
    on_each_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let x = one.rdm_endpoint().unwrap();
        let (mut read, mut lazy) = (x.peers(), x.peers());
        let mut others: Vec<_> = (0..PEERS).map(|_| two.rdm_endpoint().unwrap()).collect();
        let sending = others.iter().map(|y| async {
            let to_x = y.insert(x.local_addr()).unwrap();
            y.send("here", to_x).delivery_complete().await.unwrap();
        });
        join_all(sending).await;
        let mut up = HashMap::new();
        while let Some(event) = unread(&mut read) {
            let peer = event.peer;
            assert!(up.insert(peer, is_up(event, peer)).is_none(), "twice");
        }
        assert_eq!(up.len(), PEERS);
        let lives: HashSet<_> = up.values().collect();
        assert_eq!(lives.len(), PEERS);
        let stay = others.split_off(PEERS / 2);
        join_all(others.iter().map(RdmEndpoint::shutdown)).await;
        for _ in 0..PEERS / 2 {
            let event = next(&mut read).await;
            assert!(up.contains_key(&event.peer));
            let peer = event.peer;
            assert!(is_down(event, peer).is_none());
        }
        let mut late = x.peers();
        let mut seen = [(); 2].map(|()| HashMap::new());
        for (events, seen) in [&mut lazy, &mut late].into_iter().zip(&mut seen) {
            while let Some(event) = unread(events) {
                assert_eq!(event.incarnation, up.get(&event.peer).copied());
                let is_up = matches!(event.kind, PeerEventKind::Up);
                assert!(seen.insert(event.peer, is_up).is_none(), "twice");
            }
        }
        let [lazy, late] = seen;
        assert_eq!((lazy.len(), late.len()), (PEERS, PEERS / 2));
        for y in &stay {
            assert!(lazy[&y.local_addr()] && late[&y.local_addr()]);
        }
        assert_eq!(lazy.values().filter(|up| **up).count(), PEERS / 2);
    });
}

/// When the runtime goes, each peer that was up is down for that reason, and the stream ends.
#[test]
fn a_stream_ends_with_the_runtime() {
    for backend in backends() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (x, y, mut events) = runtime.block_on(async {
            let (x, y) = Net::on(backend).rdm_pair().unwrap();
            let events = x.endpoint.peers();
            y.endpoint.send("here", y.other).await.unwrap();
            x.endpoint.recv(vec![0; 4]).await.unwrap();
            (x, y, events)
        });
        drop(runtime);
        let event = unread(&mut events).unwrap();
        let error = is_down(event, y.endpoint.local_addr()).expect("a reason");
        assert_eq!(error.kind(), ErrorKind::DriverGone, "{backend}");
        assert!(
            events
                .next()
                .now_or_never()
                .expect("it has ended")
                .is_none()
        );
        let after = x.endpoint.peers().next().now_or_never();
        assert!(after.expect("it has ended").is_none());
    }
}
