//! Peers that come at the same time, go, and come back.

use std::time::Duration;

use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{EndpointType, ErrorKind, Hints, RdmEndpoint, av::FabricAddr};

use super::session::{Role, port_of, rdm_peer, start_c, start_c_at};
use crate::bytes::{assert_bytes, pattern};
use crate::harness::{PATIENCE, Process, free_port};

const ROUNDS: usize = 20;

/// Where to look for a port of ours: below those that the system chooses for C, and above, so that
/// either end's connection has to be the one that stays.
const PORTS: [u16; 2] = [20_000, 61_000];

/// A new endpoint of C's for each round; both ends send first, more or less at once.
pub async fn tie(net: Net) {
    let Some(program) = rdm_peer().or_left_out("tie") else {
        return;
    };
    for from in PORTS {
        let peer = net.peer().unwrap();
        let open = |port: u16| {
            let builder = peer.domain.rdm_endpoint();
            builder.listen_at(([127, 0, 0, 1], port).into()).open()
        };
        let x = (from..).find_map(|port| open(port).ok()).expect("a port");
        let c = start_c(program, "tie", Role::Initiator, x.local_addr());
        rounds(&x, c).await;
    }
}

async fn rounds(x: &RdmEndpoint, mut c: Process) {
    for round in 0..ROUNDS {
        let they = nth_port(&mut c, round).await;
        let to_c = x.insert(([127, 0, 0, 1], they).into()).unwrap();
        let receive = x.recv(vec![0; 64]).post().unwrap();
        let send = x.send(pattern(64, round + 1), to_c).delivery_complete();
        c.say("GO");
        // C needs a moment to be woken: from before that to after it.
        tokio::time::sleep(Duration::from_micros(50 * round as u64)).await;
        let exchange = async { tokio::join!(send.into_future(), receive) };
        let Ok((sent, received)) = tokio::time::timeout(PATIENCE, exchange).await else {
            panic!("round {round} hangs\n{}", c.finished(Duration::ZERO).await);
        };
        sent.unwrap();
        let (received, bytes) = received.unwrap();
        assert_eq!(received.source, Some(to_c), "round {round}");
        assert_bytes(
            "C's first message",
            &bytes[..received.len],
            &pattern(64, round),
        );
        c.line(&format!("ROUND {round}"), PATIENCE).await;
        c.say("NEXT");
    }
    c.finished(PATIENCE).await.assert_ok();
}

/// The port of this round's endpoint.
async fn nth_port(c: &mut Process, round: usize) -> u16 {
    let waiting = async {
        loop {
            if let Some(line) = c.lines("PORT ").get(round) {
                return line["PORT ".len()..].parse().unwrap();
            }
            if c.try_status().is_some() {
                panic!("C has ended in round {round}\n{c}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("a port")
}

/// A word there and back, begun by either side.
pub async fn echo(x: &RdmEndpoint, c: FabricAddr, role: Role) {
    let back = x.recv(vec![0; 4]).post().unwrap();
    let exchange = async {
        if role == Role::Initiator {
            x.send("word", c).delivery_complete().await.unwrap();
        }
        let (received, bytes) = back.await.unwrap();
        assert_eq!((received.source, &bytes[..]), (Some(c), &b"word"[..]));
        if role == Role::Target {
            x.send(bytes, c).delivery_complete().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .expect("a word there and back");
}

/// C is killed, and comes back at the same address as another process: whichever side begins, in
/// C's first life or its second, words go both ways, over a connection that is not the old one.
pub async fn c_comes_back(net: Net) {
    let Some(program) = rdm_peer().or_left_out("echo") else {
        return;
    };
    for (first, second) in [
        (Role::Initiator, Role::Initiator),
        (Role::Initiator, Role::Target),
        (Role::Target, Role::Initiator),
        (Role::Target, Role::Target),
    ] {
        let peer = net.peer().unwrap();
        let x = peer.rdm_endpoint().unwrap();
        let port = free_port();
        let c = x.insert(([127, 0, 0, 1], port).into()).unwrap();
        let mut events = x.peers();
        let mut lives = Vec::new();
        for role in [first, second] {
            let mut process = start_c_at(program, "echo", role, x.local_addr(), Some(port));
            port_of(&mut process).await;
            echo(&x, c, role).await;
            process.line("GOT", PATIENCE).await;
            // C names its life by its process; what was not read of the old one is one event.
            let event = events.next().await.expect("it is open");
            assert_eq!(event.fabric_addr, Some(c));
            lives.push((format!("{:?}", event.kind), event.incarnation));
            process.kill();
            process.finished(PATIENCE).await;
        }
        let [(up, old), (restarted, new)] = &lives[..] else {
            unreachable!("there were two");
        };
        assert_eq!([&up[..], &restarted[..]], ["Up", "Restarted"]);
        assert!(old.is_some() && new.is_some() && old != new, "{lives:?}");
        x.shutdown().await.unwrap();
    }
}

/// We come back at the same address, as another incarnation; C goes on. The second has a limit for
/// messages, and so agrees to no announcements.
pub async fn we_come_back(net: Net) {
    let Some(program) = rdm_peer().or_left_out("echo-twice") else {
        return;
    };
    for role in [Role::Initiator, Role::Target] {
        let peer = net.peer().unwrap();
        let x = peer.rdm_endpoint().unwrap();
        let us = x.local_addr();
        let mut process = start_c(program, "echo-twice", role, us);
        let they = port_of(&mut process).await;
        echo(&x, x.insert(they).unwrap(), role).await;
        process.line("GOT", PATIENCE).await;
        x.shutdown().await.unwrap();
        drop(x);
        let again = peer.domain.rdm_endpoint().listen_at(us);
        let again = again.max_message_size(4096).open().unwrap();
        process.say("GO");
        echo(&again, again.insert(they).unwrap(), role).await;
        process.finished(PATIENCE).await.assert_ok();
    }
}

/// We end the connection and begin another at once, with the same incarnation, while C, which makes
/// no progress, still holds the old one, or after it has seen the end.
pub async fn we_disconnect(net: Net) {
    let Some(program) = rdm_peer().or_left_out("echo-twice") else {
        return;
    };
    for role in [Role::Initiator, Role::Target] {
        let peer = net.peer().unwrap();
        let x = peer.rdm_endpoint().unwrap();
        let mut process = start_c(program, "echo-twice", role, x.local_addr());
        let c = x.insert(port_of(&mut process).await).unwrap();
        echo(&x, c, role).await;
        process.line("GOT", PATIENCE).await;
        x.disconnect(c).unwrap();
        let again = echo(&x, c, role);
        tokio::pin!(again);
        // It has begun before C goes on.
        assert!(again.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(50)).await;
        process.say("GO");
        again.await;
        process.finished(PATIENCE).await.assert_ok();
    }
}

/// Another context than 0 asks C for a connection, before context 0 has one and beside it: it
/// learns that C has no contexts, and context 0 goes on.
pub async fn c_knows_one_context(net: Net) {
    let Some(program) = rdm_peer().or_left_out("echo-twice") else {
        return;
    };
    for role in [Role::Initiator, Role::Target] {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let peer = Peer::of(net.fabric_with(hints).unwrap()).unwrap();
        let vector = peer.domain.address_vector().rx_ctx_bits(1).open().unwrap();
        let x = peer.domain.scalable_endpoint().contexts(2);
        let x = x.address_vector(&vector);
        let x = x.listen_at(([127, 0, 0, 1], 0).into()).open().unwrap();
        let (first, second) = (&x.contexts()[0], &x.contexts()[1]);
        let mut process = start_c(program, "echo-twice", role, x.local_addr());
        let c = first.insert(port_of(&mut process).await).unwrap();
        let refused = async || {
            let asking = second.send("none", c).into_future();
            let ended = tokio::time::timeout(PATIENCE, asking).await;
            let error = ended.expect("an end").unwrap_err().into_error();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        };
        // Where C begins it has a connection with context 0 by then.
        if role == Role::Initiator {
            refused().await;
        }
        echo(first, c, role).await;
        process.line("GOT", PATIENCE).await;
        process.say("GO");
        tokio::join!(refused(), echo(first, c, role));
        process.finished(PATIENCE).await.assert_ok();
    }
}

/// C dies with operations of ours outstanding: each ends with an error, receives stay, and what is
/// posted later ends when the deadline has passed.
pub async fn c_dies(net: Net) {
    let Some(program) = rdm_peer().or_left_out("hang") else {
        return;
    };
    let peer = net.peer().unwrap();
    let builder = peer.domain.rdm_endpoint();
    let builder = builder.connect_deadline(Duration::from_millis(500));
    let x = builder
        .listen_at(([127, 0, 0, 1], 0).into())
        .open()
        .unwrap();
    let mut process = start_c(program, "hang", Role::Initiator, x.local_addr());
    let c = x.insert(port_of(&mut process).await).unwrap();
    let receive = x.recv_tagged(vec![0; 8], 1).from(c).post().unwrap();
    x.send("hello", c).await.unwrap();
    process.line("GOT", PATIENCE).await;
    // C reads no more, so neither can be acknowledged; the last cannot even go out in full.
    let sends = [
        x.send(vec![1; 8], c).delivery_complete(),
        x.send_tagged(vec![1; 8], c, 1).delivery_complete(),
        x.send(vec![1; 32 << 20], c),
    ];
    let sends = sends.map(|send| send.post().unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    process.kill();
    for send in sends {
        let ended = tokio::time::timeout(PATIENCE, send).await.expect("an end");
        let error = ended.unwrap_err().into_error();
        assert!(error.is_connection_lost(), "{error}");
    }
    let late = x.send("late", c).into_future();
    let ended = tokio::time::timeout(PATIENCE, late).await.expect("an end");
    let error = ended.unwrap_err().into_error();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(receive.cancel(), "a receive is bound to no connection");
}
