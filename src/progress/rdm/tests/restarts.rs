//! Peers that restart.

use super::*;
use crate::eq::{LinkTaker, Verdict};
use crate::progress::listen::Handover;
use crate::progress::rdm::attachment::AcceptedConn;
use crate::proto::Lifecycle;
use crate::sync::Ticket;

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
        run_other_tasks().await;
        for incarnation in 2..20 {
            let refused = plain_peer(&c, &endpoint, port, incarnation).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            run_other_tasks().await;
        }
        assert!(futures::poll!(&mut awaits).is_pending(), "it was claimed");
        assert!(peers.next().now_or_never().is_none(), "it was claimed");
        old.send("still there").await.unwrap();
        endpoint.recv(vec![0; 20]).await.unwrap();
        assert_eq!(ports(&endpoint), 1);

        restarted.store(true, Ordering::Relaxed);
        // A peer that has restarted asks again until it is accepted.
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
        run_other_tasks().await;
        let again = peers.next().now_or_never().flatten().unwrap();
        assert_eq!((again.peer, again.incarnation), (address, Some(2)));
        assert!(matches!(again.kind, PeerEventKind::Restarted), "{again:?}");
        assert!(!old.is_connected());
        assert_eq!(ports(&endpoint), 1);
        assert!(peers.next().now_or_never().is_none(), "the old one's end");
    });
}

/// The old connection ends while the new incarnation is being verified: a reader of the peer feed
/// reads the end of the old one and the new one, once, and the connection stays.
#[test]
fn a_restart_is_reported_once_if_the_old_connection_ends_during_the_check() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let address = listener(&c, move |request| asks.send(request).unwrap()).await;
        let (old, _) = plain_peer(&c, &endpoint, address.port(), 1).await.unwrap();
        run_other_tasks().await;
        let mut peers = endpoint.peers();
        assert_eq!(peers.next().await.unwrap().incarnation, Some(1));
        let refused = plain_peer(&c, &endpoint, address.port(), 2).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let request = asked.recv().await.unwrap();
        drop(old);
        let down = peers.next().await.unwrap();
        assert!(matches!(down.kind, PeerEventKind::Down { .. }), "{down:?}");
        run_other_tasks().await;
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

/// The same between endpoints of this library, if the old connection shows no end: the new
/// incarnation is recognised by the time it first sends, and nothing of it is lost.
#[test]
fn a_restarted_peer_of_ours_is_recognised_by_its_first_send() {
    run(|net| async move {
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let life = c.rdm_endpoint().unwrap();
        let address = life.local_addr();
        let to_it = endpoint.insert(address).unwrap();
        // The old incarnation, whose end is not reported: another process than the present
        // listener.
        let (old, _) = plain_peer(&c, &endpoint, address.port(), 1).await.unwrap();
        let awaits = endpoint.send(vec![0; 8 << 20], to_it).post().unwrap();
        run_other_tasks().await;
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
        run_other_tasks().await;
        assert!(!old.is_connected());
        assert_eq!((ports(&endpoint), ports(&life)), (1, 1));
    });
}

/// The connection of a request to the listener, accepted, as the endpoint's task hands it over.
async fn accepted(requests: &EventQueue) -> AcceptedConn {
    let Some(Event::ConnRequest(request)) = requests.next().await else {
        panic!("no request");
    };
    let asked = PeerData::read(request.data()).unwrap();
    let (taken, mut holder) = Ticket::pair();
    let taker = LinkTaker::new(|link| drop(taken.decide(link.unwrap())));
    let decided = request.take_ticket().decide(Verdict::Accept(taker));
    assert!(decided.is_ok());
    let link = std::future::poll_fn(|cx| holder.poll_verdict(cx)).await;
    AcceptedConn {
        attempt: None,
        handover: Handover {
            link: link.unwrap(),
            proven: None,
        },
        asked,
    }
}

/// A second incarnation asks while the response to the first is being sent: the first attempt,
/// which is given up, does not come up even if the response is sent after all.
#[test]
fn an_attempt_that_is_replaced_does_not_come_up_by_what_still_goes_out() {
    run(|_| async {
        let late = Duration::from_millis(20);
        let net = Net::loopback().faults(FaultPlan::seeded(0).delay(late..=late));
        let (a, c) = (net.peer().unwrap(), net.peer().unwrap());
        let endpoint = a.rdm_endpoint().unwrap();
        let requests = a.fabric.event_queue().open().unwrap();
        let listener = a.fabric.passive_endpoint(&requests);
        let listener = listener.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let lives = [1, 2].map(|incarnation| {
            let life = c.domain.endpoint().extension(false).open().unwrap();
            let incarnation = NonZeroU32::new(incarnation).unwrap();
            let data = PeerData::request(9, incarnation, None).encode();
            let connecting = life.connect(listener.local_addr()).data(data).into_future();
            (life, tokio::spawn(connecting))
        });
        let (first, second) = (accepted(&requests).await, accepted(&requests).await);
        let peer = SocketAddr::from(([127, 0, 0, 1], 9)).into();
        let (port, _) = endpoint.rdm().unlisted_port(peer, None).unwrap();
        assert!(port.take_over(first).is_ok());
        // The link has the response, and has yet to report that it was sent.
        tokio::time::sleep(late / 4).await;
        assert_eq!(port.lifecycle(), Lifecycle::Accepting);
        assert!(port.take_over(second).is_ok());
        tokio::time::sleep(4 * late).await;
        assert_eq!(port.lifecycle(), Lifecycle::Connected);
        let [(_one, _), (two, up)] = lives;
        up.await.unwrap().unwrap();
        let receive = endpoint.recv(vec![0; 3]).post().unwrap();
        two.send("two").await.unwrap();
        assert_eq!(receive.await.unwrap().1, b"two");
    });
}
