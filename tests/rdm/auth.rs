//! Authorization keys of connectionless endpoints (`fi_endpoint(3)`, `fi_domain(3)`): who
//! communicates with whom, and what everybody else learns (`docs/extension.md`, section 9).

use crate::common::peers::{any, open_region, peer_with};
use crate::common::proof::Prover;
use crate::common::{on, on_every_backend};
use futures::FutureExt;
use futures::future::join;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Backend, Error, ErrorKind, Hints, RdmEndpoint, av::FabricAddr, domain::DomainBind,
    error::Refusal, info::AuthKey,
};

const KEY: &[u8] = b"the key of one job";
const OTHER: &[u8] = b"the key of another";

/// A peer whose domain has this key; none without bytes.
fn with_key(net: &Net, bytes: &[u8]) -> Peer {
    peer_with(
        net,
        Hints::new().domain(|domain| domain.auth_key(AuthKey::new(bytes))),
        DomainBind::empty(),
    )
}

/// Two endpoints of domains with these keys, each with the other's name.
fn pair(net: &Net, ours: &[u8], theirs: &[u8]) -> [(Peer, RdmEndpoint, FabricAddr); 2] {
    let opened = [ours, theirs].map(|bytes| {
        let peer = with_key(net, bytes);
        let endpoint = peer.rdm_endpoint().unwrap();
        (peer, endpoint)
    });
    let addresses = [1, 0].map(|other: usize| opened[other].1.local_addr());
    let mut addresses = addresses.into_iter();
    opened.map(|(peer, endpoint)| {
        let other = endpoint.insert(addresses.next().unwrap()).unwrap();
        (peer, endpoint, other)
    })
}

/// How a message that is sent here ends.
async fn send(x: &RdmEndpoint, to: FabricAddr) -> Result<(), Error> {
    let sent = x.send("hello", to).delivery_complete().await;
    sent.map(|_| ()).map_err(Error::from)
}

async fn talk(x: &RdmEndpoint, to: FabricAddr, y: &RdmEndpoint) {
    let sent = async { send(x, to).await.unwrap() };
    let ((), received) = join(sent, y.recv(vec![0; 8]).into_future()).await;
    assert_eq!(received.unwrap().1[..5], *b"hello");
}

fn has_nothing(endpoint: &RdmEndpoint) -> bool {
    let receive = endpoint.recv(vec![0; 8]).into_future();
    receive.now_or_never().is_none() && endpoint.unexpected_bytes() == 0
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
/// fi_domain(3): "The default authorization key to associate with endpoint and memory registrations
/// created within the domain." "If set to 0, then no authorization key will be associated with
/// endpoints and memory registrations created"
/// fi_mr(3): "Authorization keys are used to limit communication between endpoints."
#[test]
fn only_connectionless_endpoints_of_the_same_key_communicate() {
    on_every_backend(|net| async move {
        let keys = [&b""[..], KEY, OTHER];
        for ours in keys {
            for theirs in keys {
                let [(_a, x, to_y), (b, y, to_x)] = pair(&net, ours, theirs);
                if ours == theirs {
                    talk(&x, to_y, &y).await;
                    talk(&y, to_x, &x).await;
                    let region = open_region(&b, vec![1u8; 64]).await;
                    let read = x.read(vec![0; 64], to_y, region.remote()).await;
                    assert_eq!(read.unwrap().1, [1; 64]);
                    let tagged = y.recv_tagged(vec![0; 4], 7).into_future();
                    x.send_tagged("tags", to_y, 7).await.unwrap();
                    assert_eq!(tagged.await.unwrap().1, b"tags");
                    continue;
                }
                // Both at once, and what waits for the peer ends with the reason.
                let (at_x, at_y) = join(send(&x, to_y), send(&y, to_x)).await;
                // Who is rejected before any proof knows no reason.
                let expected = match ours.is_empty() || theirs.is_empty() {
                    true => ErrorKind::ConnectionRefused,
                    false => ErrorKind::NotAuthorized,
                };
                for (ended, receiver) in [(at_x, &y), (at_y, &x)] {
                    assert_eq!(ended.unwrap_err().kind(), expected);
                    assert!(has_nothing(receiver));
                }
            }
        }
    });
}

/// fi_endpoint(3): "The domain authorization key will be used if auth_key_size is set to 0.": an
/// endpoint's own key goes before it, and a region's is compared with that of the connection.
/// fi_domain(3): the domain's "unless specified in the endpoint or memory registration attributes."
/// fi_mr(3): "Only peer endpoints that are programmed to use the same authorization key may access
/// the memory region." "Indicates the key to associate with this memory registration."
#[test]
fn a_connectionless_endpoint_has_its_own_key_or_its_domains() {
    on_every_backend(|net| async move {
        let (a, b) = (with_key(&net, KEY), with_key(&net, b""));
        let own = |peer: &Peer, bytes: &[u8]| {
            let builder = peer.domain.rdm_endpoint().listen_at(net_address(peer));
            builder.auth_key(AuthKey::new(bytes)).open().unwrap()
        };
        let of_other = b
            .domain
            .register(vec![2u8; 8])
            .auth_key(AuthKey::new(OTHER));
        let of_other = of_other.access(tokio_fabric::Access::REMOTE).now().unwrap();
        for (x, y, used) in [
            (own(&a, b""), own(&b, KEY), KEY),
            (own(&a, OTHER), own(&b, OTHER), OTHER),
        ] {
            let to_y = x.insert(y.local_addr()).unwrap();
            talk(&x, to_y, &y).await;
            let read = x.read(vec![0; 8], to_y, of_other.remote()).await;
            match used == OTHER {
                true => assert_eq!(read.unwrap().1, [2; 8]),
                false => {
                    let refused = Error::from(read.unwrap_err()).refusal();
                    assert_eq!(refused, Some(Refusal::UnknownKey));
                }
            }
        }
        let (x, y) = (own(&a, b""), own(&b, OTHER));
        let to_y = x.insert(y.local_addr()).unwrap();
        let refused = send(&x, to_y).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.fi_errno()),
            (ErrorKind::NotAuthorized, 129)
        );
    });
}

/// Where an endpoint of this peer's may listen.
fn net_address(peer: &Peer) -> std::net::SocketAddr {
    let mut address = peer.rdm_endpoint().unwrap().local_addr();
    address.set_port(0);
    address
}

/// The first operations of both sides at once: whichever attempt wins, the key is proven on it, and
/// nothing that was posted is lost. The same after each end of a connection.
#[test]
fn keys_are_proven_on_whichever_connection_comes_about() {
    on_every_backend(|net| async move {
        for _ in 0..10 {
            let [(_a, x, to_y), (_b, y, to_x)] = pair(&net, KEY, KEY);
            for _ in 0..3 {
                join(talk(&x, to_y, &y), talk(&y, to_x, &x)).await;
                x.disconnect(to_y).unwrap();
            }
            let own = x.insert(x.local_addr()).unwrap();
            talk(&x, own, &x).await;
        }
    });
}

/// Eight bytes of private data, as libfabric's connectionless endpoints say them: the version, no
/// feature, where they listen, and their process.
fn plain_data(port: u16) -> [u8; 8] {
    let [high, low] = port.to_be_bytes();
    [1, 0, high, low, 0, 0, 0x12, 0x34]
}

/// A control frame of a peer that shares no code with this library.
fn control(kind: u8, data: [u8; 8]) -> Vec<u8> {
    let mut frame = vec![3, kind, 0, 8];
    frame.resize(24, 0);
    frame.extend(1_u64.to_ne_bytes());
    frame.extend(data);
    frame
}

/// docs/extension.md, section 9: a C peer, which cannot prove a key, is refused by a peer that
/// has one, whichever of the two begins.
#[test]
fn plain_peers_are_refused_by_connectionless_endpoints_with_a_key() {
    for backend in crate::common::backends() {
        if backend == Backend::Loopback {
            continue;
        }
        on(backend, |net| async move {
            let [(_a, x, to_y), (_b, y, _)] = pair(&net, KEY, KEY);
            let mut stream = TcpStream::connect(x.local_addr()).await.unwrap();
            let data = plain_data(stream.local_addr().unwrap().port());
            stream.write_all(&control(0, data)).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!((answer[1], &answer[32..]), (6, &data[..]), "a reject");
            // A listener that accepts without an offer.
            let listener = TcpListener::bind(any()).await.unwrap();
            let to_it = x.insert(listener.local_addr().unwrap()).unwrap();
            let accepting = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 32 + 18];
                stream.read_exact(&mut request).await.unwrap();
                let mut data: [u8; 8] = request[32..40].try_into().unwrap();
                data[0] |= 0x80;
                stream.write_all(&control(1, data)).await.unwrap();
                let mut rest = Vec::new();
                // A reset is an end too.
                let _ = stream.read_to_end(&mut rest).await;
                rest
            };
            let (rest, ended) = join(accepting, send(&x, to_it)).await;
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::NotAuthorized);
            assert!(rest.is_empty(), "nothing is said to it");
            talk(&x, to_y, &y).await;
        });
    }
}

/// What a stranger says, by name.
pub type Opening = (&'static str, Said);

/// These bytes, or the proof of a key.
pub enum Said {
    Bytes(Vec<u8>),
    Proof(&'static [u8]),
}

/// What strangers without the key say before they would have to prove it, each after a request in
/// the good peer's name and of another life.
pub fn openings() -> Vec<Opening> {
    let proof = |step: u8, payload: usize| {
        let mut frame = vec![3, 0x81, 0, 0, step, 0, 16, 0];
        frame.extend((16 + payload as u64).to_ne_bytes());
        frame.resize(16 + payload, 0x5a);
        frame
    };
    let hello = {
        let mut frame = vec![3, 0x80, 0, 0, 0, 0, 16, 0];
        frame.extend(28_u64.to_ne_bytes());
        frame.extend([0, 1, 0, 8, 1, 1, 1, 1, 1, 1, 1, 1]);
        frame
    };
    let message = {
        let mut frame = vec![3, 0, 0, 0, 0, 0, 16, 0];
        frame.extend(20_u64.to_ne_bytes());
        frame.extend(*b"evil");
        frame
    };
    let bytes = [
        ("nothing", vec![]),
        ("a proof of another key", proof(2, 68)),
        ("half a proof", proof(2, 68)[..40].to_vec()),
        ("two proofs", [proof(2, 68), proof(2, 68)].concat()),
        ("a challenge", proof(1, 36)),
        ("an acceptor's proof", proof(3, 32)),
        ("a refusal", proof(4, 0)),
        ("a step that there is not", proof(9, 0)),
        ("a hello", hello),
        ("a message", message),
        ("noise", vec![0xee; 200]),
    ];
    let bytes = bytes.map(|(what, bytes)| (what, Said::Bytes(bytes)));
    let proof = ("the proof of a third key", Said::Proof(b"a third key"));
    bytes.into_iter().chain([proof]).collect()
}

/// Issue: "a process that says in a connection request that it is a known peer with a new
/// incarnation makes the endpoint end the good connection". A request counts once its key is proven:
/// no message that comes before that ends, or holds up, anything of the good peer's.
#[test]
fn who_does_not_prove_the_key_ends_nothing_by_what_it_claims() {
    for backend in crate::common::backends() {
        if backend == Backend::Loopback {
            continue;
        }
        on(backend, |net| async move {
            let [(_a, x, to_y), (_b, y, to_x)] = pair(&net, KEY, KEY);
            strangers_end_nothing((&x, to_y), (&y, to_x), &openings()).await;
        });
    }
}

/// Strangers come to `x` in the name of `y`, and say each of these once they are challenged.
pub async fn strangers_end_nothing(
    (x, to_y): (&RdmEndpoint, FabricAddr),
    (y, to_x): (&RdmEndpoint, FabricAddr),
    openings: &[Opening],
) {
    talk(x, to_y, y).await;
    // Awaits the good peer all the time: the end of its connection would end it.
    let mut awaits = y.send(vec![1; 1 << 20], to_x).post().unwrap();
    let mut silent = Vec::new();
    for round in 0..3u8 {
        for (what, opening) in openings {
            let mut stream = TcpStream::connect(x.local_addr()).await.unwrap();
            let [high, low] = y.local_addr().port().to_be_bytes();
            let mut data = vec![1, 0, high, low, 0x77, 0, 0, round];
            data.extend(*b"tofa\x00\x04\x01\x00\x00\xbf");
            let mut request = vec![3, 0, 0, data.len() as u8];
            request.resize(24, 0);
            request.extend(1_u64.to_ne_bytes());
            request.extend(data);
            stream.write_all(&request).await.unwrap();
            // It is challenged, and gets no more than that.
            let mut answer = [0; 32 + 18 + 16 + 36];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer[1], 1, "{what}: challenged");
            let opening = match opening {
                Said::Bytes(bytes) => bytes.clone(),
                Said::Proof(key) => {
                    let prover = Prover {
                        key,
                        offers: 0xbf,
                        agreed: u16::from_be_bytes([answer[48], answer[49]]),
                        binding: &[],
                    };
                    prover.answer(&answer[66..]).1
                }
            };
            stream.write_all(&opening).await.unwrap();
            talk(x, to_y, y).await;
            let is_whole = !matches!(*what, "nothing" | "half a proof");
            if is_whole {
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await; // a reset is an end too
                assert!(rest.is_empty() || rest[4] == 4, "{what}: {rest:?}");
            } else {
                silent.push(stream);
            }
            assert!(futures::poll!(&mut awaits).is_pending(), "{what}");
        }
    }
    // Whom the good peer connects to anew is reached in spite of those who are silent.
    x.recv(vec![0; 1 << 20]).await.unwrap();
    awaits.await.unwrap();
    x.disconnect(to_y).unwrap();
    talk(x, to_y, y).await;
    talk(y, to_x, x).await;
    drop(silent);
}

/// Keys of address vectors are those of a domain that was opened with them, and there is no key to
/// prove without the extension.
#[test]
fn keys_that_connectionless_endpoints_cannot_use_are_refused_at_once() {
    on(Backend::Loopback, |net| async move {
        let peer = with_key(&net, KEY);
        let of_vector = peer
            .domain
            .rdm_endpoint()
            .auth_key(AuthKey::of_address_vector());
        assert_eq!(of_vector.open().unwrap_err().kind(), ErrorKind::Unsupported);
        let plain = peer.domain.rdm_endpoint().extension(false);
        assert_eq!(plain.open().unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}
