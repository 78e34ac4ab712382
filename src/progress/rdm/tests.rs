//! Connectionless endpoints in one process, with time paused: who connects, who gives up and when.

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;

use crate::endpoint::{Endpoint, RdmEndpoint};
use crate::eq::{Event, EventQueue};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{IdlePolicy, PeerEventKind};
use crate::testing::{Net, Peer};
use crate::wire::PeerData;

const DEADLINE: Duration = Duration::from_secs(30);

/// Runs the test in paused time.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Net) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let limited = tokio::time::timeout(Duration::from_secs(600), test(Net::loopback()));
        limited.await.expect("the test stands still");
    });
}

/// Lets everything that has something to do do it.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Ports that have not ended.
fn ports(endpoint: &RdmEndpoint) -> usize {
    endpoint.rdm().lock_table("test").all_ports().len()
}

/// A peer that speaks libfabric's own protocol only, and says this of itself.
async fn plain_peer(
    peer: &Peer,
    to: &RdmEndpoint,
    port: u16,
    incarnation: u32,
) -> Result<(Endpoint, bytes::Bytes)> {
    let endpoint = peer.domain.endpoint().extension(false).open()?;
    let incarnation = NonZeroU32::new(incarnation).unwrap();
    let data = PeerData::request(port, incarnation, None).encode();
    let answer = endpoint.connect(to.local_addr()).data(data).await?;
    Ok((endpoint, answer))
}

/// Whoever asks it for a connection learns nothing but what `answer` says.
async fn listener(
    peer: &Peer,
    answer: impl Fn(crate::eq::ConnRequest) + Send + 'static,
) -> SocketAddr {
    let requests: EventQueue = peer.fabric.event_queue().open().unwrap();
    let listener = peer.fabric.passive_endpoint(&requests);
    let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    tokio::spawn(async move {
        let _listener = listener;
        while let Some(event) = requests.next().await {
            if let Event::ConnRequest(request) = event {
                answer(request);
            }
        }
    });
    address
}

/// "connection on demand by first use"; what goes back takes the same connection.
#[test]
fn the_first_use_connects_and_the_answer_uses_it() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        assert_eq!((ports(&a.endpoint), ports(&b.endpoint)), (0, 0));
        a.endpoint.send("there", a.other).await.unwrap();
        let (received, bytes) = b.endpoint.recv(vec![0; 9]).await.unwrap();
        assert_eq!(&bytes[..received.len], b"there");
        assert_eq!(received.source, Some(b.other));
        b.endpoint.send("and back", b.other).await.unwrap();
        let (received, bytes) = a.endpoint.recv(vec![0; 9]).await.unwrap();
        assert_eq!(&bytes[..received.len], b"and back");
        assert_eq!((ports(&a.endpoint), ports(&b.endpoint)), (1, 1));
    });
}

/// "simultaneous connect with one winner": what was posted to either side goes over the one that
/// survives.
#[test]
fn simultaneous_first_sends_share_one_connection() {
    run(|net| async move {
        for _ in 0..20 {
            let (a, b) = net.rdm_pair().unwrap();
            let sends: Vec<_> = (0..10)
                .flat_map(|at| {
                    [&a, &b].map(|side| side.endpoint.send(vec![at; 5], side.other).post().unwrap())
                })
                .collect();
            for side in [&a, &b] {
                for at in 0..10 {
                    let (received, bytes) = side.endpoint.recv(vec![0; 8]).await.unwrap();
                    assert_eq!(bytes[..received.len], [at; 5]);
                }
            }
            for send in sends {
                send.await.unwrap();
            }
            settle().await;
            assert_eq!((ports(&a.endpoint), ports(&b.endpoint)), (1, 1));
        }
    });
}

/// The same of many: each pair of them ends with one connection.
#[test]
fn all_to_all_at_once_ends_with_one_connection_per_pair() {
    run(|net| async move {
        const MANY: usize = 8;
        let peers: Vec<_> = (0..MANY).map(|_| net.peer().unwrap()).collect();
        let endpoints: Vec<_> = peers
            .iter()
            .map(|peer| peer.rdm_endpoint().unwrap())
            .collect();
        let mut sends = Vec::new();
        for from in &endpoints {
            for to in &endpoints {
                let to = from.insert(to.local_addr()).unwrap();
                sends.push(from.send("hello", to).post().unwrap());
            }
        }
        for endpoint in &endpoints {
            for _ in 0..MANY {
                endpoint.recv(vec![0; 5]).await.unwrap();
            }
        }
        for send in sends {
            send.await.unwrap();
        }
        settle().await;
        for endpoint in &endpoints {
            // Two ends of the connection to itself.
            assert_eq!(ports(endpoint), MANY - 1 + 2);
        }
    });
}

/// "connection to oneself works".
#[test]
fn an_endpoint_sends_to_itself() {
    run(|net| async move {
        let peer = net.peer().unwrap();
        let endpoint = peer.rdm_endpoint().unwrap();
        let itself = endpoint.insert(endpoint.local_addr()).unwrap();
        for _ in 0..3 {
            endpoint.send("me", itself).await.unwrap();
            let (received, bytes) = endpoint.recv(vec![0; 4]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"me");
            assert_eq!(received.source, Some(itself));
        }
        assert_eq!(ports(&endpoint), 2);
        endpoint.shutdown().await.unwrap();
    });
}

/// How often the words of an error name a peer; the last attempt's error is told within them.
fn peers_named(error: &Error) -> usize {
    error.to_string().matches("(peer ").count()
}

/// "an operation to a peer that never answers ends as Unreachable at the connect deadline", whether
/// its host says that nobody listens or nothing at all; "it never spins", or time would not pass.
#[test]
fn a_peer_that_never_answers_is_unreachable_at_the_deadline() {
    run(|net| async move {
        let (a, silent) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let (keep, kept) = std::sync::mpsc::channel();
        let silent = listener(&silent, move |request| drop(keep.send(request))).await;
        for address in [silent, "127.0.0.1:9".parse().unwrap()] {
            let begun = tokio::time::Instant::now();
            let to = endpoint.insert(address).unwrap();
            let first = endpoint.send("?", to).post().unwrap();
            tokio::time::sleep(DEADLINE / 2).await;
            let second = endpoint.send("?", to).post().unwrap();
            for send in [first, second] {
                let failed = send.await.unwrap_err();
                assert_eq!(
                    failed.error().kind(),
                    ErrorKind::Unreachable,
                    "{}",
                    failed.error()
                );
                assert_eq!(failed.error().peer(), Some(address));
                assert_eq!(peers_named(failed.error()), 1, "{}", failed.error());
            }
            let late = begun.elapsed() - DEADLINE;
            assert!(late < Duration::from_millis(50), "{late:?}");
        }
        drop(kept);
        settle().await;
        assert_eq!(ports(&endpoint), 0);
    });
}

/// "reconnect with jittered backoff": a host that says no at once is asked some dozen times until
/// the deadline, and no more afterwards, when nothing waits.
#[test]
fn a_peer_that_is_not_there_is_tried_some_dozen_times() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        // Without a word, as the system says it.
        let address = listener(&b, move |request| {
            count.fetch_add(1, Ordering::Relaxed);
            request.reject().send().unwrap();
        });
        let to = endpoint.insert(address.await).unwrap();
        let begun = tokio::time::Instant::now();
        let failed = endpoint.send("?", to).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::Unreachable);
        assert!(begun.elapsed() >= DEADLINE);
        let times = asked.load(Ordering::Relaxed);
        assert!((10..75).contains(&times), "{times} times");
        tokio::time::sleep(DEADLINE).await;
        assert_eq!(asked.load(Ordering::Relaxed), times);
    });
}

/// "give up with an error after k rejects in a row".
#[test]
fn a_peer_that_always_rejects_ends_operations_sooner() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let address = listener(&b, |request| {
            let data = request.data().clone();
            request.reject().data(data).send().unwrap();
        })
        .await;
        let to = endpoint.insert(address).unwrap();
        let begun = tokio::time::Instant::now();
        let failed = endpoint.send("?", to).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(peers_named(failed.error()), 1, "{}", failed.error());
        assert!(begun.elapsed() > Duration::from_secs(3) && begun.elapsed() < DEADLINE / 2);
    });
}

/// wire-protocol.md 2.4, connected: same pid → reject, with the request's 8 bytes; "Different →
/// peer restarted: close the old, accept the new". But a claim alone ends nothing: the old
/// connection, and what awaits its peer, ends once another life has answered at the peer's address.
#[test]
fn a_restarted_peer_replaces_its_old_connection_once_its_address_says_so() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        // Until it restarts the peer rejects further connections, as libfabric does.
        let restarted = Arc::new(AtomicBool::new(false));
        let (lives, mut new_life) = tokio::sync::mpsc::unbounded_channel();
        let (is_new, domain) = (Arc::clone(&restarted), c.domain.clone());
        let address = listener(&c, move |request| {
            let asked = PeerData::read(request.data()).unwrap();
            if !is_new.load(Ordering::Relaxed) {
                request.reject().data(asked.plain()).send().unwrap();
                return;
            }
            let (lives, domain) = (lives.clone(), domain.clone());
            tokio::spawn(async move {
                let near = domain.endpoint().extension(false).open().unwrap();
                let response = asked.response(NonZeroU32::new(2).unwrap(), None);
                near.accept(request).data(response.encode()).await.unwrap();
                lives.send(near).unwrap();
            });
        })
        .await;
        let port = address.port();
        let (old, answer) = plain_peer(&c, &endpoint, port, 1).await.unwrap();
        let answer = PeerData::read(&answer).unwrap();
        assert_eq!((answer.port(), answer.offer()), (port, None));
        let source = endpoint.insert(address).unwrap();
        old.send("first").await.unwrap();
        let (received, _) = endpoint.recv(vec![0; 9]).await.unwrap();
        assert_eq!(received.source, Some(source));

        let refused = plain_peer(&c, &endpoint, port, 1).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(refused.data()[2..4], port.to_be_bytes());
        let mut peers = endpoint.peers();
        let is_up = peers.next().await.unwrap();
        assert_eq!((is_up.peer, is_up.incarnation), (address, Some(1)));
        assert!(matches!(is_up.kind, PeerEventKind::Up));

        let mut awaits = endpoint.send(vec![0; 8 << 20], source).post().unwrap();
        settle().await;
        for incarnation in 2..20 {
            let refused = plain_peer(&c, &endpoint, port, incarnation).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            settle().await;
        }
        assert!(futures::poll!(&mut awaits).is_pending(), "it was claimed");
        assert!(peers.next().now_or_never().is_none(), "it was claimed");
        old.send("still there").await.unwrap();
        endpoint.recv(vec![0; 20]).await.unwrap();
        assert_eq!(ports(&endpoint), 1);

        restarted.store(true, Ordering::Relaxed);
        // Who has restarted asks again until it is let in.
        let asked = async {
            while plain_peer(&c, &endpoint, port, 2).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let begun = tokio::time::Instant::now();
        let new = tokio::select! {
            new = new_life.recv() => new.unwrap(),
            () = asked => panic!("it is dialled, not accepted"),
        };
        assert!(begun.elapsed() < Duration::from_secs(2), "recognised late");
        let failed = awaits.await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::PeerClosed);
        assert!(
            failed.error().to_string().contains("restarted"),
            "{}",
            failed.error()
        );
        new.send("second").await.unwrap();
        let (received, _) = endpoint.recv(vec![0; 9]).await.unwrap();
        assert_eq!(received.source, Some(source));
        endpoint.send("to the new one", source).await.unwrap();
        new.recv(vec![0; 20]).await.unwrap();
        settle().await;
        let again = peers.next().now_or_never().flatten().unwrap();
        assert_eq!((again.peer, again.incarnation), (address, Some(2)));
        assert!(matches!(again.kind, PeerEventKind::Restarted), "{again:?}");
        assert!(!old.is_connected());
        assert_eq!(ports(&endpoint), 1);
        assert!(peers.next().now_or_never().is_none(), "the old one's end");
    });
}

/// The old connection ends while the new life is asked whether it is one: who reads what becomes of
/// peers is told of the old one's end and of the new one, once, and the connection stays.
#[test]
fn a_restart_is_told_once_if_the_old_connection_ends_during_the_check() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let address = listener(&c, move |request| asks.send(request).unwrap()).await;
        let (old, _) = plain_peer(&c, &endpoint, address.port(), 1).await.unwrap();
        settle().await;
        let mut peers = endpoint.peers();
        assert_eq!(peers.next().await.unwrap().incarnation, Some(1));
        let refused = plain_peer(&c, &endpoint, address.port(), 2).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let request = asked.recv().await.unwrap();
        drop(old);
        let down = peers.next().await.unwrap();
        assert!(matches!(down.kind, PeerEventKind::Down { .. }), "{down:?}");
        settle().await;
        let near = c.domain.endpoint().extension(false).open().unwrap();
        let response = PeerData::read(request.data()).unwrap();
        let response = response.response(NonZeroU32::new(2).unwrap(), None);
        near.accept(request).data(response.encode()).await.unwrap();
        let up = peers.next().await.unwrap();
        assert_eq!((up.peer, up.incarnation), (address, Some(2)));
        assert!(matches!(up.kind, PeerEventKind::Up), "{up:?}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let more = peers.next().now_or_never();
        assert!(more.is_none(), "{more:?}");
        let source = endpoint.insert(address).unwrap();
        endpoint.send("to the new one", source).await.unwrap();
        near.recv(vec![0; 20]).await.unwrap();
    });
}

/// The same between endpoints of this library, where the old connection shows no end: the new life
/// is recognised by the time that it first sends something, and nothing of it is lost.
#[test]
fn a_restarted_peer_of_ours_is_recognised_by_its_first_send() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let life = c.rdm_endpoint().unwrap();
        let address = life.local_addr();
        let to_it = endpoint.insert(address).unwrap();
        // The old life, whose end nobody tells: another process than the one that listens now.
        let (old, _) = plain_peer(&c, &endpoint, address.port(), 1).await.unwrap();
        let awaits = endpoint.send(vec![0; 8 << 20], to_it).post().unwrap();
        settle().await;
        let back = life.insert(endpoint.local_addr()).unwrap();
        let begun = tokio::time::Instant::now();
        life.send("second life", back).await.unwrap();
        let (received, _) = endpoint.recv(vec![0; 20]).await.unwrap();
        assert_eq!(received.source, Some(to_it));
        assert!(
            begun.elapsed() < Duration::from_millis(500),
            "recognised late"
        );
        assert_eq!(
            awaits.await.unwrap_err().error().kind(),
            ErrorKind::PeerClosed
        );
        endpoint.send("to the new one", to_it).await.unwrap();
        life.recv(vec![0; 20]).await.unwrap();
        settle().await;
        assert!(!old.is_connected());
        assert_eq!((ports(&endpoint), ports(&life)), (1, 1));
    });
}

/// wire-protocol.md 5.1: an RXM request is answered "with a reject frame whose data is `01 01`".
#[test]
fn an_rxm_request_gets_the_reject_it_understands() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        for (data, words) in [
            ([[1, 1, 4, 3].as_slice(), &[0; 20]].concat(), &[1, 1][..]),
            (vec![1, 2, 3], &[]),
            (vec![], &[]),
        ] {
            let stranger = c.domain.endpoint().extension(false).open().unwrap();
            let connecting = stranger.connect(endpoint.local_addr()).data(data);
            let refused = connecting.await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(refused.data()[..], *words);
        }
        assert_eq!(ports(&endpoint), 0);
    });
}

/// A stranger that connects and says nothing more leaves nothing behind.
#[test]
fn a_stranger_that_breaks_off_is_forgotten() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        for at in 0..50 {
            let (stranger, _) = plain_peer(&c, &endpoint, 5000 + at, 1).await.unwrap();
            if at % 2 == 0 {
                stranger.send("a word").await.unwrap();
            }
            drop(stranger);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(ports(&endpoint), 0);
        for _ in 0..25 {
            let (received, _) = endpoint.recv(vec![0; 9]).await.unwrap();
            assert_eq!((received.len, received.source), (6, None));
        }
    });
}

/// "idle connections kept or closed by policy": closed when nothing has gone over them for the
/// time, and made again by the next use.
#[test]
fn an_idle_connection_is_closed_and_made_again() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let idle = IdlePolicy::CloseAfter(Duration::from_secs(20));
        let any = "127.0.0.1:0".parse().unwrap();
        let near = a
            .domain
            .rdm_endpoint()
            .listen_at(any)
            .idle(idle)
            .open()
            .unwrap();
        let far = b.rdm_endpoint().unwrap();
        let (to_far, to_near) = (
            near.insert(far.local_addr()).unwrap(),
            far.insert(near.local_addr()).unwrap(),
        );
        for _ in 0..3 {
            near.send("hello", to_far).await.unwrap();
            far.recv(vec![0; 5]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(19)).await;
            assert_eq!((ports(&near), ports(&far)), (1, 1));
            far.send("hello", to_near).await.unwrap();
            near.recv(vec![0; 5]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(40)).await;
            assert_eq!((ports(&near), ports(&far)), (0, 0));
        }
        let (plain, _) = plain_peer(&b, &near, 4000, 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(plain.is_connected(), "a plain peer cannot agree to an end");
    });
}

/// `IdlePolicy::Keep`: "It stays until either side closes its endpoint."
#[test]
fn an_idle_connection_stays_unless_told_otherwise() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        a.endpoint.send("hello", a.other).await.unwrap();
        b.endpoint.recv(vec![0; 5]).await.unwrap();
        let port = |from: &RdmEndpoint, to: &RdmEndpoint| from.rdm().port_of(to.local_addr());
        let both = || {
            [
                port(&a.endpoint, &b.endpoint),
                port(&b.endpoint, &a.endpoint),
            ]
        };
        let before = both().map(Option::unwrap);
        tokio::time::sleep(Duration::from_secs(500)).await;
        b.endpoint.send("again", b.other).await.unwrap();
        a.endpoint.recv(vec![0; 5]).await.unwrap();
        let after = both().map(Option::unwrap);
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(old, new)| Arc::ptr_eq(old, new))
        );
        assert_eq!((ports(&a.endpoint), ports(&b.endpoint)), (1, 1));
    });
}

/// "each connection ends in order": what was posted goes out first, also to a peer that has to be
/// connected to; one that is not there is waited for some seconds only.
#[test]
fn closing_sends_first_what_was_posted() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for _ in 0..3 {
            a.endpoint.inject(b"last", a.other).unwrap();
        }
        let nobody = a.endpoint.insert("127.0.0.1:9".parse().unwrap()).unwrap();
        let lost = a.endpoint.send("?", nobody).post().unwrap();
        let begun = tokio::time::Instant::now();
        a.endpoint.shutdown().await.unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(12),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(lost.await.unwrap_err().error().kind(), ErrorKind::Canceled);
        for _ in 0..3 {
            let (received, bytes) = b.endpoint.recv(vec![0; 9]).await.unwrap();
            assert_eq!(&bytes[..received.len], b"last");
        }
        let refused = a.endpoint.send("?", a.other).await.unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::BadState);
        settle().await;
        assert_eq!(ports(&b.endpoint), 0);
    });
}

/// "the next use dials again" after a disconnection, in the order in which things were posted.
#[test]
fn a_disconnected_peer_is_dialled_again() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for at in 0..40 {
            a.endpoint.send(vec![at], a.other).await.unwrap();
            let side = if at % 4 == 0 { &a } else { &b };
            if at % 2 == 0 {
                side.endpoint.disconnect(side.other).unwrap();
            }
        }
        for at in 0..40 {
            let (_, bytes) = b.endpoint.recv(vec![0; 1]).await.unwrap();
            assert_eq!(bytes, [at]);
        }
        settle().await;
        assert!(ports(&a.endpoint) <= 1);
    });
}

/// Ruling 11: "Engine gone → every pending and later operation fails with `DriverGone`", also what
/// waits for a connection.
#[test]
fn everything_ends_with_the_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let net = Net::loopback();
    let first = runtime();
    let (a, receive, sends) = first.block_on(async {
        let (a, _b) = net.rdm_pair().unwrap();
        let nobody = a.endpoint.insert("127.0.0.1:9".parse().unwrap()).unwrap();
        let receive = a.endpoint.recv(vec![0; 5]).post().unwrap();
        let sends = [
            a.endpoint.send(vec![0; 4], nobody).post().unwrap(),
            // Announced, and never asked for.
            a.endpoint.send(vec![0; 4 << 20], a.other).post().unwrap(),
        ];
        tokio::task::yield_now().await;
        (a, receive, sends)
    });
    drop(first);
    runtime().block_on(async {
        for send in sends {
            let failed = send.await.unwrap_err();
            assert_eq!(failed.error().kind(), ErrorKind::DriverGone);
        }
        let failed = receive.await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DriverGone);
        let failed = a.endpoint.send("?", a.other).await.unwrap_err();
        assert_eq!(failed.error().kind(), ErrorKind::DriverGone);
        a.endpoint.shutdown().await.unwrap();
    });
}
