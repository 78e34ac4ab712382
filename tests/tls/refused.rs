//! Both sides have it or neither, and each side says so in words; and a peer that is not who it
//! must be is refused.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_fabric::testing::Peer;
use tokio_fabric::tls::TlsConfig;
use tokio_fabric::{Backend, Endpoint, Error, ErrorKind};

use crate::certificates::{Authority, Identity, NAME, both};
use crate::common::peers::{listener, request};
use crate::common::{on, on_each_at_once, on_every_backend, on_threads};
use crate::sessions::peer;

fn endpoint(peer: &Peer) -> Endpoint {
    peer.domain.endpoint().open().unwrap()
}

/// What is logged by this thread from now on.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Ends a log. The subscriber beside it sees nothing: but while a process has one only, an event
/// that another test's thread comes to first is switched off for all.
type LogGuard = (tracing::subscriber::DefaultGuard, tracing::Dispatch);

impl Log {
    fn begin() -> (Log, LogGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || writer.clone())
            .finish();
        let second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        (log, (tracing::subscriber::set_default(subscriber), second))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// How connecting ends where no request may reach the listener's application.
async fn refused(a: &Peer, b: &Peer) -> Error {
    let (listener, requests) = listener(b);
    let error = endpoint(a)
        .connect(listener.local_addr())
        .await
        .unwrap_err();
    assert!(requests.try_next().is_none(), "no request was reported");
    error
}

#[test]
fn a_plain_peer_is_refused_in_words_at_both_sides() {
    let tls = Authority::new().config();
    on_threads(0, Backend::Epoll, async |net| {
        let (log, _guard) = Log::begin();
        let error = refused(&net.peer().unwrap(), &peer(&net, &tls)).await;
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("speaks TLS"), "{error}");
        let log = log.text();
        assert!(log.contains("the peer does not speak TLS"), "{log}");
    });
}

#[test]
fn a_tls_peer_is_refused_by_a_plain_listener_in_words_at_both_sides() {
    let tls = Authority::new().config();
    on_threads(0, Backend::Epoll, async |net| {
        let (log, _guard) = Log::begin();
        let error = refused(&peer(&net, &tls), &net.peer().unwrap()).await;
        assert_eq!(error.kind(), ErrorKind::PeerClosed);
        assert!(
            error.to_string().contains("as one without TLS does"),
            "{error}"
        );
        let log = log.text();
        assert!(log.contains("the peer speaks TLS"), "{log}");
    });
}

/// On every backend and driver, without a look at the log.
#[test]
fn both_have_it_or_neither() {
    let tls = Authority::new().config();
    on_every_backend(|net| {
        let tls = tls.clone();
        async move {
            let (plain, secure) = (net.peer().unwrap(), peer(&net, &tls));
            refused(&plain, &secure).await;
            refused(&secure, &plain).await;
        }
    });
}

#[test]
fn connectionless_endpoints_are_refused_too() {
    let tls = Authority::new().config();
    on_each_at_once(|net| {
        let (plain, secure) = (net.peer().unwrap(), peer(&net, &tls));
        async move {
            let (x, y) = (
                plain.rdm_endpoint().unwrap(),
                secure.rdm_endpoint().unwrap(),
            );
            let (to_y, to_x) = (x.insert(y.local_addr()), y.insert(x.local_addr()));
            let error = x
                .send_tagged("in clear", to_y.unwrap(), 1)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            let sent = y.send_tagged("sealed", to_x.unwrap(), 1);
            // It may be another time: a peer that ends a handshake may have restarted.
            let error = tokio::time::timeout(Duration::from_millis(300), sent).await;
            assert!(!matches!(error, Ok(Ok(_))), "{error:?}");
        }
    });
}

/// A domain and a listener of different minds.
#[test]
fn what_a_plain_listener_accepted_gets_no_tls_later() {
    let tls = Authority::new().config();
    on_each_at_once(|net| {
        let (plain, secure) = (net.peer().unwrap(), peer(&net, &tls));
        async move {
            for (of_listener, of_domain) in [(&plain, &secure), (&secure, &plain)] {
                let (listener, requests) = listener(of_listener);
                let x = endpoint(of_listener);
                let connecting = async { x.connect(listener.local_addr()).await.unwrap_err() };
                let accepting = async {
                    let request = request(&requests).await;
                    request.accept(&of_domain.domain).await.unwrap_err()
                };
                let (_, error) = join(connecting, accepting).await;
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            }
        }
    });
}

/// Every way a server's certificate can be wrong, and what the client says.
#[test]
fn wrong_certificates_are_refused() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let of_stranger = stranger.node();
    let expired = authority.node_with(|params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    });
    let early = authority.node_with(|params| params.not_before = date_time_ymd(3000, 1, 1));
    let misnamed = authority.node_with(|params| {
        let named = CertificateParams::new(vec!["10.9.8.7".to_owned()]).unwrap();
        params.subject_alt_names = named.subject_alt_names;
    });
    let nameless = authority.node_with(|params| params.subject_alt_names.clear());
    let for_clients = authority.node_with(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let own = {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        Identity::new(params.self_signed(&key).unwrap().der().clone(), &key)
    };
    // The last byte is of the signature.
    let forged = {
        let whole = authority.node();
        let mut bytes = whole.certificate.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        whole.with_certificate(CertificateDer::from(bytes))
    };
    let wrong = [
        (of_stranger, "UnknownIssuer"),
        (expired, "expired"),
        (early, "not valid yet"),
        (misnamed, "not valid for name"),
        (nameless, "not valid for"),
        (for_clients, "extended key usage"),
        (own, "UnknownIssuer"),
        (forged, "signature"),
    ];
    on(Backend::Epoll, |net| {
        let a = peer(&net, &authority.config());
        let wrong = wrong.clone();
        async move {
            for (identity, why) in wrong {
                let server = authority_server(identity);
                let b = peer(&net, &TlsConfig::new().server(Arc::new(server)));
                let error = refused(&a, &b).await;
                assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
                let text = error.to_string().to_lowercase();
                assert!(text.contains(&why.to_lowercase()), "{why}: {error}");
            }
        }
    });
}

fn authority_server(identity: Identity) -> rustls::ServerConfig {
    Authority::new().server(identity)
}

/// A client without a certificate, or with a stranger's, where one is demanded.
#[test]
fn clients_are_refused_by_a_server_that_demands_certificates() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TlsConfig::new().server(Arc::new(authority.strict_server(authority.node())));
    let none = TlsConfig::new().client(Arc::new(authority.client()));
    let another = authority.client_as(stranger.node());
    let another = TlsConfig::new().client(Arc::new(another));
    on_each_at_once(|net| {
        let b = peer(&net, &server);
        let clients = [peer(&net, &none), peer(&net, &another)];
        async move {
            for client in &clients {
                let error = refused(client, &b).await;
                assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
                assert!(error.to_string().contains("TLS"), "{error}");
            }
        }
    });
}

/// A TLS peer of another protocol, with a certificate of the same authority.
#[test]
fn another_protocol_within_tls_is_refused() {
    use rustls::{ClientConnection, StreamOwned};
    let authority = Authority::new();
    let tls = both(authority.client(), authority.server(authority.node()));
    for (alpn, why) in [
        (vec![b"h2".to_vec()], "no protocol in common"),
        (vec![], "ALPN"),
    ] {
        let mut client = authority.client();
        client.alpn_protocols = alpn;
        let tls = tls.clone();
        on(Backend::Epoll, |net| {
            let (client, b) = (Arc::new(client.clone()), peer(&net, &tls));
            async move {
                let (log, _guard) = Log::begin();
                let (listener, requests) = listener(&b);
                let to = listener.local_addr();
                let talking = tokio::task::spawn_blocking(move || {
                    let session = ClientConnection::new(client, to.ip().into()).unwrap();
                    let socket = std::net::TcpStream::connect(to).unwrap();
                    let mut stream = StreamOwned::new(session, socket);
                    let _ = stream.write_all(b"hello");
                    std::io::Read::read(&mut stream, &mut [0; 16])
                });
                assert!(!matches!(talking.await.unwrap(), Ok(1..)));
                assert!(requests.try_next().is_none());
                let log = log.text();
                assert!(log.contains(why), "{log}");
            }
        });
    }
}

/// Within the limits of half-open connections: a handshake that is not finished in time ends.
#[test]
fn a_slow_handshake_ends_in_time() {
    let tls = Authority::new().config();
    on_threads(0, Backend::Epoll, async |net| {
        let b = peer(&net, &tls);
        let requests = b.fabric.event_queue().open().unwrap();
        let listener = b.fabric.passive_endpoint(&requests);
        let listener = listener.handshake_timeout(Duration::from_millis(50));
        let listener = listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        // The head of a record of a handshake, and a part of it.
        stream.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
        let mut byte = [0];
        assert!(
            !matches!(stream.read(&mut byte).await, Ok(1..)),
            "it is closed"
        );
    });
}

/// The certificate of a listener, which cannot be had the first time.
#[derive(Debug)]
struct Fragile {
    key: Arc<CertifiedKey>,
    is_broken: AtomicBool,
}

impl ResolvesServerCert for Fragile {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        assert!(!self.is_broken.swap(false, SeqCst), "as the test has it");
        Some(Arc::clone(&self.key))
    }
}

/// A panic of what the application has configured ends the connection that it is about.
#[test]
fn a_configuration_that_panics_costs_one_connection() {
    let authority = Authority::new();
    on_threads(0, Backend::Epoll, async |net| {
        let fragile = Fragile {
            key: Arc::new(authority.node().certified()),
            is_broken: AtomicBool::new(true),
        };
        let server = rustls::ServerConfig::builder().with_no_client_auth();
        let tls = both(
            authority.client(),
            server.with_cert_resolver(Arc::new(fragile)),
        );
        let (a, b) = (peer(&net, &tls), peer(&net, &tls));
        let (listener, requests) = listener(&b);
        let connect = async || endpoint(&a).connect(listener.local_addr()).await;
        connect().await.unwrap_err();
        let accepting = async { request(&requests).await.accept(&b.domain).await };
        let (connected, accepted) = join(connect(), accepting).await;
        assert!(connected.is_ok() && accepted.is_ok(), "{connected:?}");
    });
}
