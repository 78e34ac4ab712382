//! Limits of messages where receives are shared (`FI_OPT_MAX_MSG_SIZE` of fi_endpoint(3)).

use futures::future::join;
use tokio::io::AsyncWriteExt;

use crate::common::peers::{listener, peer_with, request};
use crate::common::raw::{self, Raw};
use crate::common::{on_every_backend, on_sockets_at_once};
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Caps, EndpointType, Error, ErrorKind, Hints, RdmEndpoint, domain::DomainBind, info::AuthKey,
};

/// `SharedReceiveContextBuilder::max_message_size`: "a message takes a receive only when all of it
/// has arrived": a peer that stops within a message keeps no receive from the others.
#[test]
fn who_stops_within_a_message_keeps_no_shared_receive() {
    on_sockets_at_once(|net| async move {
        let (honest, server) = (net.peer().unwrap(), net.peer().unwrap());
        let context = server.domain.receive_context().max_message_size(1000);
        let context = context.open().unwrap();
        let shared = || server.domain.endpoint().receive_context(&context).open();
        let (listener, requests) = listener(&server);
        let accepting = async {
            let request = request(&requests).await;
            shared().unwrap().accept(request).await.unwrap()
        };
        let (mut stream, stopped) = join(raw::accepted(listener.local_addr()), accepting).await;
        let client = honest.domain.endpoint().open().unwrap();
        let other = shared().unwrap();
        connect_endpoints(&client, &other, &server.fabric)
            .await
            .unwrap();
        // A whole message, and all of another but its last byte.
        let [first, second] = [(); 2].map(|()| context.recv(vec![0; 1000]).post().unwrap());
        let whole = Raw {
            payload: vec![1; 10],
            ..Raw::new(0)
        };
        let begun = Raw {
            frame_len: Some(16 + 1000),
            payload: vec![2; 999],
            ..Raw::new(0)
        };
        let bytes = [whole.bytes(), begun.bytes()].concat();
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(first.await.unwrap().1[..10], [1; 10]);
        client.send("honest").await.unwrap();
        let (received, bytes) = second.await.unwrap();
        assert_eq!(received.endpoint, Some(other.id()));
        assert_eq!(bytes[..6], *b"honest");
        // It may still go on.
        let third = context.recv(vec![0; 1000]).post().unwrap();
        stream.write_all(&[3]).await.unwrap();
        let (received, bytes) = third.await.unwrap();
        assert_eq!(
            (received.endpoint, received.len),
            (Some(stopped.id()), 1000)
        );
        assert_eq!((bytes[998], bytes[999]), (2, 3));
    });
}

/// A message over the limit ends its connection, with an error at its sender; others are not
/// affected.
#[test]
fn a_longer_message_than_the_limit_ends_its_connection() {
    on_every_backend(|net| async move {
        let (peer, server) = (net.peer().unwrap(), net.peer().unwrap());
        let context = server.domain.receive_context().max_message_size(1000);
        let context = context.open().unwrap();
        let mut connections = Vec::new();
        for _ in 0..2 {
            let client = peer.domain.endpoint().open().unwrap();
            let shared = server.domain.endpoint().receive_context(&context);
            let shared = shared.open().unwrap();
            connect_endpoints(&client, &shared, &server.fabric)
                .await
                .unwrap();
            connections.push((client, shared));
        }
        let [(long, its), (other, _)] = &connections[..] else {
            unreachable!()
        };
        let receive = context.recv(vec![0; 2000]).post().unwrap();
        let sent = long.send(vec![7; 1001]).delivery_complete().await;
        let error = Error::from(sent.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.is_connection_lost() && error.to_string().contains("max_message_size"));
        while its.is_connected() {
            tokio::task::yield_now().await;
        }
        other.send(vec![8; 1000]).await.unwrap();
        let (received, bytes) = receive.await.unwrap();
        assert_eq!((received.len, &bytes[..1000]), (1000, &[8; 1000][..]));
    });
}

fn rdm(net: &Net, key: Option<&'static [u8]>, max: Option<usize>) -> (Peer, RdmEndpoint) {
    let hints = Hints::new().endpoint(EndpointType::Rdm);
    let hints = hints.caps(Caps::MSG | Caps::TAGGED | Caps::RMA);
    let hints = match key {
        Some(key) => hints.domain(|domain| domain.auth_key(AuthKey::new(key))),
        None => hints,
    };
    let peer = peer_with(net, hints, DomainBind::empty());
    let builder = peer.domain.rdm_endpoint();
    let builder = match max {
        Some(max) => builder.max_message_size(max),
        None => builder,
    };
    let endpoint = builder.open().unwrap();
    (peer, endpoint)
}

/// The same of a connectionless endpoint, tagged and not, with a key and without: the next message
/// goes over another connection. What this endpoint sends may be as long as it likes, and is not
/// announced.
#[test]
fn a_connectionless_endpoint_may_limit_its_messages() {
    on_every_backend(|net| async move {
        for key in [None, Some(&b"the key of one job"[..])] {
            let (_a, limited) = rdm(&net, key, Some(1000));
            let (_b, free) = rdm(&net, key, None);
            limit(&limited, &free).await;
        }
    });
}

async fn limit(limited: &RdmEndpoint, free: &RdmEndpoint) {
    let to_limited = free.insert(limited.local_addr()).unwrap();
    let to_free = limited.insert(free.local_addr()).unwrap();
    for round in 0..2_u8 {
        let long = vec![round; 1001];
        let error = match round {
            0 => free.send(long, to_limited).delivery_complete().await.err(),
            _ => {
                let sent = free.send_tagged(long, to_limited, 5);
                sent.delivery_complete().await.err()
            }
        };
        let error = Error::from(error.expect("it is too long"));
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        let receive = limited.recv_tagged(vec![0; 1000], 5).post().unwrap();
        let whole = free.send_tagged(vec![round; 1000], to_limited, 5);
        whole.await.unwrap();
        assert_eq!(receive.await.unwrap().1, vec![round; 1000]);
        let receive = free.recv(vec![0; 200_000]).post().unwrap();
        limited.send(vec![9; 200_000], to_free).await.unwrap();
        assert_eq!(receive.await.unwrap().1, vec![9; 200_000]);
    }
}
