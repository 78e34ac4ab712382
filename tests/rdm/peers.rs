//! Connectionless endpoints and their peers: connections that begin at once on both sides, peers
//! that cannot be reached, restart or go, addresses that are removed.

mod crowd;
mod events;
mod late;

use std::time::{Duration, Instant};

use crate::common::peers::{crowd, rdm_with_queue};
use crate::common::{on_every_backend, on_every_backend_at_once};
use futures::FutureExt;
use futures::future::join_all;
use tokio_fabric::testing::FaultPlan;
use tokio_fabric::{ErrorKind, UserContext, error::Phase, info::AvType, rdm::IdlePolicy};

/// The first operations of both sides at once make one connection, and nothing is lost or doubled.
#[test]
fn simultaneous_first_sends_all_arrive_once() {
    on_every_backend(|net| async move {
        for _ in 0..20 {
            let (a, b) = net.rdm_pair().unwrap();
            let there = a.endpoint.send("there", a.other).delivery_complete();
            let back = b.endpoint.send("and back", b.other).delivery_complete();
            let sending = futures::future::join(there.into_future(), back.into_future());
            let at_b = b.endpoint.recv(vec![0u8; 16]);
            let at_a = a.endpoint.recv(vec![0u8; 16]);
            let receiving = futures::future::join(at_b.into_future(), at_a.into_future());
            let ((there, back), (at_b, at_a)) = futures::future::join(sending, receiving).await;
            there.unwrap();
            back.unwrap();
            assert_eq!((at_b.unwrap().0.len, at_a.unwrap().0.len), (5, 8));
            assert!(
                a.endpoint
                    .recv(vec![0u8; 1])
                    .into_future()
                    .now_or_never()
                    .is_none()
            );
            assert!(
                b.endpoint
                    .recv(vec![0u8; 1])
                    .into_future()
                    .now_or_never()
                    .is_none()
            );
        }
    });
}

/// All-to-all of 16 endpoints in one process, each sending to each, itself too, at once: completes.
#[test]
fn sixteen_endpoints_all_send_to_all_at_once() {
    const SIDES: usize = 16;
    const EACH: usize = 8;
    on_every_backend(|net| async move {
        let crowd = crowd(&net, SIDES);
        let sends = crowd
            .iter()
            .enumerate()
            .flat_map(|(from, (_, endpoint, known))| {
                known.iter().flat_map(move |to| {
                    (0..EACH).map(move |number| {
                        let send = endpoint.send(vec![from as u8, number as u8], *to);
                        send.delivery_complete().into_future()
                    })
                })
            });
        let receives = crowd.iter().map(|(_, endpoint, known)| async move {
            let mut expected = [0u8; SIDES];
            for _ in 0..SIDES * EACH {
                let (received, bytes) = endpoint.recv(vec![0u8; 2]).await.unwrap();
                let from = bytes[0] as usize;
                assert_eq!((received.len, received.source), (2, Some(known[from])));
                assert_eq!(bytes[1], expected[from], "in order, none lost, none twice");
                expected[from] += 1;
            }
            assert!(expected.iter().all(|count| *count as usize == EACH));
        });
        // A send that fails ends the test: its message's receive would wait in vain.
        let sending = async {
            for sent in join_all(sends.map(|send| async { send.await.unwrap() })).await {
                assert_eq!(sent.0, 2);
            }
        };
        futures::future::join(sending, join_all(receives)).await;
    });
}

/// "An operation to a peer that never answers ends with "unreachable", it does not spin"
/// (FI_EHOSTUNREACH); other peers know nothing of it.
#[test]
fn an_unreachable_peer_is_reported_at_the_deadline() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let deadline = Duration::from_millis(300);
        let opened = one.domain.rdm_endpoint().connect_deadline(deadline);
        let x = opened
            .listen_at(crate::common::peers::any())
            .open()
            .unwrap();
        let y = two.rdm_endpoint().unwrap();
        let (_held, address) = crate::common::peers::reserved();
        let absent = x.insert(address).unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        let began = Instant::now();
        let lost = x.send("lost", absent).post().unwrap();
        let also = x.read(vec![0u8; 4], absent, no_region()).post().unwrap();
        let sends = (0..50u8).map(|number| x.send(vec![number], to_y).into_future());
        for sent in join_all(sends).await {
            sent.unwrap();
        }
        let (failed, bytes) = lost.await.unwrap_err().into_parts();
        assert_eq!(
            (failed.kind(), failed.fi_errno()),
            (ErrorKind::Unreachable, 113)
        );
        assert_eq!(bytes, Some("lost"));
        assert_eq!(
            failed.peer(),
            Some(x.address_vector().lookup(absent).unwrap())
        );
        assert_eq!(also.await.unwrap_err().kind(), ErrorKind::Unreachable);
        let took = began.elapsed();
        assert!(took >= deadline && took < 20 * deadline, "{took:?}");
        // And again: the next use tries again.
        let again = x.send("lost", absent).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Unreachable);
    });
}

/// A peer that listens only later is reached then: what was posted before waited for it.
#[test]
fn what_is_posted_before_the_peer_is_there_reaches_it() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let x = one.rdm_endpoint().unwrap();
        let (_held, address) = crate::common::peers::reserved();
        let to_y = x.insert(address).unwrap();
        let mut early = x.send("early", to_y).post().unwrap();
        let wait = tokio::time::timeout(Duration::from_millis(50), &mut early);
        assert!(wait.await.is_err(), "no endpoint listens yet");
        let y = two.domain.rdm_endpoint().listen_at(address).open().unwrap();
        let (received, _) = y.recv(vec![0u8; 8]).await.unwrap();
        assert_eq!(
            (received.len, received.source_addr),
            (5, Some(x.local_addr()))
        );
        early.await.unwrap();
    });
}

/// "restarted peer (new incarnation) recognised": what was bound to the old one ends with an error,
/// the next operation reaches the new one.
#[test]
fn a_restarted_peer_is_a_new_one() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (_held, address) = crate::common::peers::reserved();
        let x = one.rdm_endpoint().unwrap();
        let y = two.domain.rdm_endpoint().listen_at(address).open().unwrap();
        let to_y = x.insert(address).unwrap();
        x.send("first life", to_y)
            .delivery_complete()
            .await
            .unwrap();
        let region = crate::common::peers::open_region(&two, vec![1u8; 8]).await;
        let remote = region.remote();
        x.read(vec![0u8; 8], to_y, remote).await.unwrap();
        drop(y);
        let three = net.peer().unwrap();
        let y = loop {
            // The old one's listener closes after its handle.
            match three.domain.rdm_endpoint().listen_at(address).open() {
                Ok(endpoint) => break endpoint,
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddressInUse),
            }
            tokio::task::yield_now().await;
        };
        // The end of the old life takes some time, and may still take a message along; then each
        // send fails or reaches the new life.
        let sending = async {
            loop {
                let send = x.send("second life", to_y).delivery_complete();
                if let Err(failed) = send.await {
                    let kind = failed.kind();
                    let lost = [
                        ErrorKind::PeerClosed,
                        ErrorKind::ConnectionReset,
                        ErrorKind::Canceled,
                    ];
                    assert!(lost.contains(&kind), "{failed:?}");
                }
            }
        };
        let receiving = y.recv(vec![0u8; 16]).post().unwrap();
        let got = futures::future::select(Box::pin(sending), receiving).await;
        let futures::future::Either::Right((got, _)) = got;
        let (received, bytes) = got.unwrap();
        assert_eq!(&bytes[..received.len], b"second life");
        let to_x = y.insert(x.local_addr()).unwrap();
        y.send("hello", to_x).await.unwrap();
        assert_eq!(x.recv(vec![0u8; 8]).await.unwrap().0.source, Some(to_y));
    });
}

/// fi_av(3): "The removed address - either the mapped address (in the case of FI_AV_MAP) or index
/// (FI_AV_TABLE) - is invalid until it is returned again by a new fi_av_insert."
#[test]
fn a_removed_address_never_reaches_a_new_peer() {
    on_every_backend(|net| async move {
        for kind in [AvType::Table, AvType::Map] {
            let (one, two, three) = (
                net.peer().unwrap(),
                net.peer().unwrap(),
                net.peer().unwrap(),
            );
            let vector = one.domain.address_vector().av_type(kind).open().unwrap();
            let opened = one.domain.rdm_endpoint().address_vector(&vector);
            let x = opened
                .listen_at(crate::common::peers::any())
                .open()
                .unwrap();
            let (y, z) = (two.rdm_endpoint().unwrap(), three.rdm_endpoint().unwrap());
            let old = vector.insert(y.local_addr()).now().unwrap();
            x.send("to y", old).delivery_complete().await.unwrap();
            vector.remove(old).unwrap();
            let new = vector.insert(z.local_addr()).now().unwrap();
            assert_eq!(old.index(), new.index(), "the place is taken again");
            let refused = x.send("to y", old).await.unwrap_err();
            assert_eq!(
                (refused.kind(), refused.into_parts().1),
                (ErrorKind::InvalidArgument, Some("to y"))
            );
            let refused = x.inject(b"to y", old).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            let refused = x.recv(vec![1u8; 4]).from(old).await.unwrap_err();
            assert_eq!(
                (refused.kind(), refused.into_parts().1),
                (ErrorKind::InvalidArgument, Some(vec![1u8; 4]))
            );
            assert_eq!(
                x.disconnect(old).unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
            x.send("to z", new).delivery_complete().await.unwrap();
            assert_eq!(&z.recv(vec![0u8; 4]).await.unwrap().1, b"to z");
            assert_eq!(&y.recv(vec![0u8; 4]).await.unwrap().1, b"to y");
            assert!(z.recv(vec![0u8; 4]).into_future().now_or_never().is_none());
            // Another vector's value is no address of this one.
            let other = one.domain.address_vector().open().unwrap();
            let foreign = other.insert(y.local_addr()).now().unwrap();
            let refused = x.send("to y", foreign).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    });
}

/// fi_endpoint(3): "if the operation completed before the call to fi_cancel, then the completion
/// status of that operation will be available"
/// fi_endpoint(3): `FI_ECANCELED`
/// fi_endpoint(3): "fi_cancel attempts to cancel an outstanding asynchronous operation."
/// fi_endpoint(3): "fi_cancel attempts to cancel an outstanding asynchronous operation"; of what
/// waits for a connection too, and of one peer's without another's.
#[test]
fn operations_end_early_before_the_connection_is_up_and_after() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, queue) = rdm_with_queue(&one);
        let y = two.rdm_endpoint().unwrap();
        let (_held, address) = crate::common::peers::reserved();
        let absent = x.insert(address).unwrap();
        let to_y = x.insert(y.local_addr()).unwrap();
        // Before: the connection is not up.
        let waits = x.send("waits", absent).post().unwrap();
        assert!(waits.phase() < Phase::AwaitingPeer);
        assert!(waits.cancel());
        assert!(!waits.cancel(), "it has ended");
        let (error, buffer) = waits.await.unwrap_err().into_parts();
        assert_eq!((error.kind(), buffer), (ErrorKind::Canceled, Some("waits")));
        let named = x.send("named", absent).queue(3u64).try_post().unwrap();
        assert!(x.cancel(named));
        let completion = queue.next().await.unwrap();
        assert_eq!(completion.context, UserContext(3));
        assert_eq!(
            completion.result.unwrap_err().error.kind(),
            ErrorKind::Canceled
        );
        let late = x.send("late", absent).timeout(Duration::from_millis(20));
        assert_eq!(late.await.unwrap_err().kind(), ErrorKind::TimedOut);
        drop(x.send("dropped", absent).post().unwrap());
        let all: Vec<_> = (0..5)
            .map(|_| x.send("all", absent).post().unwrap())
            .collect();
        let lives = x.send("lives", to_y).delivery_complete().post().unwrap();
        assert_eq!(x.cancel_all(absent).unwrap(), 5);
        for canceled in join_all(all).await {
            assert_eq!(canceled.unwrap_err().kind(), ErrorKind::Canceled);
        }
        lives.await.unwrap();
        assert_eq!(y.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
        // After: what waits for the peer's receive.
        let to_x = y.insert(x.local_addr()).unwrap();
        let receive = x.recv(vec![3u8; 8]).post().unwrap();
        assert!(receive.cancel());
        let (error, buffer) = receive.await.unwrap_err().into_parts();
        assert_eq!(
            (error.kind(), buffer),
            (ErrorKind::Canceled, Some(vec![3u8; 8]))
        );
        let named = x.recv(vec![0u8; 8]).queue(4u64).try_post().unwrap();
        assert!(x.cancel(named));
        assert!(!x.cancel(named));
        assert_eq!(queue.next().await.unwrap().context, UserContext(4));
        let late = x.recv(vec![0u8; 8]).timeout(Duration::from_millis(20));
        assert_eq!(late.await.unwrap_err().kind(), ErrorKind::TimedOut);
        drop(x.recv(vec![0u8; 8]).post().unwrap());
        y.send("whole", to_x).await.unwrap();
        assert_eq!(x.recv(vec![0u8; 8]).await.unwrap().0.len, 5);
    });
}

/// A connection may be ended by itself: what was posted goes out first, the next operation connects
/// anew, and other peers' go on.
#[test]
fn one_peer_is_disconnected_and_connected_anew() {
    on_every_backend(|net| async move {
        let crowd = crowd(&net, 3);
        let (_, x, to) = &crowd[0];
        let (y, z) = (&crowd[1].1, &crowd[2].1);
        for round in 0..5u8 {
            let sent = x.send(vec![round], to[1]).post().unwrap();
            let other = x.send(vec![round], to[2]).post().unwrap();
            x.disconnect(to[1]).unwrap();
            assert_eq!(y.recv(vec![0u8; 1]).await.unwrap().1, [round]);
            assert_eq!(z.recv(vec![0u8; 1]).await.unwrap().1, [round]);
            sent.await.unwrap();
            other.await.unwrap();
        }
        y.send("back", crowd[1].2[0]).await.unwrap();
        assert_eq!(x.recv(vec![0u8; 4]).await.unwrap().0.source, Some(to[1]));
    });
}

/// fi_endpoint(3), fi_close: an endpoint that ends in order delivers what was posted before, posted
/// receives end as Canceled, and peers' operations to it end too.
#[test]
fn an_orderly_end_delivers_everything_first() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        b.endpoint.send("up", b.other).await.unwrap();
        a.endpoint.recv(vec![0u8; 2]).await.unwrap();
        let posted = a.endpoint.recv(vec![0u8; 8]).post().unwrap();
        let sends: Vec<_> = (0..100u8)
            .map(|number| a.endpoint.send(vec![number; 500], a.other).post().unwrap())
            .collect();
        let ending = a.endpoint.shutdown();
        let receiving = async {
            for number in 0..100u8 {
                let (received, bytes) = b.endpoint.recv(vec![0u8; 500]).await.unwrap();
                assert_eq!((received.len, bytes[499]), (500, number));
            }
        };
        let (ended, ()) = futures::future::join(ending, receiving).await;
        ended.unwrap();
        for sent in join_all(sends).await {
            sent.unwrap();
        }
        assert_eq!(posted.await.unwrap_err().kind(), ErrorKind::Canceled);
        let late = a.endpoint.recv(vec![0u8; 8]).await.unwrap_err();
        assert!(
            matches!(late.kind(), ErrorKind::BadState | ErrorKind::Canceled),
            "{late:?}"
        );
        assert!(a.endpoint.send("late", a.other).await.is_err());
    });
}

fn no_region() -> tokio_fabric::RemoteRegion {
    tokio_fabric::RemoteRegion::new(0, 4, 1)
}

/// What a peer announces to an endpoint that has just become idle, or was asked to disconnect, is
/// not lost, and fails at neither side: it goes over the next connection.
#[test]
fn nothing_is_lost_to_an_idle_close_or_a_disconnect() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let idle = Duration::from_millis(40);
        let open = |peer: &tokio_fabric::testing::Peer| {
            let builder = peer.domain.rdm_endpoint().rendezvous_min(1_000);
            let builder = builder.idle(IdlePolicy::CloseAfter(idle));
            builder
                .listen_at(crate::common::peers::any())
                .open()
                .unwrap()
        };
        let (x, y) = (open(&one), open(&two));
        let (to_x, to_y) = (
            y.insert(x.local_addr()).unwrap(),
            x.insert(y.local_addr()).unwrap(),
        );
        for round in 0..40u8 {
            // Before the end, while it is agreed on, and behind it.
            let post = |len: usize| x.send(vec![round; len], to_y).post().unwrap();
            let first = [post(5_000), post(7_000)];
            match round % 4 {
                0 => y.disconnect(to_x).unwrap(),
                1 => {
                    // It has been announced, and is kept.
                    while y.unexpected_bytes() == 0 {
                        tokio::task::yield_now().await;
                    }
                    y.disconnect(to_x).unwrap();
                }
                // Some time around the one at which the connection is closed.
                _ => {}
            }
            let second = [post(6_000)];
            let receiving = async {
                for len in [5_000, 7_000, 6_000] {
                    let (received, bytes) = y.recv(vec![0u8; 8_000]).await.unwrap();
                    assert_eq!((received.len, bytes[0]), (len, round));
                    assert_eq!(received.source, Some(to_x));
                }
            };
            let sending = async {
                for sent in first.into_iter().chain(second) {
                    sent.await.unwrap();
                }
            };
            futures::future::join(receiving, sending).await;
            if round % 4 > 1 {
                tokio::time::sleep(idle + Duration::from_millis(u64::from(round))).await;
            }
        }
    });
}

/// The peer has not only gone idle: what it had no receive for ends as soon as that is known.
#[test]
fn what_was_announced_to_a_peer_that_closes_ends_soon() {
    on_every_backend_at_once(|net| async move {
        let (one, two) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = (one.rdm_endpoint().unwrap(), two.rdm_endpoint().unwrap());
        let to_y = x.insert(y.local_addr()).unwrap();
        let announced = x.send(vec![1u8; 1 << 20], to_y).post().unwrap();
        while y.unexpected_bytes() == 0 {
            tokio::task::yield_now().await;
        }
        let began = std::time::Instant::now();
        y.shutdown().await.unwrap();
        let failed = announced.await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::PeerClosed);
        assert!(began.elapsed() < Duration::from_secs(10));
    });
}

/// "A receive .. does not end because one peer's connection did": it goes on as the oldest of those
/// posted, and so does the stream of messages; one for that peer alone ends with the reason.
#[test]
fn a_receive_outlives_the_connection_that_was_to_fill_it() {
    on_every_backend(|net| async move {
        // Sent at once, and announced first.
        for len in [40_000_usize, 1 << 20] {
            for directed in [false, true] {
                let half = len as u64 / 2;
                let plan = FaultPlan::seeded(1).cut_after_bytes(half..=half);
                let faulty = net.clone().faults(plan);
                let peers = [&faulty, &net, &net, &net].map(|net| net.peer().unwrap());
                let [y, z, x, v] = peers.each_ref().map(|peer| peer.rdm_endpoint().unwrap());
                let [x_to_y, v_to_y, z_to_y] =
                    [&x, &v, &z].map(|it| it.insert(y.local_addr()).unwrap());
                let y_to_x = y.insert(x.local_addr()).unwrap();
                let first = y.recv(Vec::<u8>::with_capacity(len));
                let first = if directed { first.from(y_to_x) } else { first };
                let mut receives = vec![first.post().unwrap()];
                receives.push(y.recv(Vec::<u8>::with_capacity(len)).post().unwrap());
                let sent = x.send(vec![7u8; len], x_to_y).delivery_complete();
                assert!(sent.await.is_err(), "cut in the middle");
                if directed {
                    let failed = receives.remove(0).await.unwrap_err();
                    assert!(is_loss(failed.kind()), "{}", failed.error());
                    assert_eq!(failed.into_parts().1.unwrap().len(), 0);
                }
                for (at, receive) in receives.into_iter().enumerate() {
                    z.send(vec![at as u8; 9 + at], z_to_y).await.unwrap();
                    let (received, bytes) = receive.await.unwrap();
                    assert_eq!((received.len, bytes), (9 + at, vec![at as u8; 9 + at]));
                }
                let mut messages = y.messages(len, 2);
                let lost = async {
                    let sent = v.send(vec![7u8; len], v_to_y).delivery_complete();
                    assert!(sent.await.is_err(), "cut in the middle");
                    z.send("goes on", z_to_y).await.unwrap();
                };
                let (message, ()) = futures::future::join(messages.next(), lost).await;
                assert_eq!(&message.unwrap().unwrap()[..], b"goes on");
            }
        }
    });
}

fn is_loss(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PeerClosed | ErrorKind::ConnectionReset)
}
