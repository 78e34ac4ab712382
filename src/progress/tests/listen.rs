//! The steps of a listener's handshake with one peer.

use std::future::IntoFuture;
use std::sync::Arc;

use super::{run, run_all};
use crate::edges::EdgeCoverage;
use crate::endpoint::RdmEndpoint;
use crate::eq::Event;
use crate::info::AuthKey;
use crate::testing::{Net, Peer};
use crate::transport::{Link, Transport};

const KEY: &[u8] = b"the key of one job";

/// A connection that sends nothing.
fn silent(peer: &Peer, to: std::net::SocketAddr) -> Box<dyn Link> {
    let engine = peer.domain.engine_for_endpoint();
    let transport: &Arc<dyn Transport> = engine.transport();
    let waker = std::task::Waker::noop().clone();
    transport.connect(to, None, waker).unwrap()
}

/// An application accepts one request and rejects another; then its queue is dropped, while one
/// request waits for room in it and one is not complete.
async fn passive(a: &Peer, b: &Peer) {
    let requests = b.fabric.event_queue().size(1).open().unwrap();
    let listener = b.fabric.passive_endpoint(&requests);
    let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = listener.local_addr();
    let _silent = silent(a, to);
    let connect = || {
        a.domain
            .endpoint()
            .open()
            .unwrap()
            .connect(to)
            .into_future()
    };
    for accepts in [true, false] {
        let connecting = connect();
        let Some(Event::ConnRequest(request)) = requests.next().await else {
            panic!("a request");
        };
        if accepts {
            let _far = request.accept(&b.domain).await.unwrap();
            connecting.await.unwrap();
        } else {
            request.reject().send().unwrap();
            connecting.await.unwrap_err();
        }
    }
    let waiting = [connect(), connect()];
    run_all().await;
    drop(requests);
    for connecting in waiting {
        connecting.await.unwrap_err();
    }
}

fn endpoint(peer: &Peer, key: &[u8]) -> RdmEndpoint {
    let builder = peer.domain.rdm_endpoint();
    let builder = builder.listen_at("127.0.0.1:0".parse().unwrap());
    builder.auth_key(AuthKey::new(key)).open().unwrap()
}

/// A connectionless endpoint takes connections over: at once, or once the peer has proven the same
/// key, and none of a peer with another key.
async fn connectionless(a: &Peer, b: &Peer, ours: &[u8], theirs: &[u8]) {
    let (near, far) = (endpoint(a, ours), endpoint(b, theirs));
    let to = near.insert(far.local_addr()).unwrap();
    let sent = near.send("hello", to).delivery_complete().post().unwrap();
    let received = far.recv(vec![0; 8]).post().unwrap();
    if ours == theirs {
        sent.await.unwrap();
        received.await.unwrap();
    } else {
        sent.await.unwrap_err();
    }
}

#[test]
fn every_edge_of_a_handshake_is_walked() {
    run(|net: Net| async move {
        let coverage = EdgeCoverage::begin("HandshakeState");
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        passive(&a, &b).await;
        connectionless(&a, &b, b"", b"").await;
        connectionless(&a, &b, KEY, KEY).await;
        connectionless(&a, &b, KEY, b"the key of another").await;
        coverage.expect_all();
    });
}
