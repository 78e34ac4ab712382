//! Authorization keys over TLS: a proof holds on one connection.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use tokio_fabric::domain::DomainBind;
use tokio_fabric::info::AuthKey;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::tls::TlsConfig;
use tokio_fabric::{Backend, Error, ErrorKind};

use crate::certificates::{Authority, hints};
use crate::common::peers::{listener, peer_with, request};
use crate::common::{on_every_backend, on_threads};

fn with_key(net: &Net, tls: &TlsConfig, key: &[u8]) -> Peer {
    let hints = hints(tls).domain(|domain| domain.auth_key(AuthKey::new(key)));
    peer_with(net, hints, DomainBind::empty())
}

/// How connecting to the listener, by this address, and accepting end.
async fn attempt(
    a: &Peer,
    b: &Peer,
    by: impl FnOnce(SocketAddr) -> SocketAddr,
) -> (Result<(), Error>, Result<(), Error>) {
    let (listener, requests) = listener(b);
    let x = a.domain.endpoint().open().unwrap();
    let y = b.domain.endpoint().open().unwrap();
    let accepting = async { y.accept(request(&requests).await).await.map(|_| ()) };
    let connecting = async { x.connect(by(listener.local_addr())).await.map(|_| ()) };
    join(connecting, accepting).await
}

#[test]
fn keys_are_proven_over_tls() {
    let tls = Authority::new().config();
    on_every_backend(|net| {
        let tls = tls.clone();
        async move {
            let [a, b, c] = [b"one", b"one", b"two"].map(|key| with_key(&net, &tls, key));
            let (connected, accepted) = attempt(&a, &b, |to| to).await;
            connected.unwrap();
            accepted.unwrap();
            let (connected, accepted) = attempt(&a, &c, |to| to).await;
            for result in [connected, accepted] {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::NotAuthorized);
            }
            // Without connections the proof comes before the request counts.
            let (x, y) = (a.rdm_endpoint().unwrap(), b.rdm_endpoint().unwrap());
            let to_y = x.insert(y.local_addr()).unwrap();
            let received = y.recv_tagged(vec![0; 5], 7).post();
            x.send_tagged("hello", to_y, 7).await.unwrap();
            assert_eq!(received.unwrap().await.unwrap().1, b"hello");
        }
    });
}

/// Whom both peers trust can pass on what they say, opened and sealed anew: without keys neither
/// notices, with keys the proofs of one connection are worth nothing on the other.
#[test]
fn a_proof_is_worth_nothing_on_another_connection() {
    let authority = Authority::new();
    let tls = authority.config();
    on_threads(0, Backend::Epoll, async |net| {
        let between = |to| trusted_relay(&authority, to);
        let [a, b] = [b"", b""].map(|key| with_key(&net, &tls, key));
        let (connected, accepted) = attempt(&a, &b, between).await;
        connected.unwrap();
        accepted.unwrap();
        let [a, b] = [b"one", b"one"].map(|key| with_key(&net, &tls, key));
        let (connected, accepted) = attempt(&a, &b, between).await;
        for result in [connected, accepted] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::NotAuthorized);
        }
    });
}

/// Where a node of the authority listens that passes all on to `to`.
fn trusted_relay(authority: &Authority, to: SocketAddr) -> SocketAddr {
    let mut server = authority.server(authority.node());
    let mut client = authority.client();
    server.alpn_protocols = vec![b"fabric/1".to_vec()];
    client.alpn_protocols = vec![b"fabric/1".to_vec()];
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let near = ServerConnection::new(Arc::new(server)).unwrap();
    let far = ClientConnection::new(Arc::new(client), to.ip().into()).unwrap();
    std::thread::spawn(move || {
        let mut near = StreamOwned::new(near, socket.accept().unwrap().0);
        let mut far = StreamOwned::new(far, TcpStream::connect(to).unwrap());
        // Handshakes take as long as they take.
        near.conn.complete_io(&mut near.sock).unwrap();
        far.conn.complete_io(&mut far.sock).unwrap();
        // Both directions have their turns.
        for socket in [&near.sock, &far.sock] {
            let turn = Some(Duration::from_millis(5));
            socket.set_read_timeout(turn).unwrap();
        }
        while pass(&mut near, &mut far) && pass(&mut far, &mut near) {}
    });
    address
}

/// Passes what is there on. False: the connection has ended.
fn pass(from: &mut impl Read, to: &mut impl Write) -> bool {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(count) => to.write_all(&bytes[..count]).is_ok(),
        Err(error) => matches!(error.kind(), Io::WouldBlock | Io::TimedOut),
    }
}
