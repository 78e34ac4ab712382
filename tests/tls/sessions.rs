//! What goes well, over every backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use tokio_fabric::domain::DomainBind;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::tls::TlsConfig;
use tokio_fabric::{Endpoint, EndpointType, ErrorKind, Event, EventQueue, Hints, discover};

use crate::certificates::{Authority, Identity, both, hints};
use crate::common::peers::{bytes_of, listener, open_region, peer_with, read, request, write};
use crate::common::{on_each_at_once, on_every_backend};

pub fn peer(net: &Net, tls: &TlsConfig) -> Peer {
    peer_with(net, hints(tls), DomainBind::empty())
}

/// Two connected endpoints, and the events of connecting and accepting.
async fn connected(a: &Peer, b: &Peer) -> (Endpoint, Endpoint) {
    let (listener, requests) = listener(b);
    let x = endpoint(a);
    let accepting = async { request(&requests).await.accept(&b.domain).await };
    let (connected, accepted) =
        join(x.connect(listener.local_addr()).into_future(), accepting).await;
    connected.unwrap();
    (x, accepted.unwrap())
}

fn endpoint(peer: &Peer) -> Endpoint {
    let builder = peer.domain.endpoint().event_queue(&peer.events);
    builder.open().unwrap()
}

async fn shutdown_reason(events: &EventQueue) -> Option<tokio_fabric::Error> {
    loop {
        if let Event::Shutdown { error, .. } = events.next().await.expect("an open queue") {
            return error;
        }
    }
}

/// Messages small and large, remote access, and an end in order: as without TLS.
#[test]
fn everything_goes_over_tls() {
    let authority = Authority::new();
    let tls = authority.config();
    on_every_backend(|net| {
        let tls = tls.clone();
        async move {
            let (a, b) = (peer(&net, &tls), peer(&net, &tls));
            let (x, y) = connected(&a, &b).await;
            for len in [0, 1, 100, 16_384, 16_385, 200_000, 3 << 20] {
                let sent: Vec<u8> = (0..len).map(|at: usize| (at * 7) as u8).collect();
                let received = y.recv(vec![0; len]).post().unwrap();
                x.send(sent.clone()).await.unwrap();
                let (_, bytes) = received.await.unwrap();
                assert!(bytes == sent, "{len} bytes");
            }
            let region = open_region(&b, vec![1u8; 1 << 20]).await;
            write(&x, region.remote(), 9).await.unwrap();
            assert!(bytes_of(&region).iter().all(|byte| *byte == 9));
            assert!(read(&x, region.remote()).await.unwrap() == vec![9; 1 << 20]);

            x.shutdown().await.unwrap();
            let reasons = join(shutdown_reason(&a.events), shutdown_reason(&b.events)).await;
            assert!(matches!(reasons, (None, None)), "{reasons:?}");
        }
    });
}

#[test]
fn connectionless_endpoints_have_it_too() {
    let authority = Authority::new();
    let tls = authority.mutual(authority.node());
    on_every_backend(|net| {
        let net = net.tls(tls.clone());
        async move {
            let (a, b) = net.rdm_pair().unwrap();
            for round in 0..20_u64 {
                let bytes = vec![round as u8; 1 << round];
                let received = b.endpoint.recv_tagged(vec![0; 1 << round], round).post();
                a.endpoint
                    .send_tagged(bytes.clone(), a.other, round)
                    .await
                    .unwrap();
                assert!(received.unwrap().await.unwrap().1 == bytes);
            }
        }
    });
}

/// The chain is in the request, before anything is decided, and in both `Connected` events.
#[test]
fn the_peers_certificates_come_with_the_connection() {
    let authority = Authority::new();
    let (ours, theirs) = (authority.node(), authority.node());
    let [a, b] = [&ours, &theirs].map(|node| authority.mutual(node.clone()));
    let open = authority.config();
    on_each_at_once(|net| {
        let (a, b, open) = (peer(&net, &a), peer(&net, &b), peer(&net, &open));
        let (ours, theirs) = (ours.clone(), theirs.clone());
        async move {
            let (listener, requests) = listener(&b);
            let (x, y) = (endpoint(&a), endpoint(&b));
            let accepting = async {
                let request = request(&requests).await;
                let chain = request.peer_certificates().expect("a client with one");
                assert_eq!(chain.chain(), [&ours.certificate[..]]);
                y.accept(request).await.unwrap();
            };
            let (connected, ()) =
                join(x.connect(listener.local_addr()).into_future(), accepting).await;
            connected.unwrap();
            assert_eq!(shown(&a).await.unwrap(), theirs.certificate[..]);
            assert_eq!(shown(&b).await.unwrap(), ours.certificate[..]);

            // Who is not asked for certificates shows none.
            let (x, _y) = self::connected(&open, &open).await;
            drop(x);
            let shown = [shown(&open).await, shown(&open).await];
            assert_eq!(shown.iter().flatten().count(), 1, "the server's alone");
        }
    });
}

/// The certificate of the peer's that the next `Connected` has.
async fn shown(peer: &Peer) -> Option<Vec<u8>> {
    match peer.events.next().await {
        Some(Event::Connected {
            peer_certificates, ..
        }) => peer_certificates.map(|chain| chain.chain()[0].to_vec()),
        other => panic!("{other:?} instead of a connection"),
    }
}

#[derive(Debug)]
struct CountingStore {
    store: Arc<ServerSessionMemoryCache>,
    resumed: AtomicUsize,
}

impl StoresServerSessions for CountingStore {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.store.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.store.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let found = self.store.take(key);
        self.resumed
            .fetch_add(usize::from(found.is_some()), Ordering::SeqCst);
        found
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[test]
fn a_session_is_resumed_with_its_certificates() {
    let authority = Authority::new();
    on_each_at_once(|net| {
        let identity = authority.node();
        let mut server = authority.strict_server(identity.clone());
        let counting = Arc::new(CountingStore {
            store: ServerSessionMemoryCache::new(16),
            resumed: AtomicUsize::new(0),
        });
        server.session_storage = counting.clone();
        let tls = both(authority.client_as(identity.clone()), server);
        let (a, b) = (peer(&net, &tls), peer(&net, &tls));
        async move {
            let (listener, requests) = listener(&b);
            for before in 0..3 {
                let (x, y) = (endpoint(&a), endpoint(&b));
                assert_eq!(counting.resumed.load(Ordering::SeqCst), before.max(1) - 1);
                let accepting = async {
                    let request = request(&requests).await;
                    let chain = request.peer_certificates().expect("a client with one");
                    assert_eq!(chain.chain(), [&identity.certificate[..]]);
                    y.accept(request).await.unwrap();
                };
                let (connected, ()) =
                    join(x.connect(listener.local_addr()).into_future(), accepting).await;
                connected.unwrap();
                assert_eq!(counting.resumed.load(Ordering::SeqCst), before);
                let received = x.recv(vec![0; 5]).post().unwrap();
                y.send(b"hello".to_vec()).await.unwrap();
                received.await.unwrap();
            }
        }
    });
}

/// A side that only connects needs nothing to listen with, and the other way around.
#[test]
fn each_side_needs_what_it_does() {
    let authority = Authority::new();
    on_each_at_once(|net| {
        let Identity { .. } = authority.node();
        let client = TlsConfig::new().client(Arc::new(authority.client()));
        let server = TlsConfig::new().server(Arc::new(authority.server(authority.node())));
        let (a, b) = (peer(&net, &client), peer(&net, &server));
        async move {
            let (_x, _y) = connected(&a, &b).await;
            let requests = a.fabric.event_queue().open().unwrap();
            let error = a
                .fabric
                .passive_endpoint(&requests)
                .listen_at(([127, 0, 0, 1], 0).into());
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("TlsConfig::server"), "{error}");
            let error = endpoint(&b)
                .connect(([127, 0, 0, 1], 1).into())
                .await
                .unwrap_err();
            assert!(error.to_string().contains("TlsConfig::client"), "{error}");
        }
    });
}

/// "DGRAM is refused with the reason": there is no DTLS.
#[test]
fn datagrams_have_none() {
    let tls = Authority::new().config();
    let error = discover(&hints(&tls).endpoint(EndpointType::Dgram)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMatch);
    assert!(error.to_string().contains("none, for datagrams"), "{error}");
    on_each_at_once(|net| {
        let peer = peer(&net, &tls);
        async move {
            let vector = peer.domain.address_vector().open().unwrap();
            let builder = peer.domain.dgram_endpoint().address_vector(&vector);
            let error = builder.open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("DTLS"), "{error}");
        }
    });
}

/// Of hints that are equal so is what they say of TLS.
#[test]
fn hints_compare_by_configuration() {
    let authority = Authority::new();
    let (one, other) = (authority.config(), authority.config());
    assert_eq!(hints(&one), hints(&one.clone()));
    assert_ne!(hints(&one), hints(&other));
    assert_ne!(hints(&one), Hints::new());
}
