//! Connectionless endpoints in one process, with time paused: which side connects, which gives up,
//! and when.

mod contexts;
mod ends;
mod restarts;

use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures::FutureExt;

use crate::endpoint::{Endpoint, RdmEndpoint};
use crate::eq::{Event, EventQueue};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::port::PortKind;
use crate::progress::{IdlePolicy, PeerEventKind};
use crate::proto::{ConnectionId, Failure};
use crate::testing::{FaultPlan, Net, Peer};
use crate::wire::PeerData;

use super::notice::Notice;

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

/// Lets all other tasks run until they wait.
async fn run_other_tasks() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Returns the number of ports that have not ended.
fn ports(endpoint: &RdmEndpoint) -> usize {
    endpoint.rdm().lock_table("test").all_ports().len()
}

/// Makes a plain peer, with these data about itself.
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

/// Makes a listener that answers requests only as `answer` does.
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

/// "connection on demand by first use"; the answer takes the same connection.
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

/// "simultaneous connect with one winner": messages posted to either side go over the connection
/// that survives.
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
            run_other_tasks().await;
            assert_eq!((ports(&a.endpoint), ports(&b.endpoint)), (1, 1));
        }
    });
}

/// The same with many endpoints: each pair of them ends with one connection.
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
        run_other_tasks().await;
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

/// Returns how often an error's text names a peer; the last attempt's error is part of the text.
fn peers_named(error: &Error) -> usize {
    error.to_string().matches("(peer ").count()
}

/// "an operation to a peer that never answers ends as Unreachable at the connect deadline", whether
/// its host refuses or is silent; "it never spins", or time would not pass.
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
        run_other_tasks().await;
        assert_eq!(ports(&endpoint), 0);
    });
}

/// "reconnect with jittered backoff": a host that refuses at once is asked some dozen times until
/// the deadline, and no more afterwards, when nothing waits.
#[test]
fn a_peer_that_is_not_there_is_tried_some_dozen_times() {
    run(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        // Without data, as the system refuses.
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

/// An operation reports why its peer was given up, even if the end of an older connection with that
/// peer is noticed later.
#[test]
fn the_end_of_an_older_connection_does_not_hide_why_a_peer_is_given_up() {
    run(|net| async move {
        let (a, silent) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let (keep, kept) = std::sync::mpsc::channel();
        let silent = listener(&silent, move |request| drop(keep.send(request))).await;
        let attempt_at = |address: SocketAddr| {
            let port = endpoint.rdm().port_of(address.into()).unwrap();
            match &port.lock("test").kind {
                PortKind::Rdm(attachment) => attachment.attempt.unwrap(),
                PortKind::Msg => unreachable!("a connectionless endpoint has no such ports"),
            }
        };
        let refusing = "127.0.0.1:9".parse().unwrap();
        let [_older, waiting] = [refusing, silent].map(|address| {
            let to = endpoint.insert(address).unwrap();
            endpoint.send("?", to).post().unwrap()
        });
        run_other_tasks().await;
        let (older, newer) = (attempt_at(refusing), attempt_at(silent));
        let failed = Notice::Failed {
            peer: silent.into(),
            attempt: newer,
            failure: Failure::Final,
            incarnation: None,
            error: Error::new(ErrorKind::NotAuthorized, "no"),
        };
        let closed = Notice::Closed {
            peer: silent.into(),
            attempt: Some(older),
            connection: ConnectionId::NONE,
            in_order: false,
        };
        let wakes = [failed, closed].map(|notice| endpoint.rdm().notices.push(notice));
        wakes.into_iter().flatten().for_each(Waker::wake);
        let error = waiting.await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::NotAuthorized, "{error}");
        drop(kept);
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

/// An unknown peer that connects and then stays silent leaves nothing behind.
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
