//! What TLS adds to the requirements for every transport, which `transport/tests/suite.rs` tests.

mod handshakes;
mod records;

use std::sync::{Arc, OnceLock};

use super::session::Session;
use crate::buf::{CopyTo, Stage};
use crate::edges::EdgeCoverage;
use crate::error::{ErrorKind, Result};
use crate::transport::tests::{Peer, TestTransport, accept, localhost, plain};
use crate::transport::{Outcome, Receive, Received};

use rustls::crypto::cipher::OutboundChunks;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::tls::TlsConfig;

/// A node that trusts itself, by one certificate for the whole process.
pub(in crate::transport) fn for_tests() -> TlsConfig {
    static CONFIG: OnceLock<TlsConfig> = OnceLock::new();
    let make = || {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
        let certificate = key.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate");
        let client = ClientConfig::builder().with_root_certificates(roots);
        let server = ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate], key.into());
        let mut server = server.expect("a server");
        // A client that leaves without having read its tickets resets the connection.
        server.send_tls13_tickets = 0;
        TlsConfig::new()
            .client(Arc::new(client.with_no_client_auth()))
            .server(Arc::new(server))
    };
    CONFIG.get_or_init(make).clone()
}

/// Two sessions, of a client and of a server, whose handshake is done.
fn sessions() -> [Session; 2] {
    let config = for_tests();
    let to = ([127, 0, 0, 1], 7).into();
    let mut both = [
        Session::client(&config, to).unwrap(),
        Session::server(&config).unwrap(),
    ];
    while both.iter().any(Session::is_handshaking) {
        let [client, server] = &mut both;
        carry(client, server);
        carry(server, client);
    }
    both
}

fn staged(bytes: &[u8]) -> Stage {
    let mut stage = Stage::take();
    stage.spare()[..bytes.len()].copy_from_slice(bytes);
    stage.fill(bytes.len());
    stage
}

/// Gives the records of one session to the other.
fn carry(from: &mut Session, to: &mut Session) {
    take(to, &records_of(from)).unwrap();
}

fn take(session: &mut Session, bytes: &[u8]) -> Result<()> {
    session.give(staged(bytes));
    session.take_in()
}

/// Returns the records that a session has to send.
fn records_of(session: &mut Session) -> Vec<u8> {
    let records = session.take_records();
    let mut bytes = vec![0; records.remaining()];
    assert_eq!(
        records.copy_out(0, CopyTo::Slice(&mut bytes)).0,
        bytes.len()
    );
    bytes
}

fn opened(session: &mut Session) -> Vec<u8> {
    let bytes = session.opened().to_vec();
    session.consume(bytes.len());
    session.take_in().unwrap();
    bytes
}

fn seal(session: &mut Session, plaintext: &[u8]) {
    session.seal(OutboundChunks::Single(plaintext)).unwrap();
}

/// Changes the keys from the next record on, and asks the peer to do so.
fn refresh_keys(session: &mut Session) {
    let (open, records) = session.open_parts();
    open.update_key(true, records).unwrap();
}

/// Either side may change its keys at any time, between any records of both.
#[test]
fn keys_change_between_records() {
    let [mut client, mut server] = sessions();
    for round in 0..50_u8 {
        match round % 5 {
            0 => refresh_keys(&mut client),
            3 => refresh_keys(&mut server),
            _ => {}
        }
        seal(&mut client, &[round; 100]);
        seal(&mut server, &[!round; 100]);
        carry(&mut client, &mut server);
        carry(&mut server, &mut client);
        assert_eq!(opened(&mut server), [round; 100]);
        assert_eq!(opened(&mut client), [!round; 100]);
    }
}

/// Both ends have the same binding of a connection, and another connection has another.
#[test]
fn a_connection_has_a_binding_of_its_own() {
    let bindings = [sessions(), sessions()].map(|both| {
        let [client, server] = both.map(|session| session.identity().unwrap().binding);
        assert_eq!(client, server);
        client
    });
    assert_ne!(bindings[0], bindings[1]);
}

/// "Bounded in bytes": a peer that never ends its handshake.
#[test]
fn a_handshake_that_does_not_end_is_refused() {
    let mut server = Session::server(&for_tests()).unwrap();
    // A client's first message, which announces a length that it never reaches.
    let mut record = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    let mut taken = 0;
    let refused = loop {
        match take(&mut server, &record) {
            Ok(()) => taken += record.len(),
            Err(error) => break error,
        }
        assert!(taken < 1 << 20, "{taken} bytes of a handshake");
        record[5..9].fill(0);
    };
    assert!(server.is_handshaking());
    assert!(refused.to_string().starts_with("the peer"), "{refused}");
}

/// Bytes of any kind end a session, or wait for more, and nothing else.
#[test]
fn bytes_of_any_kind_are_refused() {
    let mut random = crate::random::SplitMix(15);
    for _ in 0..2000 {
        let mut server = Session::server(&for_tests()).unwrap();
        let len = random.within(1, 300) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if random.chance(0.8) {
            let head = [22, 3, 1, 0, 200, 1, 0, 0];
            let len = bytes.len().min(head.len());
            bytes[..len].copy_from_slice(&head[..len]);
        }
        let _ = take(&mut server, &bytes);
        assert!(server.is_handshaking() && server.opened_len() == 0);
    }
}

/// Takes the server's part over a plain link, as far as the client goes.
async fn shake_by_hand(far: &mut Peer, near: &mut Peer) -> Session {
    let mut server = Session::server(&for_tests()).unwrap();
    let serving = async {
        while server.is_handshaking() {
            far.link.receive(Receive::Stage);
            match far.received().await {
                Received::Stage(stage) => {
                    server.give(stage);
                    server.take_in().unwrap();
                }
                other => panic!("expected bytes, found {other:?}"),
            }
            far.send_all(plain(&records_of(&mut server))).await;
        }
    };
    let (outcome, ()) = futures::future::join(near.outcome(), serving).await;
    assert!(matches!(outcome, Outcome::Connected), "{outcome:?}");
    server
}

/// Refused before it is connected, within the handshake, and when it is open.
#[tokio::test]
async fn every_edge_of_a_channel_is_walked() {
    let walked = EdgeCoverage::begin("ChannelPhase");
    let (secure, open) = (TestTransport::epoll_tls(), TestTransport::epoll());
    let mut listener = open.transport.listen(localhost()).unwrap();
    let to = listener.local_addr();
    let connect = || Peer::new(|waker| secure.transport.connect(to, None, waker));
    let kinds = [ErrorKind::Incompatible, ErrorKind::ProtocolViolation];
    for (kind, shakes) in kinds.into_iter().zip([false, true]) {
        let mut near = connect();
        let raw = accept(&mut *listener).await.unwrap();
        let mut far = Peer::new(|waker| open.transport.adopt(raw, waker));
        if shakes {
            shake_by_hand(&mut far, &mut near).await;
        }
        far.send_all(plain(b"no record of TLS at all")).await;
        near.link.receive(Receive::Stage);
        let error = match near.outcome().await {
            Outcome::Failed(error) => error,
            Outcome::Received(Received::Failed { error, .. }) => error,
            other => panic!("expected a failure, found {other:?}"),
        };
        assert_eq!(error.kind(), kind, "{error}");
    }
    drop(listener);
    let error = match connect().outcome().await {
        Outcome::Failed(error) => error,
        other => panic!("expected to be refused, found {other:?}"),
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    walked.expect_all();
}

/// The end of the stream is in order if the peer's session reports it; the end of its socket alone
/// is not.
#[tokio::test]
async fn a_stream_ends_by_the_sessions_word() {
    let (secure, open) = (TestTransport::epoll_tls(), TestTransport::epoll());
    for says_so in [true, false] {
        let mut listener = open.transport.listen(localhost()).unwrap();
        let to = listener.local_addr();
        let mut near = Peer::new(|waker| secure.transport.connect(to, None, waker));
        let raw = accept(&mut *listener).await.unwrap();
        let mut far = Peer::new(|waker| open.transport.adopt(raw, waker));
        let mut server = shake_by_hand(&mut far, &mut near).await;
        seal(&mut server, b"the last words");
        if says_so {
            server.close();
        }
        far.send_all(plain(&records_of(&mut server))).await;
        far.link.finish();
        near.link.receive(Receive::Stage);
        match near.received().await {
            Received::Stage(stage) => assert_eq!(&stage[..], b"the last words"),
            other => panic!("expected bytes, found {other:?}"),
        }
        near.link.receive(Receive::Stage);
        match (near.received().await, says_so) {
            (Received::End { returned: None }, true) => {}
            (Received::Failed { error, .. }, false) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            }
            (other, _) => panic!("{says_so}: {other:?}"),
        }
    }
}
