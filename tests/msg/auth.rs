//! Authorization keys (`fi_endpoint(3)`, `fi_domain(3)`, `fi_mr(3)`): who communicates with whom,
//! who reaches which region, and what everybody else learns (`docs/extension.md`, section 9).

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::common::alone::alone;
use crate::common::peers::{bytes_of, listener, open_region, peer_with, read, request};
use crate::common::{on, on_every_backend};
use futures::future::join;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, Backend, Endpoint, Error, ErrorKind, Event, Hints, MemoryRegion, RemoteRegion,
    buf::SharedBuffer,
    domain::DomainBind,
    ep::{EndpointBuilder, OnRefusal},
    eq::ConnRequest,
    error::Refusal,
    info::{ApiVersion, AuthKey},
};

const KEY: &[u8] = b"the key of one job";
const OTHER: &[u8] = b"the key of another";

fn key(bytes: &[u8]) -> AuthKey {
    AuthKey::new(bytes)
}

/// A peer whose domain has this key; none without bytes.
fn with_key(net: &Net, bytes: &[u8]) -> Peer {
    peer_with(
        net,
        Hints::new().domain(|domain| domain.auth_key(key(bytes))),
        DomainBind::empty(),
    )
}

/// An endpoint that lives with refused operations.
fn living(builder: EndpointBuilder) -> Endpoint {
    let builder = builder.on_refusal(OnRefusal::Continue { limit: 1000 });
    builder.open().unwrap()
}

/// How connecting and accepting ends.
async fn attempt(
    x: &Endpoint,
    y: &Endpoint,
    target: &Peer,
) -> (Result<(), Error>, Result<(), Error>) {
    let (listener, requests) = listener(target);
    let accepting = async { y.accept(request(&requests).await).await.map(|_| ()) };
    let connecting = async { x.connect(listener.local_addr()).await.map(|_| ()) };
    join(connecting, accepting).await
}

async fn talk(x: &Endpoint, y: &Endpoint) {
    let received = y.recv(vec![0; 5]).post();
    x.send(b"hello".to_vec()).await.unwrap();
    let (_, bytes) = received.unwrap().await.unwrap();
    assert_eq!(bytes, b"hello");
}

async fn write(x: &Endpoint, remote: RemoteRegion, byte: u8) -> Result<(), Error> {
    let written = x.write(vec![byte; remote.len as usize], remote);
    written.await.map(|_| ()).map_err(Error::from)
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
/// fi_mr(3): "Authorization keys are used to limit communication between endpoints."
/// fi_domain(3): "The default authorization key to associate with endpoint and memory registrations
/// created within the domain."
/// fi_domain(3): "If set to 0, then no authorization key will be associated with endpoints and
/// memory registrations created within the domain"
#[test]
fn only_endpoints_of_the_same_key_communicate() {
    on_every_backend(|net| async move {
        let keys = [&b""[..], KEY, OTHER];
        for ours in keys {
            for theirs in keys {
                let (a, b) = (with_key(&net, ours), with_key(&net, theirs));
                let x = living(a.domain.endpoint());
                let y = living(b.domain.endpoint());
                let (connected, accepted) = attempt(&x, &y, &b).await;
                if ours == theirs {
                    connected.unwrap();
                    accepted.unwrap();
                    talk(&x, &y).await;
                    talk(&y, &x).await;
                    let region = open_region(&b, vec![1u8; 64]).await;
                    assert_eq!(read(&x, region.remote()).await.unwrap(), [1; 64]);
                    continue;
                }
                let accepted = accepted.unwrap_err();
                assert_eq!(
                    (accepted.kind(), accepted.fi_errno()),
                    (ErrorKind::NotAuthorized, 129)
                );
                // Who was rejected before any proof knows no reason.
                let expected = match ours.is_empty() || theirs.is_empty() {
                    true => ErrorKind::ConnectionRefused,
                    false => ErrorKind::NotAuthorized,
                };
                assert_eq!(connected.unwrap_err().kind(), expected);
                assert!(!x.is_connected() && !y.is_connected());
                assert_eq!((x.peer_incarnation(), y.peer_incarnation()), (None, None));
            }
        }
    });
}

/// fi_endpoint(3): "The domain authorization key will be used if auth_key_size is set to 0."
/// fi_domain(3): "unless specified in the endpoint or memory registration attributes."
#[test]
fn an_endpoint_has_its_own_key_or_its_domains() {
    on_every_backend(|net| async move {
        let (a, b) = (with_key(&net, KEY), with_key(&net, b""));
        let by_hint = Hints::new()
            .domain(|domain| domain.auth_key(key(KEY)))
            .endpoint_attr(|endpoint| endpoint.auth_key(key(OTHER)));
        let c = peer_with(&net, by_hint, DomainBind::empty());
        let of = |peer: &Peer, bytes| living(peer.domain.endpoint().auth_key(key(bytes)));
        let domains = [
            (of(&a, b""), KEY),
            (of(&a, OTHER), OTHER),
            (of(&b, KEY), KEY),
            (of(&c, KEY), KEY),
            (living(c.domain.endpoint()), OTHER),
        ];
        for (x, has) in domains {
            let y = of(&b, has);
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            talk(&x, &y).await;
        }
        let (connected, accepted) = attempt(&of(&a, b""), &of(&b, OTHER), &b).await;
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::NotAuthorized);
        assert_eq!(accepted.unwrap_err().kind(), ErrorKind::NotAuthorized);
    });
}

/// A region of `target` with a key of its own.
fn keyed_region(target: &Peer, bytes: &[u8]) -> MemoryRegion<Vec<u8>> {
    let registered = target.domain.register(vec![1u8; 64]);
    let registered = registered.access(Access::REMOTE).auth_key(key(bytes));
    registered.now().unwrap()
}

/// fi_mr(3): "Indicates the key to associate with this memory registration."
/// fi_mr(3): "Only peer endpoints that are programmed to use the same authorization key may access
/// the memory region."
/// fi_mr(3): "The domain authorization key will be used if the auth_key_size provided is 0."
/// fi_mr(3): "The size of key referenced by the auth_key field in bytes, or 0 if no authorization
/// key is given."
/// fi_mr(3): `fi_mr_attr.auth_key`, structure field.
/// fi_mr(3): `fi_mr_attr.auth_key_size`, structure field.
#[test]
fn a_region_is_there_for_peers_of_its_key_alone() {
    on_every_backend(|net| async move {
        let initiator = with_key(&net, b"");
        for domains in [&b""[..], KEY] {
            let target = with_key(&net, domains);
            let regions = [
                (open_region(&target, vec![1u8; 64]).await, domains),
                (keyed_region(&target, b""), domains),
                (keyed_region(&target, KEY), KEY),
                (keyed_region(&target, OTHER), OTHER),
            ];
            let read_only = target.domain.register_read_only(&b"never changes"[..]);
            let read_only = read_only.auth_key(key(OTHER)).now().unwrap();
            let cache = target.domain.cache().open().unwrap();
            let shared = SharedBuffer::new(vec![3; 64]);
            let cached = cache.register(&shared, ..).access(Access::REMOTE_READ);
            let cached = cached.await.unwrap();
            for (byte, session) in (10..).zip([&b""[..], KEY, OTHER]) {
                let used = if session.is_empty() { domains } else { session };
                let x = living(initiator.domain.endpoint().auth_key(key(used)));
                let y = living(target.domain.endpoint().auth_key(key(session)));
                connect_endpoints(&x, &y, &target.fabric).await.unwrap();
                for (region, has) in &regions {
                    let may = has.is_empty() || *has == used;
                    let (read, written) = (
                        read(&x, region.remote()).await,
                        write(&x, region.remote().slice(..8).unwrap(), byte).await,
                    );
                    if may {
                        assert_eq!(read.unwrap().len(), 64);
                        written.unwrap();
                        assert_eq!(bytes_of(region)[..8], [byte; 8]);
                        continue;
                    }
                    assert!(!bytes_of(region).contains(&byte));
                    // As with a key that nothing has, be the range right or wrong.
                    let nothing = RemoteRegion::new(0, 64, region.key() ^ 1);
                    let outside = RemoteRegion::new(1, 64, region.key());
                    let unknown = self::read(&x, nothing).await.unwrap_err();
                    for refused in [
                        read.unwrap_err(),
                        written.unwrap_err(),
                        self::read(&x, outside).await.unwrap_err(),
                    ] {
                        assert_eq!(refused.refusal(), Some(Refusal::UnknownKey));
                        assert_eq!(
                            (refused.kind(), refused.fi_errno()),
                            (unknown.kind(), unknown.fi_errno())
                        );
                    }
                }
                let seen = read(&x, cached.remote()).await;
                let may = domains.is_empty() || used == domains;
                assert_eq!(seen.is_ok(), may, "{seen:?} {domains:?} {used:?}");
                let seen = read(&x, read_only.remote()).await;
                assert_eq!(seen.is_ok(), used == OTHER);
                talk(&x, &y).await;
            }
        }
    });
}

/// fi_mr(3): `fi_mr_attr.auth_key`: "This field is ignored unless the fabric is opened with API
/// version 1.5 or greater." fi_mr(3): `fi_mr_attr.auth_key_size`: "This field is ignored unless the
/// fabric is opened with API version 1.5 or greater."
#[test]
fn keys_are_ignored_before_version_1_5() {
    on_every_backend(|net| async move {
        let hints = Hints::new().fabric(|fabric| fabric.api_version(ApiVersion::new(1, 4)));
        let old = peer_with(
            &net,
            hints.domain(|domain| domain.auth_key(key(KEY))),
            DomainBind::empty(),
        );
        let new = with_key(&net, b"");
        let x = living(new.domain.endpoint());
        let of_vector = old.domain.endpoint().auth_key(AuthKey::of_address_vector());
        drop(living(of_vector));
        let y = living(old.domain.endpoint().auth_key(key(OTHER)));
        connect_endpoints(&x, &y, &old.fabric).await.unwrap();
        for region in [keyed_region(&old, KEY), keyed_region(&old, b"")] {
            assert_eq!(read(&x, region.remote()).await.unwrap(), [1; 64]);
        }
    });
}

/// fi_domain(3): "If domain auth_key_size is set to the value FI_AV_AUTH_KEY, auth_key must be
/// NULL": there is no address vector to a connected endpoint, and no key to prove without the
/// extension.
#[test]
fn keys_that_cannot_be_used_are_refused_at_once() {
    on(Backend::Loopback, |net| async move {
        let peer = with_key(&net, KEY);
        let vector = AuthKey::of_address_vector;
        let opened = peer.domain.endpoint().auth_key(vector()).open();
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unsupported);
        let registered = peer.domain.register(vec![0; 8]).auth_key(vector()).now();
        let failed = registered.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Unsupported);
        let opened = peer.domain.endpoint().extension(false).open();
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

/// docs/extension.md, section 9: "The private data of the accept is sent only after the proof": it
/// goes to who has proven the key, whole.
#[test]
fn private_data_is_for_who_has_proven_the_key() {
    on_every_backend(|net| async move {
        let (a, b) = (with_key(&net, KEY), with_key(&net, KEY));
        let (listener, requests) = listener(&b);
        for len in [0, 1, 256] {
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let x = a.domain.endpoint().open().unwrap();
            let connecting = async { x.connect(listener.local_addr()).data(&data).await };
            let accepting = async {
                let request = request(&requests).await;
                assert!(request.has_auth_key());
                assert_eq!(request.data(), &data);
                request.accept(&b.domain).data(&data).await
            };
            let (got, accepted) = join(connecting, accepting).await;
            assert_eq!(got.unwrap(), data);
            talk(&x, &accepted.unwrap()).await;
        }
    });
}

/// What a peer sees that shares no code with this library: the other side's bytes until it has
/// enough.
async fn stranger(to: std::net::SocketAddr, offers: &[u8; 8], then: &[u8]) -> Vec<u8> {
    let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
    let mut asked = vec![3, 0, 0, 0, 0, 0, 0, 0];
    asked.extend(offers);
    asked.extend([0; 8]);
    asked.extend(1_u64.to_ne_bytes());
    stream.write_all(&asked).await.unwrap();
    let mut seen = vec![0; if offers[7] & 0x10 == 0 { 0 } else { 32 + 52 }];
    stream.read_exact(&mut seen).await.unwrap();
    if !then.is_empty() {
        stream.write_all(then).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    // A reset is an end too: there may be unread bytes.
    let _ = stream.read_to_end(&mut seen).await;
    seen
}

/// docs/extension.md, section 9: "A side without the key sees only the control frames, random
/// bytes, and that it is refused", and others at the same listener notice nothing.
#[test]
fn strangers_learn_nothing_and_harm_no_peer() {
    for backend in crate::common::backends() {
        if backend == Backend::Loopback {
            continue;
        }
        on(backend, |net| async move {
            let (a, b) = (with_key(&net, KEY), with_key(&net, KEY));
            let (listener, requests) = listener(&b);
            let accept = async |request: ConnRequest| {
                let data = b"for friends only";
                request.accept(&b.domain).data(data).await
            };
            let x = a.domain.endpoint().open().unwrap();
            let connecting = async { x.connect(listener.local_addr()).await };
            let accepting = async { accept(request(&requests).await).await };
            let (connected, y) = join(connecting, accepting).await;
            let y = y.unwrap();
            assert_eq!(connected.unwrap(), &b"for friends only"[..]);
            let mut answer = vec![3, 0x81, 0, 0, 2, 0, 16, 0, 84, 0, 0, 0, 0, 0, 0, 0];
            answer.extend([1, 0, 0, 0x1f]);
            answer.resize(84, 7);
            if cfg!(target_endian = "big") {
                answer[8..16].reverse();
            }
            let mut seen = Vec::new();
            for (offers, then) in [
                (b"\0\0\0\0\0\0\0\0", &[][..]),
                (b"tofa\x01\0\0\x0f", &[]),
                (b"tofa\x01\0\0\x1f", &answer),
                (b"tofa\x01\0\0\x1f", b"anything else that is not a proof"),
                (b"tofa\x01\0\0\x1f", &answer[..50]),
            ] {
                let accepting = async { accept(request(&requests).await).await };
                let asking = stranger(listener.local_addr(), offers, then);
                let (bytes, refused) = join(asking, accepting).await;
                assert!(refused.is_err());
                seen.push(bytes);
                talk(&x, &y).await;
            }
            // Two rejections without data.
            assert_eq!((seen[0].len(), seen[0][1]), (32, 6));
            assert_eq!(seen[0], seen[1]);
            // A response without data, a challenge, a refusal.
            assert_eq!((seen[2].len(), seen[2][1]), (32 + 52 + 16, 1));
            assert_eq!(seen[2][84..89], [3, 0x81, 0, 0, 4]);
            for bytes in &seen {
                let data = bytes.windows(7).any(|it| it == b"friends");
                assert!(!data, "the acceptor's data is for who has the key");
            }
            // Each challenge is another one.
            assert_ne!(seen[2][52..84], seen[3][52..84]);
            let (x, accepting) = (a.domain.endpoint().open().unwrap(), async {
                accept(request(&requests).await).await
            });
            let connecting = async { x.connect(listener.local_addr()).await };
            let (connected, accepted) = join(connecting, accepting).await;
            connected.unwrap();
            talk(&x, &accepted.unwrap()).await;
        });
    }
}

/// Proofs survive a link that moves a few bytes at a time.
#[test]
fn keys_are_proven_over_a_link_in_pieces() {
    on_every_backend(|net| async move {
        for seed in 0..8 {
            let net = net.clone().faults(FaultPlan::seeded(seed).short_io(1.0));
            let (a, b) = (with_key(&net, KEY), with_key(&net, KEY));
            let x = living(a.domain.endpoint());
            let y = living(b.domain.endpoint());
            connect_endpoints(&x, &y, &b.fabric).await.unwrap();
            talk(&x, &y).await;
            let wrong = living(a.domain.endpoint().auth_key(key(OTHER)));
            let (connected, accepted) = attempt(&wrong, &living(b.domain.endpoint()), &b).await;
            assert_eq!(connected.unwrap_err().kind(), ErrorKind::NotAuthorized);
            assert_eq!(accepted.unwrap_err().kind(), ErrorKind::NotAuthorized);
        }
    });
}

/// Takes what is logged.
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

/// Keys never in Debug, logs, errors or events.
#[test]
fn no_key_is_ever_shown() {
    alone("auth::all_that_is_shown");
}

#[test]
#[ignore = "the other process of another test: it takes all that is logged"]
fn all_that_is_shown() {
    let log = Log::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || kept.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    on(Backend::Loopback, |net| {
        let mut shown = log.clone();
        async move {
            let (a, b) = (with_key(&net, KEY), with_key(&net, OTHER));
            let (wrong, y) = (a.domain.endpoint(), living(b.domain.endpoint()));
            let builder = format!("{wrong:?} {:?}", a.domain.info());
            let registered = a.domain.register(vec![0; 8]).auth_key(key(KEY));
            write!(shown, "{builder} {registered:?}").unwrap();
            let region = registered.now().unwrap();
            let friend = living(b.domain.endpoint().auth_key(key(KEY)));
            let good = living(a.domain.endpoint());
            connect_endpoints(&good, &friend, &b.fabric).await.unwrap();
            talk(&good, &friend).await;
            let x = living(wrong);
            let (connected, accepted) = attempt(&x, &y, &b).await;
            let (connected, accepted) = (connected.unwrap_err(), accepted.unwrap_err());
            write!(shown, "{connected} {connected:?} {accepted} {accepted:?}").unwrap();
            for peer in [&a, &b] {
                while let Some(event) = peer.events.try_next() {
                    if let Event::Error(error) = &event {
                        write!(shown, "{error}").unwrap();
                    }
                    write!(shown, "{event:?}").unwrap();
                }
            }
            write!(shown, "{region:?} {:?} {x:?} {y:?}", a.domain).unwrap();
        }
    });
    let log = log.0.lock().unwrap();
    let text = String::from_utf8_lossy(&log);
    assert!(
        text.contains("18 bytes") && text.contains("Hello {"),
        "{text}"
    );
    for secret in [KEY, OTHER] {
        let said = String::from_utf8(secret.to_vec()).unwrap();
        let numbers = format!("{secret:?}");
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        for way in [&said[..10], &numbers[1..20], &hex[..20]] {
            assert!(!text.contains(way), "{way}");
        }
    }
}
