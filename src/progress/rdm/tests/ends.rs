//! Connections that end: idle, closed, disconnected, or with the runtime.

use super::*;
use crate::edges::EdgeCoverage;
use crate::progress::engine::Engine;

/// "idle connections kept or closed by policy": closed when nothing has been transferred for that
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

/// `IdlePolicy::Keep`: "It stays open until either side closes its endpoint."
#[test]
fn an_idle_connection_stays_unless_a_limit_is_set() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        a.endpoint.send("hello", a.other).await.unwrap();
        b.endpoint.recv(vec![0; 5]).await.unwrap();
        let port =
            |from: &RdmEndpoint, to: &RdmEndpoint| from.rdm().port_of(to.local_addr().into());
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

/// "each connection ends in order": posted messages are sent first, also to a peer that must be
/// connected first; one that is not there is waited for only a few seconds.
#[test]
fn closing_sends_first_what_was_posted() {
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        for _ in 0..3 {
            a.endpoint.inject(b"last", a.other).unwrap();
        }
        let closed = a.endpoint.insert("127.0.0.1:9".parse().unwrap()).unwrap();
        let lost = a.endpoint.send("?", closed).post().unwrap();
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
        run_other_tasks().await;
        assert_eq!(ports(&b.endpoint), 0);
    });
}

/// "the next use dials again" after a disconnection, in the order of the posts.
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
        run_other_tasks().await;
        assert!(ports(&a.endpoint) <= 1);
    });
}

/// Ruling 11: "every pending and later operation fails with `DriverGone`", also one that waits for
/// a connection.
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
        let closed = a.endpoint.insert("127.0.0.1:9".parse().unwrap()).unwrap();
        let receive = a.endpoint.recv(vec![0; 5]).post().unwrap();
        let sends = [
            a.endpoint.send(vec![0; 4], closed).post().unwrap(),
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

/// An endpoint is closed in order, or ends with its runtime while it is open or closing.
#[test]
fn every_edge_of_an_endpoints_life_is_walked() {
    let coverage = EdgeCoverage::begin("EndpointState");
    run(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        a.endpoint.shutdown().await.unwrap();
        // Its port has yet to end when the runtime ends.
        b.endpoint.inject(b"?", b.other).unwrap();
    });
    let net = Net::loopback();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let open = runtime.block_on(async { net.rdm_pair().unwrap() });
    drop(runtime);
    drop(open);
    coverage.expect_all();
}

/// The task of an endpoint ends with the last handle, even if its driver had ended before.
#[test]
fn an_endpoint_whose_driver_has_ended_leaves_no_task_behind() {
    run(|net| async move {
        let peer = net.peer().unwrap();
        let endpoint = peer.rdm_endpoint().unwrap();
        endpoint.rdm().engine.set_gone(Engine::gone_error());
        run_other_tasks().await;
        let receives = Arc::downgrade(&endpoint.rdm().config.receives);
        drop(endpoint);
        run_other_tasks().await;
        assert!(receives.upgrade().is_none(), "its task has it");
    });
}
